"""The nodes around the fold's: open a document, begin a question, merge segments, answer."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from memagent_graph import errors
from memagent_graph.evidence.places import Memory, Unsupported
from memagent_graph.evidence.support import is_beside
from memagent_graph.graph.events import (
    Speech,
    answer_event,
    drop_from_answer,
    fallback_event,
    merge_event,
    open_event,
    warn,
    warn_of_answer,
)
from memagent_graph.graph.fold import (
    Visit,
    begin_chain,
    changes_of,
    faults_of,
    take_edit,
    warn_of_faults,
)
from memagent_graph.graph.layers import unread_spans, warn_of_misuse
from memagent_graph.graph.passages import find_passages, holds_whole, scope, speaks_of
from memagent_graph.graph.reading import (
    add_usage,
    begin_attempt,
    fold_name,
    memory_of,
    observers,
    repeat,
    step_of,
    where,
)
from memagent_graph.graph.segments import calls_each, join_parts, merge, segment_spans, updates_each
from memagent_graph.graph.state import (
    Answered,
    Changes,
    Document,
    Fold,
    ReadingInput,
    ReadingState,
    begin_fold,
    cost_of,
    count_covered,
    document_of,
    is_segmented,
    merge_spans,
    reopen,
    warn_of_left_out,
    whole_scope,
)
from memagent_graph.graph.versions import abandon_at_error
from memagent_graph.models.reply import listener_of
from memagent_graph.readers.base import Answer
from memagent_graph.sync import LateError, to_thread
from memagent_graph.templates import plural
from memagent_graph.text.files import open_source
from memagent_graph.text.source import parts_with_offsets, share_opened, sources_of
from memagent_graph.text.terms import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.graph.state import How, Progress, Scope
    from memagent_graph.text.chunks import Cutter
    from memagent_graph.text.source import Source


CALLS_EACH = "memagent_calls_each"
"""Key in a run's config: whether `max_calls` is for each question, not for all together."""
_NOT_OPENED = Document(name="", digest="", length=0, uri=None, warnings=[])
"""The document of a stored memory, until that is found."""


async def open_document(at: Visit) -> Changes:
    """Open the document, check the questions, and begin with what the store has for both."""
    reading, state, run = at.reading, at.state, at.run
    questions = _questions_of(state)
    await reading.prepare(max(map(reading.check_question, questions)))
    if run.document is None:
        run.document = state.get("document")
    stored = at.stored if run.document is None else None
    if run.document is None and not stored:
        raise errors.SourceError('There is nothing to read: invoke with {"document": ...}.')
    name = state.get("memory_name") or run.memory_name
    if run.store is None and (stored or name):
        kind = "stored" if stored else "named"
        message = f"A {kind} memory needs a store: create_memagent(store=...)."
        raise errors.ConfigurationError(message)
    if stored:
        source, scope = _NOT_OPENED, whole_scope(0)
    else:
        source, scope = await _open(at, len(questions), name)
    # Otherwise `stream_mode="values"` would repeat the document at every step.
    done: Changes = {"document": None}
    if state.get("answers") is not None:
        done["answers"] = None
    if left := dict.fromkeys(state.get("folds", ())):  # from an interrupted run
        done["folds"] = left
    if not state.get("question"):
        stale = state.keys() & Answered.__annotations__.keys() - ReadingInput.__annotations__.keys()
        opened: Changes = {"layers": {}, "source": source, "scope": scope, "version": stored}
        return {**dict.fromkeys(stale), **done, **opened}
    begun = await _begin(at, begin_fold(questions[0], source, scope), stored, name)
    if "folds" in begun:
        begun["folds"] = left | begun["folds"]
    return {**done, "answer": None, **begun}


async def begin_question(at: Visit) -> Changes:
    """Begin one of several questions with what the store has for it."""
    state = at.state
    new = begin_fold(state["question"], state["source"], state["scope"])
    return await _begin(at, new, at.stored)


def _questions_of(state: ReadingState) -> list[str]:
    """The questions, at least one."""
    question, questions = state.get("question"), state.get("questions")
    if question or questions is None:  # `questions` may be left from the thread's last run
        # What is no string is refused by the check of the question, which says so.
        return [
            replace_surrogates(question or "") if isinstance(question, str | None) else question
        ]
    if not questions:
        raise errors.QuestionError('There are no questions: invoke with {"questions": [...]}.')
    if isinstance(questions, str) or not all(isinstance(one, str) for one in questions):
        raise errors.QuestionError(
            'Questions are a list of strings: {"questions": ["...", "..."]}.'
        )
    name = state.get("memory_name")
    if name:
        message = f"The memory {name!r} belongs to one question: ask several without memory_name."
        raise errors.ConfigurationError(message)
    return [*map(replace_surrogates, questions)]


async def _open(at: Visit, questions: int, name: str | None) -> tuple[Document, Scope]:
    """Open and, if needed, cut the document; return its record, and the scope of its questions."""
    reading, run = at.reading, at.run
    in_parts = reading.config.merges and not name

    def open_and_cut() -> Cutter:
        cutter = reading.make_cutter(open_source(run.document), questions)
        if in_parts:
            segment_spans(reading, cutter)
        return cutter

    try:
        cutter = await to_thread(open_and_cut, at.seconds_left)
    except LateError as error:
        deadline = plural(reading.config.deadline or 0, "second")
        hint = "Raise the deadline, or convert the document to text beforehand."
        message = f"The document was not open after {deadline}, the reading's deadline. {hint}"
        raise errors.SourceError(message) from error
    run.cutter, source = cutter, cutter.source
    spans = segment_spans(reading, cutter) if in_parts else [(0, source.length)]
    sharing = 1 if run.config.get("configurable", {}).get(CALLS_EACH) else questions
    scope = whole_scope(
        source.length,
        questions=questions,
        segments=len(spans) if len(spans) > 1 else 0,
        calls=calls_each(reading.config, sharing, len(spans)),
    )
    run.emit(open_event(reading, run, source))
    return document_of(source), scope


async def _begin(
    at: Visit,
    new: Fold,
    stored: str | None = None,
    name: str | None = None,
    *,
    searched: bool = False,
) -> Changes:
    """Return the changes with which a question begins, and its segments if there are any."""
    reading, config = at.reading, at.config
    if not stored and at.source is None:  # a resumed run may convert the document again
        await to_thread(partial(at.cutter, new), at.seconds_left)
    if not (stored or name or searched) and _may_search(at, new):
        return {**new, "progress": {**new["progress"], "stopped": "search"}}
    whole = await _fold(at, new, stored, name)
    for observer in observers(config):
        observer.on_open(step_of(config), whole, config.get("metadata", {}))
    if stored or whole["progress"]["stopped"] or not is_segmented(new["scope"]):
        return {**whole}
    spans, origins = await _spans(at, whole)
    scope = whole["scope"] = {**new["scope"], "segments": len(spans)}
    each: Scope = {**scope, "calls": updates_each(scope["calls"], len(spans), reading.config)}
    parts: list[Scope] = [
        {**each, "segment": number, "start": start, "end": end, "origin": origin}
        for number, ((start, end), origin) in enumerate(zip(spans, origins, strict=True), start=1)
    ]
    begun = (_fold(at, begin_fold(new["question"], new["source"], part)) for part in parts)
    return {**whole, "folds": _by_name(await asyncio.gather(*begun)), "warnings": []}


def _may_search(at: Visit, new: Fold) -> bool:
    """Whether a search may answer a question, or the window holds the whole text."""
    if not at.reading.searches or observers(at.config) or at.source is None:
        return False
    return scope(new["question"]) == "one" or holds_whole(at.reading, at.source)


def _by_name(folds: Sequence[Fold]) -> dict[str, Fold]:
    return {fold_name(fold["scope"]): fold for fold in folds}


async def _spans(at: Visit, whole: Fold) -> tuple[list[tuple[int, int]], list[str]]:
    """The segments of a question's document, including those that the store has, and their origins.

    If `max_calls` is too low for so many, they are those of a new document.
    """
    cutter, chain, config = at.cutter(whole), at.chain(whole), at.reading.config
    known = () if chain is None else await chain.lineage.find_starts(cutter)
    spans = await to_thread(partial(segment_spans, at.reading, cutter, known), None)
    calls = updates_each(whole["scope"]["calls"], len(spans), config)
    spans = spans if calls is None or calls >= 1 else segment_spans(at.reading, cutter)
    if chain is None:
        return spans, [""] * len(spans)
    origin = partial(chain.lineage.origin, cutter)
    return spans, await to_thread(lambda: [origin(start) for start, _ in spans], None)


async def _fold(at: Visit, new: Fold, stored: str | None = None, name: str | None = None) -> Fold:
    """A new fold, continued from the versions in the store."""
    if at.run.store is None:
        return new
    chain = begin_chain(at.reading, at.run, new)
    if stored:
        return await chain.lineage.end_of(stored, new)
    return await chain.begin(at.cutter(new), new, name)


async def merge_memories(at: Visit) -> Changes:
    """Merge the memories of the segments, or continue segments whose memory a user has edited."""
    reading, state, config, whole = at.reading, at.state, at.config, at.fold
    parts = sorted(state["folds"].values(), key=lambda part: part["scope"]["start"])
    chain = at.chain(whole)
    if chain is not None:  # before its parts leave the list: it is not broken off
        await chain.lease.acquire(chain.describe(whole))
    edited = (take_edit(at.chain(part), part, last=True) for part in parts)
    parts = [*await asyncio.gather(*edited)]
    if any(part["progress"]["stopped"] is None for part in parts):
        return {"document": None, "folds": _by_name(parts)}
    new = [memory for memory in map(memory_of, parts) if memory.text.strip()]
    merged = None if chain is None else await chain.find_merge(whole, parts)
    if merged is None:
        try:
            async with nullcontext() if chain is None else abandon_at_error(chain):
                merged = await merge(reading, whole["question"], new, config)
        except errors.ModelError as error:
            message = f"Merging the memories{where(whole['scope'])} failed: {error}"
            raise type(error)(message) from error
    after = join_parts(whole, parts, merged, reading.layers)
    if chain is not None:
        after = await chain.store_merge(after, parts)
    for observer in observers(config):
        observer.on_merge(step_of(config), parts, after)
    at.run.emit(merge_event(reading, at.run, after, len(new), merged.usage.calls))
    faults = warn_of_faults(merged.faulty, exact=reading.config.exact_cuts)
    said = [*state.get("warnings", ()), *faults]
    folds = dict.fromkeys(state["folds"])
    return {"document": None, "warnings": [*dict.fromkeys(said)], "folds": folds, **after}


async def search(at: Visit) -> Changes:
    """Answer from the whole text, or from the passages that a search finds; else begin to read."""
    fold, memory = at.fold, await _with_passages(at, Memory())
    if memory.passages:
        first = memory.passages[0]
        whole = first.end - first.start == fold["source"]["length"]
        answer, speech, progress = await _write(at, fold, memory, held=not whole)
        fold = {**fold, "progress": progress}
        if whole or await _stands(at, answer):
            answer = _say(at, answer, speech)
            return _output(at, fold, memory, answer, how="whole" if whole else "passages")
        at.run.emit(fallback_event(at.reading, at.run, fold, progress))
    new = begin_fold(fold["question"], fold["source"], fold["scope"])
    begun = await _begin(at, new, searched=True)
    return {**begun, "progress": add_usage(begun["progress"], cost_of(fold["progress"]))}


async def _stands(at: Visit, answer: Answer) -> bool:
    """Whether an answer stands on passages that speak of the question."""
    if at.source is None or answer.unsupported or not answer.found:
        return False
    try:
        question, left = at.state["question"], at.seconds_left
        return await speaks_of(question, answer.evidence, at.source, left)
    except (errors.SourceError, LateError):
        return False


async def write_answer(at: Visit) -> Changes:
    """Answer from the memory and passages of the document, and add up the cost of the reading."""
    reading, run, state, fold, stored = at.reading, at.run, at.state, at.fold, at.stored
    chain = at.chain(fold)
    fold = await take_edit(None if stored else chain, fold, last=True)
    if fold["progress"]["stopped"] is None:  # what was read since the edited version
        return changes_of(state, fold)
    memory = memory_of(fold)
    warnings = [] if chain is None else await chain.close(fold)
    spans = [] if stored else unread_spans(fold)
    if spans and (further := _further(fold, spans)):
        run.emit(fallback_event(reading, run, fold, further))
        earlier = state.get("warnings", ()) if is_segmented(fold["scope"]) else ()
        return {"document": None, "progress": further, "warnings": [*earlier, *warnings]}
    if memory.text.strip() and not (stored or at.is_exact):
        memory = await _with_passages(at, memory)
    # If the answer is not found, what the fold has skipped is read after all.
    held = not stored and _further(fold) is not None
    answer, speech, progress = await _write(at, fold, memory, held=held)
    fold = {**fold, "progress": progress}
    if is_segmented(fold["scope"]) or progress["again"]:
        warnings = [*state.get("warnings", ()), *warnings]
    if answer.found is False and not stored and (further := _further(fold)):
        run.emit(fallback_event(reading, run, fold, further))
        return {"document": None, "progress": further, "warnings": warnings}
    for observer in observers(at.config):
        observer.on_answer(step_of(at.config), answer)
    answer = _say(at, answer, speech)
    if chain is not None and not stored:
        await chain.mark_answered(fold, answer.final)
    return _output(at, fold, memory, answer, warnings)


async def _write(
    at: Visit, fold: Fold, memory: Memory, *, held: bool
) -> tuple[Answer, Speech, Progress]:
    """Ask for the answer; return it, its stream, held back if need be, and the progress after."""
    reading = at.reading
    shown = _with_pictures(at.source, memory) if reading.config.pictures else memory

    async def answer_once(_attempt: int) -> tuple[Answer, Speech, float]:
        begin_attempt(at.config)
        speech, started = Speech(at.config, at.run.host, held=held or at.drops), monotonic()
        answer = await _respond(at, shown, speech.config)
        if not answer.text.strip():
            raise errors.EmptyReplyError("The reader returned an empty answer.")
        return answer, speech, monotonic() - started

    explain = partial(reading.explain, None, fold["scope"])
    answer, speech, took = await repeat(answer_once, reading.config, explain)
    answer = _question_place(at, answer)
    calls = 0 if answer is NOTHING_NOTED else max(answer.usage.calls, 1)
    usage = replace(answer.usage, calls=calls, seconds=took)
    return answer, speech, add_usage(fold["progress"], usage)


def _say(at: Visit, answer: Answer, speech: Speech) -> Answer:
    """Put the answer into the stream, and return it: without what nothing supports, if dropped."""
    answer = drop_from_answer(answer) if at.drops else answer
    speech.release(answer.final if at.drops and answer.unsupported else None)
    at.run.message_id = speech.id
    return answer


def _output(
    at: Visit,
    fold: Fold,
    memory: Memory,
    answer: Answer,
    warnings: Sequence[str] = (),
    *,
    how: How = "read",
) -> Changes:
    reading, progress, source = at.reading, fold["progress"], fold["source"]
    shows = [[passage.start, passage.end] for passage in memory.passages]
    coverage = count_covered(progress, 0, source["length"], shows) / source["length"]
    coverage *= share_opened(at.source) if at.source is not None else 1
    at.run.emit(answer_event(reading, at.run, fold, answer.final, how, coverage))
    shaped = {} if answer.structured is None else {"structured_response": answer.structured}
    dropped, exact = at.drops and answer.structured is None, reading.config.exact_cuts
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
            **asdict(cost_of(progress)),
            "gated": fold["progress"]["gated"],
            "document_tokens": progress["tokens"],
        },
        "coverage": coverage,
        "sources": sources_of(at.source) if at.source is not None else [],
        "skipped": progress["skipped"],
        "stopped": progress["stopped"],
        "reader": reading.reader.identity.name,
        "version": progress["version"],
        "warnings": [
            *source["warnings"],
            *warnings,
            *([cut] if progress["cut"] else ()),
            *warn_of_faults(faults_of(fold)["faulty"], exact=exact),
            *warn_of_left_out(progress, answer.left_out),
            *warn_of_misuse(fold),
            *warn(memory),
            *warn_of_answer(answer, dropped=dropped),
        ],
    }


def _question_place(at: Visit, answer: Answer) -> Answer:
    """Return a language model's answer, as not found if its place is about something else."""
    reading, question = at.reading, at.state["question"]
    if at.is_exact or at.source is None or at.stored:
        return answer
    if not (answer.found and reading.is_watched) or reading.config.pictures:
        return answer  # with pictures, what it says may stand in no text
    if scope(question) == "all" or (answer.structured is not None and not answer.evidence):
        return answer
    try:
        beside = is_beside(answer.final, answer.evidence, question, at.source)
    except errors.SourceError:
        return answer
    if not beside:
        return answer
    return replace(answer, found=False, is_beside=True, unsupported=(Unsupported(answer.final),))


_NOTHING = "Nothing in what was read bears on the question."
NOTHING_NOTED = Answer(_NOTHING, _NOTHING, found=False)
"""The answer from an empty memory: a language model would make one up."""


def _with_pictures(source: Source | None, memory: Memory) -> Memory:
    """The memory with the pictures that it refers to, for the answer to see again."""
    from memagent_graph.pictures import find_referred

    seen = find_referred(memory.text, parts_with_offsets(source) if source else ())
    return replace(memory, pictures=seen)


async def _with_passages(at: Visit, memory: Memory) -> Memory:
    """The memory with passages to answer from; without any of a document that is not at hand."""
    if not at.reading.reader.shows_passages:
        return memory
    left, question = at.seconds_left, at.state["question"]
    try:
        cutter = await to_thread(partial(at.cutter, at.fold), left)
        found = await find_passages(at.reading, cutter.source, question, memory, left)
    except (errors.SourceError, LateError):
        return memory
    return replace(memory, passages=tuple(found))


async def _respond(at: Visit, memory: Memory, config: RunnableConfig) -> Answer:
    """Ask for the answer; with nothing noted there is no call, except where all are recorded."""
    reader = at.reading.reader
    asks = at.is_exact or not reader.shortens or reader.answers_without_notes(config)
    if memory.text.strip() or memory.passages or asks:
        return await reader.respond(at.state["question"], memory, config=config)
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
