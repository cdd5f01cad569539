"""One step of the fold: its node, and `ask`, which asks the reader within its budget.

A reply that is over the budget, or that `CheckLayer` finds to be no notes, is asked for once more.
Every feature is a layer around `ask`; `memagent_graph.graph.layers` has their order.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from langgraph.graph import END
from langgraph.types import Send
from typing_extensions import TypedDict

from memagent_graph.errors import BadRequestError, ContextLengthError, EmptyReplyError, RefusalError
from memagent_graph.evidence.places import join_memories, with_text
from memagent_graph.graph.events import chunk_event, skip_event
from memagent_graph.graph.reading import (
    Call,
    FoldStep,
    FoldUpdate,
    Layer,
    apply_update,
    begin_attempt,
    fold_name,
    fold_of,
    memory_of,
    observers,
    repeat,
    step_of,
)
from memagent_graph.graph.state import VERSIONS, ReadingState, begin_fold, whole_scope
from memagent_graph.graph.versions import Chain, abandon_at_error
from memagent_graph.memory.lease import EditedError
from memagent_graph.readers.base import Update, Usage
from memagent_graph.readers.replies import adds_anything, with_lost_statements
from memagent_graph.seams import RunnableCallable
from memagent_graph.sync import LateError, to_sync, to_thread
from memagent_graph.templates import plural
from memagent_graph.text.chunks import Chunk, next_chunk
from memagent_graph.text.terms import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime

    from memagent_graph.graph.reading import Advance, Reading
    from memagent_graph.graph.state import Changes, Fold, QuestionState, Run
    from memagent_graph.text.chunks import Cutter
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

_LONG = 512
"""Tokens from which a prompt may be too long for a model whose context is unknown."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A call of a node: the state of the graph, and what the nodes of a run share."""

    reading: Reading
    state: ReadingState
    run: Run
    config: RunnableConfig

    @property
    def fold(self) -> Fold:
        """The fold in the graph's channels."""
        return fold_of(self.state)

    @property
    def stored(self) -> str | None:
        """The stored memory that is answered from, in place of a document."""
        return self.state.get("version")

    @property
    def source(self) -> Source | None:
        """The document; None if it is not open."""
        return None if self.run.cutter is None else self.run.cutter.source

    @property
    def is_exact(self) -> bool:
        """Whether replies are taken word for word."""
        return self.reading.is_exact(self.config)

    @property
    def drops(self) -> bool:
        """Whether statements of the answer without support are left out."""
        return self.reading.config.unsupported == "drop" and not self.is_exact

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        return self.reading.seconds_left(self.run)

    def chain(self, fold: Fold) -> Chain | None:
        """Return the versions of a fold in this call; None for one that began without a store."""
        if self.run.store is None or fold["progress"]["version"] is None:
            return None
        chain = self.run.chains.get(fold_name(fold["scope"]))
        if not isinstance(chain, Chain):  # of a resumed run
            chain = begin_chain(self.reading, self.run, fold)
            chain.lease.due = chain.lease.resumed = True
        return chain

    def cutter(self, fold: Fold) -> Cutter:
        """Return what cuts the document, which may have to be opened again."""
        return self.reading.find_cutter(self.run, fold)


def begin_chain(reading: Reading, run: Run, fold: Fold) -> Chain:
    """Make the chain of a fold that begins in this call, and of the one that it is merged into."""
    source, scope, whole = fold["source"], fold["scope"], None
    if scope["segment"]:
        of_all = whole_scope(source["length"], segments=scope["segments"])
        all_of_it = begin_fold(fold["question"], source, {**of_all, "number": scope["number"]})
        known = run.chains.get(fold_name(all_of_it["scope"]))  # of a resumed run, there is none
        whole = known if isinstance(known, Chain) else begin_chain(reading, run, all_of_it)
    chain = run.chains[fold_name(scope)] = Chain(reading, run, fold, whole)
    return chain


async def take_edit(chain: Chain | None, fold: Fold, *, last: bool = False) -> Fold:
    """Return a fold, from an edit of its memory if there is one; see `Chain.take_edit`."""
    if chain is None:
        return fold
    async with abandon_at_error(chain):
        return await chain.take_edit(fold, last=last)


def make_node(work: Callable[[Visit], Awaitable[Changes]], reading: Reading) -> RunnableCallable:
    """Return a node that waits for the reader or the store."""

    async def from_async(state: Any, config: RunnableConfig, runtime: Runtime[Run]) -> Changes:
        run = runtime.context
        run.config = config
        if run.streams and run.write is None:
            run.write = runtime.stream_writer
        if run.store is None:
            run.store = reading.store or runtime.store
            run.namespace = reading.namespace
        begin_attempt(config)
        return await work(Visit(reading, state, run, config))

    return RunnableCallable(to_sync(from_async), from_async, name=work.__name__, trace=False)


async def _read(at: Visit, chain: Chain | None, fold: Fold, chunk: Chunk, attempt: int) -> Fold:
    """Read a chunk, and report it to observers and to the stream."""
    reading, run, config = at.reading, at.run, at.config
    begin_attempt(config)
    is_last = attempt >= reading.config.max_attempts
    call = Call(reading, config, partial(reading.seconds_left, run), chain, is_last)
    after, update = await advance(call, fold, chunk)
    if update.chunk == "read":
        for observer in observers(config):
            observer.on_overwrite(step_of(config), fold, after)
        if run.write is not None:
            run.emit(chunk_event(reading, run, chunk, fold, after, update))
    elif update.chunk == "skipped":
        run.emit(skip_event(reading, run, chunk, after))
    if chain is None or after["progress"]["stopped"] not in {"end", "max_calls"}:
        return after
    return await chain.end(after)  # which moves a named memory


async def overwrite_memory(at: Visit) -> Changes:
    """Compute the next memory and move to the next chunk, in one write."""
    reading, state, fold = at.reading, at.state, at.fold
    chain = None if at.run.store is None else at.chain(fold)
    edited = fold if chain is None else await take_edit(chain, fold)
    if edited is not fold:
        return changes_of(state, edited)
    try:
        if (cutter := at.run.cutter) is None:
            cutter = await to_thread(partial(at.cutter, fold), at.seconds_left)
        chunk = await cutter.chunk(fold["progress"]["position"], at.seconds_left)
    except (LateError, TimeoutError):
        return changes_of(state, {**fold, "progress": {**fold["progress"], "stopped": "deadline"}})
    read = partial(_read, at, chain, fold, chunk)
    explain = partial(reading.explain, fold["progress"]["step"] + 1, fold["scope"])
    try:
        async with nullcontext() if chain is None else abandon_at_error(chain):
            with cutter.ahead(chunk, fold["scope"]["end"]):
                after = await repeat(read, reading.config, explain)
    except EditedError:
        return changes_of(state, fold)  # it is taken before the chunk is read
    return changes_of(state, after)


def first_step(state: ReadingState) -> str | list[Send]:
    """Return where a reading continues from its document: to each of several questions."""
    questions = state.get("questions")
    if state["question"] or not questions:
        return next_step(state)
    return [_send(state, number, question) for number, question in enumerate(questions)]


def _send(state: ReadingState, number: int, question: str) -> Send:
    asked: QuestionState = {
        "number": number,
        "question": replace_surrogates(question),
        "source": state["source"],
        "scope": {**state["scope"], "number": number + 1},
        "version": state.get("version"),
    }
    return Send("question", asked)


def next_step(state: ReadingState) -> str | list[Send]:
    """Return where a question goes on: to its folds, the next chunk, a search or the answer."""
    if folds := state.get("folds"):
        going = (fold for fold in folds.values() if not fold["progress"]["stopped"])
        return [Send("fold", fold) for fold in going] or "merge_memories"
    steps = {None: "overwrite_memory", "search": "search"}
    return steps.get(state["progress"]["stopped"], "write_answer")


def after_search(state: ReadingState) -> str | list[Send]:
    """Return where a question continues after a search, which may have answered it."""
    return END if state["progress"]["stopped"] == "search" else next_step(state)


def until_it_stops(state: ReadingState) -> str:
    """Return the next step of a fold, which ends if it has stopped."""
    return END if state["progress"]["stopped"] else "overwrite_memory"


def changes_of(state: ReadingState, after: Fold) -> Changes:
    """The channels that a step changed; others are not copied to the checkpointer."""
    changed = {key: value for key, value in after.items() if value != state.get(key)}
    return {"document": None, **changed}


async def advance(call: Call, fold: Fold, chunk: Chunk) -> tuple[Fold, FoldUpdate]:
    """Take one step, through all layers; return the fold after it, and the update."""
    number, memory = fold["progress"]["step"] + 1, memory_of(fold)
    gate = call.reading.has_update_gate  # which the server of a model may decide
    step = FoldStep(
        fold["question"], memory, chunk, number=number, update_gate=gate, fold=fold, call=call
    )
    read: Advance = ask
    for layer in reversed(call.reading.layers):
        if (call.chain is not None or not layer.needs_store) and (gate or not layer.needs_gate):
            read = partial(layer, read=read)
    update = await read(step)
    return apply_update(step, update), update


async def ask(step: FoldStep) -> FoldUpdate:
    """Ask the reader for the new memory, and keep it within the budget.

    It takes as many calls as the model's window requires: a chunk that does not fit is halved until
    it does; one that is rejected for an unknown reason, for as long as its prompt may not fit.
    White space costs no call. A memory over its budget is asked for once more, and then cut.
    """
    call, fold = step.call, step.fold
    most = fold["scope"]["calls"]
    again = most is None or fold["progress"]["calls"] + 2 <= most
    update = await asyncio.wait_for(_overwrite(step, again=again), call.seconds_left())
    memory, cut = update.memory, False
    if memory is None:
        tokens = call.reading.count(step.memory.text)
    else:
        memory, tokens, cut = call.reading.within_budget(memory)
    ending, unfinished, left = update.finish_reason, update.unfinished or cut, update.left_out
    return FoldUpdate(memory, update.usage, ending, unfinished, update.fault, left, tokens=tokens)


async def _overwrite(step: FoldStep, *, again: bool) -> Update:
    """Ask in as many calls as the window requires; for what is raised, see `ask`."""
    if not (step.chunk.pictures or step.chunk.text.strip()):
        return Update(None)
    started = perf_counter()
    try:
        return await _within_budget(step, again=again)
    except (ContextLengthError, BadRequestError) as error:
        is_known = isinstance(error, ContextLengthError)
        if len(step.chunk.text) == 1 or not (is_known or _may_be_too_long(step)):
            raise
    total = Update(None, usage=Usage(1, seconds=perf_counter() - started))
    for half in _halves(step.chunk, step.call.reading.tokenizer):
        part = replace(step, memory=total.memory or step.memory, chunk=half)
        update = await _overwrite(part, again=again)
        total = replace(
            update,
            memory=update.memory or total.memory,
            usage=total.usage + update.usage,
            unfinished=total.unfinished or update.unfinished,
            left_out={**Counter(total.left_out) + Counter(update.left_out)},
        )
    return total


def _may_be_too_long(step: FoldStep) -> bool:
    """Whether a prompt is so long that its length may be why the server rejected it."""
    reading = step.call.reading
    window = reading.reader.identity.window_tokens
    shown = step.chunk.tokens + reading.tokenizer.count(step.memory.text)
    return shown >= (_LONG if window is None else window // 2)


async def _within_budget(step: FoldStep, *, again: bool) -> Update:
    """Ask the reader, and once more if its memory is over the budget and it can be shorter."""
    reading, config, update = step.call.reading, step.call.config, await _ask(step)
    most, memory = reading.config.memory_tokens, update.memory
    over = memory is not None and (update.unfinished or reading.count(memory.text) > most)
    if not (over and again and reading.reader.shortens):
        return update
    refused, started = -1, perf_counter()
    try:
        kept = await _ask(replace(step, shorter=True))
        usage, refused = kept.usage, -2
    except (EmptyReplyError, RefusalError):
        kept, usage = update, Usage(1, seconds=perf_counter() - started)  # the first is cut
    if config is not None:
        for observer in observers(config):
            observer.on_refuse(step_of(config), refused)
    return replace(kept, usage=update.usage + usage)


async def _ask(step: FoldStep) -> Update:
    """Make one call, and return its update with the memory to keep."""
    reading, started = step.call.reading, perf_counter()
    update = await reading.reader.update(step, config=step.call.config)
    memory, used = update.memory, update.usage
    calls = max(1, used.calls) if reading.reader.adds else 1  # with that of a merge
    usage = Usage(calls, used.input_tokens, used.output_tokens, perf_counter() - started)
    if memory is not None:
        if not memory.text.strip():
            raise EmptyReplyError("The reader returned an empty memory; the previous one is kept.")
        memory = reading.keep_supported(replace(memory, dropped=step.memory.dropped))
        if not memory.text.strip():
            memory = replace(step.memory, dropped=memory.dropped)
    return replace(update, memory=memory, usage=usage)


def _halves(chunk: Chunk, tokenizer: Tokenizer) -> Iterator[Chunk]:
    budget = max(1, chunk.tokens // 2)
    start = chunk.start
    while start < chunk.end:
        part = next_chunk(chunk.source, start, tokenizer=tokenizer, chunk_tokens=budget)
        if part is None:  # pragma: no cover - the source ended before its own chunk
            return
        if part.end > chunk.end:
            text = part.text[: chunk.end - start]
            part = replace(part, text=text, end=chunk.end, tokens=tokenizer.count(text))
        if len(part.text) == len(chunk.text):  # a single token of several code points
            middle = len(part.text) // 2
            part = replace(part, text=part.text[:middle], end=part.start + middle)
        # Of pictures, each half has the first or the last: they cost more than their marks.
        few = (len(chunk.pictures) + (start == chunk.start)) // 2
        shown = chunk.pictures[:few] if start == chunk.start else chunk.pictures[-few:]
        yield replace(part, pictures=shown) if few else part
        start = part.end


class Checked(TypedDict):
    """How many overwrites were asked for again because of a fault, and how many still had one."""

    asked: int
    faulty: int


class CheckLayer(Layer):
    """Let no reply overwrite notes that is none, or that lost most of them without need.

    What is wrong with a reply is the reader's to say (`Update.fault`). In recorded rollouts and
    with `exact_cuts`, where replies are taken word for word, faults are only counted. A step with
    an empty reply is repeated as after other failures; the last time, what was noted stays, and
    from then on at once. Where nothing has been noted yet, it ends the reading.
    """

    name = "check"

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step; if the reply has a fault, ask once more, and keep what was known."""
        call = step.call
        exact = call.reading.is_exact(call.config)
        try:
            update = await read(replace(step, exact=exact))
        except EmptyReplyError:
            # The server may have failed; a conversation's messages are kept for another try.
            fails = call.is_last or faults_of(step.fold)["faulty"]
            if exact or call.reading.reader.standing or not (fails and step.memory.text):
                raise
            update = FoldUpdate(None, usage=Usage(1), fault="placeholder")
        if update.fault is None:
            return update
        first, before = update, faults_of(step.fold)
        if not exact:
            update = await self._settle(step, update, read)
        asked = before["asked"] + (update.usage.calls > first.usage.calls)
        found = Checked(asked=asked, faulty=before["faulty"] + (update.fault is not None))
        return replace(update, layers={**update.layers, self.name: found})

    async def _settle(self, step: FoldStep, update: FoldUpdate, read: Advance) -> FoldUpdate:
        """The update to make of one with a fault; its `fault` is None if there is no more."""
        reading, first = step.call.reading, update
        if update.memory and update.fault == "loss" and not update.unfinished:
            joined = with_lost_statements(step.memory.text, update.memory.text)
            if reading.tokenizer.count(joined) > reading.config.memory_tokens:
                return replace(update, fault=None)  # something had to go
        most, calls = step.fold["scope"]["calls"], step.fold["progress"]["calls"]
        if not update.unfinished and (most is None or calls + update.usage.calls + 1 <= most):
            try:
                update = await read(replace(step, fault=update.fault))
                usage = first.usage + update.usage
            except (EmptyReplyError, RefusalError):
                usage = first.usage + Usage(1)
            update = replace(update, usage=usage)
            if update.fault is None:
                return update
        return self._keep(step, update)

    def _keep(self, step: FoldStep, update: FoldUpdate) -> FoldUpdate:
        """The update that keeps the old notes, and what the reply adds to them if it is notes."""
        reading, before, made = step.call.reading, step.memory, update.memory
        lost = made is not None and update.fault == "loss"
        if not (made and lost and adds_anything(made.text, before.text, step.chunk.text)):
            tokens = reading.count(before.text)
            return replace(update, memory=before, tokens=tokens, unfinished=False)
        text = with_lost_statements(before.text, made.text, first=not update.unfinished)
        both = replace(with_text(text, join_memories([before, made])), dropped=made.dropped)
        memory, tokens, cut = reading.within_budget(both)
        return replace(update, memory=memory, tokens=tokens, unfinished=update.unfinished or cut)

    def join(self, states: Sequence[Checked]) -> Checked:
        """Return the sum of the counts."""
        asked, faulty = (sum(state[key] for state in states) for key in ("asked", "faulty"))
        return Checked(asked=asked, faulty=faulty)


class Versions(Layer):
    """Store each memory as a version, and take stored ones instead of reading again.

    Its state has `made`, the record of the fold's last version without the memory, for a run that
    is killed before that is stored (see `MemoryVersion.to_stub`); and `edit`, the id of the last
    edit by a user that the fold continued from, at the time `taken`.
    """

    name = VERSIONS
    needs_store = True

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the version after the chunk from the store, or read it and store it."""
        chain = step.call.chain
        assert isinstance(chain, Chain)  # noqa: S101 - the layer needs a store
        step = replace(step, memory=await chain.open(step.fold))
        update = await chain.follow(step.fold, step.chunk)
        if update is None:
            async with chain.lease.keep_alive():
                update = await read(step)
            await chain.expect_no_other()
        after = apply_update(step, update)
        kept = chain.keep(after, step, update)
        layers = {**update.layers, self.name: kept["layers"][self.name]}
        return replace(update, version=kept["progress"]["version"], layers=layers)


def faults_of(fold: Fold) -> Checked:
    """Return the state of a fold's check."""
    found = fold["layers"].get(CheckLayer.name, {"asked": 0, "faulty": 0})
    return Checked(asked=found["asked"], faulty=found["faulty"])


def warn_of_faults(count: int, *, exact: bool) -> list[str]:
    """Return a warning about replies that were no notes; none if there were none."""
    if not count:
        return []
    then = "asked for again, and what had been noted before was kept"
    then = "taken anyway, since replies are taken word for word here" if exact else then
    message = (
        f"{plural(count, 'reply')} {'was' if count == 1 else 'were'} no notes, or had lost most of "
        f"them without need; {then}. A model that reads better, or larger chunks, may help."
    )
    return [message]
