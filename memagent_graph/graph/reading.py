"""The reader, budgets and tokenizer that the nodes of a graph share, and rules on them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

from memagent_graph import errors
from memagent_graph.evidence.places import Memory, from_plain, to_plain, with_text
from memagent_graph.evidence.statements import leave_out
from memagent_graph.graph.state import Fold, merge_spans
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.memory.version import make_fingerprint
from memagent_graph.readers.base import Step, Update
from memagent_graph.templates import plural
from memagent_graph.text.chunks import Chunk, Cutter, cut_at_sentence
from memagent_graph.text.files import open_source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.state import (
        Document,
        LayerState,
        Progress,
        ReadingState,
        Run,
        Scope,
        Stopped,
    )
    from memagent_graph.readers.base import Answer, Identity, Reader, Usage
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer


class Observer:
    """A mixin for a `BaseCallbackHandler` that observes readings; all methods are optional.

    `step` is the run id of a node: model calls in it are its children, and its parent is the run of
    its fold. An error in a method ends the run.
    """

    def on_open(self, step: UUID, fold: Fold, about: Mapping[str, object]) -> None:
        """The document was opened; `fold` begins, and `about` is the run's metadata."""

    def on_begin(self, step: UUID) -> None:
        """The reader is about to be called, for the first time or again: what failed is void."""

    def on_refuse(self, step: UUID, reply: int) -> None:
        """A reply was refused, because it was empty or over the budget; another was asked for.

        It was the last (-1) of the attempt, or of its current `part`, or the one before (-2).
        """

    def on_overwrite(self, step: UUID, before: Fold, after: Fold) -> None:
        """A chunk was read."""

    def on_merge(self, step: UUID, parts: Sequence[Fold], after: Fold) -> None:
        """The memories of the segments were merged into that of `after`."""

    def on_answer(self, step: UUID, answer: Answer) -> None:
        """The answer was written."""


part: ContextVar[object] = ContextVar("part", default=None)
"""The current one of several concurrent calls of a step."""


def observers(config: RunnableConfig) -> list[Observer]:
    """Return the observers in a node's config."""
    handlers = getattr(config.get("callbacks"), "handlers", ())
    return [handler for handler in handlers if isinstance(handler, Observer)]


def step_of(config: RunnableConfig) -> UUID:
    """Return the run id of the node with this config."""
    found: UUID = config["callbacks"].parent_run_id  # type: ignore[assignment,union-attr]
    return found


def begin_attempt(config: RunnableConfig) -> None:
    """Tell the observers in a node's config that its reader is about to be called."""
    for observer in observers(config):
        observer.on_begin(step_of(config))


@dataclass(frozen=True, slots=True)
class Call:
    """The call of the graph that a step is part of.

    `seconds_left` returns the seconds until the deadline, None without one; `chain` is the fold's
    `Chain`, its versions in the store; the step is not tried again if the last attempt fails.
    """

    reading: Reading
    config: RunnableConfig | None = None
    seconds_left: Callable[[], float | None] = lambda: None
    chain: object | None = None
    is_last: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldStep(Step):
    """A step as layers see it: the reader's input, the fold before it, and the graph's call."""

    fold: Fold
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldUpdate(Update):
    """An update as layers see it: the reader's, and what the layers add to it.

    Attributes:
        chunk: what became of the chunk: it was read, skipped, or is still to be read.
        tokens: length of the memory after the step, in tokens.
        version: id of the stored version of the memory; None if none was stored.
        stopped: why the fold ends with this step, if a layer ends it.
        layers: new states of layers, by name.
    """

    chunk: Literal["read", "skipped", "left"] = "read"
    tokens: int = 0
    version: str | None = None
    stopped: Stopped | None = None
    layers: Mapping[str, LayerState] = field(default_factory=dict)


def fold_name(scope: Scope) -> str:
    """Return the name of a fold: "" for the only one, else its question, with any segment."""
    number, segment = scope["number"], scope["segment"]
    if segment:
        return f"{number or 1}.{segment}"
    return str(number or "")


def fold_of(state: ReadingState) -> Fold:
    """Return the fold in the graph's channels."""
    values: Mapping[str, object] = state
    return cast("Fold", {name: values[name] for name in Fold.__annotations__})


def memory_of(fold: Fold) -> Memory:
    """Return the memory of a fold, with evidence and marks that match its possibly edited text."""
    return with_text(fold["memory"], from_plain(fold))


def add_usage(progress: Progress, usage: Usage) -> Progress:
    """Return the progress of a fold after further calls."""
    return {
        **progress,
        "calls": progress["calls"] + usage.calls,
        "input_tokens": progress["input_tokens"] + usage.input_tokens,
        "output_tokens": progress["output_tokens"] + usage.output_tokens,
        "seconds": progress["seconds"] + usage.seconds,
    }


def apply_update(step: FoldStep, update: FoldUpdate) -> Fold:
    """Return the fold after a step. Nothing else overwrites a memory."""
    fold, chunk, usage = step.fold, step.chunk, update.usage
    before, end = fold["progress"], fold["scope"]["end"]
    after: Progress = {**before, "stopped": None}
    if update.chunk == "skipped":
        after = skip(before, chunk)
    elif update.chunk == "read":
        position, skipped = move(before, chunk, end)
        after = {
            **add_usage(after, usage),
            "position": position,
            "skipped": skipped,
            "step": before["step"] + 1,
            "tokens": before["tokens"] + chunk.tokens,
            "gated": before["gated"] + (step.update_gate and update.memory is None),
            "cut": before["cut"] or update.unfinished,
            "version": update.version or before["version"],
        }
        if update.left_out:
            after["left_out"] = {**Counter(before.get("left_out")) + Counter(update.left_out)}
        if chunk.crowded_out:
            after["not_shown"] = before.get("not_shown", {}) | {str(chunk.start): chunk.crowded_out}
    layers = {**fold["layers"], **update.layers} if update.layers else fold["layers"]
    after["stopped"] = update.stopped or _stop(fold, after)
    changed: Fold = {**fold, "progress": after, "layers": layers}
    return changed if update.memory is None else {**changed, **to_plain(update.memory)}


def skip(progress: Progress, chunk: Chunk) -> Progress:
    """Return the progress of a fold after it has skipped a chunk."""
    skipped = merge_spans([*progress["skipped"], [chunk.start, chunk.end]])
    return {**progress, "position": chunk.end, "skipped": skipped}


def move(progress: Progress, chunk: Chunk, end: int) -> tuple[int, list[list[int]]]:
    """Return a fold's position, and its skipped spans, after it has read a chunk."""
    skipped = progress["skipped"]
    if not progress["again"]:
        return chunk.end, skipped
    (_, stop), *others = skipped
    left = [[chunk.end, stop], *others] if chunk.end < stop else others
    return (left[0][0] if left else end), left


def _stop(fold: Fold, after: Progress) -> Stopped | None:
    """Why a fold ends after a step; None if it continues."""
    if after["position"] >= fold["scope"]["end"]:
        return "end"
    most = fold["scope"]["calls"]
    return "max_calls" if most is not None and after["calls"] >= most else None


T = TypeVar("T")
Advance = Callable[[FoldStep], Awaitable[FoldUpdate]]


class Layer:
    """A feature around a step of the fold. It knows no other layer.

    Attributes:
        name: its key in `Fold.layers`.
        needs_store: whether it is left out of folds without a store.
        needs_gate: whether it is left out of folds without an update gate.
    """

    name: ClassVar[str]
    needs_store: ClassVar[bool] = False
    needs_gate: ClassVar[bool] = False

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take a step by `read`, the layers below, or without it."""
        raise NotImplementedError

    def settings(self) -> list[object]:
        """Return what shapes memories, for the fingerprint of a reading."""
        return []

    def depends_on_memory(self, question: str) -> bool:
        """Whether what a fold is shown of its document depends on its memory."""
        return False

    def join(self, states: Sequence[Any]) -> LayerState:
        """Return the state of a document's fold from those of its segments; nothing by default."""
        return {}


@dataclass(frozen=True)
class Reading:
    """A reader with its budgets, tokenizer, store and namespace.

    Attributes:
        name: name of the agent, in events.
        reader: the reader.
        config: the budgets and switches.
        tokenizer: counts tokens.
        store: the agent's own store; None to take the host's, if any.
        namespace: namespace of the memories.
        cut: shortens a memory that is over its budget to a number of tokens.
        layers: the layers that the settings ask for, the outermost first; see `add_layers`.
    """

    name: str
    reader: Reader
    config: ReadingConfig
    tokenizer: Tokenizer
    store: BaseStore | None = None
    namespace: tuple[str, ...] = NAMESPACE
    cut: Callable[[str, int, Tokenizer], str] = cut_at_sentence
    layers: tuple[Layer, ...] = ()

    @property
    def has_update_gate(self) -> bool:
        """Whether a reply may say that a chunk adds nothing; one of what it adds always may."""
        return self.config.update_gate or self.reader.adds

    def is_exact(self, config: RunnableConfig | None) -> bool:
        """Whether replies are taken word for word, as in the paper: recorded runs are too."""
        return self.config.exact_cuts or bool(config and observers(config))

    @property
    def is_watched(self) -> bool:
        """Whether a language model looks for an answer, and may misuse a way out."""
        return self.reader.shortens and not self.reader.standing

    @property
    def fingerprint(self) -> str:
        """Digest of everything that shapes the memories of this reading."""
        config = self.config
        budgets: list[object] = [config.chunk_tokens, config.memory_tokens, config.exact_cuts]
        budgets += [f"pictures {config.pictures}"] if config.pictures else []
        budgets += [config.unsupported] if config.unsupported == "drop" else []
        budgets += ["update gate"] if self.has_update_gate else []
        budgets += [setting for layer in self.layers for setting in layer.settings()]
        return make_fingerprint(self.reader.identity.fingerprint, self.tokenizer.name, *budgets)

    def check_question(self, question: str | None) -> int:
        """Check a question, and return its length in tokens."""
        if question is not None and not isinstance(question, str):
            kind, several = type(question).__name__, '{"questions": [...]}'
            message = f"A question is a string, not {kind}: ask several with {several}."
            raise errors.QuestionError(message)
        if not question or not question.strip():
            message = 'The question is empty: ask one, such as "Who signed the lease?".'
            raise errors.QuestionError(message, question=question)
        tokens, budget = self.tokenizer.count(question), self.config.question_tokens
        if tokens > budget:
            hint = "shorten it, move text to be read into the document, or raise question_tokens."
            message = (
                f"The question has {plural(tokens, 'token')}, but its budget is {budget}: {hint}"
            )
            raise errors.QuestionError(message, question=question)
        return tokens

    async def prepare(self, question_tokens: int) -> None:
        """Prepare the reader, and check that the model's context holds the budgets."""
        check_window(await self.reader.prepare(), self.config, question_tokens)

    def explain(
        self, step: int | None, scope: Scope, error: errors.ModelError, attempt: int
    ) -> errors.ModelError:
        """Return the lasting error to raise, which names the chunk."""
        place = ("answering" if step is None else f"reading chunk {step}") + where(scope)
        times = f" after {attempt} attempts" if attempt > 1 else ""
        said = str(error) or type(error).__name__
        said += "" if said.endswith((".", "!", "?")) else "."
        message = f"{place.capitalize()} failed{times}: {said}"
        if before := (step or 1) - 1:
            chunks = "the chunk" if before == 1 else f"the {before} chunks"
            message += f" The memory of {chunks} before it is kept."
        lasting = (
            errors.ModelError if isinstance(error, errors.TransientModelError) else type(error)
        )
        return lasting(message, chunk=step)

    @property
    def searches(self) -> bool:
        """Whether a search may answer a question before the document is read."""
        config = self.config
        return config.how == "auto" and self.reader.shows_passages and not config.exact_cuts

    def keep_supported(self, memory: Memory) -> Memory:
        """Return the memory; without unsupported statements, which it counts, if to be dropped."""
        if self.config.unsupported != "drop" or not memory.unsupported:
            return memory
        text = leave_out(memory.text, {item.text for item in memory.unsupported})
        dropped = memory.dropped + len(memory.unsupported)
        return replace(with_text(text, memory), unsupported=(), dropped=dropped)

    @cached_property
    def count(self) -> Callable[[str], int]:
        """Counts the tokens of a memory, for all who ask about it at once."""
        return lru_cache(8)(self.tokenizer.count)

    def within_budget(self, memory: Memory) -> tuple[Memory, int, bool]:
        """Return a memory within its budget, its tokens, and whether it was cut."""
        text, budget = memory.text, self.config.memory_tokens
        if is_over := self.count(text) > budget:
            text = self.cut(text, budget, self.tokenizer)
        return with_text(text, memory), self.count(text), is_over

    @property
    def sizes(self) -> dict[str, Any]:
        """How a source is cut: the arguments of `next_chunk`."""
        config = self.config
        own = {"chunk_tokens": config.chunk_tokens, "exact_cuts": config.exact_cuts}
        return {"tokenizer": self.tokenizer, **own}

    def make_cutter(self, source: Source, questions: int) -> Cutter:
        """Return what cuts a document for so many questions."""
        most, model = self.config.pictures, getattr(self.reader, "model", None)
        return Cutter(source, shared=questions, pictures=most, model=model, **self.sizes)

    def find_cutter(self, run: Run, fold: Fold) -> Cutter:
        """Return the run's cutter; a resumed run opens its document again, given or by its uri."""
        with run.opening:
            if run.cutter is None:
                source = _reopen(run.document, fold["source"])
                run.cutter = self.make_cutter(source, fold["scope"]["questions"])
            return run.cutter

    def seconds_left(self, run: Run) -> float | None:
        """Return the seconds until the deadline; None without one."""
        deadline = self.config.deadline
        return None if deadline is None else run.started + deadline - monotonic()


def _reopen(document: Any, record: Document) -> Source:
    if document is None and record["uri"] is None:
        hint = 'invoke(None, config, context={"document": ...})'
        message = f"{record['name']} cannot be opened again: resume with {hint}."
        raise errors.SourceError(message)
    source = open_source({"uri": record["uri"]} if document is None else document)
    if source.digest != record["digest"]:
        hint = "Start over by invoking with the question and the document."
        message = f"{record['name']} has changed since the reading began. {hint}"
        raise errors.SourceChangedError(message)
    return source


def where(scope: Scope) -> str:
    """Return the question and segment of a fold, for messages; "" for the only one."""
    segment = f" of segment {scope['segment']}" if scope["segment"] else ""
    question = f" for question {scope['number']}" if scope["number"] else ""
    return segment + question


def check_window(identity: Identity, config: ReadingConfig, question_tokens: int) -> None:
    """Check that the model's context, if known, holds the budgets.

    Args:
        identity: the reader's identity, with the length of the context.
        config: the budgets.
        question_tokens: tokens of the question; 0 if there is none yet. With its budget, the
            default ones would exceed the 8,192 tokens that they are made for.

    Raises:
        ConfigurationError: The context is too short.
    """
    needed, holds = config.window_tokens, identity.window_tokens
    needed += question_tokens - config.question_tokens
    if holds is None or holds >= needed:
        return
    advice = "Lower question_tokens, memory_tokens, answer_tokens and chunk_tokens"
    if config.model_copy(update={"chunk_tokens": 1}).window_tokens <= holds:
        most = config.chunk_tokens - config.window_tokens + holds
        advice = f"Lower chunk_tokens to {most} or less"
    message = (
        f"The budgets need a context of {needed} tokens for this question, and up to "
        f"{config.window_tokens} for a longer one, but that of {identity.name} holds {holds}. "
        f"{advice}, or serve the model with a longer context."
    )
    raise errors.ConfigurationError(message)


_LONGEST_PAUSE = 60.0
"""Longest pause in seconds, both for a server's Retry-After and for our own interval."""
_LONGEST_LOOK = 5.0
"""Longest pause in seconds while a server may be starting again."""
_MOST_DOUBLINGS = 30


async def repeat(
    call: Callable[[int], Awaitable[T]],
    config: ReadingConfig,
    explain: Callable[[errors.ModelError, int], errors.ModelError] | None = None,
    *,
    patient: bool = True,
) -> T:
    """Make a call, and repeat it after transient errors, with doubling intervals.

    No other code repeats calls of a model, or waits for one. A server's Retry-After is added. A
    server that became unreachable is asked for the error's `patience`, however often.

    Args:
        call: makes an attempt; it takes its number, from 1.
        config: gives `max_attempts` and `retry_interval`, in seconds.
        explain: returns the error to raise for the last one and the number of attempts.
        patient: whether to wait for a server that became unreachable, and for another reply.
    """
    attempt, failed = 1, float("inf")
    while True:
        try:
            return await call(attempt)
        except errors.ModelError as error:
            failed = min(failed, monotonic())
            passing = patient or not isinstance(error, errors.EmptyReplyError)
            transient = error if isinstance(error, errors.TransientModelError) and passing else None
            if transient is None or (
                attempt >= config.max_attempts
                and (not patient or monotonic() - failed >= transient.patience)
            ):
                if explain is not None:
                    raise explain(error, attempt) from error
                if transient is None:
                    raise
                times = f" after {attempt} attempts" if attempt > 1 else ""
                message = f"The model call failed{times}: {error}"
                raise errors.ModelError(message) from error
            longest = _LONGEST_LOOK if transient.patience else _LONGEST_PAUSE
            pause = min(config.retry_interval * 2 ** min(attempt - 1, _MOST_DOUBLINGS), longest)
            pause = random.uniform(pause / 2, pause)  # noqa: S311 - no secret
            await asyncio.sleep(pause + min(transient.retry_after or 0.0, _LONGEST_PAUSE))
        attempt += 1
