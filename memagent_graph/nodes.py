"""The four nodes of the state machine; each has a sync and an async face of one function."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, astuple
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any

from langgraph._internal._runnable import RunnableCallable

from memagent_graph import versioning
from memagent_graph.errors import EmptyReplyError, ModelError, SourceError
from memagent_graph.fold import overwrite
from memagent_graph.state import (
    AnswerEvent,
    ChunkEvent,
    OpenedEvent,
    Progress,
    ReadingState,
    Run,
    add_usage,
    known_evidence,
)
from memagent_graph.sync import wait_for
from memagent_graph.text.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime

    from memagent_graph.readers.base import Evidence, Update
    from memagent_graph.reading import Reading
    from memagent_graph.text.chunking import Chunk

Changes = dict[str, Any]


async def open_document(
    reading: Reading, state: ReadingState, run: Run, _config: RunnableConfig, _attempt: int
) -> Changes:
    """Open the document, check the question, and begin with what the store knows of both.

    Raises:
        QuestionError: The question is empty or over its budget.
        ConfigurationError: The budgets do not fit the model's context.
        ModelError: The server has no such model.
        SourceError: The document cannot be read, or there is none.
        StoreError: The store cannot be reached, or has no memory of that name.
    """
    await reading.prepare(reading.check_question(state.get("question")))
    if run.document is None:
        run.document = state.get("document")
    if run.document is None and state.get("memory"):
        return {"document": None, "answer": None, **await versioning.recall(run, state["memory"])}
    if run.document is None:
        raise SourceError('There is nothing to read: invoke with {"document": ...}.')
    source = run.source = await asyncio.to_thread(open_source, run.document)
    run.emit(
        OpenedEvent(
            event="opened",
            agent=reading.name,
            source=source.name,
            length=source.length,
            skipped=getattr(source, "skipped", 0),
        )
    )
    return {
        "document": None,  # else `stream_mode="values"` would repeat it at every step
        "answer": None,
        **await versioning.begin(reading, state, run, source),
    }


def read_chunk(reading: Reading, state: ReadingState, run: Run) -> Changes:
    """Read the chunk at the reading's position."""
    return {"chunk": reading.chunk(state, run)}


async def overwrite_memory(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Compute the next memory and move on by one chunk, in one write.

    Raises:
        TransientModelError: This attempt failed and another may not.
        ModelError: Reading this chunk failed for good.
        StoreError: Strict, and the store cannot be written.
        MemoryConflictError: A named memory moved on too many times.
    """
    progress = state["progress"]
    done: Changes = {"document": None, "chunk": None}
    left = reading.seconds_left(run)
    if left is not None and left <= 0:
        return {**done, "progress": {**progress, "stopped": "deadline"}}
    chunk = state.get("chunk") or reading.chunk(state, run)
    before, parent, evidence = await versioning.current(reading, state, run)

    async def update_from(memory: str, evidence: Sequence[Evidence]) -> Update:
        call = overwrite(
            reading.reader,
            state["question"],
            memory,
            chunk,
            tokenizer=reading.tokenizer,
            evidence=evidence,
            config=config,
        )
        return await (call if left is None else asyncio.wait_for(call, left))

    try:
        with reading.cutting_ahead(chunk, run):
            update = await update_from(before, evidence)
        other = await versioning.adopted(run)
        if other is not None and other.id == parent:  # somebody else read the last chunk first
            update = await update_from(other.text, other.evidence)
    except asyncio.TimeoutError:
        return {**done, "progress": {**progress, "stopped": "deadline"}}
    except ModelError as error:
        raise await reading.judged(error, attempt, progress["step"] + 1) from error
    memory, tokens, cut = reading.within_budget(update)
    moved = add_usage(progress, update.usage)
    moved["position"] = chunk.end
    moved["step"] += 1
    moved["tokens"] += chunk.tokens
    moved["cut"] = cut if update.changed else progress["cut"]
    moved["stopped"] = reading.stopped(moved, update, chunk.source.length)
    changed = {
        "memory": memory,
        "places": [list(astuple(item)) for item in update.evidence if item.text in memory],
        "progress": moved,
    }
    run.emit(_chunk_event(reading.name, chunk, moved, state["memory"], memory, tokens))
    done |= await versioning.store_version(reading, state, run, chunk, changed, parent)
    # What did not change is not written: each write is a copy in the checkpointer.
    return {key: value for key, value in done.items() if value is None or value != state.get(key)}


async def write_answer(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Answer from the memory alone, and sum up what the reading cost.

    Raises:
        TransientModelError: This attempt failed and another may not.
        ModelError: Answering failed for good.
        StoreError: Strict, and the store cannot be written.
    """
    other, warnings = await versioning.finish(reading, run)
    memory = other.text if other else state["memory"]
    evidence = list(other.evidence) if other else known_evidence(state)
    started = monotonic()
    try:
        answer = await reading.reader.respond(
            state["question"], memory, evidence=evidence, config=config
        )
        if not answer.text.strip():
            raise EmptyReplyError("The reader returned an empty answer.")
    except ModelError as error:
        raise await reading.judged(error, attempt, None) from error
    seconds = monotonic() - started
    progress, source = state["progress"], state["source"]
    coverage = progress["position"] / source["length"]
    run.emit(
        AnswerEvent(
            event="answer",
            agent=reading.name,
            source=source["name"],
            answer=answer.final,
            coverage=coverage,
        )
    )
    return {
        "answer": answer.final,
        "response": answer.text,
        "memory": memory,
        "evidence": [asdict(item) for item in evidence],
        "citations": [asdict(item) for item in answer.evidence],
        "usage": {
            "calls": progress["calls"] + 1,
            "input_tokens": progress["input_tokens"] + answer.usage.input_tokens,
            "output_tokens": progress["output_tokens"] + answer.usage.output_tokens,
            "seconds": progress["seconds"] + seconds,
            "document_tokens": progress["tokens"],
        },
        "coverage": coverage,
        "stopped": progress["stopped"],
        "reader": reading.reader.name,
        "version": progress["version"],
        "warnings": warnings,
    }


def text_node(
    work: Callable[[Reading, ReadingState, Run], Changes], reading: Reading
) -> RunnableCallable:
    """A node that only reads text."""

    def sync(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        return work(reading, state, runtime.context)

    async def from_async(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        if reading.cuts_at_once(runtime.context):
            return work(reading, state, runtime.context)
        return await asyncio.to_thread(work, reading, state, runtime.context)

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)


def waiting_node(
    work: Callable[[Reading, ReadingState, Run, RunnableConfig, int], Coroutine[Any, Any, Changes]],
    reading: Reading,
) -> RunnableCallable:
    """A node that waits for the reader or the store."""

    async def from_async(
        state: ReadingState, config: RunnableConfig, runtime: Runtime[Run]
    ) -> Changes:
        run, info = runtime.context, runtime.execution_info
        run.config = config
        if run.write is None:
            run.write = runtime.stream_writer
        if run.store is None:
            run.store = reading.store or runtime.store
        return await work(reading, state, run, config, info.node_attempt if info else 1)

    def sync(state: ReadingState, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        return wait_for(from_async(state, config, runtime))

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)


def _chunk_event(
    agent: str, chunk: Chunk, progress: Progress, before: str, after: str, tokens: int
) -> ChunkEvent:
    old, new = ([], []) if after == before else (before.splitlines(), after.splitlines())
    left = chunk.source.length - chunk.end
    return ChunkEvent(
        event="chunk",
        agent=agent,
        source=chunk.source.name,
        chunk=progress["step"],
        chunks=progress["step"] + ceil(left * progress["step"] / chunk.end),
        position=chunk.end,
        length=chunk.source.length,
        tokens=progress["tokens"],
        memory_tokens=tokens,
        added=[line for line in new if line not in old],
        removed=[line for line in old if line not in new],
    )
