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
        finish_reason: "stop", or "length" for an answer that was cut.
        usage: the usage in OpenAI's format; without a model, the tokens of text and answer.
        memagent: fields that OpenAI's format does not have.
    """

    text: str
    finish_reason: str
    usage: dict[str, int]
    memagent: dict[str, Any]


def usage_of(prompt: int, completion: int) -> dict[str, int]:
    """Return the usage in OpenAI's format."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


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
