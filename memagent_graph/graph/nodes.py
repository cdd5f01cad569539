"""The nodes of the graph: open a document, read and overwrite, merge segments, answer."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    ConfigurationError,
    EmptyReplyError,
    ModelError,
    QuestionError,
    SourceError,
)
from memagent_graph.evidence.align import is_beside
from memagent_graph.evidence.places import Memory, Unsupported
from memagent_graph.graph.events import (
    AnswerEvent,
    MergeEvent,
    OpenedEvent,
    Speech,
    about,
    begin_attempt,
    chunk_event,
    fallback_event,
    is_exact,
    observers,
    skip_event,
    step_of,
)
from memagent_graph.graph.fold import advance
from memagent_graph.graph.layers.check import state_of, warn_of_faults
from memagent_graph.graph.layers.gates import count_closed, unread_spans, warn_of_misuse
from memagent_graph.graph.passages import find_passages, holds_whole, speaks_of
from memagent_graph.graph.reading import (
    Call,
    drop_from_answer,
    warn,
    warn_of_answer,
    warn_of_left_out,
    where,
)
from memagent_graph.graph.register import EditedError
from memagent_graph.graph.segments import (
    calls_each,
    join_parts,
    merge,
    updates_each,
)
from memagent_graph.graph.state import (
    Changes,
    Document,
    Fold,
    ReadingState,
    Run,
    add_usage,
    begin_fold,
    count_covered,
    document_of,
    fold_name,
    fold_of,
    is_segmented,
    merge_spans,
    reopen,
    usage_of,
    whole_scope,
)
from memagent_graph.graph.versions import (
    abandon_if_cancelled,
    begin_chain,
    chain_of,
    close,
    close_beside,
    finish,
    settle,
    take_edit,
)
from memagent_graph.models.failures import repeat
from memagent_graph.readers.base import Answer
from memagent_graph.readers.completion import listener_of
from memagent_graph.readers.scope import scope
from memagent_graph.sync import LateError, to_thread
from memagent_graph.templates import plural, replace_surrogates
from memagent_graph.text.files import open_source
from memagent_graph.text.source import (
    parts_with_offsets,
    share_opened,
    sources_of,
    warnings_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.chunks import Cutter
    from memagent_graph.graph.reading import FoldUpdate, Reading
    from memagent_graph.graph.state import How, Progress, QuestionState, Scope
    from memagent_graph.graph.versions import Chain
    from memagent_graph.text.chunks import Chunk


CALLS_EACH = "memagent_calls_each"
"""Key in a run's config: whether `max_calls` is for each question, not for all together."""
_NOT_OPENED = Document(name="", digest="", length=0, uri=None, warnings=[])
"""The document of a stored memory, until that is found."""


async def open_document(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig
) -> Changes:
    """Open the document, check the questions, and begin with what the store has for both."""
    questions = _questions_of(state)
    await reading.prepare(max(map(reading.check_question, questions)))
    if run.document is None:
        run.document = state.get("document")
    stored = state.get("version") if run.document is None else None
    if run.document is None and not stored:
        raise SourceError('There is nothing to read: invoke with {"document": ...}.')
    name = state.get("memory_name") or run.memory_name
    if run.store is None and (stored or name):
        kind = "stored" if stored else "named"
        message = f"A {kind} memory needs a store: create_memagent(store=...)."
        raise ConfigurationError(message)
    if stored:
        source, scope = _NOT_OPENED, whole_scope(0)
    else:
        source, scope = await _open(reading, run, len(questions), name)
    # Otherwise `stream_mode="values"` would repeat the document at every step.
    done: Changes = {"document": None}
    several = not state.get("question")
    if several or state.get("answers"):
        done["answers"] = None
    if left := dict.fromkeys(state.get("folds", ())):  # from an interrupted run
        done["folds"] = left
    if several:
        return {**done, "source": source, "scope": scope}
    new = begin_fold(questions[0], source, scope)
    begun = await _begin(reading, run, new, config, stored, name)
    if "folds" in begun:
        begun["folds"] = left | begun["folds"]
    return {**done, "answer": None, **begun}


async def begin_question(
    reading: Reading, state: QuestionState, run: Run, config: RunnableConfig
) -> Changes:
    """Begin one of several questions with what the store has for it."""
    new = begin_fold(state["question"], state["source"], state["scope"])
    return await _begin(reading, run, new, config, state.get("version"))


def _questions_of(state: ReadingState) -> list[str]:
    """The questions, at least one."""
    question, questions = state.get("question"), state.get("questions")
    if question or questions is None:  # `questions` may be left from the thread's last run
        # What is no string is refused by the check of the question, which says so.
        return [
            replace_surrogates(question or "") if isinstance(question, str | None) else question
        ]
    if not questions:
        raise QuestionError('There are no questions: invoke with {"questions": [...]}.')
    if isinstance(questions, str) or not all(isinstance(one, str) for one in questions):
        raise QuestionError('Questions are a list of strings: {"questions": ["...", "..."]}.')
    name = state.get("memory_name")
    if name:
        message = f"The memory {name!r} belongs to one question: ask several without memory_name."
        raise ConfigurationError(message)
    return [*map(replace_surrogates, questions)]


async def _open(
    reading: Reading, run: Run, questions: int, name: str | None
) -> tuple[Document, Scope]:
    """Open and, if needed, cut the document; return its record, and the scope of its questions."""
    in_parts = reading.config.merges and not name

    def open_and_cut() -> Cutter:
        cutter = reading.make_cutter(open_source(run.document), questions)
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
    spans = cutter.spans() if in_parts else [(0, source.length)]
    sharing = 1 if run.config.get("configurable", {}).get(CALLS_EACH) else questions
    scope = whole_scope(
        source.length,
        questions=questions,
        segments=len(spans) if len(spans) > 1 else 0,
        calls=calls_each(reading.config, sharing, len(spans)),
    )
    run.emit(
        OpenedEvent(
            event="opened",
            agent=reading.name,
            task=run.task,
            source=source.name,
            length=source.length,
            skipped=getattr(source, "skipped", 0),
            warnings=[*warnings_of(source)],
            sources=sources_of(source),
        )
    )
    return document_of(source), scope


async def _begin(
    reading: Reading,
    run: Run,
    new: Fold,
    config: RunnableConfig,
    stored: str | None = None,
    name: str | None = None,
    *,
    searched: bool = False,
) -> Changes:
    """Return the changes with which a question begins, and its segments if there are any."""
    if not stored and run.cutter is None:  # a resumed run may convert the document again
        await to_thread(partial(reading.find_cutter, run, new), reading.seconds_left(run))
    if not (stored or name or searched) and _may_search(reading, run, new, config):
        return {**new, "progress": {**new["progress"], "stopped": "search"}}
    whole = await _fold(reading, run, new, stored, name)
    for observer in observers(config):
        observer.on_open(step_of(config), whole, config.get("metadata", {}))
    ended = whole["progress"]["stopped"]
    if stored or ended or not is_segmented(new["scope"]):
        return {**whole}
    cutter, chain = reading.find_cutter(run, new), chain_of(reading, run, whole)
    spans = await _spans(reading, cutter, chain, new["scope"])
    scope = whole["scope"] = {**new["scope"], "segments": len(spans)}
    each: Scope = {**scope, "calls": updates_each(scope["calls"], len(spans), reading.config)}
    parts: list[Scope] = [
        {**each, "segment": number, "start": start, "end": end}
        for number, (start, end) in enumerate(spans, start=1)
    ]
    begun = (begin_fold(new["question"], new["source"], part) for part in parts)
    folds = await asyncio.gather(*(_fold(reading, run, part) for part in begun))
    return {**whole, "folds": _by_name(folds), "warnings": []}


def _may_search(reading: Reading, run: Run, new: Fold, config: RunnableConfig) -> bool:
    """Whether a search may answer a question, or the window holds the whole text."""
    if not reading.searches or observers(config) or run.cutter is None:
        return False
    return scope(new["question"]) == "one" or holds_whole(reading, run.cutter.source)


def _by_name(folds: Sequence[Fold]) -> dict[str, Fold]:
    return {fold_name(fold["scope"]): fold for fold in folds}


async def _spans(
    reading: Reading, cutter: Cutter, chain: Chain | None, scope: Scope
) -> list[tuple[int, int]]:
    """The segments of a question's document, including those that the store has.

    If `max_calls` is too low for so many, they are those of a new document.
    """
    known = () if chain is None else await chain.reuse.find_starts(cutter)
    spans = await to_thread(partial(cutter.spans, known), None)
    calls = updates_each(scope["calls"], len(spans), reading.config)
    return spans if calls is None or calls >= 1 else cutter.spans()


async def _fold(
    reading: Reading,
    run: Run,
    new: Fold,
    stored: str | None = None,
    name: str | None = None,
) -> Fold:
    """A new fold, continued from the versions in the store."""
    if run.store is None:
        return new
    chain = begin_chain(reading, run, new)
    if stored:
        return await chain.reuse.end_of(stored, new)
    return await chain.reuse.begin(reading.find_cutter(run, new), new, name)


async def _cut(reading: Reading, run: Run, fold: Fold) -> tuple[Cutter, Chunk]:
    """The chunk at the fold's position, and what cut it; another thread cuts a long one."""
    position = fold["progress"]["position"]
    if run.cutter is not None and run.cutter.at_once(position):
        return run.cutter, run.cutter.chunk(position)

    def cut() -> tuple[Cutter, Chunk]:
        cutter = reading.find_cutter(run, fold)
        return cutter, cutter.chunk(position)

    return await to_thread(cut, reading.seconds_left(run))


async def _advance(
    reading: Reading,
    run: Run,
    config: RunnableConfig,
    chain: Chain | None,
    fold: Fold,
    chunk: Chunk,
    attempt: int,
) -> Fold:
    """Read a chunk, and report it to observers and to the stream."""

    def report(before: Fold, after: Fold, update: FoldUpdate) -> None:
        if update.chunk == "read":
            for observer in observers(config):
                observer.on_overwrite(step_of(config), before, after)
            run.emit(chunk_event(reading, run, chunk, before, after, update))
        elif update.chunk == "skipped":
            run.emit(skip_event(reading, run, chunk, after))

    begin_attempt(config)
    is_last = attempt >= reading.config.max_attempts
    call = Call(reading, config, partial(reading.seconds_left, run), chain, is_last)
    return await advance(call, fold, chunk, report=report)


async def overwrite_memory(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig
) -> Changes:
    """Compute the next memory and move to the next chunk, in one write."""
    fold = fold_of(state)
    chain = None if run.store is None else chain_of(reading, run, fold)
    edited = fold if chain is None else await take_edit(chain, fold)
    if edited is not fold:
        return _changes(state, edited)
    try:
        cutter, chunk = await _cut(reading, run, fold)
    except LateError:
        return _changes(state, {**fold, "progress": {**fold["progress"], "stopped": "deadline"}})
    read = partial(_advance, reading, run, config, chain, fold, chunk)
    explain = partial(reading.explain, fold["progress"]["step"] + 1, fold["scope"])
    try:
        ending = nullcontext() if chain is None else abandon_if_cancelled(chain)
        with cutter.ahead(chunk, fold["scope"]["end"]), ending:
            after = await repeat(read, reading.config, explain)
    except EditedError:
        return _changes(state, fold)  # it is taken before the chunk is read
    except ModelError:
        if chain is not None:
            await chain.abandon()
        raise
    return _changes(state, after)


def _changes(state: ReadingState, after: Fold) -> Changes:
    """The channels that a step changed; others are not copied to the checkpointer."""
    changed = {key: value for key, value in after.items() if value != state.get(key)}
    return {"document": None, **changed}


async def merge_memories(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig
) -> Changes:
    """Merge the memories of the segments, or continue segments whose memory a user has edited."""
    whole = fold_of(state)
    parts = sorted(state["folds"].values(), key=lambda part: part["scope"]["start"])
    chain = chain_of(reading, run, whole)
    if chain is not None:
        await chain.enlist(whole)  # before its parts leave the list: it is not broken off
    edited = (take_edit(chain_of(reading, run, part), part, last=True) for part in parts)
    parts = [*await asyncio.gather(*edited)]
    if any(part["progress"]["stopped"] is None for part in parts):
        return {"document": None, "folds": _by_name(parts)}
    finished = await asyncio.gather(*(finish(chain_of(reading, run, part), part) for part in parts))
    new = [memory for memory, _ in finished if memory.text.strip()]
    merged = None if chain is None else await chain.find_merge(whole, parts)
    if merged is None:
        try:
            merged = await merge(reading, whole["question"], new, config)
        except ModelError as error:
            message = f"Merging the memories{where(whole['scope'])} failed: {error}"
            raise type(error)(message) from error
    after = join_parts(whole, parts, merged, reading.layers)
    if chain is not None:
        after = await chain.store_merge(after, parts)
    for observer in observers(config):
        observer.on_merge(step_of(config), parts, after)
    run.emit(
        MergeEvent(
            event="merge",
            **about(reading, run, whole),
            memories=len(new),
            calls=merged.usage.calls,
            memory_tokens=reading.tokenizer.count(after["memory"]),
        )
    )
    said = [*state.get("warnings", ()), *(warning for _, said in finished for warning in said)]
    said += warn_of_faults(merged.faulty, exact=reading.config.exact_cuts)
    folds = dict.fromkeys(state["folds"])
    return {"document": None, "warnings": [*dict.fromkeys(said)], "folds": folds, **after}


async def search(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig
) -> Changes:
    """Answer from the whole text, or from the passages that a search finds; else begin to read."""
    fold = fold_of(state)
    memory = await _with_passages(reading, state, run, Memory())
    if memory.passages:
        first = memory.passages[0]
        whole = first.end - first.start == fold["source"]["length"]
        wrote = _write(reading, state, run, config, fold, memory, held=not whole)
        answer, speech, progress = await wrote
        fold = {**fold, "progress": progress}
        if whole or await _stands(reading, run, fold["question"], answer):
            answer = _say(reading, run, config, answer, speech)
            how: How = "whole" if whole else "passages"
            return _output(reading, run, config, fold, memory, answer, how=how)
        run.emit(fallback_event(reading, run, fold, progress))
    new = begin_fold(state["question"], state["source"], state["scope"])
    begun = await _begin(reading, run, new, config, searched=True)
    return {**begun, "progress": add_usage(begun["progress"], usage_of(fold["progress"]))}


async def _stands(reading: Reading, run: Run, question: str, answer: Answer) -> bool:
    """Whether an answer stands on passages that speak of the question."""
    if run.cutter is None or answer.unsupported or not answer.found:
        return False
    left = reading.seconds_left(run)
    try:
        return await speaks_of(question, answer.evidence, run.cutter.source, left)
    except (SourceError, LateError):
        return False


async def write_answer(
    reading: Reading, state: ReadingState, run: Run, config: RunnableConfig
) -> Changes:
    """Answer from the memory and passages of the document, and add up the cost of the reading."""
    fold = fold_of(state)
    chain = chain_of(reading, run, fold)
    fold = await take_edit(None if state.get("version") else chain, fold, last=True)
    if fold["progress"]["stopped"] is None:  # what was read since the edited version
        return _changes(state, fold)
    memory = await settle(chain, fold)
    spans = [] if state.get("version") else unread_spans(fold)
    further = _further(fold, spans) if spans else None
    if further is not None:
        warnings = await close(chain, fold)
        run.emit(fallback_event(reading, run, fold, further))
        earlier = state.get("warnings", ()) if is_segmented(fold["scope"]) else ()
        return {"document": None, "progress": further, "warnings": [*earlier, *warnings]}
    if memory.text.strip() and not (state.get("version") or is_exact(reading, config)):
        memory = await _with_passages(reading, state, run, memory)
    # If the answer is not found, what the fold has skipped is read after all.
    held = not state.get("version") and _further(fold) is not None
    async with close_beside(chain, fold, strict=reading.config.strict) as warnings:
        wrote = _write(reading, state, run, config, fold, memory, held=held)
        answer, speech, progress = await wrote
    fold = {**fold, "progress": progress}
    if is_segmented(fold["scope"]) or progress["again"]:
        warnings = [*state.get("warnings", ()), *warnings]
    if answer.found is False and not state.get("version"):
        further = _further(fold)
        if further is not None:
            run.emit(fallback_event(reading, run, fold, further))
            return {"document": None, "progress": further, "warnings": warnings}
    for observer in observers(config):
        observer.on_answer(step_of(config), answer)
    answer = _say(reading, run, config, answer, speech)
    if chain is not None and not state.get("version"):
        await chain.mark_answered(fold, answer.final)
    return _output(reading, run, config, fold, memory, answer, warnings)


def _drops(reading: Reading, config: RunnableConfig) -> bool:
    return reading.config.unsupported == "drop" and not is_exact(reading, config)


async def _write(
    reading: Reading,
    state: ReadingState,
    run: Run,
    config: RunnableConfig,
    fold: Fold,
    memory: Memory,
    *,
    held: bool,
) -> tuple[Answer, Speech, Progress]:
    """Ask for the answer; return it, its stream, held back if need be, and the progress after."""
    held = held or _drops(reading, config)
    shown = _with_pictures(run, memory) if reading.config.pictures else memory

    async def answer_once(_attempt: int) -> tuple[Answer, Speech, float]:
        begin_attempt(config)
        speech, started = Speech(config, run.host, held=held), monotonic()
        answer = await _respond(reading, fold["question"], shown, speech.config)
        if not answer.text.strip():
            raise EmptyReplyError("The reader returned an empty answer.")
        return answer, speech, monotonic() - started

    explain = partial(reading.explain, None, fold["scope"])
    answer, speech, took = await repeat(answer_once, reading.config, explain)
    answer = _question_place(reading, state, run, answer, exact=is_exact(reading, config))
    calls = 0 if answer is NOTHING_NOTED else max(answer.usage.calls, 1)
    usage = replace(answer.usage, calls=calls, seconds=took)
    return answer, speech, add_usage(fold["progress"], usage)


def _say(
    reading: Reading, run: Run, config: RunnableConfig, answer: Answer, speech: Speech
) -> Answer:
    """Put the answer into the stream, and return it: without what nothing supports, if dropped."""
    drops = _drops(reading, config)
    answer = drop_from_answer(answer) if drops else answer
    speech.release(answer.final if drops and answer.unsupported else None)
    run.message_id = speech.id
    return answer


def _output(
    reading: Reading,
    run: Run,
    config: RunnableConfig,
    fold: Fold,
    memory: Memory,
    answer: Answer,
    warnings: Sequence[str] = (),
    *,
    how: How = "read",
) -> Changes:
    """Return the output of an answered question."""
    progress, source = fold["progress"], fold["source"]
    shows = [[passage.start, passage.end] for passage in memory.passages]
    coverage = count_covered(progress, 0, source["length"], shows) / source["length"]
    coverage *= share_opened(run.cutter.source) if run.cutter is not None else 1
    run.emit(
        AnswerEvent(
            event="answer",
            agent=reading.name,
            task=run.task,
            question=fold["question"],
            source=source["name"],
            answer=answer.final,
            how=how,
            coverage=coverage,
        )
    )
    shaped = {} if answer.structured is None else {"structured_response": answer.structured}
    drops = _drops(reading, config) and answer.structured is None
    cut = (
        f"The memory was over its budget of {reading.config.memory_tokens} tokens and lost its end "
        "at least once: raise memory_tokens."
    )
    return {
        **shaped,
        "document": None,
        "answer": answer.final,
        "response": answer.text,
        "how": how,
        "memory": memory.text,
        "evidence": [asdict(item) for item in memory.evidence],
        "citations": [asdict(item) for item in answer.evidence],
        "passages": shows,
        "found": answer.found,
        "unsupported": [asdict(item) for item in answer.unsupported],
        "usage": {
            **asdict(usage_of(progress)),
            "gated": count_closed(fold),
            "document_tokens": progress["tokens"],
        },
        "coverage": coverage,
        "sources": sources_of(run.cutter.source) if run.cutter is not None else [],
        "skipped": progress["skipped"],
        "stopped": progress["stopped"],
        "reader": reading.reader.identity.name,
        "version": progress["version"],
        "warnings": [
            *source["warnings"],
            *warnings,
            *([cut] if progress["cut"] else ()),
            *warn_of_faults(state_of(fold)["faulty"], exact=reading.config.exact_cuts),
            *warn_of_left_out(progress, answer.left_out),
            *warn_of_misuse(fold),
            *warn(memory),
            *warn_of_answer(answer, dropped=drops),
        ],
    }


def _question_place(
    reading: Reading, state: ReadingState, run: Run, answer: Answer, *, exact: bool
) -> Answer:
    """Return a language model's answer, as not found if its place is about something else."""
    if exact or run.cutter is None or state.get("version"):
        return answer
    if not (answer.found and reading.is_watched) or reading.config.pictures:
        return answer  # with pictures, what it says may stand in no text
    question = state["question"]
    if scope(question) == "all" or (answer.structured is not None and not answer.evidence):
        return answer
    try:
        beside = is_beside(answer.final, answer.evidence, question, run.cutter.source)
    except SourceError:
        return answer
    if not beside:
        return answer
    return replace(answer, found=False, is_beside=True, unsupported=(Unsupported(answer.final),))


NOTHING_NOTED = Answer(
    "Nothing in what was read bears on the question.",
    "Nothing in what was read bears on the question.",
    found=False,
)
"""The answer from an empty memory: a language model would make one up."""


def _with_pictures(run: Run, memory: Memory) -> Memory:
    """The memory with the pictures that it refers to, for the answer to see again."""
    from memagent_graph.pictures.sight import find_referred

    source = run.cutter and run.cutter.source
    seen = find_referred(memory.text, parts_with_offsets(source) if source else ())
    return replace(memory, pictures=seen)


async def _with_passages(reading: Reading, state: ReadingState, run: Run, memory: Memory) -> Memory:
    """The memory with passages to answer from; without any of a document that is not at hand."""
    if not reading.reader.shows_passages:
        return memory
    left = reading.seconds_left(run)
    try:
        cutter = await to_thread(partial(reading.find_cutter, run, fold_of(state)), left)
        found = await find_passages(reading, cutter.source, state["question"], memory, left)
    except (SourceError, LateError):
        return memory
    return replace(memory, passages=tuple(found))


async def _respond(
    reading: Reading, question: str, memory: Memory, config: RunnableConfig
) -> Answer:
    """Ask for the answer; with nothing noted there is no call, except where all are recorded."""
    reader = reading.reader
    asks = is_exact(reading, config) or not reader.shortens or reader.answers_without_notes(config)
    if memory.text.strip() or memory.passages or asks:
        return await reader.respond(question, memory, config=config)
    if (listener := listener_of(config)) is not None:
        listener.hear(NOTHING_NOTED.final, True)  # noqa: FBT003 - the listener's signature
    return NOTHING_NOTED


def _further(fold: Fold, unread: list[list[int]] | None = None) -> Progress | None:
    """The progress from which to read what was skipped, or `unread`; None if that is not done."""
    most, progress = fold["scope"]["calls"], fold["progress"]
    if most is not None and progress["calls"] >= most:
        return None
    if unread is not None:
        skipped = merge_spans(sorted([*progress["skipped"], *unread]))
        progress = {**progress, "skipped": skipped}
    return reopen(progress)
