"""The reader protocol: the functions of the fold, and the records that go in and out of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls cost. Adding two gives their sum.

    Attributes:
        calls: model calls, refused and repeated ones included where they are known.
        input_tokens: prompt tokens.
        output_tokens: completion tokens.
        seconds: time spent waiting for the reader.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a statement of the memory stands in what was read.

    Attributes:
        text: the statement, exactly as the memory has it.
        source: name of the file or part that it came from.
        line: line in that file or part, counted from 1.
        start: first code point in the whole decoded document.
        end: one past its last code point.
        page: of the source, counted from 1; None where there are none.
        heading: the nearest one above, of a slide or sheet its own; None if there is none.
    """

    text: str
    source: str
    line: int
    start: int
    end: int
    page: int | None = None
    heading: str | None = None

    @property
    def place(self) -> str:
        """For a person: "lease.pdf, page 3", or "notes.md:12" where there are no pages."""
        if self.page is None:
            return f"{self.source}:{self.line}"
        return f"{self.source}, page {self.page}"


def locate(text: str, source: Source, start: int, end: int) -> Evidence:
    """The evidence for a statement that stands from `start` to `end` in a source.

    Args:
        text: the statement.
        source: the whole document.
        start: first code point.
        end: one past its last.
    """
    at = source.locate(start)
    return Evidence(text, at.name, at.line, start, end, at.page, at.heading)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A statement of the memory that nothing which was read accounts for.

    Attributes:
        text: the statement, exactly as the memory has it.
        missing: names and numbers in it that the text does not have; none where a verifier decided.
    """

    text: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """What a reading has noted so far.

    Attributes:
        text: the notes; empty before the first chunk.
        evidence: where its statements came from, as far as that is known. After a person edited
            the memory it may cover only a part of it. Of an unsupported statement it is the place
            that has most of its words.
        unsupported: statements that nothing which was read accounts for.
        dropped: how many such statements were left out so far (`ReadingConfig.unsupported`). The
            graph counts them.
    """

    text: str = ""
    evidence: tuple[Evidence, ...] = ()
    unsupported: tuple[Unsupported, ...] = ()
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Recall:
    """What an update asks to be shown again; one of these.

    Attributes:
        words: to look for in what the fold has passed of the document.
        span: of the document, as evidence has it: start and end in code points.
        earlier: a memory of this reading: that after a step, by its number, or a version's id.
        memory: name of another memory, one of `ReadingConfig.recall_from`.
    """

    words: str = ""
    span: tuple[int, int] | None = None
    earlier: int | str | None = None
    memory: str | None = None


@dataclass(frozen=True, slots=True)
class Recalled:
    """What a step shows again: a passage of the document, or a memory.

    Attributes:
        text: what is shown, cut to its budget.
        place: where it is from, for a person.
        start: its first code point in the document; None for a memory.
        memory: with the evidence and the marks of its statements; None for a passage.
        version: id of that memory, if it is another reading's.
    """

    text: str
    place: str
    start: int | None = None
    memory: Memory | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What a reader is given to read.

    Attributes:
        question: what the reading is for.
        query: what is looked for now; the question itself when a document is read once.
        memory: to overwrite.
        chunk: the next part of the document; empty where a step after the last chunk shows
            what was recalled.
        number: of the step, counted from 1.
        recalled: what the update before asked for.
        look_back: whether an update may ask for something to be shown again: `Update.recall` counts
            only then.
        recall_from: names of other memories that it may ask for.
        shorter: whether the reader was asked before, and made a memory over its budget.
        update_gate: whether a model may be told that it need not write the memory again.
        exit_gate: whether reading may end here: `Update.done` counts only then.
    """

    question: str
    query: str
    memory: Memory
    chunk: Chunk
    number: int = 1
    recalled: tuple[Recalled, ...] = ()
    look_back: bool = False
    recall_from: tuple[str, ...] = ()
    shorter: bool = False
    update_gate: bool = False
    exit_gate: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """What a reader makes of one chunk.

    Attributes:
        memory: what replaces the memory; None leaves it as it was.
        done: True asks to stop reading here, because the memory can answer the question.
        answer: what it answers then, to be compared with what other segments found.
        recall: what the next step is to show again.
        usage: what this update cost.
        finish_reason: the engine's word for why it stopped ("stop", "length", ...), if any.
        unfinished: whether the memory lacks its end, because the engine wrote no more.
    """

    memory: Memory | None
    done: bool = False
    answer: str = ""
    recall: Recall | None = None
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Merge:
    """What a reader makes of the memories of several parts of a document.

    Attributes:
        memory: one for all of them.
        done: False asks to read the document once more, for `query`.
        query: what to look for then.
        usage: what this merge cost.
    """

    memory: Memory
    done: bool = True
    query: str | None = None
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Answer:
    r"""What a reader answers from the memory alone.

    Attributes:
        text: the whole reply.
        final: the answer taken out of it (the content of `\boxed{}`, say).
        found: whether the memory held it; None from a reader that does not know.
        structured: the answer in the shape that was asked for, as JSON has it; None without one.
        evidence: where the answer stands, as far as that is known.
        usage: what this answer cost.
        finish_reason: the engine's word for why it stopped, if any.
    """

    text: str
    final: str
    found: bool | None = None
    evidence: tuple[Evidence, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    structured: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    """What there is to know of a reader.

    Attributes:
        name: what to call it in output ("extractive", "openai:gpt-4o").
        fingerprint: stands for everything that shapes its replies (model, revision, base URL,
            prompts, sampling, budgets): equal fingerprints may reuse each other's memories.
        tokenizer: the model's own, or None to let the graph choose.
        window_tokens: context length of the model in tokens, or None when it is not known.
    """

    name: str
    fingerprint: str
    tokenizer: Tokenizer | None = None
    window_tokens: int | None = None


@runtime_checkable
class Reader(Protocol):
    """Computes the steps of the fold. Implementations keep no state between calls.

    A subclass has `identity`, `update` and `respond`, and `merge` if it is to read a document in
    several segments.

    Attributes:
        identity: what there is to know of it.
        shortens: whether an update asked for again, with `Step.shorter`, is likely to keep to the
            budget. If not, a memory over its budget is cut at once.
        concurrency: calls that are answered at once in about the time of one.
    """

    identity: Identity
    shortens: bool = False
    concurrency: int = 16

    async def prepare(self) -> Identity:
        """Awaited when a reading begins; for a reader that must ask its model what it holds.

        Raises:
            ModelError: There is no such model.
        """
        return self.identity

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Return what replaces the memory after a chunk.

        Args:
            step: question, memory and chunk.
            config: the run's config, to be passed on to a model so that streaming and
                tracing work.

        Raises:
            TransientModelError: A repeat may help.
            ContextLengthError: The chunk must be smaller.
            ModelError: Nothing will help.
        """
        ...

    async def merge(
        self,
        question: str,
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Return one memory for those of several parts of a document. Raises as `update` does.

        Args:
            question: what the reading is for.
            query: what was looked for.
            memories: in the order of their parts; so many as the model's window holds.
            config: of the run.
        """
        raise cannot_merge(self)

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Answer `question` from `memory` alone. Raises as `update` does."""
        ...


def merges(reader: Reader) -> bool:
    """Whether a reader can read a document in several segments: it has a `merge` of its own."""
    return type(reader).merge is not Reader.merge


def cannot_merge(reader: Reader) -> ConfigurationError:
    """The error of a reader that is to merge memories and does not."""
    return ConfigurationError(
        f"{reader.identity.name} does not merge memories: read in one segment."
    )
