"""The shapes of the chat completions API, filled with what a reading found."""

from __future__ import annotations

from dataclasses import dataclass
from time import time
from typing import Any
from uuid import uuid4


@dataclass(frozen=True)
class Progress:
    """A chunk was read.

    Attributes:
        chunk: its number, counted from 1.
        chunks: how many there will be, as far as can be told.
        memory: what is remembered now; None if that did not change.
    """

    chunk: int
    chunks: int
    memory: str | None

    @property
    def text(self) -> str:
        """What a client that streams sees of it."""
        head = f"[{self.chunk} of {max(self.chunk, self.chunks)} sections read]\n"
        return head if self.memory is None else f"{head}{self.memory}\n\n"


@dataclass(frozen=True)
class Said:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class Read:
    """A reading's end.

    Attributes:
        text: the answer.
        memory: id of the memory that it was made from; None if there is none.
        prompt_tokens: of all calls of the model, or of the text where there is no model.
        completion_tokens: likewise.
        coverage: share of the new text that was read.
        chunks: that were read for this answer.
        finish_reason: "stop", or "length" for an answer that was cut.
    """

    text: str
    memory: str | None
    prompt_tokens: int
    completion_tokens: int
    coverage: float
    chunks: int
    finish_reason: str = "stop"

    @property
    def usage(self) -> dict[str, int]:
        """As OpenAI counts."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }

    @property
    def memagent(self) -> dict[str, Any]:
        """What OpenAI's shapes have no place for."""
        return {"memory": self.memory, "chunks": self.chunks, "coverage": self.coverage}


@dataclass(frozen=True)
class Head:
    """What all parts of one completion share."""

    model: str
    id: str
    created: int

    @classmethod
    def new(cls, model: str) -> Head:
        """Of a completion that begins now."""
        return cls(model, f"chatcmpl-{uuid4().hex}", int(time()))

    def completion(self, read: Read) -> dict[str, Any]:
        """The completion that a reading ends in."""
        message = {"role": "assistant", "content": read.text, "refusal": None}
        whole = self.whole(message, read.finish_reason, read.usage)
        return {**whole, "memagent": read.memagent}

    def whole(
        self, message: dict[str, Any], finish_reason: str, usage: dict[str, int]
    ) -> dict[str, Any]:
        """A whole completion of one message."""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {**self._fields("chat.completion"), "choices": [choice], "usage": usage}

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """A part of a completion."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._fields("chat.completion.chunk"), "choices": [choice]}

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The part that tells the usage."""
        return {**self._fields("chat.completion.chunk"), "choices": [], "usage": usage}

    def _fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def model_card(name: str, window: int | None) -> dict[str, Any]:
    """A model in the list of models; `window` is what one request may hold without being read."""
    card = {"id": name, "object": "model", "created": 0, "owned_by": "memagent"}
    return card if window is None else {**card, "max_model_len": window}
