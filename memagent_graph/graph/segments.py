"""Segments of a document, which are read at once: where they begin, and their merge."""

from __future__ import annotations

import asyncio
from collections import ChainMap, Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.config import PART_TOKENS
from memagent_graph.errors import ConfigurationError, ContextLengthError, EmptyReplyError
from memagent_graph.evidence.places import Memory, join_memories, to_plain, with_text
from memagent_graph.graph.reading import add_usage, memory_of, observers, part, repeat, step_of
from memagent_graph.graph.state import Progress, cost_of, merge_spans
from memagent_graph.readers.base import Merge, Usage
from memagent_graph.readers.replies import with_lost_statements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.reading import Layer, Reading
    from memagent_graph.graph.state import Fold, LayerState, Stopped
    from memagent_graph.text.chunks import Cutter


_LEAST_ALONE = 4
"""Least number of chunks in a segment with `segments="auto"`."""
_SLACK = 4
"""Multiple of `segments` that a slowly growing document gains, roughly, with each doubling."""


def segment_spans(
    reading: Reading, cutter: Cutter, known: Collection[int] = ()
) -> list[tuple[int, int]]:
    """Return the starts and ends of a document's segments; cuts the whole document.

    `known` are numbers, from 0, of chunks at which segments of earlier readings began.
    """
    begins, at_once = [*cutter.cuts], reading.reader.concurrency
    places = starts(len(begins), reading.config, at_once, cutter.shared, known)
    cutter.segments = max(len(places), 1)
    return [*pairwise([*(begins[place] for place in places), cutter.source.length])]


def starts(
    chunks: int,
    config: ReadingConfig,
    concurrency: int,
    questions: int = 1,
    known: Collection[int] = (),
) -> list[int]:
    """Return the chunks at which segments begin, counted from 0.

    Segments have the same number of chunks, from a series of sizes that grow by at most a quarter.
    Segments of an earlier reading are kept, which began at the chunks that are `known`: only what
    has grown to more than twice the size, and the part after the last of them, are cut again. With
    `segments="auto"` there are as many as the calls that the model answers at once allow.
    """
    if config.segments == "auto":
        return cut_evenly(chunks, max(concurrency // questions, 1), _LEAST_ALONE, known)
    return cut_evenly(chunks, config.segments, 1, known)


def cut_evenly(chunks: int, most: int, least: int, known: Collection[int] = ()) -> list[int]:
    """Return what `starts` does, for at most `most` segments of at least `least` chunks."""
    found, size = [0], max(_size(chunks, most), least)
    for older in sorted({*known} - {0}):
        found += [*range(found[-1] + size, older - size + 1, size), older]
    at, sizes = found[-1], [end - start for start, end in pairwise(found)]
    size = max(least, _size(chunks - at, most), _size(chunks, _SLACK * most), *sizes)
    return [*found, *range(at + size, chunks, size)]


def _size(chunks: int, segments: int) -> int:
    """The smallest size with which at most so many segments are needed."""
    step = _step(least := -(-chunks // segments))
    return -(-least // step) * step


def _step(size: int) -> int:
    """The step of the series 1 to 8, 10, 12, 14, 16, 20, ... at a size."""
    return 1 << max((size - 1).bit_length() - 3, 0)


_BY_URGENCY: tuple[Stopped, ...] = ("deadline", "max_calls", "end")
"""Reasons why a reading ended; the first one that applies to any segment is the document's."""


class Merged(NamedTuple):
    """The one memory that those of several segments were merged to; none if all are empty.

    It has the cost of the calls, whether a memory was over its budget and `cut`, and the number of
    merges that still had a fault when they were asked for again.
    """

    memories: list[Memory]
    usage: Usage = Usage()
    cut: bool = False
    faulty: int = 0

    def with_(self, other: Merged) -> Merged:
        """Return both, in order."""
        memories, usage = [*self.memories, *other.memories], self.usage + other.usage
        return Merged(memories, usage, self.cut or other.cut, self.faulty + other.faulty)


async def merge(
    reading: Reading,
    question: str,
    memories: Sequence[Memory],
    config: RunnableConfig | None = None,
) -> Merged:
    """Merge the memories of several segments, by a tree of calls that each fit the window.

    An empty memory costs no call. A group that does not fit the model's context is halved.
    """
    whole = Merged([memory for memory in memories if memory.text.strip()])
    while len(whole.memories) > 1:
        sizes = [reading.tokenizer.count(memory.text) for memory in whole.memories]
        calls = [
            asyncio.ensure_future(_merge(reading, question, whole.memories[start:end], config))
            for start, end in merge_groups(sizes, reading.config.merge_tokens)
        ]
        try:
            level = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
        whole = reduce(Merged.with_, level, whole._replace(memories=[]))
    return whole


async def _merge(
    reading: Reading, question: str, memories: list[Memory], config: RunnableConfig | None
) -> Merged:
    """Merge one group to one memory, or to two if the context cannot hold all."""
    if len(memories) == 1:
        return Merged(memories)
    exact = reading.is_exact(config)
    call = partial(_ask, reading, question, memories, config)

    async def ask(_attempt: int) -> Merged:
        started = perf_counter()
        try:
            made, calls = await call(), 1
        except EmptyReplyError:
            for observer in observers(config or {}):
                observer.on_refuse(step_of(config or {}), -1)
            raise
        if made.fault is not None and not exact:
            made, calls = await _settle(reading, memories, made, call)
        whole = replace(made.memory, dropped=sum(memory.dropped for memory in memories))
        kept = reading.keep_supported(whole)
        memory, _, cut = reading.within_budget(kept if kept.text.strip() else whole)
        usage = replace(made.usage, calls=calls, seconds=perf_counter() - started)
        return Merged([memory], usage, cut, int(made.fault is not None))

    part.set(object())
    try:
        return await repeat(ask, reading.config)
    except ContextLengthError:
        if len(memories) <= 2:  # noqa: PLR2004 - a group has at least two
            raise
        half, whole = len(memories) // 2, Merged([], Usage(1))
        for some in (memories[:half], memories[half:]):
            whole = whole.with_(await _merge(reading, question, some, config))
        return whole


async def _ask(
    reading: Reading, question: str, memories: list[Memory], config: RunnableConfig | None
) -> Merge:
    """Make one call. An empty reply is one with a fault, unless replies are taken word for word."""
    made, exact = Merge(Memory("")), reading.is_exact(config)
    with nullcontext() if exact else suppress(EmptyReplyError):
        made = await reading.reader.merge(question, memories, config=config)
    if made.memory.text.strip():
        return made
    if exact:
        raise EmptyReplyError("The reader returned an empty memory when merging several.")
    return Merge(join_memories(memories), usage=Usage(1), fault="placeholder")


async def _settle(
    reading: Reading, memories: list[Memory], made: Merge, call: Callable[[], Awaitable[Merge]]
) -> tuple[Merge, int]:
    """Ask once more for a merge with a fault; if that has one too, keep what was merged."""
    before = join_memories(memories)
    whole = with_lost_statements(before.text, made.memory.text)
    if made.fault == "loss" and reading.tokenizer.count(whole) > reading.config.memory_tokens:
        return replace(made, fault=None), 1  # something had to go
    again = await call()
    usage = made.usage + again.usage
    if again.fault is None:
        return replace(again, usage=usage), 2
    is_loss = made.fault == "loss"
    memory = with_text(whole, join_memories([before, made.memory])) if is_loss else before
    return replace(made, memory=memory, usage=usage), 2


def merge_groups(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Yield starts and ends of the groups of memories, of these tokens, that one call merges.

    A call has `room` for so many tokens, with the text around each, and always for two memories.
    """
    start, used = 0, 0
    for number, size in enumerate(sizes):
        if number - start > 1 and used + size + PART_TOKENS > room:
            yield start, number
            start, used = number, 0
        used += size + PART_TOKENS
    yield start, len(sizes)


def merge_levels(segments: int, config: ReadingConfig) -> Iterator[list[int]]:
    """Yield the number of memories in each merge, by level, if all have the longest length."""
    while segments > 1:
        together = [*merge_groups([config.memory_tokens] * segments, config.merge_tokens)]
        yield [end - start for start, end in together if end - start > 1]
        segments = len(together)


def most_merges(segments: int, config: ReadingConfig) -> int:
    """Return the largest number of calls that merge the memories of a document."""
    return sum(map(len, merge_levels(segments, config)))


def calls_each(config: ReadingConfig, questions: int, segments: int) -> int | None:
    """Return the calls that each of several questions may make before its answer."""
    most = config.max_calls
    if most is None:
        return None
    least = questions * (segments + most_merges(segments, config) + 1)
    if most < least:
        parts = f" in {segments} segments" if segments > 1 else ""
        who = f"A question{parts} needs" if questions == 1 else f"{questions} questions{parts} need"
        message = f"{who} max_calls of {least} or more, not {most}."
        raise ConfigurationError(message)
    return most // questions - 1


def updates_each(calls: int | None, segments: int, config: ReadingConfig) -> int | None:
    """Return the calls left for each of a question's segments, after those of merges."""
    return None if calls is None else (calls - most_merges(segments, config)) // segments


def join_parts(whole: Fold, parts: Sequence[Fold], merged: Merged, layers: Sequence[Layer]) -> Fold:
    """Return the fold of a document after the merge of its segments."""
    memory = next(iter(merged.memories), Memory())
    dropped = sum(memory_of(part).dropped for part in parts if not part["memory"])
    memory = replace(memory, dropped=memory.dropped + dropped)
    ended = [part["progress"] for part in parts]
    stops = {progress["stopped"] for progress in ended}
    spans = zip(ended, (part["scope"]["end"] for part in parts), strict=True)
    unreached = merge_spans(
        [[progress["position"], end] for progress, end in spans if progress["position"] < end]
    )
    progress: Progress = {
        **add_usage(whole["progress"], sum(map(cost_of, ended), merged.usage)),
        "position": whole["scope"]["end"] - sum(end - start for start, end in unreached),
        "step": sum(progress["step"] for progress in ended),
        "tokens": sum(progress["tokens"] for progress in ended),
        "skipped": merge_spans([span for progress in ended for span in progress["skipped"]]),
        "unreached": unreached,
        "again": False,
        "gated": sum(progress["gated"] for progress in ended),
        "cut": merged.cut or any(progress["cut"] for progress in ended),
        "stopped": next((stop for stop in _BY_URGENCY if stop in stops), "end"),
    }
    if left_out := sum((Counter(one.get("left_out")) for one in ended), Counter[str]()):
        progress["left_out"] = dict(left_out)
    if not_shown := dict(ChainMap(*(one.get("not_shown", {}) for one in ended))):
        progress["not_shown"] = not_shown
    states: dict[str, list[LayerState]] = {}
    for fold in (whole, *parts):
        for name, state in fold["layers"].items():
            states.setdefault(name, []).append(state)
    own = {layer.name: layer for layer in layers}
    joint = {name: own[name].join(found) for name, found in states.items()}
    return {**whole, **to_plain(memory), "progress": progress, "layers": joint}
