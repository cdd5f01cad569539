"""The functions of the graph's nodes; `faces` makes nodes of them."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import EmptyReplyError, ModelError, TransientModelError
from memagent_graph.graph.cutting import cutter_of
from memagent_graph.graph.events import (
    AnswerEvent,
    MergeEvent,
)
from memagent_graph.graph.fold import advance
from memagent_graph.graph.holding import HeldUpError, ending
from memagent_graph.graph.merging import (
    Merged,
    calls_left,
    in_doubt,
    joined,
    merge,
    updates_each,
)
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.reading import where
from memagent_graph.graph.recalling import is_last_look
from memagent_graph.graph.records import (
    Fold,
    is_segmented,
    looks_of,
    memory_of,
    query_of,
    round_of,
    segment_name,
    span_of,
)
from memagent_graph.graph.skimming import covered, is_skimmed, reopen
from memagent_graph.graph.speaking import Speech
from memagent_graph.graph.state import ReadingState, Run, fold_of
from memagent_graph.graph.support import warn
from memagent_graph.graph.telling import about, chunk_event, fallback_event, skip_event
from memagent_graph.graph.versions import Chain, chain_of
from memagent_graph.readers.base import Usage
from memagent_graph.sync import LateError, to_thread
from memagent_graph.text.chunking import Chunk

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.cutting import Cutter
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Progress, Stopped
    from memagent_graph.graph.skimming import Skim
    from memagent_graph.readers.base import Memory, Recalled

Changes = dict[str, Any]


def read_chunk(reading: Reading, state: ReadingState, run: Run) -> Changes:
    """Read the chunk at the reading's position."""
    return {"chunk": _chunk(reading, run, fold_of(state))}


def _chunk(reading: Reading, run: Run, fold: Fold) -> Chunk:
    cutter, end = cutter_of(reading, run, fold["source"]), span_of(fold["source"]).end
    if is_last_look(fold["progress"], end):
        return Chunk("", end, end, 0, cutter.source)
    return cutter.chunk(fold)


async def overwrite_memory(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Compute the next memory and move to the next chunk, in one write.

    Raises:
        TransientModelError: This attempt failed, and is repeated.
        ModelError: Reading this chunk failed for good.
        StoreError: The store cannot be written, and the configuration is strict.
        MemoryConflictError: A named memory was changed by others too many times.
    """
    fold = await _held(reading, run, fold_of(state), reads=True)
    left = reading.seconds_left(run)
    if left is not None and left <= 0:
        return _changes(state, _late(fold))
    chain = chain_of(reading, run, fold)

    def tell(after: Fold, tokens: int, recalled: tuple[Recalled, ...]) -> None:
        for observer in observers(config):
            observer.overwritten(step_of(config), fold, after)
        shown = [item.place for item in recalled]
        run.emit(chunk_event(reading, run, chunk, fold, after, tokens, shown))

    try:
        known = state.get("chunk")
        cut = partial(_chunk, reading, run, fold)
        chunk = await to_thread(cut, left) if known is None else known
        assert run.cutter is not None  # noqa: S101 - the chunk came from it
        skim = await _skim(reading, run.cutter, fold, left)
        left = reading.seconds_left(run)
        end = span_of(fold["source"]).end
        with run.cutter.ahead(chunk, end), ending(chain):
            after = await advance(
                reading,
                fold,
                chunk,
                chain=chain,
                seconds=left,
                tell=tell,
                skim=skim,
                config=config,
            )
    except HeldUpError:  # the reading that is followed is held, or continued from an edit
        return await overwrite_memory(reading, state, run, config, attempt)
    except (LateError, TimeoutError):
        return _changes(state, _late(fold))
    except ModelError as error:
        step = fold["progress"]["step"] + 1
        failure = await reading.judged(error, attempt, step, fold["source"])
        if not isinstance(failure, TransientModelError):
            await _leave(run, fold, chain)
        raise failure from error
    if (
        chunk.text
        and after["progress"]["skipped"]
        and after["progress"]["step"] == fold["progress"]["step"]
    ):
        run.emit(skip_event(reading, run, chunk, after))
    if after["progress"]["stopped"]:
        run.cutter.leave([span_of(fold["source"]).fold])
    return _changes(state, after)


async def _skim(reading: Reading, cutter: Cutter, fold: Fold, left: float | None) -> Skim | None:
    """The skim that decides on the chunk; without one, wait for slower folds, and return None."""
    skims = is_skimmed(reading.config, fold["question"], query_of(fold))
    if skims and not fold["progress"]["again"]:
        return await reading.skims.of(cutter.source, left)
    await cutter.turn(fold, left)
    return None


def _late(fold: Fold) -> Fold:
    """The fold, ended by the deadline."""
    return {**fold, "progress": {**fold["progress"], "stopped": "deadline"}}


def _changes(state: ReadingState, after: Fold) -> Changes:
    """The channels that a step changed; others are not copied to the checkpointer."""
    changed = {key: value for key, value in after.items() if value != state.get(key)}
    return {"document": None, "chunk": None, **changed}


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
    parts = [*await asyncio.gather(*(_held(reading, run, part) for part in parts))]
    finished = await asyncio.gather(*(_finish(reading, run, part) for part in parts))
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


async def write_answer(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Answer from the memory alone, and add up the cost of the reading.

    Raises:
        TransientModelError: This attempt failed, and is repeated.
        ModelError: Answering failed for good.
        StoreError: The store cannot be written, and the configuration is strict.
    """
    fold = await _held(reading, run, fold_of(state))
    memory, warnings = await _finish(reading, run, fold)
    # If the answer is not found, what the fold has skipped is read after all.
    again = not state.get("version") and _further(reading, fold) is not None
    speech = Speech(config, run.host, held=again)
    started = monotonic()
    try:
        answer = await reading.reader.respond(state["question"], memory, config=speech.config)
        if not answer.text.strip():
            raise EmptyReplyError("The reader returned an empty answer.")
    except ModelError as error:
        raise await reading.judged(error, attempt, None, fold["source"]) from error
    progress, source = fold["progress"], fold["source"]
    usage = answer.usage
    progress = {
        **progress,
        "calls": progress["calls"] + 1,
        "input_tokens": progress["input_tokens"] + usage.input_tokens,
        "output_tokens": progress["output_tokens"] + usage.output_tokens,
        "seconds": progress["seconds"] + monotonic() - started,
    }
    if is_segmented(source) or progress["again"]:
        warnings = [*state.get("warnings", ()), *warnings]
    if answer.found is False and not state.get("version"):
        further = _further(reading, {**fold, "progress": progress})
        if further is not None:
            run.emit(fallback_event(reading, run, fold, further))
            return {"document": None, "progress": further, "warnings": warnings}
    speech.release()
    for observer in observers(config):
        observer.answered(step_of(config), answer)
    coverage = covered(progress, 0, source["length"]) / source["length"]
    run.emit(
        AnswerEvent(
            event="answer",
            agent=reading.name,
            task=run.task,
            question=state["question"],
            source=source["name"],
            answer=answer.final,
            coverage=coverage,
        )
    )
    shaped = {} if answer.structured is None else {"structured_response": answer.structured}
    return {
        **shaped,
        "answer": answer.final,
        "response": answer.text,
        "memory": memory.text,
        "evidence": [asdict(item) for item in memory.evidence],
        "citations": [asdict(item) for item in answer.evidence],
        "usage": {
            "calls": progress["calls"],
            "gated": progress["gated"],
            "recalled": looks_of(progress)["shown"],
            "input_tokens": progress["input_tokens"],
            "output_tokens": progress["output_tokens"],
            "seconds": progress["seconds"],
            "document_tokens": progress["tokens"],
        },
        "coverage": coverage,
        "skipped": progress["skipped"],
        "stopped": progress["stopped"],
        "reader": reading.reader.identity.name,
        "version": progress["version"],
        "warnings": [*warnings, *_lost(reading, progress), *warn(memory)],
    }


def _further(reading: Reading, fold: Fold) -> Progress | None:
    """The progress from which to read what was skipped; None if that is not done."""
    most = reading.most_updates(fold)
    if not reading.config.fallback or (most is not None and fold["progress"]["calls"] >= most):
        return None
    return reopen(fold["progress"], span_of(fold["source"]).end)


def _lost(reading: Reading, progress: Progress) -> list[str]:
    """A warning if a memory lost its end."""
    if not progress["cut"]:
        return []
    message = (
        f"The memory was over its budget of {reading.config.memory_tokens} tokens and lost its end "
        "at least once: raise memory_tokens."
    )
    return [message]


async def _held(reading: Reading, run: Run, fold: Fold, *, reads: bool = False) -> Fold:
    """Wait until a fold's memory is not held, or the deadline; return the fold with any edit."""
    left, chain = reading.seconds_left(run), chain_of(reading, run, fold)
    if chain is None or (left is not None and left <= 0):
        return fold
    with ending(chain):
        return await chain.held(fold, reads=reads)


async def _finish(reading: Reading, run: Run, fold: Fold) -> tuple[Memory, list[str]]:
    """Wait until a fold is stored; return its memory (or that of another writer) and warnings.

    Raises:
        StoreError: A version could not be stored, and the configuration is strict.
    """
    chain = chain_of(reading, run, fold)
    other, warnings = (None, []) if chain is None else await chain.finish(fold)
    return other or memory_of(fold), warnings


async def _leave(run: Run, fold: Fold, chain: Chain | None) -> None:
    """Keep others from waiting for a fold that failed, and for the folds that fail with it."""
    if run.cutter is not None:
        record = fold["source"]
        whole, segments = record.get("whole"), range(record.get("segments", 1))
        same = [segment_name(whole, number) for number in segments] if whole is not None else []
        run.cutter.leave([span_of(record).fold, *same])
    if chain is not None:
        await chain.abandon()
