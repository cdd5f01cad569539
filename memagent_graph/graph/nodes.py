"""The nodes of the state machine; each has a sync and an async face of one function."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import (
    ConfigurationError,
    EmptyReplyError,
    MemAgentError,
    ModelError,
    QuestionError,
    SourceError,
    TransientModelError,
)
from memagent_graph.graph.cutting import Cutter, cutter_of
from memagent_graph.graph.fold import advance
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.state import (
    AnswerEvent,
    ChunkEvent,
    Fold,
    OpenedEvent,
    QuestionState,
    ReadingState,
    Run,
    SourceRecord,
    begun,
    fold_name,
    fold_of,
    memory_of,
    record_of,
    span_of,
)
from memagent_graph.graph.versions import Chain, chain_of
from memagent_graph.seams import RunnableCallable
from memagent_graph.sync import LateError, to_thread, wait_for
from memagent_graph.text.opening import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime

    from memagent_graph.graph.reading import Reading
    from memagent_graph.text.chunking import Chunk

Changes = dict[str, Any]
NO_LIMIT = 2**31
"""Supersteps: the document's length is the only limit that a reading needs."""


async def open_document(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, _attempt: int
) -> Changes:
    """Open the document, check the question, and begin with what the store knows of both.

    Raises:
        QuestionError: The question is empty or over its budget.
        ConfigurationError: The budgets do not fit the model's context.
        ModelError: The server has no such model.
        SourceError: The document cannot be read, or there is none.
        StoreError: The store cannot be reached, or has no memory of that name.
    """
    questions = _asked(state)
    await reading.prepare(max(map(reading.check_question, questions)))
    if run.document is None:
        run.document = state.get("document")
    stored = state.get("version") if run.document is None else None
    if run.document is None and not stored:
        raise SourceError('There is nothing to read: invoke with {"document": ...}.')
    if run.store is None and (stored or state.get("memory_name")):
        kind = "stored" if stored else "named"
        message = f"A {kind} memory needs a store: create_memagent(store=...)."
        raise ConfigurationError(message)
    record = SourceRecord() if stored else await _open(reading, run, len(questions))
    if not state.get("question"):
        record |= {"calls": reading.updates_each(len(questions)), "shared": len(questions)}
        return {"document": None, "answers": None, "source": record}
    fold = await _begun(reading, run, questions[0], record, stored, state.get("memory_name"))
    _tell_opened(config, fold)
    # Else `stream_mode="values"` would repeat the document at every step.
    done: Changes = {"document": None, "answer": None, **fold}
    return {**done, "answers": None} if state.get("answers") else done


async def begin_question(
    reading: Reading, state: QuestionState, run: Run, config: RunnableConfig, _attempt: int
) -> Changes:
    """Begin one of several questions with what the store knows of it.

    Raises:
        SourceError: The document of a resumed run cannot be opened again.
    """
    fold = await _begun(reading, run, state["question"], state["source"], state.get("version"))
    if fold["progress"]["stopped"] and run.cutter is not None:
        run.cutter.leave(fold)
    _tell_opened(config, fold)
    return {**fold}


def _asked(state: ReadingState) -> list[str]:
    """The questions, of which there is one or more."""
    question, questions = state.get("question"), state.get("questions")
    if question or questions is None:  # others were asked by the thread's last run
        return [question or ""]
    if not questions:
        raise QuestionError('There are no questions: invoke with {"questions": [...]}.')
    name = state.get("memory_name")
    if name:
        message = f"The memory {name!r} is of one question: ask several without memory_name."
        raise ConfigurationError(message)
    return questions


async def _open(reading: Reading, run: Run, questions: int) -> SourceRecord:
    try:
        source = await to_thread(partial(open_source, run.document), reading.seconds_left(run))
    except LateError as error:
        message = (
            f"The document was not open after {reading.config.deadline:g} seconds, the reading's "
            "deadline. Set it higher, or convert the document to text beforehand."
        )
        raise SourceError(message) from error
    run.cutter = Cutter(reading, source, questions)
    run.cutter.expect(map(fold_name, range(questions)))
    run.emit(
        OpenedEvent(
            event="opened",
            agent=reading.name,
            task=run.task,
            source=source.name,
            length=source.length,
            skipped=getattr(source, "skipped", 0),
        )
    )
    return record_of(source)


async def _begun(
    reading: Reading,
    run: Run,
    question: str,
    record: SourceRecord,
    stored: str | None,
    name: str | None = None,
) -> Fold:
    """A fold as it begins: with a stored memory, or past what the store knows of it."""
    if run.store is None:
        return begun(question, record)
    chain = run.chains[record.get("fold", "")] = Chain(reading, run, question)
    if stored:
        return await chain.end_of(stored, record)
    if run.cutter is None:  # a resumed run may have to convert the document again
        await to_thread(partial(cutter_of, reading, run, record), reading.seconds_left(run))
    return await chain.begin(cutter_of(reading, run, record).source, record, name)


def read_chunk(reading: Reading, state: ReadingState, run: Run) -> Changes:
    """Read the chunk at the reading's position."""
    return {"chunk": _chunk(reading, run, fold_of(state))}


def _chunk(reading: Reading, run: Run, fold: Fold) -> Chunk:
    return cutter_of(reading, run, fold["source"]).chunk(fold)


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
    fold, done = fold_of(state), {"document": None, "chunk": None}
    late = {**done, "progress": {**fold["progress"], "stopped": "deadline"}}
    left = reading.seconds_left(run)
    if left is not None and left <= 0:
        return late
    chain = chain_of(reading, run, fold)

    def tell(after: Fold, tokens: int) -> None:
        for observer in observers(config):
            observer.overwritten(step_of(config), fold, after)
        run.emit(_chunk_event(reading, run, chunk, fold, after, tokens))

    try:
        chunk: Any = state.get("chunk")
        if chunk is None:
            chunk = await to_thread(partial(_chunk, reading, run, fold), left)
        assert run.cutter is not None  # noqa: S101 - the chunk came from it
        await run.cutter.turn(fold, left)
        left = reading.seconds_left(run)
        with run.cutter.ahead(chunk, span_of(fold).end):
            after = await advance(
                reading,
                fold,
                chunk,
                chain=chain,
                seconds=left,
                tell=tell,
                config=config,
            )
    except (LateError, TimeoutError):
        return late
    except ModelError as error:
        step, name = fold["progress"]["step"] + 1, span_of(fold).fold
        failure = await reading.judged(error, attempt, step, name)
        if not isinstance(failure, TransientModelError):
            await _leave(run, fold, chain)
        raise failure from error
    if after["progress"]["stopped"]:
        run.cutter.leave(fold)
    # What did not change is not written: each write is a copy in the checkpointer.
    return done | {key: value for key, value in after.items() if value != state.get(key)}


async def write_answer(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, attempt: int
) -> Changes:
    """Answer from the memory alone, and sum up what the reading cost.

    Raises:
        TransientModelError: This attempt failed and another may not.
        ModelError: Answering failed for good.
        StoreError: Strict, and the store cannot be written.
    """
    fold = fold_of(state)
    chain = chain_of(reading, run, fold)
    other, warnings = (None, []) if chain is None else await chain.finish(fold)
    memory = other or memory_of(fold)
    started = monotonic()
    try:
        answer = await reading.reader.respond(state["question"], memory, config=config)
        if not answer.text.strip():
            raise EmptyReplyError("The reader returned an empty answer.")
    except ModelError as error:
        raise await reading.judged(error, attempt, None, span_of(fold).fold) from error
    seconds = monotonic() - started
    for observer in observers(config):
        observer.answered(step_of(config), answer)
    progress, source = state["progress"], state["source"]
    coverage = progress["position"] / source["length"]
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
    return {
        "answer": answer.final,
        "response": answer.text,
        "memory": memory.text,
        "evidence": [asdict(item) for item in memory.evidence],
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
        "reader": reading.reader.identity.name,
        "version": progress["version"],
        "warnings": warnings,
    }


def question_node(asking: Any) -> RunnableCallable:
    """A node that answers one of several questions; one that fails does not end the others.

    Args:
        asking: the compiled graph of one question.
    """

    def options(runtime: Runtime[Run], config: RunnableConfig) -> dict[str, Any]:
        return {"context": runtime.context, "config": {**config, "recursion_limit": NO_LIMIT}}

    def record(state: QuestionState, output: Changes, error: str | None) -> Changes:
        who = {"number": state["number"], "question": state["question"], "error": error}
        return {"answers": [{**who, **output}]}

    def sync(state: QuestionState, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        try:
            output = asking.invoke(state, **options(runtime, config))
        except MemAgentError as error:
            return record(state, {}, str(error))
        return record(state, output, None)

    async def from_async(
        state: QuestionState, config: RunnableConfig, runtime: Runtime[Run]
    ) -> Changes:
        try:
            output = await asking.ainvoke(state, **options(runtime, config))
        except MemAgentError as error:
            return record(state, {}, str(error))
        return record(state, output, None)

    return RunnableCallable(sync, from_async, name="question", trace=False)


def text_node(
    work: Callable[[Reading, ReadingState, Run], Changes], reading: Reading
) -> RunnableCallable:
    """A node that only reads text."""

    def sync(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        if runtime.context.cutter is None:  # a resumed run may have to convert the document again
            return wait_for(from_async(state, runtime))
        return work(reading, state, runtime.context)

    async def from_async(state: ReadingState, runtime: Runtime[Run]) -> Changes:
        run = runtime.context
        if run.cutter is not None and run.cutter.at_once(state["progress"]["position"]):
            return work(reading, state, run)
        try:
            return await to_thread(partial(work, reading, state, run), reading.seconds_left(run))
        except LateError:
            return {"chunk": None}  # who reads it sees the deadline too

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)


def waiting_node(
    work: Callable[[Reading, Any, Run, RunnableConfig, int], Coroutine[Any, Any, Changes]],
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
            run.namespace = reading.namespace
        for observer in observers(config):
            observer.begins(step_of(config))
        return await work(reading, state, run, config, info.node_attempt if info else 1)

    def sync(state: ReadingState, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        return wait_for(from_async(state, config, runtime))

    return RunnableCallable(sync, from_async, name=work.__name__, trace=False)


def _tell_opened(config: RunnableConfig, fold: Fold) -> None:
    for observer in observers(config):
        observer.opened(step_of(config), fold, config.get("metadata", {}))


async def _leave(run: Run, fold: Fold, chain: Chain | None) -> None:
    """Let nobody wait for a fold that failed."""
    if run.cutter is not None:
        run.cutter.leave(fold)
    if chain is not None:
        await chain.release()


def _chunk_event(
    reading: Reading, run: Run, chunk: Chunk, before: Fold, after: Fold, tokens: int
) -> ChunkEvent:
    progress, same = after["progress"], after["memory"] == before["memory"]
    old, new = ([], []) if same else (fold["memory"].splitlines() for fold in (before, after))
    name, start, end = span_of(after)
    step, read = progress["step"], chunk.end - start
    return ChunkEvent(
        event="chunk",
        agent=reading.name,
        task=run.task,
        question=after["question"],
        fold=name,
        source=chunk.source.name,
        chunk=step,
        chunks=step + ceil((end - chunk.end) * step / read),
        position=read,
        length=end - start,
        tokens=progress["tokens"],
        memory_tokens=tokens,
        added=[line for line in new if line not in old],
        removed=[line for line in old if line not in new],
    )
