"""Assemble rollouts from their records.

A reading is a rollout of K+1 independent conversations: K updates and one answer. Their records are
written one by one, and may be spread over several files.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from math import isnan
from typing import TYPE_CHECKING

from memagent_graph.rl.records import Conversation, End, Feedback, Record, fingerprint
from memagent_graph.rl.sinks import read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "Conversation",
    "End",
    "Feedback",
    "LoadedTraces",
    "Record",
    "Rollout",
    "fingerprint",
    "join",
    "load",
]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A reading from its first chunk to its answer.

    Attributes:
        rollout: its id.
        group: id of the group; rollouts of the same group are compared with each other.
        sample: id of the question.
        conversations: the conversations, in the order of their steps; the last is the answer. With
            segments, they are ordered by round: each segment's together, then those of the merge.
        answer: its answer.
        reward: its reward; None if not known yet.
        policy: version of the weights that it began with.
        response: the whole reply that the answer was taken from.
    """

    rollout: str
    group: str
    sample: str
    conversations: tuple[Conversation, ...]
    answer: str
    reward: float | None
    policy: int
    response: str = ""

    @property
    def tokens(self) -> int:
        """Number of completion tokens of all conversations."""
        return sum(len(one.completion_ids) for one in self.conversations)

    @property
    def memory_tokens(self) -> int:
        """Number of completion tokens of the last update; 0 if there was none."""
        updates = [one for one in self.conversations if not one.final]
        return len(updates[-1].completion_ids) if updates else 0


@dataclass(frozen=True, slots=True)
class LoadedTraces:
    """The result of loading records.

    Attributes:
        rollouts: the complete rollouts, in the order in which they ended.
        skipped: number of records and rollouts skipped, by reason.
    """

    rollouts: list[Rollout] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def load(paths: str | Path | Iterable[str | Path]) -> LoadedTraces:
    """Load recorded rollouts.

    Args:
        paths: one or several files or folders of JSON lines and Parquet, or Redis URLs, as
            written by sinks.

    Raises:
        TraceError: There is no such file, or no traces in it.
        StoreError: Redis cannot be reached.
    """
    skipped: Counter[str] = Counter()
    return join(_parse_records(read(paths, skipped), skipped), skipped)


def join(records: Iterable[Record], skipped: Counter[str] | None = None) -> LoadedTraces:
    """Assemble rollouts from records; incomplete ones are skipped and counted.

    Args:
        records: the records, in the order of their writing; of two for the same thing, the later
            counts.
        skipped: counts to add to.
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
    return LoadedTraces(rollouts, +skipped)


def _parse_records(found: Iterable[object], skipped: Counter[str]) -> Iterator[Record]:
    """The valid records among plain values."""
    for item in found:
        if not isinstance(item, dict) or (kind := _KINDS.get(str(item.get("kind")))) is None:
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


_KINDS: dict[str, type[Record]] = {kind.kind: kind for kind in (Conversation, End, Feedback)}


def _in_order(known: Mapping[int, Conversation], count: int) -> tuple[Conversation, ...]:
    """The conversations 0 to `count` - 1, in order; () if one is missing.

    Segments are read concurrently, so the order in which conversations end has no meaning.
    """
    found = [known[step] for step in range(count) if step in known]
    return tuple(sorted(found, key=_place)) if len(found) == count else ()


def _place(one: Conversation) -> tuple[bool, int, bool, int, int]:
    return one.final, one.round, one.segment is None, one.segment or 0, one.step


def _fit_together(found: Sequence[Conversation]) -> bool:
    """Whether only the last is an answer, and all have the same question and vocabulary."""
    kinds = {(one.sample, one.group, one.tokenizer) for one in found}
    return len(kinds) == 1 and found[-1].final and not any(one.final for one in found[:-1])


def _rollout(found: tuple[Conversation, ...], end: End, reward: float | None) -> Rollout:
    first = found[0]
    return Rollout(
        rollout=end.rollout,
        group=first.group,
        sample=first.sample,
        conversations=found,
        answer=end.answer,
        reward=reward,
        policy=min(one.policy for one in found),
        response=end.response,
    )


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and isnan(value)
