"""The budgets and switches of a reading."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    field_serializer,
    field_validator,
    model_validator,
)

from memagent_graph.errors import ConfigurationError


def from_environment(variable: str, default: float) -> float:
    """The number that an environment variable sets.

    Raises:
        ConfigurationError: It is not a number above 0.
    """
    given = os.environ.get(variable)
    try:
        value = float(given or default)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        message = f"{variable} must be a number above 0, not {given!r}."
        raise ConfigurationError(message)
    return value


LEXICAL = "lexical"

GATE_TOKENS = 48
"""Room for what each gate adds to the prompt of an update."""
PART_TOKENS = 16
"""Room for what stands around each memory in the prompt of a merge."""


QUERY_TOKENS = 128
"""Tokens of what a later round, or a look back, looks for, at most."""
LOOK_BACK_TOKENS = 144
"""Room for what looking back adds to the prompt of an update, beside what is shown."""
RECALL_TOKENS = 512
"""Tokens of each passage that a step shows again, with its place, at most."""
MOST_RECALLED = 64
"""Passages and memories that a fold is shown again, at most."""


class ReadingConfig(BaseModel):
    """How to read. The defaults are the paper's (arXiv 2507.02259, section 4).

    Attributes:
        question_tokens: longest question accepted.
        chunk_tokens: longest chunk.
        memory_tokens: longest memory; a longer one is cut at a sentence end.
        answer_tokens: longest answer.
        template_tokens: room for the words of the prompts themselves.
        segments: most parts of a document that are read at once, each with a memory of its own,
            which are merged in the end; with 1 it is read from its beginning to its end. "auto"
            goes by its length and by how many calls the model answers at once; "chunks" makes one
            of each chunk.
        rounds: how often the document is read at most: each time for what the merged memory says
            that is still to be looked for. It ends when that has enough or nothing was new.
        recalls: most passages of the document that a step shows again because the update before it
            asked for them, and most steps that may follow the last chunk for that.
        recall_from: names of other memories in the store that an update may ask for, those of
            other agents among them.
        update_gate: whether a reader may say in a word that a chunk adds nothing, rather than write
            its memory again.
        exit: whether reading ends when the reader says that it has enough: "never", always
            ("model"), or where that is "safe": not for a question that asks for all, how many, the
            last, a list or a comparison, and not where two segments found different answers.
        skim: what decides which chunks are worth a call, from the question and the memory so far:
            "lexical", by their words; a LangChain `Embeddings`, by their meaning; or a function of
            question, memory and chunk, as text, to a score, which may be asynchronous: chunks of
            0.5 or more are read. A later round goes by what it looks for, in place of the question.
            None reads all, and so does a question that counts or lists.
        fallback: whether what was skipped in all rounds is read after the last, if the answer is
            not in the memory.
        exact_cuts: cut after exactly `chunk_tokens` tokens, as the paper does, rather than at
            the last paragraph, sentence, line or word end in the final tenth. A cut that would be
            within a code point is made before it. Exact with the model's tokenizer only.
        max_calls: stop reading after this many model calls, merges and the answer included;
            several questions and segments share them out.
        deadline: stop reading this many seconds after the run began or was resumed.
        max_attempts: how often a model call is made before a transient error is final.
        reuse: whether memories that the store has are taken over rather than computed, also those
            of a model that samples. Recorded runs and evaluations compute all of them.
        lease: whether two readings of the same document and question at the same time share the
            work: one reads, and the other takes over what it stores.
        keep_versions: how many versions of a memory stay when its reading has ended, the newest;
            None for all. Without the others, a document that has grown is read anew.
        ttl: minutes that what is stored lives on when it is not read; None for the store's
            default.
        unsupported: what becomes of statements of the memory that nothing which was read supports:
            "keep" warns of them, "drop" leaves them out before the memory is stored.
        strict: fail rather than warn when a memory could not be stored.
        retry_interval: seconds before the first repeat; doubles with each one, up to a minute.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    question_tokens: PositiveInt = 1024
    chunk_tokens: PositiveInt = 5000
    memory_tokens: PositiveInt = 1024
    answer_tokens: PositiveInt = 1024
    template_tokens: PositiveInt = 256
    segments: PositiveInt | Literal["auto", "chunks"] = 1
    rounds: PositiveInt = 1
    recalls: int = Field(default=0, ge=0, le=8)
    recall_from: tuple[str, ...] = ()
    update_gate: bool = False
    exit: Literal["never", "safe", "model"] = "never"
    skim: Any = None
    fallback: bool = True
    exact_cuts: bool = False
    max_calls: int | None = Field(default=None, ge=2)
    deadline: PositiveFloat | None = None
    max_attempts: PositiveInt = 6
    retry_interval: PositiveFloat = 0.5
    reuse: bool = True
    lease: bool = True
    keep_versions: PositiveInt | None = None
    ttl: PositiveFloat | None = None
    unsupported: Literal["keep", "drop"] = "keep"
    strict: bool = False

    @field_validator("skim")
    @classmethod
    def _skims(cls, skim: Any) -> Any:
        if skim is None or skim == LEXICAL or callable(skim) or is_embeddings(skim):
            return skim
        message = f'skim is "{LEXICAL}", embeddings or a function, not {skim!r}.'
        raise ValueError(message)

    @model_validator(mode="after")
    def _recalls_from(self) -> ReadingConfig:
        if self.recall_from and not self.recalls:
            raise ValueError("recall_from needs recalls of 1 or more.")
        return self

    @field_serializer("skim")
    def _plain_skim(self, _skim: Any) -> str | None:
        return self.skim_name

    @property
    def skim_name(self) -> str | None:
        """Stands for `skim` in fingerprints: `skim.fingerprint`, or what its code says of it."""
        if self.skim is None or isinstance(self.skim, str):
            return self.skim
        known = getattr(self.skim, "fingerprint", None)
        if known is not None:
            return str(known)
        kind = self.skim if hasattr(self.skim, "__qualname__") else type(self.skim)
        code = getattr(getattr(self.skim, "__code__", None), "co_code", b"")
        models = [getattr(self.skim, name, None) for name in ("model", "model_name")]
        return f"{kind.__module__}.{kind.__qualname__} {models} {sha256(code).hexdigest()[:16]}"

    @property
    def instruction_tokens(self) -> int:
        """Room for the words of the prompts, with what gates and looking back add to them."""
        gates = GATE_TOKENS * (self.update_gate + (self.exit != "never"))
        if not self.recalls:
            return self.template_tokens + gates
        # A token has a byte or more.
        names = sum(len(f'"{name}", '.encode()) for name in self.recall_from)
        return self.template_tokens + gates + LOOK_BACK_TOKENS + names

    @property
    def recall_tokens(self) -> int:
        """Room for what a step shows again."""
        return self.recalls * (RECALL_TOKENS + PART_TOKENS)

    @property
    def window_tokens(self) -> int:
        """Tokens that the model's context must hold: the longer prompt with its reply."""
        prompt = self.question_tokens + self.memory_tokens + self.instruction_tokens
        update = self.chunk_tokens + self.recall_tokens + self.memory_tokens
        rounds = QUERY_TOKENS if self.rounds > 1 else 0
        return prompt + max(update, self.merge_tokens) + rounds

    @property
    def merges(self) -> bool:
        """Whether memories are merged: those of segments, or that of a round."""
        return self.segments != 1 or self.rounds > 1

    @property
    def merge_tokens(self) -> int:
        """Tokens that the memories in one merge's prompt may have, `PART_TOKENS` for each added."""
        two = 0 if self.segments == 1 else 2 * (self.memory_tokens + PART_TOKENS)
        return max(self.chunk_tokens + self.memory_tokens, self.answer_tokens, two)


def is_embeddings(skim: object) -> bool:
    """Whether it is a LangChain `Embeddings`, or looks like one."""
    return hasattr(skim, "aembed_documents") and hasattr(skim, "aembed_query")
