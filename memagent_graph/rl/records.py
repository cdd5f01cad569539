"""The records of a rollout: its conversations, its end, and its reward."""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDING = 1e-3
"""Highest log-probability that counts as rounded from 0, mostly in bfloat16."""


@dataclass(frozen=True, slots=True)
class _Record:
    kind: ClassVar[str]

    def plain(self) -> dict[str, object]:
        """Return the record as plain values, for a sink."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {"kind": self.kind, **values}


@dataclass(frozen=True, slots=True)
class Conversation(_Record):
    """A prompt and its completion, in the engine's own tokens.

    Attributes:
        sample: id of the question.
        group: id of the group; rollouts of the same group are compared with each other.
        rollout: id of the rollout.
        step: number of the conversation in its rollout, counted from 0 in the order in which
            conversations ended.
        final: whether it is the answer rather than an update or a merge.
        prompt_ids: token ids of the prompt, including the chat template's; not empty.
        completion_ids: token ids of the completion, including the one that ended it; not empty.
        logprobs: natural logarithm of each completion token's probability under the model, at
            temperature 1 and before top-p and the like, `[completion tokens]`.
        policy: version of the weights that generated it.
        sampling: temperature, top_p and other sampling parameters.
        tokenizer: `fingerprint` of the model's tokenizer.
        start: first code point of the chunk; None if no chunk was read, as for an answer or a
            merge.
        end: one past the chunk's last code point.
        changed: whether the chunk changed the memory; None if no chunk was read.
        finish_reason: why the completion ended, in the engine's words, if known.
        round: round of the reading, counted from 1.
        segment: first code point of the segment; None without segments, for merges, and for
            chunks read after them.

    Raises:
        TraceError: A field is invalid, or the number of log-probabilities is not that of the
            completion's tokens.
    """

    sample: str
    group: str
    rollout: str
    step: int
    final: bool
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    policy: int
    sampling: Mapping[str, float | int | None]
    tokenizer: str
    start: int | None = None
    end: int | None = None
    changed: bool | None = None
    finish_reason: str | None = None
    round: int = 1
    segment: int | None = None

    kind: ClassVar[str] = "conversation"

    def __post_init__(self) -> None:
        _check_types(self, str, "sample", "group", "rollout", "tokenizer")
        _check_types(self, int, "step", "policy", "round")
        _check_types(self, bool, "final")
        for name in ("prompt_ids", "completion_ids", "logprobs"):  # JSON only has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_ids("prompt_ids", self.prompt_ids)
        _check_ids("completion_ids", self.completion_ids)
        if len(self.logprobs) != len(self.completion_ids):
            message = (
                f"There are {len(self.logprobs)} log-probabilities for "
                f"{len(self.completion_ids)} completion tokens: give each token one."
            )
            raise TraceError(message)
        if not set(map(type, self.logprobs)) <= {float, int}:
            raise TraceError("logprobs must be numbers.")
        if not all(map(isfinite, self.logprobs)) or max(self.logprobs) > _ROUNDING:
            raise TraceError("logprobs must be finite numbers of at most 0.")
        if self.step < 0:
            message = f"step must be at least 0, not {self.step}."
            raise TraceError(message)


@dataclass(frozen=True, slots=True)
class End(_Record):
    """The end of a rollout; without it, a rollout is incomplete.

    Attributes:
        rollout: id of the rollout.
        conversations: number of its conversations.
        answer: its answer.
        reward: its reward; None if not known yet.
        response: the whole reply that the answer was taken from.

    Raises:
        TraceError: The reward is not a finite number.
    """

    rollout: str
    conversations: int
    answer: str
    reward: float | None = None
    response: str = ""

    kind: ClassVar[str] = "end"

    def __post_init__(self) -> None:
        _check_types(self, str, "rollout", "answer", "response")
        _check_types(self, int, "conversations")
        if self.reward is not None:
            _check_reward(self.rollout, self.reward)


@dataclass(frozen=True, slots=True)
class Feedback(_Record):
    """A reward given later; the last one of a rollout counts.

    Attributes:
        rollout: id of the rollout.
        reward: its reward.

    Raises:
        TraceError: The reward is not a finite number.
    """

    rollout: str
    reward: float

    kind: ClassVar[str] = "feedback"

    def __post_init__(self) -> None:
        _check_types(self, str, "rollout")
        _check_reward(self.rollout, self.reward)


Record: TypeAlias = "Conversation | End | Feedback"


def fingerprint(tokenizer: object) -> str:
    """Return a digest of a vocabulary: with equal fingerprints, token ids mean the same.

    Args:
        tokenizer: a tokenizer of `transformers` or `tokenizers`, or the `tokenizer` of a reader
            or chat model.

    Raises:
        TraceError: It does not report its vocabulary.
    """
    known = tokenizer
    if not hasattr(known, "get_vocab"):
        known = getattr(tokenizer, "backend", None)
    if not hasattr(known, "get_vocab"):
        message = (
            f"{type(tokenizer).__name__} does not report its vocabulary: give the model's own "
            "tokenizer, of the transformers or the tokenizers library."
        )
        raise TraceError(message)
    vocabulary = sorted(known.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return sha256(repr(vocabulary).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _check_types(record: Record, kind: type, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
            message = f"{name} must be of type {kind.__name__}, not {value!r}."
            raise TraceError(message)


def _check_ids(name: str, ids: tuple[int, ...]) -> None:
    if not ids:
        message = f"{name} is empty: a conversation has a prompt and a completion."
        raise TraceError(message)
    if set(map(type, ids)) != {int} or min(ids) < 0:
        message = f"{name} must be token ids, whole numbers of at least 0."
        raise TraceError(message)


def _check_reward(rollout: str, reward: float) -> None:
    if type(reward) not in {int, float} or not isfinite(reward):
        message = f"The reward of rollout {rollout!r} is {reward!r}: give a finite number."
        raise TraceError(message)
