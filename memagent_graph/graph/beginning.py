"""Begin a reading: open the document, check the questions, and look both up in the store."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.errors import ConfigurationError, QuestionError, SourceError
from memagent_graph.graph.chains import begin_chain, chain_of
from memagent_graph.graph.cutting import Cutter, cutter_of
from memagent_graph.graph.events import OpenedEvent
from memagent_graph.graph.merging import calls_each, calls_left, parts_of, updates_each
from memagent_graph.graph.observing import observers, step_of
from memagent_graph.graph.records import (
    SourceRecord,
    begun,
    fold_name,
    is_segmented,
    memory_of,
    noted,
    record_of,
    segment_name,
    span_of,
)
from memagent_graph.graph.state import fold_of
from memagent_graph.sync import LateError, to_thread
from memagent_graph.templates import plural
from memagent_graph.text.files import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Memory
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold
    from memagent_graph.graph.state import Changes, QuestionState, ReadingState, Run
    from memagent_graph.graph.versions import Chain


CALLS_EACH = "memagent_calls_each"
"""Key in a run's config: whether `max_calls` is for each question, not for all together."""


async def open_document(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig, _attempt: int
) -> Changes:
    """Open the document, check the questions, and begin with what the store has for both.

    Raises:
        QuestionError: The question is empty or over its budget.
        ConfigurationError: The budgets do not fit the model's context, or a store is needed.
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
    if run.store is None and reading.config.recall_from:
        message = "recall_from needs a store: create_memagent(store=...)."
        raise ConfigurationError(message)
    name = state.get("memory_name")
    record = SourceRecord() if stored else await _open(reading, run, len(questions), name)
    # Otherwise `stream_mode="values"` would repeat the document at every step.
    done: Changes = {"document": None}
    several = not state.get("question")
    if several or state.get("answers"):
        done["answers"] = None
    if left := dict.fromkeys(state.get("folds", ())):  # from an interrupted run
        done["folds"] = left
    if several:
        return {**done, "source": record}
    begun = await _begun(reading, run, questions[0], record, config, stored, name)
    if "folds" in begun:
        begun["folds"] = left | begun["folds"]
    return {**done, "answer": None, **begun}


async def begin_question(
    reading: Reading, state: QuestionState, run: Run, config: RunnableConfig, _attempt: int
) -> Changes:
    """Begin one of several questions with what the store has for it.

    Raises:
        SourceError: The document of a resumed run cannot be opened again.
    """
    asked, record = state["question"], state["source"]
    return await _begun(reading, run, asked, record, config, state.get("version"))


def _asked(state: ReadingState) -> list[str]:
    """The questions, at least one."""
    question, questions = state.get("question"), state.get("questions")
    if question or questions is None:  # `questions` may be left from the thread's last run
        return [question or ""]
    if not questions:
        raise QuestionError('There are no questions: invoke with {"questions": [...]}.')
    if isinstance(questions, str) or not all(isinstance(one, str) for one in questions):
        raise QuestionError('Questions are a list of strings: {"questions": ["...", "..."]}.')
    name = state.get("memory_name")
    if name:
        message = f"The memory {name!r} belongs to one question: ask several without memory_name."
        raise ConfigurationError(message)
    return questions


async def _open(reading: Reading, run: Run, questions: int, name: str | None) -> SourceRecord:
    """Open and, if needed, cut the document, and return its record for all questions."""
    in_parts = reading.config.merges and not name

    def open_and_cut() -> Cutter:
        cutter = Cutter(reading, open_source(run.document), questions)
        if in_parts:
            cutter.spans()
        return cutter

    try:
        cutter = await to_thread(open_and_cut, reading.seconds_left(run))
    except LateError as error:
        deadline = plural(reading.config.deadline or 0, "second")
        message = (
            f"The document was not open after {deadline}, the reading's deadline. Raise the "
            "deadline, or convert the document to text beforehand."
        )
        raise SourceError(message) from error
    run.cutter, source = cutter, cutter.source
    record = record_of(source)
    if questions > 1:
        record["shared"] = questions
    spans = cutter.spans() if in_parts else [(0, source.length)]
    if len(spans) > 1 or (in_parts and reading.config.rounds > 1):
        record["segments"] = len(spans)
    sharing = 1 if run.config.get("configurable", {}).get(CALLS_EACH) else questions
    record["calls"] = calls_each(reading.config, sharing, len(spans))
    for number in range(questions):
        for part in _parts(reading, {**record, "fold": fold_name(number)}, spans):
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


def _parts(
    reading: Reading, record: SourceRecord, spans: Sequence[tuple[int, int]]
) -> list[SourceRecord]:
    """The segments of a question's document; the whole document if it is not segmented."""
    if not is_segmented(record):
        return [record]
    calls = updates_each(record["calls"], len(spans), reading.config)
    return parts_of(record, spans, calls)


async def _begun(
    reading: Reading,
    run: Run,
    question: str,
    record: SourceRecord,
    config: RunnableConfig,
    stored: str | None,
    name: str | None = None,
) -> Changes:
    """Return the changes with which a question begins, and its segments if there are any."""
    if not stored and run.cutter is None:  # a resumed run may convert the document again
        await to_thread(partial(cutter_of, reading, run, record), reading.seconds_left(run))
    whole = await _fold(reading, run, question, record, stored, name)
    for observer in observers(config):
        observer.opened(step_of(config), whole, config.get("metadata", {}))
    ended = whole["progress"]["stopped"]
    if stored or ended or not is_segmented(record):
        if run.cutter is not None and ended:
            run.cutter.leave(_names(record))
        return {**whole}
    cutter = cutter_of(reading, run, record)
    spans = await _spans(reading, cutter, run.chains.get(span_of(record).fold), record)
    whole["source"] = {**record, "segments": len(spans)}
    parts = _parts(reading, whole["source"], spans)
    cutter.leave(_names(record))
    for part in parts:
        cutter.expect(part)
    folds = await asyncio.gather(*(_fold(reading, run, question, part) for part in parts))
    cutter.leave(span_of(fold["source"]).fold for fold in folds if fold["progress"]["stopped"])
    return {**whole, "folds": {fold["source"]["fold"]: fold for fold in folds}, "warnings": []}


async def begin_round(
    reading: Reading, state: ReadingState, run: Run, _config: RunnableConfig, _attempt: int
) -> Changes:
    """Begin another round over the document's segments, with the merged memory.

    Raises:
        SourceError: The document of a resumed run cannot be opened again.
    """
    whole = fold_of(state)
    source, chain = whole["source"], chain_of(reading, run, whole)
    if run.cutter is None:  # a resumed run may have to convert the document again
        await to_thread(partial(cutter_of, reading, run, source), reading.seconds_left(run))
    memory = memory_of(whole) if chain is None else await chain.before(whole)
    left = calls_left(whole)
    again = SourceRecord(
        round=source["round"],
        query=source["query"],
        head=None if chain is None else chain.parent,
        calls=updates_each(left, len(state["folds"]), reading.config),
    )
    before = replace(memory, dropped=0)  # the whole fold counts what was left out so far
    folds = await asyncio.gather(
        *(
            _fold(reading, run, whole["question"], {**part["source"], **again}, memory=before)
            for part in state["folds"].values()
        )
    )
    return {"document": None, "folds": {fold["source"]["fold"]: fold for fold in folds}}


def _names(record: SourceRecord) -> list[str]:
    """The names of a question's folds, as the cutter expects them."""
    name = span_of(record).fold
    if not is_segmented(record):
        return [name]
    return [segment_name(name, number) for number in range(record["segments"])]


async def _spans(
    reading: Reading, cutter: Cutter, chain: Chain | None, record: SourceRecord
) -> list[tuple[int, int]]:
    """The segments of a question's document, including those that the store has.

    If `max_calls` is too low for so many, they are those of a new document.
    """
    one = reading.config.segments == 1
    known = () if chain is None or one else await chain.known.begun_at(cutter)
    spans = await to_thread(partial(cutter.spans, known), None)
    calls = updates_each(record["calls"], len(spans), reading.config)
    return spans if calls is None or calls >= 1 else cutter.spans()


async def _fold(
    reading: Reading,
    run: Run,
    question: str,
    record: SourceRecord,
    stored: str | None = None,
    name: str | None = None,
    memory: Memory | None = None,
) -> Fold:
    """A new fold: with the given memory, or continued from the versions in the store."""
    if run.store is None:
        fold = begun(question, record)
        return fold if memory is None else {**fold, **noted(memory)}
    chain = begin_chain(reading, run, question, record)
    if stored:
        return await chain.known.end_of(stored, record)
    return await chain.known.begin(cutter_of(reading, run, record), record, name, memory)
