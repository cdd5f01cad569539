"""The spans of a document that a fold has read, skipped, or not reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.evidence.places import Recalled
    from memagent_graph.graph.state import Progress
    from memagent_graph.text.chunks import Chunk

_MOST_RUNS = 256
"""Most skipped spans of a fold; further chunks are read."""


def has_room(progress: Progress, start: int) -> bool:
    """Whether a span that begins at `start` can be recorded as skipped."""
    skipped = progress["skipped"]
    return len(skipped) < _MOST_RUNS or skipped[-1][1] == start


def skip(progress: Progress, chunk: Chunk) -> Progress:
    """Return the progress of a fold after it has skipped a chunk.

    Args:
        progress: the progress before the chunk.
        chunk: the chunk at the fold's position.
    """
    skipped = merge_spans([*progress["skipped"], [chunk.start, chunk.end]])
    return {**progress, "position": chunk.end, "skipped": skipped}


def merge_spans(spans: Sequence[list[int]]) -> list[list[int]]:
    """Return sorted spans, with adjacent ones joined."""
    merged: list[list[int]] = []
    for start, end in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = [merged[-1][0], end]
        else:
            merged.append([start, end])
    return merged


def common_spans(spans: Sequence[list[int]], others: Sequence[list[int]]) -> list[list[int]]:
    """Return the intersection of two sorted lists of spans without overlaps."""
    found, left, right = list[list[int]](), iter(spans), iter(others)
    one, other = next(left, None), next(right, None)
    while one and other:
        start, end = max(one[0], other[0]), min(one[1], other[1])
        if start < end:
            found.append([start, end])
        if one[1] == end:
            one = next(left, None)
        else:
            other = next(right, None)
    return found


def move(progress: Progress, chunk: Chunk, end: int) -> tuple[int, list[list[int]]]:
    """Return a fold's position, and its skipped spans, after it has read a chunk.

    Args:
        progress: the progress before the chunk.
        chunk: the chunk at the fold's position.
        end: end of the fold's span.
    """
    skipped = progress["skipped"]
    if not progress["again"]:
        return chunk.end, skipped
    (_, stop), *others = skipped
    left = [[chunk.end, stop], *others] if chunk.end < stop else others
    return (left[0][0] if left else end), left


def reopen(progress: Progress, end: int) -> Progress | None:
    """Return the progress from which a fold reads what it has skipped; None if nothing is left.

    Args:
        progress: progress of a fold that has ended.
        end: end of the fold's span.
    """
    if progress["again"] or progress["stopped"] not in {"end", "done"}:
        return None
    if not progress["skipped"]:
        return None
    rest = progress["unreached"]
    if not rest and progress["position"] < end:
        rest = [[progress["position"], end]]
    left = merge_spans(sorted([*progress["skipped"], *rest]))
    return {
        **progress,
        "position": left[0][0],
        "skipped": left,
        "unreached": [],
        "again": True,
        "stopped": None,
    }


def covered(progress: Progress, start: int, end: int) -> int:
    """Return how many code points a fold has read between `start` and `end`."""
    reached = end if progress["again"] else progress["position"]
    return reached - start - sum(last - first for first, last in progress["skipped"])


def spans_of(recalled: Sequence[Recalled]) -> list[tuple[int, int]]:
    """Return the spans of recalled passages in the document; memories have none."""
    return [
        (item.start, item.start + len(item.text)) for item in recalled if item.start is not None
    ]
