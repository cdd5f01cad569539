"""Which parts of a document are read at once: runs of whole chunks, counted from its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from memagent_graph.config import ReadingConfig

_LEAST_ALONE = 4
"""Chunks of a segment that `segments="auto"` makes, at least."""
_SLACK = 4
"""Times `segments` that a document which grew bit by bit has, about, for each doubling."""


class Room(NamedTuple):
    """How a document is to be cut.

    Attributes:
        most: segments that are read at once.
        least: chunks of each, except for the last.
    """

    most: int
    least: int = 1


def room_of(config: ReadingConfig, chunks: int, concurrency: int, questions: int = 1) -> Room:
    """How to cut a document of so many chunks.

    Args:
        config: says how many segments.
        chunks: of the document.
        concurrency: calls that the model answers at once.
        questions: that are read for at once.
    """
    match config.segments:
        case "chunks":
            return Room(chunks)
        case "auto":
            return Room(max(concurrency // questions, 1), _LEAST_ALONE)
        case number:
            return Room(number)


def starts(chunks: int, room: Room, known: Collection[int] = ()) -> list[int]:
    """The chunks at which segments begin, counted from 0.

    The same number of chunks each, of a few sizes that grow by a quarter at most. Segments that
    are known from an earlier reading, when the document may have been shorter, stay as they are:
    only what follows the last of them is cut anew.

    Args:
        chunks: of the document.
        room: how many segments, and how long.
        known: chunks at which a segment began that has been read.
    """
    found, size = [0], room.least
    while True:
        at = found[-1]
        size = max(size, _size(chunks - at, room.most), _size(chunks, _SLACK * room.most))
        older = next((older for older in _sizes(size) if at + older in known), None)
        if older is None:
            return [*found, *range(at + size, chunks, size)]
        size = older
        found.append(at + size)


def _size(chunks: int, segments: int) -> int:
    """The smallest size of which no more than so many segments are needed."""
    least = -(-chunks // segments)
    step = _step(least)
    return -(-least // step) * step


def _sizes(most: int) -> Iterator[int]:
    """1 to 8, 10, 12, 14, 16, 20, ...: each at most a quarter more than the one before."""
    size = 1
    while size <= most:
        yield size
        size += _step(size + 1)


def _step(size: int) -> int:
    return 1 << max((size - 1).bit_length() - 3, 0)
