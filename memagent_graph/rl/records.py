"""What is recorded of a rollout: each conversation, its end, and what it was worth."""

from __future__ import annotations

from dataclasses import dataclass, fields
from hashlib import sha256
from math import isfinite
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROUNDING = 1e-3
"""How far above 0 a log-probability may be by rounding, in bfloat16 mostly."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt and its completion, as the engine read and wrote them.

    Attributes:
        sample: id of the question that was asked.
        group: rollouts with the same group are compared with each other.
        rollout: id of the rollout.
        step: number of the conversation in its rollout, counted from 0 in the order in which
            they ended.
        final: whether it is the answer, not an update of the memory.
        prompt_ids: token ids of the prompt, with the chat template's; not empty.
        completion_ids: token ids of the completion, with the one that ended it; not empty.
        logprobs: natural logarithm of each completion token's probability under the model itself,
            at temperature 1 and before any cut of the distribution.
        policy: version of the weights that wrote it.
        sampling: temperature, top_p and whatever else shaped the sampling.
        tokenizer: `fingerprint` of the model's tokenizer.
        start: first code point of the chunk that was read; None if none was, as by an answer and
            by a merge of memories.
        end: one past its last.
        changed: whether the memory is another after the chunk; None if none was read.
        finish_reason: the engine's word for why the completion ended, if it gave one.
        round: in which it was, counted from 1.
        segment: where the segment begins that was read, in code points of the document; None of
            a document that is not read in segments, of merges, and of what is read after them.

    Raises:
        TraceError: These are not a prompt and a completion with its log-probabilities.
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
        for name in ("prompt_ids", "completion_ids", "logprobs"):  # JSON has lists only
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_ids("prompt_ids", self.prompt_ids)
        _check_ids("completion_ids", self.completion_ids)
        if len(self.logprobs) != len(self.completion_ids):
            message = (
                f"There are {len(self.logprobs)} log-probabilities for "
                f"{len(self.completion_ids)} completion tokens."
            )
            raise TraceError(message)
        if not set(map(type, self.logprobs)) <= {float, int}:
            raise TraceError("A log-probability is not a number.")
        if not all(map(isfinite, self.logprobs)) or max(self.logprobs) > _ROUNDING:
            raise TraceError("A log-probability is not a finite number of at most 0.")
        if self.step < 0:
            message = f"{self.step} is not a number of a conversation, counted from 0."
            raise TraceError(message)

    def plain(self) -> dict[str, object]:
        """As plain values, for a sink."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class End:
    """Says that a rollout is whole.

    Attributes:
        rollout: its id.
        conversations: how many it has.
        answer: what it answered.
        reward: what that was worth; None when nobody has said yet.
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

    def plain(self) -> dict[str, object]:
        """As plain values, for a sink."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class Feedback:
    """A reward that came later; the last one of a rollout counts.

    Attributes:
        rollout: id of the rollout.
        reward: what it was worth.

    Raises:
        TraceError: The reward is not a finite number.
    """

    rollout: str
    reward: float

    kind: ClassVar[str] = "feedback"

    def __post_init__(self) -> None:
        _check_types(self, str, "rollout")
        _check_reward(self.rollout, self.reward)

    def plain(self) -> dict[str, object]:
        """As plain values, for a sink."""
        return _plain(self)


Record: TypeAlias = "Conversation | End | Feedback"


def fingerprint(tokenizer: object) -> str:
    """Stands for a vocabulary: token ids mean the same where fingerprints are equal.

    Args:
        tokenizer: of `transformers`, of `tokenizers`, or a reader's or chat model's own.

    Raises:
        TraceError: It does not tell its vocabulary.
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


def _plain(record: Record) -> dict[str, object]:
    values = {item.name: getattr(record, item.name) for item in fields(record)}
    return {"kind": record.kind, **values}


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
        message = f"The reward of rollout {rollout!r} is {reward!r}, and must be a finite number."
        raise TraceError(message)
