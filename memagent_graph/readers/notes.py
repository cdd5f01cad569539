"""Cut a memory into notes: the sentences of its lines, without bullets, with their headings."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.readers.statements import statements

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


class Note(NamedTuple):
    """A sentence of a memory, or a list item or JSON field.

    Attributes:
        text: exactly as the memory has it.
        start: offset of its first code point in the memory.
        end: one past its last.
        label: length, in code points, of a label at its beginning such as "**Born**:".
        line: the whole line that it stands in.
        context: the heading above, and the text before it in the line.
    """

    text: str
    start: int
    end: int
    label: int
    line: str
    context: str


_MARK = regex.compile(
    r"[ \t]*+(?:[-*+•‣◦–—>]+[ \t]|\d{1,3}[.)][ \t]|#{1,6}[ \t]|\[[ xX]\][ \t]|\d{1,3}、"
    r"|[一二三四五六七八九十]{1,3}、)[ \t]*+"
)
_MOST_MARKS = 4
_LABEL = regex.compile(r"[*_\"“]{0,3}[^\n:：.。!?]{1,60}+(?:[*_\"”]{0,3}[:：])[*_]{0,3}")
_FIELD = regex.compile(r"(?<=[\"\]}\p{L}\p{N}])[ ]?,[ ]?(?=\"[^\"\n]{1,60}+\"[ ]?:)")
_OBJECTS = ("{", "[{", "[")
_CONTEXT = 300
"""Code points of heading, and of text before a note, that are its context."""


def notes(memory: str) -> Iterator[Note]:
    """Cut a memory into notes, in order. Headings and lines of punctuation are skipped."""
    heading = ""
    offset = 0
    for line in memory.splitlines(keepends=True):
        begin, is_heading = _content(line)
        content = line[begin:].rstrip()
        if is_heading or content.rstrip("*_").endswith((":", "：")):
            heading = content
        else:
            for start, end in _spans(content):
                text = content[start:end]
                before = content[max(start - _CONTEXT, 0) : start]
                label = _LABEL.match(text)
                at = offset + begin + start
                size = label.end() if label and label.end() < len(text) else 0
                yield Note(text, at, at + len(text), size, line, f"{heading[:_CONTEXT]} {before}")
        offset += len(line)


def leave_out(memory: str, texts: Collection[str]) -> str:
    """Return a memory without some of its notes; lines left empty are removed."""
    kept: list[str] = []
    for line in memory.splitlines(keepends=True):
        found = [*notes(line)]
        out = [note for note in found if note.text in texts]
        if out and len(out) == len(found):
            continue
        for note in reversed(out):
            line = line[: note.start] + line[note.end :].lstrip(" ")  # noqa: PLW2901 - cut from its end
        kept.append(line)
    return "".join(kept).rstrip()


def _content(line: str) -> tuple[int, bool]:
    """Return the start of a line's own words, and whether it is marked as a heading."""
    begin, is_heading = 0, False
    for _ in range(_MOST_MARKS):
        mark = _MARK.match(line, begin)
        if mark is None:
            break
        is_heading |= "#" in mark[0]
        begin = mark.end()
    return begin + len(line[begin:]) - len(line[begin:].lstrip()), is_heading


def _spans(content: str) -> Iterator[tuple[int, int]]:
    """Sentences of a line, or the fields of an object written on it."""
    cuts = [0, len(content)]
    if content.startswith(_OBJECTS) and '":' in content:
        cuts[1:1] = [match.end() for match in _FIELD.finditer(content)]
    for first, last in pairwise(cuts):
        for cut in statements(content[first:last]):
            if any(map(str.isalnum, cut.text)):
                yield first + cut.start, first + cut.end
