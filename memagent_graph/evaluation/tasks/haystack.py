"""Text that has nothing to do with the question, and what is hidden in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece
from memagent_graph.text.chunking import next_chunk
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Iterator

    from memagent_graph.text.source import Source

_SENTENCE_END = re.compile(r"[.!?。！？][\"”’」)]*\s+")
_PARAGRAPH = 120
"""Tokens of an essay's part, about."""


_WINDOW = 16 * 2**10
"""Code points of a text that are read at once."""
_LONGEST = 1000
"""Code points after which a sentence is cut that has no end."""
_TOGETHER = 64
"""Parts whose tokens are counted at once: an estimate of a short one is off by half a token."""


def fit(parts: Iterable[str], room: int, count: Callable[[str], int]) -> tuple[int, int]:
    """Return how many successive parts fit into a number of tokens, and the tokens left over.

    Args:
        parts: any number of parts of a text.
        room: the number of tokens.
        count: counts tokens.
    """
    fitting, parts = 0, iter(parts)
    while block := [*islice(parts, _TOGETHER)]:
        cost = count("".join(block))
        if cost > room:
            sizes = range(1, len(block) + 1)
            more = bisect_right(sizes, room, key=lambda size: count("".join(block[:size])))
            return fitting + more, room - count("".join(block[:more]))
        fitting, room = fitting + len(block), room - cost
    return fitting, room


def hide(parts: Iterable[str], needles: Iterable[tuple[int, Piece]], glue: str) -> Iterator[Piece]:
    """A document of parts with needles among them.

    Args:
        parts: lines or sentences.
        needles: pieces, each with the number of the part that it stands before; any that has no
            such part stands at the end.
        glue: text between two of all these.
    """
    waiting, between = deque(sorted(needles, key=lambda needle: needle[0])), ""
    for number, part in enumerate(chain(parts, [None])):
        while waiting and (part is None or waiting[0][0] <= number):
            if between:
                yield Piece(between)
            yield waiting.popleft()[1]
            between = glue
        if part is not None:
            yield Piece(between + part)
            between = glue


def sentences(source: Source) -> Iterator[str]:
    """The sentences of a text from its beginning, over and over, with single spaces.

    Raises:
        ConfigurationError: The text is blank.
    """
    while True:
        blank = True
        for text in _sentences(source):
            blank = False
            yield text
        if blank:
            raise ConfigurationError("There is no text among the essays.")


def _sentences(source: Source) -> Iterator[str]:
    rest = ""
    for start in range(0, source.length, _WINDOW):
        rest += source.read(start, _WINDOW)
        last = start + _WINDOW >= source.length
        ends = [match.end() for match in _SENTENCE_END.finditer(rest)]
        ends += [len(rest)] if last else []
        for begin, end in zip([0, *ends], ends, strict=False):
            yield from _short(rest[begin:end])
        rest = rest[ends[-1] :] if ends else rest
        if len(rest) > _WINDOW:
            end = rest.rfind(" ") + 1 or len(rest)
            yield from _short(rest[:end])
            rest = rest[end:]


def _short(text: str) -> Iterator[str]:
    """One sentence, or parts of something that has no sentences; none of what is blank."""
    text = " ".join(text.split())
    while len(text) > _LONGEST:
        cut = text.rfind(" ", 1, _LONGEST)
        cut = cut if cut > 0 else _LONGEST
        yield text[:cut]
        text = text[cut:].lstrip()
    if text:
        yield text


def essay(source: Source, rng: random.Random) -> Iterator[str]:
    """Parts of a text from somewhere in its middle on, over and over.

    Raises:
        ConfigurationError: The text is too short to cut.
    """
    counter = EstimatingTokenizer()
    position = rng.randrange(max(1, source.length // 2))
    # A part begins where another ended, not in the middle of a word.
    first = next_chunk(source, position, tokenizer=counter, chunk_tokens=_PARAGRAPH)
    position = first.end if first else source.length
    while True:
        chunk = next_chunk(source, position, tokenizer=counter, chunk_tokens=_PARAGRAPH)
        if chunk is None:
            if position == 0:
                raise ConfigurationError("There is no text among the essays.")
            position = 0
            yield "\n\n"
            continue
        ends = [match.end() for match in _SENTENCE_END.finditer(chunk.text)]
        text = chunk.text[: ends[-1]] if ends else chunk.text
        position += len(text)
        yield text
