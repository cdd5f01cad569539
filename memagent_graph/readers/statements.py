"""Cut a text into statements: sentences of prose, lines of code, tables and lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.text.source import JoinedSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.source import Source


NOWHERE = -1
"""Start and end of a statement that a person wrote, and that stands in no document."""


class Statement(NamedTuple):
    """A sentence, or a line of code or of a list.

    Attributes:
        text: the sentence on one line, with runs of white space as single spaces.
        start: offset of its first code point in the text that was cut, or in the whole document.
        end: one past its last.
    """

    text: str
    start: int
    end: int


_NARROWEST = 40
"""Columns of the widest line below which a block is a list, not wrapped prose."""

_MOST_JOINED = 4
"""Most lines of code in one statement."""

LONGEST = 600
"""Code points after which a longer sentence is cut at a line or word."""

_BLOCK = regex.compile(r"\S.*?(?=\n[^\S\n]*\n|\Z)", regex.DOTALL)
_SENTENCE_END = regex.compile(
    r"[.!?…][\"”’')\]]*\s+(?=[\"“‘'(\[]*[\p{Lu}\p{N}\p{Lo}])"
    r"|[。！？｡][」』”’）]*(?![」』”’）。！？])\s*"
)
_ABBREVIATION = regex.compile(
    r"(?r)\b(?:Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|No|Fig|Inc|Ltd|Co|Corp|Prof|Gen|Col|Capt|Lt|Rev|Hon|e\.g"
    r"|i\.e|cf|al|etc|approx|\p{Lu})"
)
_OPENERS = (":", "{", "(", "[", ",", "\\")


def statements_of(chunk: Chunk) -> Iterator[Statement]:
    """Cut a chunk into statements, with offsets in the whole document.

    No statement crosses from one file into the next, and file names between files are skipped.
    """
    for start, end in _files(chunk.source, chunk.start, chunk.end):
        for text, first, last in statements(chunk.text[start - chunk.start : end - chunk.start]):
            yield Statement(text, start + first, start + last)


def _files(source: Source, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The spans between `start` and `end`, one for each file."""
    if not isinstance(source, JoinedSource):
        yield start, end
        return
    while start < end:
        part, begin = source.part_at(start)
        stop = min(begin + part.length, end)
        for first, last in _files(part, max(start - begin, 0), stop - begin):
            if first < last:
                yield begin + first, begin + last
        start = max(stop, begin)


def statements(text: str) -> Iterator[Statement]:
    """Cut `text` into statements, in order."""
    for block in _BLOCK.finditer(text):
        content, start = block[0], block.start()
        spans = _sentences(content) if _is_prose(content) else _lines(content)
        for first, last in spans:
            raw = content[first:last]
            stripped = raw.strip()
            if stripped:
                begin = start + first + len(raw) - len(raw.lstrip())
                yield Statement(" ".join(stripped.split()), begin, begin + len(stripped))


def _is_prose(block: str) -> bool:
    """Whether line ends mean nothing in this block: it is one line, or wrapped prose."""
    lines = block.split("\n")
    if len(lines) == 1:
        return True
    signs = sum(block.count(sign) for sign in "{}()[]=<>_#|;\t")
    widest = max(map(len, lines))
    full = sum(len(line) > widest * 0.6 for line in lines[:-1])
    return signs * 50 < len(block) and widest >= _NARROWEST and full * 3 >= 2 * (len(lines) - 1)


def _sentences(block: str) -> Iterator[tuple[int, int]]:
    start = 0
    ends = [
        match.end()
        for match in _SENTENCE_END.finditer(block)
        if block[match.start()] != "." or not _ABBREVIATION.match(block, 0, match.start())
    ]
    for end in [*ends, len(block)]:
        while end - start > LONGEST:
            within = start + 1, start + LONGEST
            middle = max(block.rfind("\n", *within), 0) or block.rfind(" ", *within)
            middle = middle if middle > 0 else start + LONGEST
            yield start, middle
            start = middle
        if end > start:
            yield start, end
        start = end


def _lines(block: str) -> Iterator[tuple[int, int]]:
    """Lines; one that opens something is joined with the next, as a signature and its docstring."""
    start = position = 0
    joined = 0
    for line in block.split("\n"):
        position += len(line) + 1
        joined += 1
        opens = line.rstrip().endswith(_OPENERS) and joined < _MOST_JOINED
        if not opens:
            for end in range(start + LONGEST, position, LONGEST):
                yield end - LONGEST, end
                start = end
            yield start, position
            start, joined = position, 0
    if start < position:
        yield start, position
