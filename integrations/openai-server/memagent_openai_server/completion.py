"""The results of readings in the format of the chat completions API."""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import Any
from uuid import uuid4


@dataclass(frozen=True)
class Progress:
    """A chunk was read.

    Attributes:
        chunk: number of the chunk, counted from 1.
        chunks: estimated number of all chunks.
        memory: text of the memory; None if it did not change.
    """

    chunk: int
    chunks: int
    memory: str | None

    @property
    def text(self) -> str:
        """The progress as text for a client that streams."""
        head = f"[{self.chunk} of {max(self.chunk, self.chunks)} sections read]\n"
        return head if self.memory is None else f"{head}{self.memory}\n\n"


@dataclass(frozen=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Read:
    """The end of a reading.

    Attributes:
        text: the answer.
        memory: id of the memory that it was written from; None without one.
        prompt_tokens: prompt tokens of all model calls; without a model, tokens of the text.
        completion_tokens: completion tokens of all model calls; without a model, of the answer.
        coverage: share of the new text that was read, 0 to 1.
        chunks: number of chunks read for this answer.
        finish_reason: "stop", or "length" for an answer that was cut.
        found: whether the memory held the answer; None if that is not known.
        unsupported: statements of the answer that nothing in the memory supports.
        warnings: problems that did not stop the reading.
    """

    text: str
    memory: str | None
    prompt_tokens: int
    completion_tokens: int
    coverage: float
    chunks: int
    finish_reason: str = "stop"
    found: bool | None = None
    unsupported: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def usage(self) -> dict[str, int]:
        """The usage in OpenAI's format."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    @property
    def memagent(self) -> dict[str, Any]:
        """Fields that OpenAI's format does not have."""
        return {
            "memory": self.memory,
            "chunks": self.chunks,
            "coverage": self.coverage,
            "found": self.found,
            "unsupported": [*self.unsupported],
            "warnings": [*self.warnings],
        }


@dataclass(frozen=True)
class Head:
    """The fields that all parts of a completion share."""

    model: str
    id: str
    created: int

    @classmethod
    def new(cls, model: str) -> Head:
        """Return the fields of a new completion."""
        return cls(model, f"chatcmpl-{uuid4().hex}", int(time()))

    def completion(self, read: Read) -> dict[str, Any]:
        """Return the completion of a reading."""
        message = {"role": "assistant", "content": read.text, "refusal": None}
        whole = self.whole(message, read.finish_reason, read.usage)
        return {**whole, "memagent": read.memagent}

    def whole(
        self, message: dict[str, Any], finish_reason: str, usage: dict[str, int]
    ) -> dict[str, Any]:
        """Return a whole completion of one message."""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {**self._fields("chat.completion"), "choices": [choice], "usage": usage}

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """Return a part of a completion."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._fields("chat.completion.chunk"), "choices": [choice]}

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the part with the usage."""
        return {**self._fields("chat.completion.chunk"), "choices": [], "usage": usage}

    def _fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}
