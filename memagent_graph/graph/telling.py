"""The events that tell of a reading's steps, from the folds before and after."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from memagent_graph.graph.events import ChunkEvent, FallbackEvent, FoldEvent, SkipEvent
from memagent_graph.graph.records import round_of, span_of
from memagent_graph.graph.skimming import covered

if TYPE_CHECKING:
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold, Progress
    from memagent_graph.graph.state import Run
    from memagent_graph.text.chunks import Chunk


def about(reading: Reading, run: Run, fold: Fold, source: str) -> FoldEvent:
    """What all events of a fold tell, for a document of this name."""
    return FoldEvent(
        agent=reading.name,
        task=run.task,
        question=fold["question"],
        fold=span_of(fold["source"]).fold,
        round=round_of(fold["source"]),
        source=source,
    )


def chunk_event(
    reading: Reading,
    run: Run,
    chunk: Chunk,
    before: Fold,
    after: Fold,
    tokens: int,
    recalled: list[str],
) -> ChunkEvent:
    """What an update read and changed.

    Args:
        reading: the reading's settings.
        run: the run.
        chunk: the chunk that was read.
        before: the fold before the chunk.
        after: the fold after it.
        tokens: length of the new memory in tokens.
        recalled: places of the passages that were looked up.
    """
    progress, same = after["progress"], after["memory"] == before["memory"]
    closed = progress["gated"] > before["progress"]["gated"]
    old, new = ([], []) if same else (fold["memory"].splitlines() for fold in (before, after))
    _, start, end = span_of(after["source"])
    step, read = progress["step"], covered(progress, start, end)
    left = end - start - read if progress["again"] else end - chunk.end
    passed = read if progress["again"] else chunk.end - start
    return ChunkEvent(
        event="chunk",
        **about(reading, run, after, chunk.source.name),
        chunk=step,
        chunks=step + ceil(left * step / passed),
        position=passed,
        length=end - start,
        tokens=progress["tokens"],
        memory_tokens=tokens,
        gate="closed" if closed else "open",
        enough=progress["stopped"] == "done",
        recalled=recalled,
        added=[line for line in new if line not in old],
        removed=[line for line in old if line not in new],
    )


def skip_event(reading: Reading, run: Run, chunk: Chunk, after: Fold) -> SkipEvent:
    """A chunk that was skipped, and the position after it."""
    _, start, end = span_of(after["source"])
    return SkipEvent(
        event="skip",
        **about(reading, run, after, chunk.source.name),
        start=chunk.start,
        end=chunk.end,
        position=chunk.end - start,
        length=end - start,
    )


def fallback_event(reading: Reading, run: Run, fold: Fold, further: Progress) -> FallbackEvent:
    """The return to skipped chunks, because the answer was not found without them."""
    name, start, end = span_of(fold["source"])
    read = covered(further, start, end)
    return FallbackEvent(
        event="fallback",
        agent=reading.name,
        task=run.task,
        question=fold["question"],
        fold=name,
        source=fold["source"]["name"],
        position=read,
        length=end - start,
    )
