"""How much better each rollout was than the others of its group (GRPO); pure functions.

The advantage is the reward less the mean of the group (arXiv 2402.03300), by default without
dividing by the standard deviation (Dr. GRPO, arXiv 2503.20783), and is the same number for every
token of every conversation of the rollout (MemAgent, arXiv 2507.02259, section 3). Conversations
that have rewards of their own have a share of an advantage of their own.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from math import fsum, isfinite, sqrt
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.rl.traces import Conversation, Rollout

_LEAST_SPREAD = 1e-6
"""Added to the standard deviation, so that rewards that differ by rounding do not count."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A running mean of rewards, which rollouts without a group are measured against.

    Attributes:
        mean: of the rewards so far; the latest `horizon` of them count most.
        count: how many there were.
        horizon: after so many the mean begins to forget.
    """

    mean: float = 0.0
    count: int = 0
    horizon: int = 1000

    def updated(self, rewards: Sequence[float]) -> Baseline:
        """The baseline after these rewards, whose order does not matter.

        Raises:
            TraceError: A reward is not a finite number.
        """
        _check(rewards)
        if not rewards:
            return self
        count = self.count + len(rewards)
        share = len(rewards) / max(len(rewards), min(count, self.horizon))
        mean = self.mean + share * (_mean(rewards) - self.mean)
        return Baseline(mean, count, self.horizon)


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[str],
    *,
    scale: bool = False,
    baseline: Baseline | None = None,
) -> list[float]:
    """The advantage of each rollout.

    Args:
        rewards: of the rollouts.
        groups: of the rollouts, in the same order.
        scale: divide by the standard deviation of the group.
        baseline: what a rollout that is alone in its group is measured against; without one, or
            with one of no rewards, it has the advantage 0.

    Raises:
        TraceError: There are no rewards, as many groups as rewards are not there, or a reward is
            no finite number.

    Examples:
        >>> from memagent_graph.rl.advantages import group_advantages
        >>> group_advantages([1.0, 0.0, 0.0, 1.0], ["a", "a", "b", "b"])
        [0.5, -0.5, -0.5, 0.5]
    """
    _check_groups(rewards, groups)
    advantages = [0.0] * len(rewards)
    for places in _members(groups).values():
        own = [rewards[place] for place in places]
        if len(own) > 1:
            found = _relative(own, scale=scale)
        else:
            known = baseline is not None and baseline.count > 0
            found = [own[0] - baseline.mean] if baseline and known else [0.0]
        for place, advantage in zip(places, found, strict=True):
            advantages[place] = advantage
    return advantages


class Informative(NamedTuple):
    """Which rollouts something can be learned from.

    Attributes:
        kept: their places, in order.
        dropped: groups that were left out, to be refilled.
    """

    kept: list[int]
    dropped: int


def informative(
    rewards: Sequence[float],
    groups: Sequence[str],
    steps: Sequence[Sequence[float | None]] = (),
) -> Informative:
    """Leave out groups whose rewards are all equal (dynamic sampling of DAPO, arXiv 2503.14476).

    Args:
        rewards: of the rollouts.
        groups: of the rollouts, in the same order.
        steps: rewards of their conversations, likewise; none by default.

    Raises:
        TraceError: As `group_advantages`.
    """
    _check_groups(rewards, groups)
    kept: list[int] = []
    dropped = 0
    differing = [any(found) for found in step_advantages(steps, groups)] if steps else ()
    for places in _members(groups).values():
        spread_out = len({rewards[place] for place in places}) > 1
        if spread_out or (steps and any(differing[place] for place in places)):
            kept += places
        else:
            dropped += 1
    return Informative(sorted(kept), dropped)


def step_advantages(
    rewards: Sequence[Sequence[float | None]], groups: Sequence[str]
) -> list[list[float | None]]:
    """The advantage of each conversation by itself, without dividing by a deviation.

    It is its reward less the mean of those that the rollouts of the group got for their
    conversation of the same number (GRU-Mem, arXiv 2602.10560).

    Args:
        rewards: of the conversations of each rollout; None for one that has none.
        groups: of the rollouts, in the same order.

    Returns:
        For each rollout as many as it has rewards; None where the reward is.

    Raises:
        TraceError: A reward is not a finite number, or there are not as many groups as rollouts.
    """
    if len(groups) != len(rewards):
        message = f"There are {len(rewards)} rollouts and {len(groups)} groups; each needs one."
        raise TraceError(message)
    same_step: dict[tuple[str, int], list[float]] = defaultdict(list)
    for group, steps in zip(groups, rewards, strict=True):
        known = [(step, reward) for step, reward in enumerate(steps) if reward is not None]
        _check([reward for _, reward in known])
        for step, reward in known:
            same_step[group, step].append(reward)
    return [
        [
            None if reward is None else reward - _mean(same_step[group, step])
            for step, reward in enumerate(steps)
        ]
        for group, steps in zip(groups, rewards, strict=True)
    ]


def spread(
    rollouts: Sequence[Rollout], advantages: Sequence[float], *, step_weight: float = 0.0
) -> list[tuple[Conversation, float]]:
    """All conversations, each with its advantage, which all its tokens have.

    That is the advantage of its rollout. Where the conversation has a reward of its own, its own
    advantage is mixed in.

    Args:
        rollouts: as loaded.
        advantages: of the rollouts, in the same order.
        step_weight: share of a conversation's own advantage in the mixture.

    Raises:
        TraceError: A rollout has step rewards, but not as many as conversations.
    """
    for rollout in rollouts:
        if len(rollout.step_rewards) not in {0, len(rollout.conversations)}:
            message = (
                f"Rollout {rollout.rollout!r} has {len(rollout.step_rewards)} step rewards for "
                f"{len(rollout.conversations)} conversations: give one to each, or None."
            )
            raise TraceError(message)
    groups = [rollout.group for rollout in rollouts]
    own = step_advantages([rollout.step_rewards for rollout in rollouts], groups)
    return [
        (conversation, advantage if step is None else _mix(advantage, step, step_weight))
        for rollout, advantage, steps in zip(rollouts, advantages, own, strict=True)
        for conversation, step in zip_longest(rollout.conversations, steps)
    ]


def _mix(whole: float, step: float, step_weight: float) -> float:
    return (1 - step_weight) * whole + step_weight * step


def _relative(rewards: Sequence[float], *, scale: bool) -> list[float]:
    if min(rewards) == max(rewards):  # their mean may differ from them by rounding
        return [0.0] * len(rewards)
    mean = _mean(rewards)
    advantages = [reward - mean for reward in rewards]
    if not scale:
        return advantages
    deviation = sqrt(_mean([advantage * advantage for advantage in advantages]))
    return [advantage / (deviation + _LEAST_SPREAD) for advantage in advantages]


def _members(groups: Sequence[str]) -> dict[str, list[int]]:
    """The places of each group's rollouts."""
    members: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        members[group].append(place)
    return members


def _check_groups(rewards: Sequence[float], groups: Sequence[str]) -> None:
    if not rewards:
        raise TraceError("There are no rollouts to compare: the group is empty.")
    if len(groups) != len(rewards):
        message = f"There are {len(rewards)} rewards and {len(groups)} groups; each needs one."
        raise TraceError(message)
    _check(rewards)


def _check(rewards: Sequence[float]) -> None:
    for place, reward in enumerate(rewards):
        if not isinstance(reward, int | float) or not isfinite(reward):
            message = (
                f"The reward of rollout number {place} is {reward}, and must be a finite number."
            )
            raise TraceError(message)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
