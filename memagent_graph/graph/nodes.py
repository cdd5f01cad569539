"""What the nodes of the state machine do; `faces` makes nodes of it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from itertools import compress
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import (
    ConfigurationError,
    EmptyReplyError,
    ModelError,
    QuestionError,
    SourceError,
    TransientModelError,
)
from memagent_graph.graph.cutting import Cutter, cutter_of
from memagent_graph.graph.events import AnswerEvent, ChunkEvent, MergeEvent, OpenedEvent
from memagent_graph.graph.fold import advance
from memagent_graph.graph.merging import joined, merge, parts_of, updates_each
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.reading import where
from memagent_graph.graph.records import (
    Fold,
    SourceRecord,
    begun,
    fold_name,
    is_segmented,
    memory_of,
    record_of,
    segment_name,
    span_of,
)
from memagent_graph.graph.state import QuestionState, ReadingState, Run, fold_of
from memagent_graph.graph.versions import Chain, chain_of
from memagent_graph.sync import LateError, to_thread
from memagent_graph.text.opening import open_source

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.reading import Reading
    from memagent_graph.text.chunking import Chunk

Changes = dict[str, Any]


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
    name = state.get("memory_name")
    record = SourceRecord() if stored else await _open(reading, run, len(questions), name)
    # Else `stream_mode="values"` would repeat the document at every step.
    done: Changes = {"document": None}
    several = not state.get("question")
    if several or state.get("answers"):
        done["answers"] = None
    if left := dict.fromkeys(state.get("folds", ())):  # of a run that was broken off
        done["folds"] = left
    if several:
        record["calls"] = updates_each(reading.config, len(questions), record.get("segments", 1))
        return {**done, "source": record}
    begun = await _begun(reading, run, questions[0], record, config, stored, name)
    if "folds" in begun:
        begun["folds"] = left | begun["folds"]
    return {**done, "answer": None, **begun}


async def begin_question(
    reading: Reading, state: QuestionState, run: Run, config: RunnableConfig, _attempt: int
) -> Changes:
    """Begin one of several questions with what the store knows of it.

    Raises:
        SourceError: The document of a resumed run cannot be opened again.
    """
    asked, record = state["question"], state["source"]
    return await _begun(reading, run, asked, record, config, state.get("version"))


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


async def _open(reading: Reading, run: Run, questions: int, name: str | None) -> SourceRecord:
    try:
        source = await to_thread(partial(open_source, run.document), reading.seconds_left(run))
    except LateError as error:
        message = (
            f"The document was not open after {reading.config.deadline:g} seconds, the reading's "
            "deadline. Set it higher, or convert the document to text beforehand."
        )
        raise SourceError(message) from error
    run.cutter = cutter = Cutter(reading, source, questions)
    record = record_of(source)
    if reading.config.segments > 1 and not name:
        record["segments"] = len(await to_thread(lambda: cutter.spans, None))
    if questions > 1:
        record["shared"] = questions
    for number in range(questions):
        for part in _parts(reading, run, {**record, "fold": fold_name(number)}):
            cutter.expect(part)
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
    return record


def _parts(reading: Reading, run: Run, record: SourceRecord) -> list[SourceRecord]:
    """The segments of a question's document; all of it, where it is read in one."""
    if not is_segmented(record):
        return [record]
    spans = cutter_of(reading, run, record).spans
    return parts_of(
        record, spans, updates_each(reading.config, record.get("shared", 1), len(spans))
    )


async def _begun(
    reading: Reading,
    run: Run,
    question: str,
    record: SourceRecord,
    config: RunnableConfig,
    stored: str | None,
    name: str | None = None,
) -> Changes:
    """How a question begins, and its segments if there are any."""
    whole = await _fold(reading, run, question, record, stored, name)
    for observer in observers(config):
        observer.opened(step_of(config), whole, config.get("metadata", {}))
    parts = [] if stored else _parts(reading, run, record)
    begun = [whole] * len(parts)
    done: Changes = {**whole}
    if is_segmented(record) and not whole["progress"]["stopped"]:
        begun = await asyncio.gather(*(_fold(reading, run, question, part) for part in parts))
        done |= {"folds": {fold["source"]["fold"]: fold for fold in begun}, "warnings": []}
    if run.cutter is not None:
        ended = [bool(fold["progress"]["stopped"]) for fold in begun]
        run.cutter.leave(span_of(part).fold for part in compress(parts, ended))
    return done


async def _fold(
    reading: Reading,
    run: Run,
    question: str,
    record: SourceRecord,
    stored: str | None = None,
    name: str | None = None,
) -> Fold:
    """A fold as it begins: with a stored memory, or past what the store knows of it."""
    if run.store is None:
        return begun(question, record)
    chain = run.chains[record.get("fold", "")] = Chain(reading, run, question, record)
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
        known = state.get("chunk")
        cut = partial(_chunk, reading, run, fold)
        chunk = await to_thread(cut, left) if known is None else known
        assert run.cutter is not None  # noqa: S101 - the chunk came from it
        await run.cutter.turn(fold, left)
        left = reading.seconds_left(run)
        with run.cutter.ahead(chunk, span_of(fold["source"]).end):
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
        step = fold["progress"]["step"] + 1
        failure = await reading.judged(error, attempt, step, fold["source"])
        if not isinstance(failure, TransientModelError):
            await _leave(run, fold, chain)
        raise failure from error
    if after["progress"]["stopped"]:
        run.cutter.leave([span_of(fold["source"]).fold])
    # What did not change is not written: each write is a copy in the checkpointer.
    return done | {key: value for key, value in after.items() if value != state.get(key)}


async def merge_memories(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, _attempt: int
) -> Changes:
    """Make one memory of those of the segments.

    Raises:
        ModelError: A merge failed for good.
        StoreError: Strict, and the store cannot be written.
    """
    whole = fold_of(state)
    parts = sorted(state["folds"].values(), key=lambda part: part["source"]["start"])
    chains = [chain_of(reading, run, part) for part in parts]
    stored = await asyncio.gather(
        *(chain.finish(part) for chain, part in zip(chains, parts, strict=True) if chain)
    )
    others = [memory for memory, _ in stored] or [None] * len(parts)
    memories = [other or memory_of(part) for part, other in zip(parts, others, strict=True)]
    try:
        memory, usage = await merge(reading, whole["question"], memories, config=config)
    except ModelError as error:
        message = f"Merging the memories{where(whole['source'])} failed: {error}"
        raise type(error)(message) from error
    after = joined(whole, parts, memory, usage)
    chain = chain_of(reading, run, whole)
    if chain is not None:
        after = chain.merged(after, parts)
    for observer in observers(config):
        observer.merged(step_of(config), parts, after)
    run.emit(
        MergeEvent(
            event="merge",
            agent=reading.name,
            task=run.task,
            question=whole["question"],
            fold=span_of(whole["source"]).fold,
            source=whole["source"]["name"],
            memories=sum(bool(one.text.strip()) for one in memories),
            calls=usage.calls,
            memory_tokens=reading.tokenizer.count(memory.text),
        )
    )
    warnings = dict.fromkeys(warning for _, said in stored for warning in said)
    ended = dict.fromkeys(state["folds"])
    return {"document": None, "folds": ended, "warnings": [*warnings], **after}


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
        raise await reading.judged(error, attempt, None, fold["source"]) from error
    seconds = monotonic() - started
    for observer in observers(config):
        observer.answered(step_of(config), answer)
    progress, source = state["progress"], state["source"]
    if is_segmented(source):
        warnings = [*state.get("warnings", ()), *warnings]
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


async def _leave(run: Run, fold: Fold, chain: Chain | None) -> None:
    """Let nobody wait for a fold that failed, nor for those that it takes with it."""
    if run.cutter is not None:
        record = fold["source"]
        whole, segments = record.get("whole"), range(record.get("segments", 1))
        same = [segment_name(whole, number) for number in segments] if whole is not None else []
        run.cutter.leave([span_of(record).fold, *same])
    if chain is not None:
        await chain.release()


def _chunk_event(
    reading: Reading, run: Run, chunk: Chunk, before: Fold, after: Fold, tokens: int
) -> ChunkEvent:
    progress, same = after["progress"], after["memory"] == before["memory"]
    old, new = ([], []) if same else (fold["memory"].splitlines() for fold in (before, after))
    name, start, end = span_of(after["source"])
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
