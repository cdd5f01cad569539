"""The reader protocol: the functions of a fold, and the records that they take and return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Evidence as Evidence
from memagent_graph.evidence.places import Memory as Memory
from memagent_graph.evidence.places import Unsupported as Unsupported
from memagent_graph.models.reply import Usage as Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.tokens import Tokenizer

Fault = Literal["placeholder", "repetition", "refusal", "foreign", "loss"]
"""What speaks against an overwrite.

- placeholder: nothing but words of the prompt itself.
- repetition: nothing but one short phrase over and over.
- refusal: the model declines.
- foreign: notes that share nothing with the old ones, the text that was read or the question.
- loss: most of what the old notes say is gone, though there is room for it.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """The input of one update.

    Attributes:
        question: the question of the reading.
        memory: the memory to overwrite.
        chunk: the next part of the document.
        number: number of the step, counted from 1.
        shorter: whether this repeats a step whose memory was over its budget.
        fault: what was wrong with the reply to this step, which is asked once more; None if it is
            asked for the first time.
        exact: whether a reply is taken word for word, as in recorded rollouts: what is wrong with
            it is reported, but nothing is taken off.
        update_gate: whether the model may reply "unchanged" instead of writing the memory again.
    """

    question: str
    memory: Memory
    chunk: Chunk
    number: int = 1
    shorter: bool = False
    fault: Fault | None = None
    exact: bool = False
    update_gate: bool = False


@dataclass(frozen=True, slots=True)
class Update:
    """The result of reading one chunk.

    Attributes:
        memory: the new memory; None leaves the old one unchanged.
        usage: cost of this update.
        finish_reason: why the engine stopped, in its own words ("stop", "length", ...), if known.
        unfinished: whether the memory's end is missing, because the reply was cut off.
        fault: what speaks against overwriting the old memory with this one; None if nothing does,
            or if the reader cannot say.
        left_out: number of lines of the reply or of the memory that were left out, by why.
    """

    memory: Memory | None
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    unfinished: bool = False
    fault: Fault | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Merge:
    """The result of merging the memories of several parts of a document.

    Attributes:
        memory: one memory for all parts.
        usage: cost of this merge.
        fault: what speaks against it, as for `Update.fault`.
    """

    memory: Memory
    usage: Usage = field(default_factory=Usage)
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    r"""An answer, written from the memory, and from passages of the document if it was shown any.

    Attributes:
        text: the whole reply.
        final: the answer itself, taken from the reply (the content of `\boxed{}`, for example).
        found: whether the answer was there; None if the reader cannot say.
        evidence: places of the answer in the document, as far as they are known.
        unsupported: statements of the answer that nothing in what it was shown supports.
        usage: cost of this answer.
        finish_reason: why the engine stopped, in its own words, if known.
        structured: the answer in the shape that was asked for, as JSON values; None if no shape
            was asked for.
        is_beside: whether the text that it comes from does not speak of the question.
        left_out: pictures that could not be seen again, each as 1 under the reason.
    """

    text: str
    final: str
    found: bool | None = None
    evidence: tuple[Evidence, ...] = ()
    unsupported: tuple[Unsupported, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    structured: dict[str, Any] | None = None
    is_beside: bool = False
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a reader.

    Attributes:
        name: its name in output ("extractive", "openai:gpt-4o").
        fingerprint: digest of everything that shapes its replies (model, revision, base URL,
            prompts, sampling, budgets). Readers with equal fingerprints reuse each other's
            memories.
        tokenizer: the model's own, or None to let the graph choose.
        window_tokens: context length of the model in tokens; None if unknown.
    """

    name: str
    fingerprint: str
    tokenizer: Tokenizer | None = None
    window_tokens: int | None = None


@runtime_checkable
class Reader(Protocol):
    """Computes the steps of the fold. Implementations keep no state between calls.

    A subclass defines `identity`, `update` and `respond`, and also `merge` to support readings in
    several segments.

    Attributes:
        identity: name, fingerprint, tokenizer and window.
        shortens: whether an update repeated with `Step.shorter` is likely to keep to the budget.
            If not, a memory over its budget is cut at once.
        standing: whether every statement bears on the question, so that none may be left out, as in
            a memory of a user.
        adds: whether an update asks what a chunk adds to the memory, rather than for all of it.
        shows_passages: whether `respond` shows the passages of a memory to the model.
        concurrency: number of calls that can run at once in about the time of one.
    """

    identity: Identity
    shortens: bool = False
    standing: bool = False
    adds: bool = False
    shows_passages: bool = False
    concurrency: int = 16

    def answers_without_notes(self, config: RunnableConfig | None) -> bool:
        """Whether to ask for an answer though nothing was noted, if the reader is a model.

        A model would make one up. Ask if more than the memory is there to answer from, or if the
        answer must have a shape.
        """
        return False

    async def prepare(self) -> Identity:
        """Return the identity, completed by what the model's server reports.

        The graph awaits it when a reading begins.

        Raises:
            ModelError: There is no such model.
        """
        return self.identity

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Read one chunk, and return the memory that replaces the old one.

        Args:
            step: question, memory and chunk.
            config: the run's config, passed on to the model so that streaming and tracing work.

        Raises:
            TransientModelError: The call failed, and may succeed if repeated.
            ContextLengthError: The prompt does not fit the window; the chunk must be smaller.
            ModelError: The call failed, and a repeat will not help.
        """
        ...

    async def merge(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Merge the memories of several parts of a document. Raises the same errors as `update`.

        Args:
            question: the question of the reading.
            memories: the memories, in the order of their parts; they fit the model's window.
            config: the run's config.
        """
        raise cannot_merge(self)

    async def respond(
        self,
        question: str,
        memory: Memory,
        *,
        config: RunnableConfig | None = None,
    ) -> Answer:
        """Answer from the memory, with its passages, alone. Raises the same errors as `update`.

        Args:
            question: the question of the reading.
            memory: the memory; without a text if nothing was noted, or nothing read.
            config: the run's config.
        """
        ...


def merges(reader: Reader) -> bool:
    """Whether a reader defines `merge`, and so can read a document in several segments."""
    return type(reader).merge is not Reader.merge


def cannot_merge(reader: Reader) -> ConfigurationError:
    """Return the error for several segments with a reader without `merge`."""
    return ConfigurationError(
        f"The reader {reader.identity.name} does not merge memories: set segments=1."
    )
