"""What is recorded of a rollout: its conversations, how it ended, and what it was worth.

A run of the graph is a rollout of K+1 independent conversations, K updates and one answer. Their
records are written one by one and may lie in several files; `load` joins them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from hashlib import sha256
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from memagent_graph.errors import TraceError
from memagent_graph.rl.sinks import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_ROUNDING = 1e-3
"""How far above 0 a log-probability may be by rounding, in bfloat16 mostly."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One prompt and its completion, as the engine read and wrote them.

    Attributes:
        sample: id of the question that was asked.
        group: rollouts with the same group are compared with each other.
        rollout: id of the rollout.
        step: number of the conversation in its rollout, counted from 0.
        final: whether it is the answer, not an update of the memory.
        prompt_ids: token ids of the prompt, with the chat template's; not empty.
        completion_ids: token ids of the completion, with the one that ended it; not empty.
        logprobs: natural logarithm of each completion token's probability under the model itself,
            at temperature 1 and before any cut of the distribution.
        policy: version of the weights that wrote it.
        sampling: temperature, top_p and whatever else shaped the sampling.
        tokenizer: `fingerprint` of the model's tokenizer.

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

    kind: ClassVar[str] = "conversation"

    def __post_init__(self) -> None:
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
            raise TraceError("A log-probability is no number.")
        if not all(map(isfinite, self.logprobs)) or max(self.logprobs) > _ROUNDING:
            raise TraceError("A log-probability is not a finite number of at most 0.")
        if type(self.step) is not int or self.step < 0:
            message = f"{self.step!r} is no number of a conversation, counted from 0."
            raise TraceError(message)

    def plain(self) -> dict[str, Any]:
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

    Raises:
        TraceError: The reward is no finite number.
    """

    rollout: str
    conversations: int
    answer: str
    reward: float | None = None

    kind: ClassVar[str] = "end"

    def __post_init__(self) -> None:
        if self.reward is not None:
            _check_reward(self.rollout, self.reward)

    def plain(self) -> dict[str, Any]:
        """As plain values, for a sink."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class Feedback:
    """A reward that came later; the last one of a rollout counts.

    Attributes:
        rollout: id of the rollout.
        reward: what it was worth.

    Raises:
        TraceError: The reward is no finite number.
    """

    rollout: str
    reward: float

    kind: ClassVar[str] = "feedback"

    def __post_init__(self) -> None:
        _check_reward(self.rollout, self.reward)

    def plain(self) -> dict[str, Any]:
        """As plain values, for a sink."""
        return _plain(self)


Record: TypeAlias = "Conversation | End | Feedback"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One reading from its first chunk to its answer.

    Attributes:
        rollout: its id.
        group: rollouts with the same group are compared with each other.
        sample: id of the question that was asked.
        conversations: in the order of their steps; the last is the answer.
        answer: what it answered.
        reward: what that was worth; None when nobody has said yet.
        policy: version of the weights that it began with.
    """

    rollout: str
    group: str
    sample: str
    conversations: tuple[Conversation, ...]
    answer: str
    reward: float | None
    policy: int

    @property
    def tokens(self) -> int:
        """Completion tokens of all conversations."""
        return sum(len(one.completion_ids) for one in self.conversations)

    @property
    def memory_tokens(self) -> int:
        """Completion tokens of the last update; 0 if there was none."""
        updates = [one for one in self.conversations if not one.final]
        return len(updates[-1].completion_ids) if updates else 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was found among records.

    Attributes:
        rollouts: the whole ones, in the order in which they ended.
        skipped: how many records or rollouts were left out, by reason.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def load(paths: str | Path | Iterable[str | Path]) -> Loaded:
    """Read recorded rollouts, wherever their records lie.

    Args:
        paths: files or folders of JSON lines and Parquet, or Redis URLs, as sinks write them; one
            or several.

    Raises:
        TraceError: There is no such file, or it is of another kind.
        StoreError: Redis cannot be reached.
    """
    skipped: Counter[str] = Counter()
    return join(_parsed(read(paths, skipped), skipped), skipped)


def join(records: Iterable[Record], skipped: Counter[str] | None = None) -> Loaded:
    """Put the records of each rollout together; those that do not make a whole are counted.

    Args:
        records: in the order in which they were written: of two about the same, the later counts.
        skipped: what was left out before, to be counted on.
    """
    skipped = Counter() if skipped is None else skipped
    conversations: dict[str, dict[int, Conversation]] = {}
    ends: dict[str, End] = {}
    rewards: dict[str, float] = {}
    for record in records:
        if isinstance(record, Conversation):
            known = conversations.setdefault(record.rollout, {})
            skipped["conversation recorded twice"] += record.step in known
            known[record.step] = record
        elif isinstance(record, End):
            skipped["end recorded twice"] += record.rollout in ends
            ends[record.rollout] = record
        else:
            rewards[record.rollout] = record.reward
    skipped["feedback on a rollout that is not there"] += len(rewards.keys() - conversations.keys())
    skipped["rollout without an end"] += len(conversations.keys() - ends.keys())
    rollouts = []
    for end in ends.values():
        found = _in_order(conversations.get(end.rollout, {}), end.conversations)
        if not found:
            skipped["rollout with conversations missing"] += 1
        elif not _fit_together(found):
            skipped["rollout whose conversations do not fit together"] += 1
        else:
            rollouts.append(_rollout(found, end, rewards.get(end.rollout, end.reward)))
    return Loaded(rollouts, +skipped)


def fingerprint(tokenizer: Any) -> str:
    """Stands for a vocabulary: token ids mean the same where fingerprints are equal.

    Args:
        tokenizer: of `transformers`, of `tokenizers`, or a reader's or chat model's own.

    Raises:
        TraceError: It does not tell its vocabulary.
    """
    known = (tokenizer, getattr(tokenizer, "backend", None))  # a reader's own wraps one
    backend = next((one for one in known if hasattr(one, "get_vocab")), None)
    if backend is None:
        message = (
            f"{type(tokenizer).__name__} does not tell its vocabulary: give the model's own "
            "tokenizer, of the transformers or the tokenizers library."
        )
        raise TraceError(message)
    vocabulary = sorted(backend.get_vocab().items(), key=lambda entry: (entry[1], entry[0]))
    return sha256(repr(vocabulary).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _plain(record: Record) -> dict[str, Any]:
    values = {item.name: getattr(record, item.name) for item in fields(record)}
    return {"kind": record.kind, **values}


def _parsed(found: Iterable[Any], skipped: Counter[str]) -> Iterator[Record]:
    """The records in what a file or stream held."""
    for item in found:
        kind = _KINDS.get(item.get("kind")) if isinstance(item, dict) else None
        if kind is None:
            skipped["record of an unknown kind"] += 1
            continue
        values = {one.name: item[one.name] for one in fields(kind) if one.name in item}
        if _is_nan(values.get("reward")):
            skipped["reward that is not a number"] += 1
            if kind is Feedback:
                continue
            values["reward"] = None
        try:
            yield kind(**values)
        except (TypeError, ValueError):
            skipped[f"invalid {kind.kind}"] += 1


_KINDS: dict[Any, Any] = {kind.kind: kind for kind in (Conversation, End, Feedback)}


def _in_order(known: Mapping[int, Conversation], count: int) -> tuple[Conversation, ...]:
    """The conversations 0 to `count`, or none if one is missing."""
    found = tuple(known[step] for step in range(count) if step in known)
    return found if len(found) == count else ()


def _fit_together(found: Sequence[Conversation]) -> bool:
    """Whether only the last is an answer, and all are of one question and one vocabulary."""
    kinds = {(one.sample, one.group, one.tokenizer) for one in found}
    return len(kinds) == 1 and found[-1].final and not any(one.final for one in found[:-1])


def _rollout(found: tuple[Conversation, ...], end: End, reward: float | None) -> Rollout:
    first, policy = found[0], min(one.policy for one in found)
    return Rollout(end.rollout, first.group, first.sample, found, end.answer, reward, policy)


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


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and isnan(value)
