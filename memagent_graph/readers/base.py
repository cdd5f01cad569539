"""The reader protocol: the two functions of the fold, and the records that they return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.chunking import Chunk
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
    """

    text: str
    source: str
    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Update:
    """What a reader makes of one chunk.

    Attributes:
        memory: the text that replaces the memory.
        changed: False leaves the memory as it was, whatever `memory` says.
        done: True asks to stop reading here, because the memory can answer the question.
        evidence: where the new memory's statements came from, for readers that know.
        usage: what this update cost.
        finish_reason: the engine's word for why it stopped ("stop", "length", ...), if any.
    """

    memory: str
    changed: bool = True
    done: bool = False
    evidence: Sequence[Evidence] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    r"""What a reader answers from the memory alone.

    Attributes:
        text: the whole reply.
        final: the answer taken out of it (the content of `\boxed{}`, say).
        evidence: where the answer stands, for readers that know.
        usage: what this answer cost.
        finish_reason: the engine's word for why it stopped, if any.
    """

    text: str
    final: str
    evidence: Sequence[Evidence] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None


class Reader(Protocol):
    """Computes the two steps of the fold. Implementations keep no state between calls.

    One whose model tells its context length only when asked also has a coroutine `prepare()`. It
    is awaited when a reading begins, sets `window_tokens`, and raises `ModelError` if there is no
    such model.

    Attributes:
        name: what to call this reader in output ("extractive", "openai:gpt-4o").
        fingerprint: stands for everything that shapes its replies (model, revision, base URL,
            prompts, sampling, budgets): equal fingerprints may reuse each other's memories.
        tokenizer: the model's own, or None to let the graph choose.
        window_tokens: context length of the model in tokens, or None when it is not known.
    """

    name: str
    fingerprint: str
    tokenizer: Tokenizer | None = None
    window_tokens: int | None = None

    async def update(
        self,
        question: str,
        memory: str,
        chunk: Chunk,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Update:
        """Return the memory that replaces `memory` after reading `chunk`.

        Args:
            question: what the reading is for.
            memory: the memory so far; empty before the first chunk.
            chunk: the next part of the document.
            evidence: what is known of where `memory` came from. After a person edited the
                memory it may cover only a part of it.
            config: the run's config, to be passed on to a model so that streaming and
                tracing work.

        Raises:
            TransientModelError: A repeat may help.
            ContextLengthError: The chunk must be smaller.
            ModelError: Nothing will help.
        """
        ...

    async def respond(
        self,
        question: str,
        memory: str,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Answer:
        """Answer `question` from `memory` alone. Raises as `update` does."""
        ...
