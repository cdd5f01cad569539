"""The node that merges the memories of segments, and begins another round if one is needed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import ModelError
from memagent_graph.graph.chains import chain_of, finish, wait_while_held
from memagent_graph.graph.events import MergeEvent
from memagent_graph.graph.merging import Merged, calls_left, in_doubt, joined, merge, updates_each
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.reading import where
from memagent_graph.graph.records import Fold, memory_of, query_of, round_of
from memagent_graph.graph.state import Changes, ReadingState, Run, fold_of
from memagent_graph.graph.telling import about
from memagent_graph.readers.base import Usage

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Memory
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Stopped


async def merge_memories(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, _attempt: int
) -> Changes:
    """Merge the memories of the segments, or continue segments whose answers differ.

    Raises:
        ModelError: A merge failed for good.
        StoreError: The store cannot be written, and the configuration is strict.
    """
    whole = fold_of(state)
    parts = sorted(state["folds"].values(), key=lambda part: part["source"]["start"])
    if doubted := in_doubt(reading, parts):
        return {"document": None, "folds": doubted}
    parts = [*await asyncio.gather(*(wait_while_held(reading, run, part) for part in parts))]
    finished = await asyncio.gather(*(finish(reading, run, part) for part in parts))
    before, number = memory_of(whole), round_of(whole["source"])
    new = [memory for memory, _ in finished if memory.text != before.text]
    last = number >= reading.config.rounds
    chain = chain_of(reading, run, whole)
    known = None if chain is None else await chain.merge_of(whole, parts)
    if known is not None:
        merged = Merged([known.memory], Usage(), known.cut, known.query)
    else:
        query = query_of(whole)
        merged = await _merge(reading, whole, new, query=query, lead=not last, config=config)
    after = joined(whole, parts, merged)
    enough = after["progress"]["stopped"] == "done" or after["memory"] == before.text
    wanted = None if last or enough else merged.query
    if chain is not None:
        after = await chain.merged(after, parts, wanted)
    after = _next_round(reading, run, after, wanted, len(parts))
    for observer in observers(config):
        observer.merged(step_of(config), parts, after)
    goes_on = after["progress"]["stopped"] is None
    run.emit(
        MergeEvent(
            event="merge",
            **about(reading, run, whole, whole["source"]["name"]),
            query=wanted if goes_on else None,
            memories=sum(bool(one.text.strip()) for one in new),
            calls=merged.usage.calls,
            memory_tokens=reading.tokenizer.count(after["memory"]),
        )
    )
    said = [*state.get("warnings", ()), *(warning for _, said in finished for warning in said)]
    ended = {} if goes_on else {"folds": dict.fromkeys(state["folds"])}
    return {"document": None, "warnings": [*dict.fromkeys(said)], **ended, **after}


async def _merge(reading: Reading, whole: Fold, memories: list[Memory], **asked: Any) -> Merged:
    try:
        return await merge(reading, whole["question"], memories, **asked)
    except ModelError as error:
        message = f"Merging the memories{where(whole['source'])} failed: {error}"
        raise type(error)(message) from error


def _next_round(reading: Reading, run: Run, fold: Fold, query: str | None, segments: int) -> Fold:
    """The fold of a document after a round, prepared for the next round if there is one."""
    if query is None:
        return fold
    progress, calls, left = fold["progress"], calls_left(fold), reading.seconds_left(run)
    each = updates_each(calls, segments, reading.config)
    stopped: Stopped | None = None
    if left is not None and left <= 0:
        stopped = "deadline"
    elif each is not None and each < 1:
        stopped = "max_calls"
    source = fold["source"]
    if stopped is None:
        source = {**source, "round": round_of(source) + 1, "query": query}
    return {**fold, "source": source, "progress": {**progress, "stopped": stopped}}
