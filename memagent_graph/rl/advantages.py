"""Advantages of rollouts within their groups (GRPO), and rows to train on; pure functions.

An advantage is the reward minus the mean of the group (GRPO, arXiv 2402.03300), by default not
divided by the standard deviation (Dr. GRPO, arXiv 2503.20783). It is the same for every token of
every conversation of the rollout (MemAgent, arXiv 2507.02259, section 3).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import dataclass
from math import fsum, isfinite, sqrt
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.rl.settings import GRPOSettings
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

    def with_rewards(self, rewards: Sequence[float]) -> Baseline:
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


def informative(rewards: Sequence[float], groups: Sequence[str]) -> tuple[list[int], int]:
    """Drop groups whose rewards are all equal (dynamic sampling of DAPO, arXiv 2503.14476).

    Returns the indexes of the rollouts that are left, in order, and the number of groups dropped.

    Args:
        rewards: reward of each rollout, `[rollouts]`.
        groups: group of each rollout, `[rollouts]`.

    Raises:
        TraceError: As for `group_advantages`.
    """
    _check_groups(rewards, groups)
    kept: list[int] = []
    dropped = 0
    for places in _members(groups).values():
        if len({rewards[place] for place in places}) > 1:
            kept += places
        else:
            dropped += 1
    return sorted(kept), dropped


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


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A conversation to train on.

    Attributes:
        prompt: token ids.
        completion: token ids.
        sampled: recorded log-probability of each completion token, `[completion tokens]`.
        advantage: advantage of every completion token.
    """

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    sampled: tuple[float, ...]
    advantage: float

    def __len__(self) -> int:
        return len(self.prompt) + len(self.completion)


def make_training_rows(
    rollouts: Sequence[Rollout],
    *,
    vocabulary: str,
    settings: GRPOSettings,
    baseline: Baseline,
) -> tuple[list[TrainingRow], dict[str, float]]:
    """Return the rows of all rollouts, and metrics of the rollouts.

    Args:
        rollouts: whole groups, each with its reward.
        vocabulary: `fingerprint` of the trained model's tokenizer.
        settings: the training settings.
        baseline: baseline of rollouts that are alone in their group.

    Raises:
        TraceError: There are no rollouts, or one has no reward, was recorded with another
            tokenizer, or has a conversation over `token_budget`.
    """
    if not rollouts:
        raise TraceError("There is nothing to train on: give at least one rollout.")
    rewards = [_reward(rollout) for rollout in rollouts]
    conversations = [one for rollout in rollouts for one in rollout.conversations]
    for conversation in conversations:
        _check_rows(conversation, vocabulary, settings.token_budget)
    if any(one.sampling.get("temperature") not in {1, None} for one in conversations):
        warnings.warn(_TEMPERATURE, stacklevel=3)
    groups = [rollout.group for rollout in rollouts]
    scale = settings.scale_advantages
    advantages = group_advantages(rewards, groups, scale=scale, baseline=baseline)
    rows = [
        TrainingRow(one.prompt_ids, one.completion_ids, one.logprobs, advantage)
        for rollout, advantage in zip(rollouts, advantages, strict=True)
        for one in rollout.conversations
        if not (settings.mask_overlong and one.finish_reason == _CUT_OFF)
    ]
    return rows, {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        "rollouts": len(rollouts),
        "rollouts_without_spread": sum(not advantage for advantage in advantages),
        "completion_tokens": fmean(len(one.completion_ids) for one in conversations),
        "memory_tokens": fmean(rollout.memory_tokens for rollout in rollouts),
        "calls": fmean(len(rollout.conversations) for rollout in rollouts),
        "rollout_tokens": fmean(rollout.tokens for rollout in rollouts),
        "cut_off": fmean(one.finish_reason == _CUT_OFF for one in conversations),
    }


_CUT_OFF = "length"
"""Finish reason of a completion that reached its token limit."""


_TEMPERATURE = (
    "Some conversations were sampled at a temperature other than 1, but their log-probabilities "
    "were recorded at 1, so the importance weights do not correct for it. Sample at 1."
)


def _reward(rollout: Rollout) -> float:
    if rollout.reward is None:
        message = f"Rollout {rollout.rollout!r} has no reward: score it before training."
        raise TraceError(message)
    return rollout.reward


def _check_rows(conversation: Conversation, vocabulary: str, token_budget: int) -> None:
    if conversation.tokenizer != vocabulary:
        message = (
            f"Rollout {conversation.rollout!r} was recorded with another tokenizer than that of "
            "the model to train: train the model that it was recorded with."
        )
        raise TraceError(message)
    tokens = len(conversation.prompt_ids) + len(conversation.completion_ids)
    if tokens > token_budget:
        message = (
            f"A conversation of rollout {conversation.rollout!r} has {tokens} tokens, but "
            f"token_budget is {token_budget}: raise it."
        )
        raise TraceError(message)
