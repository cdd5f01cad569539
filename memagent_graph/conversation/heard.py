"""Find the messages that a chunk of a conversation holds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.conversation.rendering import LINE

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from memagent_graph.text.chunking import Chunk

_LOOK = 1 << 14
"""Code points that are looked at first for the beginning of a message; most are shorter."""


class Heard(NamedTuple):
    """A message in a chunk: where it begins and ends, and whose it is."""

    start: int
    end: int
    day: str
    speaker: str


def heard(chunk: Chunk) -> list[Heard]:
    """The messages in a chunk, with the one that goes on in it."""
    first_line = chunk.start == 0 or chunk.source.read(chunk.start - 1, 1) == "\n"
    begins = [m for m in LINE.finditer(chunk.text) if m.start() > 0 or first_line]
    starts = [(match.start(), match) for match in begins]
    if not starts or starts[0][0] > 0:
        before = goes_on(chunk)
        starts[:0] = [(0, before)] if before else []
    ends = [start for start, _ in starts[1:]] + [len(chunk.text)]
    return [
        Heard(chunk.start + start, chunk.start + end, match["day"], match["speaker"])
        for (start, match), end in zip(starts, ends, strict=True)
    ]


def numbered(chunk: Chunk, said: Sequence[Heard]) -> str:
    """A chunk with the number of each message before it."""
    parts = []
    for number, one in enumerate(said, 1):
        text = chunk.text[one.start - chunk.start : one.end - chunk.start]
        goes = "" if LINE.match(text) else f"[{one.day}] {one.speaker}, going on: "
        parts.append(f"[{number}] {goes}{text}")
    return "".join(parts) or chunk.text


def goes_on(chunk: Chunk) -> re.Match[str] | None:
    """The beginning of the message that goes on in a chunk; it is looked for from the end."""
    size = _LOOK
    while True:
        start = max(0, chunk.start - size)
        text = chunk.source.read(start, chunk.start - start)
        # A window that begins within a line could take what is said there for a beginning.
        lines = 0 if start == 0 else text.find("\n") + 1 or len(text)
        found = deque(LINE.finditer(text, lines), maxlen=1)
        if found or start == 0:
            return found[0] if found else None
        size *= 2
