"""Cut a document into segments: runs of whole chunks, counted from its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from memagent_graph.config import ReadingConfig

_LEAST_ALONE = 4
"""Least number of chunks in a segment with `segments="auto"`."""
_SLACK = 4
"""Multiple of `segments` that a slowly growing document gains, roughly, with each doubling."""


class Room(NamedTuple):
    """Limits on the segments of a document.

    Attributes:
        most: most segments.
        least: least chunks of each segment, except for the last.
    """

    most: int
    least: int = 1


def room_of(config: ReadingConfig, chunks: int, concurrency: int, questions: int = 1) -> Room:
    """Return the limits for a document.

    Args:
        config: gives `segments`.
        chunks: number of chunks of the document.
        concurrency: number of calls that the model answers at once.
        questions: number of questions read for at once.
    """
    match config.segments:
        case "chunks":
            return Room(chunks)
        case "auto":
            return Room(max(concurrency // questions, 1), _LEAST_ALONE)
        case number:
            return Room(number)


def starts(chunks: int, room: Room, known: Collection[int] = ()) -> list[int]:
    """Return the chunks at which segments begin, counted from 0.

    Segments have the same number of chunks, from a series of sizes that grow by at most a quarter.
    Segments of an earlier reading, when the document may have been shorter, are kept; only the part
    after the last of them is cut again.

    Args:
        chunks: number of chunks of the document.
        room: the limits.
        known: chunks at which segments of an earlier reading began.
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
    """The smallest size with which at most so many segments are needed."""
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
