"""Advantages of rollouts within their groups (GRPO); pure functions.

An advantage is the reward minus the mean of the group (GRPO, arXiv 2402.03300), by default not
divided by the standard deviation (Dr. GRPO, arXiv 2503.20783). It is the same for every token of
every conversation of the rollout (MemAgent, arXiv 2507.02259, section 3). If conversations have
rewards of their own, their advantages are mixed in (GRU-Mem, arXiv 2602.10560).
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
"""Added to the standard deviation, so that differences by rounding do not count."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A running mean of rewards: the baseline of rollouts that are alone in their group.

    Attributes:
        mean: mean of the rewards so far; the latest `horizon` of them weigh most.
        count: number of rewards so far.
        horizon: number of rewards after which older ones lose weight.
    """

    mean: float = 0.0
    count: int = 0
    horizon: int = 1000

    def updated(self, rewards: Sequence[float]) -> Baseline:
        """Return the baseline after further rewards, in any order.

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
    """Return the advantage of each rollout.

    Args:
        rewards: reward of each rollout, `[rollouts]`.
        groups: group of each rollout, `[rollouts]`.
        scale: whether to divide by the standard deviation of the group.
        baseline: baseline of rollouts that are alone in their group. Without one, or with one
            that has no rewards, their advantage is 0.

    Raises:
        TraceError: There are no rewards, their number differs from that of groups, or a reward is
            not a finite number.

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
    """The rollouts that have something to learn from.

    Attributes:
        kept: their indexes, in order.
        dropped: number of groups left out, to be refilled.
    """

    kept: list[int]
    dropped: int


def informative(
    rewards: Sequence[float],
    groups: Sequence[str],
    steps: Sequence[Sequence[float | None]] = (),
) -> Informative:
    """Drop groups whose rewards are all equal (dynamic sampling of DAPO, arXiv 2503.14476).

    Args:
        rewards: reward of each rollout, `[rollouts]`.
        groups: group of each rollout, `[rollouts]`.
        steps: rewards of the conversations of each rollout, as for `step_advantages`; a group
            whose step rewards differ is kept too.

    Raises:
        TraceError: As for `group_advantages`.
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
    """Return the advantage of each conversation by itself, not divided by a deviation.

    It is the conversation's reward minus the mean reward of the conversations with the same number
    in the group's rollouts (GRU-Mem, arXiv 2602.10560).

    Args:
        rewards: rewards of the conversations of each rollout; None for one without a reward.
        groups: group of each rollout, `[rollouts]`.

    Raises:
        TraceError: A reward is not a finite number, or the numbers of groups and rollouts differ.
    """
    if len(groups) != len(rewards):
        message = f"There are {len(rewards)} rollouts and {len(groups)} groups: give each one."
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
    """Return all conversations, each with the advantage of all its tokens.

    That is the advantage of the rollout, mixed with the conversation's own advantage if it has a
    reward.

    Args:
        rollouts: the rollouts.
        advantages: advantage of each rollout, `[rollouts]`.
        step_weight: share of the conversation's own advantage in the mixture, 0 to 1.

    Raises:
        TraceError: The number of a rollout's step rewards is neither 0 nor that of conversations.
    """
    for rollout in rollouts:
        if len(rollout.step_rewards) not in {0, len(rollout.conversations)}:
            message = (
                f"Rollout {rollout.rollout!r} has {len(rollout.step_rewards)} step rewards for "
                f"{len(rollout.conversations)} conversations: give each one, None if it has none."
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
    if min(rewards) == max(rewards):  # their mean may differ from it by rounding
        return [0.0] * len(rewards)
    mean = _mean(rewards)
    advantages = [reward - mean for reward in rewards]
    if not scale:
        return advantages
    deviation = sqrt(_mean([advantage * advantage for advantage in advantages]))
    return [advantage / (deviation + _LEAST_SPREAD) for advantage in advantages]


def _members(groups: Sequence[str]) -> dict[str, list[int]]:
    """The indexes of each group's rollouts."""
    members: dict[str, list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        members[group].append(place)
    return members


def _check_groups(rewards: Sequence[float], groups: Sequence[str]) -> None:
    if not rewards:
        raise TraceError("There are no rollouts to compare: give at least one.")
    if len(groups) != len(rewards):
        message = f"There are {len(rewards)} rewards and {len(groups)} groups: give one of each."
        raise TraceError(message)
    _check(rewards)


def _check(rewards: Sequence[float]) -> None:
    for place, reward in enumerate(rewards):
        if not isinstance(reward, int | float) or not isfinite(reward):
            message = f"The reward of rollout number {place} is {reward}: give a finite number."
            raise TraceError(message)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
