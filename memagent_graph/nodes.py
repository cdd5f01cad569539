"""The four nodes of the state machine; each has a sync and an async face of one function."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, astuple, dataclass
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any

from langgraph._internal._runnable import RunnableCallable

from memagent_graph.errors import (
    EmptyReplyError,
    ModelError,
    QuestionError,
    SourceChangedError,
    SourceError,
    TransientModelError,
)
from memagent_graph.fold import overwrite
from memagent_graph.state import (
    AnswerEvent,
    ChunkEvent,
    OpenedEvent,
    Progress,
    ReadingState,
    Run,
    Stopped,
    add_usage,
    known_evidence,
)
from memagent_graph.sync import wait_for
from memagent_graph.text.chunking import Chunk, cut_at_sentence, next_chunk
from memagent_graph.text.source import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime

    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Reader, Update
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_LONGEST_PAUSE = 60.0
"""Seconds for which a server's Retry-After is obeyed; the retry policy waits on top."""


@dataclass(frozen=True)
class Reading:
    """What the nodes of one graph share: a reader, its budgets and its tokenizer."""

    name: str
    reader: Reader
    config: ReadingConfig
    tokenizer: Tokenizer


Changes = dict[str, Any]


def open_document(reading: Reading, state: ReadingState, run: Run) -> Changes:
    """Open the document, check the question, and begin with an empty memory.

    Raises:
        QuestionError: The question is empty or over its budget.
        SourceError: The document cannot be read, or there is none.
    """
    _check_question(reading, state.get("question"))
    if run.document is None:
        run.document = state.get("document")
    if run.document is None:
        raise SourceError('There is nothing to read: invoke with {"document": ...}.')
    source = run.source = open_source(run.document)
    run.emit(
        OpenedEvent(event="opened", agent=reading.name, source=source.name, length=source.length),
    )
    return {
        "document": None,  # else `stream_mode="values"` would repeat it at every step
        "source": {
            "name": source.name,
            "digest": source.digest,
            "length": source.length,
            "uri": source.uri,
        },
        "memory": "",
        "places": [],
        "progress": Progress(
            position=0,
            step=0,
            tokens=0,
            calls=0,
            input_tokens=0,
            output_tokens=0,
            seconds=0.0,
            cut=False,
            stopped=None,
        ),
        "answer": None,
    }


def read_chunk(reading: Reading, state: ReadingState, run: Run) -> Changes:
    """Read the chunk at the reading's position."""
    return {"chunk": _chunk(reading, state, run)}


async def overwrite_memory(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Compute the next memory and move on by one chunk, in one write.

    Raises:
        TransientModelError: This attempt failed and another may not.
        ModelError: Reading this chunk failed for good.
    """
    progress = state["progress"]
    done: Changes = {"document": None, "chunk": None}
    left = _seconds_left(reading, run)
    if left is not None and left <= 0:
        return {**done, "progress": {**progress, "stopped": "deadline"}}
    chunk = state.get("chunk") or _chunk(reading, state, run)
    call = overwrite(
        reading.reader,
        state["question"],
        state["memory"],
        chunk,
        tokenizer=reading.tokenizer,
        evidence=known_evidence(state),
        config=config,
    )
    try:
        update = await (call if left is None else asyncio.wait_for(call, left))
    except asyncio.TimeoutError:
        return {**done, "progress": {**progress, "stopped": "deadline"}}
    except ModelError as error:
        raise await _judged(error, reading, attempt, progress["step"] + 1) from error
    memory, tokens, cut = _within_budget(reading, update)
    moved = add_usage(progress, update.usage)
    moved["position"] = chunk.end
    moved["step"] += 1
    moved["tokens"] += chunk.tokens
    moved["cut"] = cut if update.changed else progress["cut"]
    moved["stopped"] = _stopped(reading, moved, update, chunk.source)
    run.emit(_chunk_event(reading.name, chunk, moved, state["memory"], memory, tokens))
    done["progress"] = moved
    if memory != state["memory"]:
        done["memory"] = memory
    if update.changed:
        done["places"] = [list(astuple(item)) for item in update.evidence if item.text in memory]
    return done


async def write_answer(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Answer from the memory alone, and sum up what the reading cost.

    Raises:
        TransientModelError: This attempt failed and another may not.
        ModelError: Answering failed for good.
    """
    started = monotonic()
    evidence = known_evidence(state)
    try:
        answer = await reading.reader.respond(
            state["question"], state["memory"], evidence=evidence, config=config
        )
        if not answer.text.strip():
            raise EmptyReplyError("The reader returned an empty answer.")
    except ModelError as error:
        raise await _judged(error, reading, attempt, None) from error
    progress, source = state["progress"], state["source"]
    coverage = progress["position"] / source["length"]
    run.emit(
        AnswerEvent(
            event="answer",
            agent=reading.name,
            source=source["name"],
            answer=answer.final,
            coverage=coverage,
        ),
    )
    return {
        "answer": answer.final,
        "response": answer.text,
        "evidence": [asdict(item) for item in evidence],
        "citations": [asdict(item) for item in answer.evidence],
        "usage": {
            "calls": progress["calls"] + 1,
            "input_tokens": progress["input_tokens"] + answer.usage.input_tokens,
            "output_tokens": progress["output_tokens"] + answer.usage.output_tokens,
            "seconds": progress["seconds"] + monotonic() - started,
            "document_tokens": progress["tokens"],
        },
        "coverage": coverage,
        "stopped": progress["stopped"],
        "reader": reading.reader.name,
    }


def text_node(
    work: Callable[[Reading, ReadingState, Run], Changes], reading: Reading
) -> RunnableCallable:
    """A node that only reads text."""

    def sync(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        return work(reading, state, _run(runtime))

    async def from_async(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        return await asyncio.to_thread(work, reading, state, _run(runtime))

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)


def reader_node(
    work: Callable[[Reading, ReadingState, Run, RunnableConfig, int], Coroutine[Any, Any, Changes]],
    reading: Reading,
) -> RunnableCallable:
    """A node that calls the reader."""

    async def from_async(
        state: ReadingState, config: RunnableConfig, runtime: Runtime[Run]
    ) -> Changes:
        info = runtime.execution_info
        attempt = info.node_attempt if info else 1
        return await work(reading, state, _run(runtime), config, attempt)

    def sync(state: ReadingState, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        return wait_for(from_async(state, config, runtime))

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)


def _run(runtime: Runtime[Run]) -> Run:
    run = runtime.context
    if run.write is None:
        run.write = runtime.stream_writer
    return run


def _check_question(reading: Reading, question: str | None) -> None:
    if not question or not question.strip():
        raise QuestionError('The question is empty: invoke with {"question": ...}.')
    tokens, budget = reading.tokenizer.count(question), reading.config.question_tokens
    if tokens > budget:
        message = (
            f"The question has {tokens} tokens and its budget is {budget}: shorten it, move "
            "what is to be read into the document, or raise question_tokens."
        )
        raise QuestionError(message)


def _chunk(reading: Reading, state: ReadingState, run: Run) -> Chunk:
    source = run.source or _reopen(state, run)
    chunk = next_chunk(
        source,
        state["progress"]["position"],
        tokenizer=reading.tokenizer,
        chunk_tokens=reading.config.chunk_tokens,
        exact_cuts=reading.config.exact_cuts,
    )
    if chunk is None:
        message = f"{source.name} ends before the position that the reading had reached."
        raise SourceChangedError(message)
    return chunk


def _reopen(state: ReadingState, run: Run) -> Source:
    """The document of a resumed run: given again, or found by its uri."""
    record = state["source"]
    document = run.document if run.document is not None else state.get("document")
    if document is None and record["uri"] is None:
        message = (
            f"{record['name']} cannot be opened again: resume with "
            'invoke(None, config, context={"document": ...}).'
        )
        raise SourceError(message)
    source = open_source({"uri": record["uri"]} if document is None else document)
    if source.digest != record["digest"]:
        message = (
            f"{record['name']} is not what it was when the reading began. Start over by "
            "invoking with the question and the document."
        )
        raise SourceChangedError(message)
    run.source = source
    return source


async def _judged(
    error: ModelError, reading: Reading, attempt: int, step: int | None
) -> ModelError:
    """The error to raise: this one while attempts are left, else one that names the chunk."""
    if isinstance(error, TransientModelError) and attempt < reading.config.max_attempts:
        if error.retry_after:
            await asyncio.sleep(min(error.retry_after, _LONGEST_PAUSE))
        return error
    place = "answering" if step is None else f"reading chunk {step}"
    times = f" after {attempt} attempts" if attempt > 1 else ""
    kept = "" if step is None else f" The memory of the {step - 1} chunks before it is kept."
    message = f"{place.capitalize()} failed{times}: {error}{kept}"
    lasting = ModelError if isinstance(error, TransientModelError) else type(error)
    return lasting(message, chunk=step)


def _within_budget(reading: Reading, update: Update) -> tuple[str, int, bool]:
    """The memory, its tokens, and whether it had to be cut."""
    tokens, budget = reading.tokenizer.count(update.memory), reading.config.memory_tokens
    if not update.changed or tokens <= budget:
        return update.memory, tokens, False
    memory = cut_at_sentence(update.memory, budget, reading.tokenizer)
    return memory, reading.tokenizer.count(memory), True


def _stopped(
    reading: Reading, progress: Progress, update: Update, source: Source
) -> Stopped | None:
    most = reading.config.max_calls
    if progress["position"] >= source.length:
        return "end"
    if update.done:
        return "done"
    if most is not None and progress["calls"] + 1 >= most:  # the answer is a call too
        return "max_calls"
    return None


def _seconds_left(reading: Reading, run: Run) -> float | None:
    deadline = reading.config.deadline
    return None if deadline is None else run.started + deadline - monotonic()


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
