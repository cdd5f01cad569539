"""Segments of a document, which are read at once: their scopes, and the merge of their memories."""

from __future__ import annotations

import asyncio
from collections import ChainMap, Counter
from dataclasses import replace
from functools import reduce
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.config import PART_TOKENS
from memagent_graph.errors import ConfigurationError, ContextLengthError, EmptyReplyError
from memagent_graph.evidence.align import join_memories
from memagent_graph.evidence.places import Memory, to_plain, with_text
from memagent_graph.graph.events import is_exact, observers, part, step_of
from memagent_graph.graph.state import (
    Progress,
    add_usage,
    common_spans,
    memory_of,
    merge_spans,
    usage_of,
)
from memagent_graph.models.failures import repeat
from memagent_graph.readers.base import Merge, Usage
from memagent_graph.readers.replies import with_lost_statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.reading import Layer, Reading
    from memagent_graph.graph.state import Fold, LayerState, Scope, Stopped


_BY_URGENCY: tuple[Stopped, ...] = ("deadline", "max_calls", "end")
"""Reasons why a reading ended; the first one that applies to any segment is the document's."""


def parts_of(scope: Scope, spans: Sequence[tuple[int, int]], calls: int | None) -> list[Scope]:
    """Return the scopes of the segments of a question's document.

    Args:
        scope: the whole document's.
        spans: starts and ends of the segments, in code points.
        calls: most updates per segment; None for no limit.
    """
    each: Scope = {**scope, "segments": len(spans), "calls": calls}
    return [
        {**each, "segment": number, "start": start, "end": end}
        for number, (start, end) in enumerate(spans, start=1)
    ]


class Merged(NamedTuple):
    """The result of merging the memories of several segments.

    Attributes:
        memories: one memory at the end; none if all were empty.
        usage: cost of the calls.
        cut: whether a memory was over its budget and lost its end.
        query: query of the next round; None if the memory is enough.
        faulty: number of merges that still had a fault when they were asked for again.
    """

    memories: list[Memory]
    usage: Usage
    cut: bool = False
    query: str | None = None
    faulty: int = 0

    def with_(self, other: Merged) -> Merged:
        """Return both, in order."""
        usage = self.usage + other.usage
        memories = [*self.memories, *other.memories]
        faulty = self.faulty + other.faulty
        return Merged(memories, usage, self.cut or other.cut, other.query, faulty)


async def merge(
    reading: Reading,
    question: str,
    memories: Sequence[Memory],
    *,
    query: str | None = None,
    lead: bool = False,
    config: RunnableConfig | None = None,
) -> Merged:
    """Merge the memories of several segments, by a tree of calls that each fit the window.

    An empty memory costs no call. A group that does not fit the model's context is halved. The last
    call decides what to look for next, if anything.

    Args:
        reading: the reader and its budgets.
        question: the question of the reading.
        memories: the memories, in the order of their segments.
        query: query of this round; the question by default.
        lead: whether to call the reader even for a single memory, to ask what to look for next.
        config: the run's config, for the reader.

    Returns:
        The memory, if any, within its budget, and the cost of all calls.

    Raises:
        ModelError: A call failed for good.
    """
    whole = Merged([memory for memory in memories if memory.text.strip()], Usage())
    query, judged = query or question, not lead
    while len(whole.memories) > 1 or (whole.memories and not judged):
        judged = True
        sizes = [reading.tokenizer.count(memory.text) for memory in whole.memories]
        calls = [
            asyncio.ensure_future(
                _merge(reading, question, query, whole.memories[start:end], config)
                if end - start > 1 or len(sizes) == 1
                else _keep(whole.memories[start])
            )
            for start, end in groups(sizes, reading.config.merge_tokens)
        ]
        try:
            level = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
        whole = reduce(Merged.with_, level, whole._replace(memories=[]))
    return whole


async def _keep(memory: Memory) -> Merged:
    return Merged([memory], Usage())


async def _merge(
    reading: Reading,
    question: str,
    query: str,
    memories: list[Memory],
    config: RunnableConfig | None,
) -> Merged:
    """Merge one group to one memory, or to two if the context cannot hold all."""

    async def ask(_attempt: int) -> Merged:
        started = perf_counter()
        try:
            exact = is_exact(reading, config)
            made = await _ask(reading, question, query, memories, config, exact=exact)
            faulty, calls = made.fault is not None, 1
            if faulty and not exact:
                made, calls = await _settle(reading, question, query, memories, config, made)
                faulty = made.fault is not None
        except EmptyReplyError:
            for observer in observers(config or {}):
                observer.on_refuse(step_of(config or {}), -1)
            raise
        whole = replace(made.memory, dropped=sum(memory.dropped for memory in memories))
        kept = reading.keep_supported(whole)
        memory, _, cut = reading.within_budget(kept if kept.text.strip() else whole)
        usage = replace(made.usage, calls=calls, seconds=perf_counter() - started)
        wanted = reading.short(made.query) if made.query else None
        return Merged([memory], usage, cut, wanted, int(faulty))

    part.set(object())
    try:
        return await repeat(ask, reading.config)
    except ContextLengthError:
        if len(memories) <= 2:  # noqa: PLR2004 - a group has at least two
            raise
        halves = memories[: len(memories) // 2], memories[len(memories) // 2 :]
        first, second = [
            await (_merge(reading, question, query, half, config) if half[1:] else _keep(half[0]))
            for half in halves
        ]
        return Merged([], Usage(1)).with_(first).with_(second)


async def _ask(
    reading: Reading,
    question: str,
    query: str,
    memories: list[Memory],
    config: RunnableConfig | None,
    *,
    exact: bool = False,
) -> Merge:
    """Make one call. An empty reply is one with a fault, unless replies are taken word for word.

    Raises:
        EmptyReplyError: The reader returned an empty memory, and `exact`.
        ModelError: The reader failed.
    """
    made = Merge(Memory(""))
    try:
        made = await reading.reader.merge(question, query, memories, config=config)
    except EmptyReplyError:
        if exact:
            raise
    if made.memory.text.strip():
        return made
    if exact:
        raise EmptyReplyError("The reader returned an empty memory when merging several.")
    return Merge(join_memories(memories), usage=Usage(1), fault="placeholder")


async def _settle(
    reading: Reading,
    question: str,
    query: str,
    memories: list[Memory],
    config: RunnableConfig | None,
    made: Merge,
) -> tuple[Merge, int]:
    """Ask once more for a merge with a fault; if that has one too, keep what was merged.

    Returns:
        The merge, whose `fault` is None if it may stand, and the number of calls.
    """
    before = join_memories(memories)
    whole = with_lost_statements(before.text, made.memory.text)
    if made.fault == "loss" and reading.tokenizer.count(whole) > reading.config.memory_tokens:
        return replace(made, fault=None), 1  # something had to go
    again = await _ask(reading, question, query, memories, config)
    usage = made.usage + again.usage
    if again.fault is None:
        return replace(again, usage=usage), 2
    memory = before
    if made.fault == "loss":
        memory = with_text(whole, join_memories([before, made.memory]))
    return replace(made, memory=memory, usage=usage), 2


def groups(sizes: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """Yield starts and ends of the groups of memories that are merged by one call.

    Args:
        sizes: tokens of each memory.
        room: tokens for the memories of one call, with the text around each; a group always has
            at least two.
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
    if segments == 1 and config.rounds > 1:
        yield [1]
    while segments > 1:
        together = [*groups([config.memory_tokens] * segments, config.merge_tokens)]
        yield [end - start for start, end in together if end - start > 1]
        segments = len(together)


def most_merges(segments: int, config: ReadingConfig) -> int:
    """Return the largest number of calls that merge the memories of one round."""
    return sum(map(len, merge_levels(segments, config)))


def calls_each(config: ReadingConfig, questions: int, segments: int) -> int | None:
    """Return the calls that each of several questions may make before its answer.

    Raises:
        ConfigurationError: `max_calls` is too low for one update per segment, the merges and an
            answer.
    """
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


def calls_left(whole: Fold) -> int | None:
    """Return the calls that a question has left before its answer; None for no limit."""
    calls = whole["scope"]["calls"]
    return None if calls is None else calls - whole["progress"]["calls"]


def join_parts(whole: Fold, parts: Sequence[Fold], merged: Merged, layers: Sequence[Layer]) -> Fold:
    """Return the fold of a document after a round of its segments.

    Args:
        whole: the document's fold before the round.
        parts: the segments' folds, in order.
        merged: the merge of those of their memories that changed.
        layers: the layers of the reading, which join their states.
    """
    before, memory = memory_of(whole), next(iter(merged.memories), None)
    same = [memory_of(part).dropped for part in parts if part["memory"] == before.text]
    kept = 0 if memory is None else memory.dropped
    memory = replace(memory or before, dropped=before.dropped + kept + sum(same))
    old, ended = whole["progress"], [part["progress"] for part in parts]
    stops = {progress["stopped"] for progress in ended}
    skipped, unreached = _unread(whole, parts)
    progress: Progress = {
        **add_usage(old, sum(map(usage_of, ended), merged.usage)),
        "position": whole["scope"]["end"] - sum(end - start for start, end in unreached),
        "step": old["step"] + sum(progress["step"] for progress in ended),
        "tokens": max(old["tokens"], sum(progress["tokens"] for progress in ended)),
        "skipped": skipped,
        "unreached": unreached,
        "again": False,
        "cut": old["cut"] or merged.cut or any(progress["cut"] for progress in ended),
        "stopped": next((stop for stop in _BY_URGENCY if stop in stops), "end"),
    }
    all_progress = [old, *ended]
    if left_out := sum((Counter(one.get("left_out")) for one in all_progress), Counter[str]()):
        progress["left_out"] = dict(left_out)
    if not_shown := dict(ChainMap(*(one.get("not_shown", {}) for one in all_progress))):
        progress["not_shown"] = not_shown
    states: dict[str, list[LayerState]] = {}
    for fold in (whole, *parts):
        for name, state in fold["layers"].items():
            states.setdefault(name, []).append(state)
    own = {layer.name: layer for layer in layers}
    joint = {name: own[name].join(found) for name, found in states.items()}
    return {**whole, **to_plain(memory), "progress": progress, "layers": joint}


def _unread(whole: Fold, parts: Sequence[Fold]) -> tuple[list[list[int]], list[list[int]]]:
    """The spans that no round has read: those skipped, and those not reached."""
    spans = [(part["progress"], part["scope"]["end"]) for part in parts]
    skipped = merge_spans([span for progress, _ in spans for span in progress["skipped"]])
    rest = [[progress["position"], end] for progress, end in spans if progress["position"] < end]
    unreached = merge_spans(rest)
    if whole["scope"]["round"] == 1:
        return skipped, unreached
    before, after = whole["progress"], merge_spans(sorted([*skipped, *unreached]))
    left = common_spans(before["skipped"], after) + common_spans(before["unreached"], skipped)
    return merge_spans(sorted(left)), common_spans(before["unreached"], unreached)
