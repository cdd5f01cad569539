"""The budgets and switches of a reading."""

from __future__ import annotations

import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    field_serializer,
    field_validator,
)

from memagent_graph.errors import ConfigurationError


def from_environment(variable: str, default: float) -> float:
    """The number above 0 that an environment variable sets."""
    given = os.environ.get(variable)
    try:
        value = float(given or default)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        message = f"{variable} must be a number above 0, not {given!r}."
        raise ConfigurationError(message)
    return value


def fields_from_file(path: str | Path) -> dict[str, Any]:
    """Read the fields of a YAML or JSON file of settings."""
    import yaml

    why: object = "write one field and its value per line, such as `chunk_tokens: 2000`."
    try:
        found = yaml.safe_load(Path(path).read_text("utf-8"))
        if isinstance(found, dict):
            return found
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = error
    message = f"The settings in {path} cannot be read: {why}"
    raise ConfigurationError(message)


LEXICAL = "lexical"

GATE_TOKENS = 48
"""Tokens that the update gate adds to the prompt of an update."""
PART_TOKENS = 16
"""Tokens around each memory in the prompt of a merge."""


class ReadingConfig(BaseModel):
    """Settings of a reading. The defaults are the paper's (arXiv 2507.02259, section 4).

    Attributes:
        how: "read" reads every chunk, as the paper does. "auto" answers from the whole text if the
            window holds it; else from the best passages that a search finds, in one call. Where
            their answer is not found, or does not stand on them, and for questions that ask for
            all, how many, the first, the last or a comparison, it reads, with a `skim`, by words if
            there is none. A reader that is no language model reads.
        question_tokens: longest question accepted.
        chunk_tokens: longest chunk.
        memory_tokens: longest memory. A longer one is cut at the end of a sentence.
        answer_tokens: longest answer.
        template_tokens: room for the words of the prompts themselves.
        answer_passages: most tokens of passages of the document that the answer is shown beside the
            notes: where these stand, and what fits question and notes best. None for what the
            window leaves; with 0 it is written from the notes alone, as in the
            paper, and so it is with `exact_cuts` and in recorded runs.
        segments: most parts of a document to read at once, each with a memory of its own; the
            memories are merged in the end. With 1 it is read from beginning to end. "auto" chooses
            by its length and by how many calls the model answers at once.
        update_gate: whether a reader may reply with one word if a chunk adds nothing, instead of
            writing its memory again.
        skim: decides which chunks are worth a call, from the question and the memory so far:
            "lexical" by their words, a decision model of LangChain (`langchain_core.decisions`), or
            a function that takes question, memory and chunk as text and returns a score; chunks of
            0.5 or more are read. The function may be asynchronous. Skipped chunks are read
            after all if the answer is not in the memory. None reads everything, as do questions
            that count or list.
        exact_cuts: cut after exactly `chunk_tokens` tokens, as the paper does, instead of at the
            last end of a paragraph, sentence, line or word in the final tenth. A cut never splits
            a code point. Exact with the model's tokenizer only.
        max_calls: stop reading after this many model calls, merges and the answer included;
            several questions and segments share them.
        deadline: stop reading this many seconds after the run began or was resumed.
        max_attempts: attempts of a model call before a transient error is final.
        reuse: whether to reuse memories that the store has, also those of a model that samples.
            Recorded runs and evaluations compute all of them.
        lease: whether two simultaneous readings of the same document and question share the work:
            one reads, and the other follows what it stores.
        keep_versions: versions of a memory to keep after its reading, the newest; None for all.
            Without the others, a document that has grown is read from its beginning.
        ttl: minutes that stored memories live on without being read; None for the store's default.
        pictures: most tokens of pictures that a step, or the answer, shows a model that sees; with
            0, and to other models, their captions stand for them, and words found by OCR.
        unsupported: treatment of statements of memory and answer that nothing in the text, or in
            the memory, supports: "keep" warns of them, "drop" leaves them out.
        strict: whether to fail, instead of warn, if a memory could not be stored.
        retry_interval: seconds before the first repeat; they double each time, up to a minute.

    Examples:
        >>> from memagent_graph import ReadingConfig
        >>> config = ReadingConfig(chunk_tokens=2000, segments="auto", max_calls=100)
        >>> config.window_tokens  # that the model needs
        5328
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    how: Literal["read", "auto"] = "read"
    question_tokens: PositiveInt = 1024
    chunk_tokens: PositiveInt = 5000
    memory_tokens: PositiveInt = 1024
    answer_tokens: PositiveInt = 1024
    template_tokens: PositiveInt = 256
    answer_passages: int | None = Field(default=None, ge=0)
    segments: PositiveInt | Literal["auto"] = 1
    update_gate: bool = False
    skim: Any = None
    exact_cuts: bool = False
    max_calls: int | None = Field(default=None, ge=2)
    deadline: PositiveFloat | None = None
    max_attempts: PositiveInt = 6
    retry_interval: PositiveFloat = 0.5
    reuse: bool = True
    lease: bool = True
    keep_versions: PositiveInt | None = None
    ttl: PositiveFloat | None = None
    pictures: int = Field(default=0, ge=0)
    unsupported: Literal["keep", "drop"] = "keep"
    strict: bool = False

    @field_validator("skim")
    @classmethod
    def _skims(cls, skim: Any) -> Any:
        if skim is None or skim == LEXICAL or callable(skim) or is_decision_model(skim):
            return skim
        message = f'skim is "{LEXICAL}", a decision model or a function, not {skim!r}.'
        raise ValueError(message)

    @field_serializer("skim")
    def _plain_skim(self, _skim: Any) -> str | None:
        return self.skim_name

    def or_auto(self) -> ReadingConfig:
        """Return the settings, with `how="auto"` unless they were made with another."""
        return self if "how" in self.model_fields_set else self.model_copy(update={"how": "auto"})

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
        model = getattr(self.skim, "model", "")
        return f"{kind.__module__}.{kind.__qualname__} {model} {sha256(code).hexdigest()[:16]}"

    @property
    def instruction_tokens(self) -> int:
        """Room for the words of the prompts, with what the gate adds to them."""
        return self.template_tokens + GATE_TOKENS * self.update_gate

    @property
    def window_tokens(self) -> int:
        """Tokens that the model's context must hold: the longer prompt with its reply."""
        prompt = self.question_tokens + self.memory_tokens + self.instruction_tokens
        update = self.chunk_tokens + self.memory_tokens + self.pictures
        return prompt + max(update, self.merge_tokens)

    @property
    def merges(self) -> bool:
        """Whether memories of segments are merged."""
        return self.segments != 1

    @property
    def merge_tokens(self) -> int:
        """Tokens that the memories in one merge's prompt may have, `PART_TOKENS` for each added."""
        two = 0 if self.segments == 1 else 2 * (self.memory_tokens + PART_TOKENS)
        return max(self.chunk_tokens + self.memory_tokens, self.answer_tokens, two)


def is_decision_model(given: object) -> bool:
    """Whether it is a decision model of LangChain, which langchain-core has since 1.8."""
    decisions = sys.modules.get("langchain_core.decisions")  # loaded, if there is a model of it
    return decisions is not None and isinstance(given, decisions.BaseDecisionModel)
