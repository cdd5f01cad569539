"""The reader, budgets and tokenizer that the nodes of a graph share, and rules on them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from memagent_graph.errors import (
    ConfigurationError,
    ModelError,
    QuestionError,
    SourceChangedError,
    SourceError,
    TransientModelError,
)
from memagent_graph.evidence.places import with_text
from memagent_graph.evidence.statements import leave_out
from memagent_graph.graph.chunks import Cutter
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.memory.version import make_fingerprint
from memagent_graph.readers.base import Step, Update
from memagent_graph.templates import plural
from memagent_graph.text.chunks import cut_at_sentence
from memagent_graph.text.files import open_source

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.evidence.places import Memory, Unsupported
    from memagent_graph.graph.state import (
        Document,
        Fold,
        FoldVersions,
        LayerState,
        Progress,
        Run,
        Scope,
        Stopped,
    )
    from memagent_graph.readers.base import Answer, Identity, Reader
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer


_SHOWN = 80
"""Code points quoted of a statement in a warning."""


def drop_from_answer(answer: Answer) -> Answer:
    """Return the answer without its unsupported statements; a structured one stays as it is."""
    if not answer.unsupported or answer.structured is not None:
        return answer
    texts = {item.text for item in answer.unsupported}
    final = "" if answer.final in texts else leave_out(answer.final, texts)
    if final.strip():
        return replace(answer, final=final)
    return replace(answer, final=NOTHING_SUPPORTED, found=False, evidence=())


NOTHING_SUPPORTED = "Nothing in what was read supports an answer."
"""The answer in place of one of which every statement was dropped."""


def warn_of_answer(answer: Answer, *, dropped: bool) -> list[str]:
    """Return a warning about an answer of which the memory does not hold all."""
    if not answer.unsupported:
        return []
    first = _quote(answer.unsupported[0])
    if dropped:
        return [f"Left out of the answer, without support in what was read: {first}."]
    if answer.is_beside:
        return [f"The text that the answer comes from does not speak of the question: {first}."]
    what = "The answer has" if answer.found is False else "A statement of the answer has"
    return [f"{what} no support in what was read: {first}."]


def _quote(item: Unsupported) -> str:
    """Return the beginning of a statement in quotes, with its names that have no support."""
    quoted = item.text if len(item.text) <= _SHOWN else f"{item.text[: _SHOWN - 1]}…"
    names = f" ({', '.join(item.missing)})" if item.missing else ""
    return f'"{quoted}"{names}'


def warn_of_left_out(progress: Progress, more: Mapping[str, int]) -> list[str]:
    """Return a warning about what was left out of a fold, and `more`; none if nothing was."""
    pictures = sum(progress.get("not_shown", {}).values())
    crowded = {"a picture of a chunk, without room in pictures": pictures} if pictures else {}
    left_out = {**progress.get("left_out", {}), **crowded, **more}
    lines = [f"{count} ({why})" for why, count in left_out.items()]
    return [f"What was left out: {', '.join(lines)}."] if lines else []


def warn(memory: Memory) -> list[str]:
    """Return warnings about unsupported statements in the final memory, kept or left out."""
    warnings = []
    if memory.unsupported:
        first, count = _quote(memory.unsupported[0]), len(memory.unsupported)
        has = "statement of the memory has" if count == 1 else "statements of the memory have"
        end = "." if count == 1 else ", for example."
        warnings.append(f"{count} {has} no support in what was read: {first}{end}")
    if memory.dropped:
        were = "statement was" if memory.dropped == 1 else "statements were"
        warnings.append(
            f"{memory.dropped} {were} left out of the memory, without support in what was read."
        )
    return warnings


@dataclass(frozen=True, slots=True)
class Call:
    """The call of the graph that a step is part of.

    `seconds_left` returns the seconds until the deadline, None without one; `chain` has the fold's
    versions in the store; the step is not tried again if the last attempt fails.
    """

    reading: Reading
    config: RunnableConfig | None = None
    seconds_left: Callable[[], float | None] = lambda: None
    chain: FoldVersions | None = None
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


Advance = Callable[[FoldStep], Awaitable[FoldUpdate]]


class Layer:
    """A feature around a step of the fold. It knows no other layer.

    Attributes:
        name: its key in `Fold.layers`.
        needs_store: whether it is left out of folds without a store.
    """

    name: ClassVar[str]
    needs_store: ClassVar[bool] = False

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
        """Return the state of a document's fold from those of its segments that have one."""
        raise NotImplementedError


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

    @property
    def is_watched(self) -> bool:
        """Whether a language model looks for an answer, and may misuse a way out."""
        return self.reader.shortens and not self.reader.standing

    @property
    def fingerprint(self) -> str:
        """Digest of everything that shapes the memories of this reading."""
        config = self.config
        budgets: list[object] = [config.chunk_tokens, config.memory_tokens, config.exact_cuts]
        if config.pictures:
            budgets.append(f"pictures {config.pictures}")
        if config.unsupported == "drop":
            budgets.append(config.unsupported)
        budgets += [setting for layer in self.layers for setting in layer.settings()]
        return make_fingerprint(self.reader.identity.fingerprint, self.tokenizer.name, *budgets)

    def check_question(self, question: str | None) -> int:
        """Check a question, and return its length in tokens."""
        if question is not None and not isinstance(question, str):
            message = (
                f"A question is a string, not {type(question).__name__}: ask several with "
                '{"questions": [...]}.'
            )
            raise QuestionError(message)
        if not question or not question.strip():
            message = 'The question is empty: ask one, such as "Who signed the lease?".'
            raise QuestionError(message, question=question)
        tokens, budget = self.tokenizer.count(question), self.config.question_tokens
        if tokens > budget:
            message = (
                f"The question has {plural(tokens, 'token')}, but its budget is {budget}: shorten "
                "it, move text to be read into the document, or raise question_tokens."
            )
            raise QuestionError(message, question=question)
        return tokens

    async def prepare(self, question_tokens: int) -> None:
        """Prepare the reader, and check that the model's context holds the budgets."""
        check_window(await self.reader.prepare(), self.config, question_tokens)

    def explain(
        self, step: int | None, scope: Scope, error: ModelError, attempt: int
    ) -> ModelError:
        """Return the lasting error to raise, which names the chunk."""
        place = "answering" if step is None else f"reading chunk {step}"
        place += where(scope)
        times = f" after {attempt} attempts" if attempt > 1 else ""
        said = str(error) or type(error).__name__
        said += "" if said.endswith((".", "!", "?")) else "."
        message = f"{place.capitalize()} failed{times}: {said}"
        if before := (step or 1) - 1:
            chunks = "the chunk" if before == 1 else f"the {before} chunks"
            message += f" The memory of {chunks} before it is kept."
        lasting = ModelError if isinstance(error, TransientModelError) else type(error)
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

    def make_cutter(self, source: Source, questions: int) -> Cutter:
        """Return what cuts a document for so many questions."""
        return Cutter(source, self.reader, self.config, self.tokenizer, questions)

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
        message = (
            f"{record['name']} cannot be opened again: resume with "
            'invoke(None, config, context={"document": ...}).'
        )
        raise SourceError(message)
    source = open_source({"uri": record["uri"]} if document is None else document)
    if source.digest != record["digest"]:
        message = (
            f"{record['name']} has changed since the reading began. Start over by invoking with "
            "the question and the document."
        )
        raise SourceChangedError(message)
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
        question_tokens: tokens of the question; 0 if there is none yet. Its budget is not used,
            since with it the default budgets would exceed the 8,192 tokens that they are made for.

    Raises:
        ConfigurationError: The context is too short.
    """
    needed = config.window_tokens - config.question_tokens + question_tokens
    holds = identity.window_tokens
    if holds is None or holds >= needed:
        return
    smallest = config.model_copy(update={"chunk_tokens": 1}).window_tokens
    advice = (
        f"Lower chunk_tokens to {config.chunk_tokens - config.window_tokens + holds} or less"
        if smallest <= holds
        else "Lower question_tokens, memory_tokens, answer_tokens and chunk_tokens"
    )
    message = (
        f"The budgets need a context of {needed} tokens for this question, and up to "
        f"{config.window_tokens} for a longer one, but that of {identity.name} holds {holds}. "
        f"{advice}, or serve the model with a longer context."
    )
    raise ConfigurationError(message)
