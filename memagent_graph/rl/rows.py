"""Turn rollouts into rows to train on: one per conversation, with its advantage."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from memagent_graph.errors import TraceError
from memagent_graph.rl.advantages import group_advantages, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.rl.advantages import Baseline
    from memagent_graph.rl.settings import GRPOSettings
    from memagent_graph.rl.traces import Conversation, Rollout


@dataclass(frozen=True, slots=True)
class Row:
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


def training_rows(
    rollouts: Sequence[Rollout],
    *,
    vocabulary: str,
    settings: GRPOSettings,
    baseline: Baseline,
) -> tuple[list[Row], dict[str, float]]:
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
        _check(conversation, vocabulary, settings.token_budget)
    if any(one.sampling.get("temperature") not in {1, None} for one in conversations):
        warnings.warn(_TEMPERATURE, stacklevel=3)
    groups = [rollout.group for rollout in rollouts]
    scale = settings.scale_advantages
    advantages = group_advantages(rewards, groups, scale=scale, baseline=baseline)
    rows = [
        Row(one.prompt_ids, one.completion_ids, one.logprobs, advantage)
        for one, advantage in spread(rollouts, advantages, step_weight=settings.step_weight)
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


def _check(conversation: Conversation, vocabulary: str, token_budget: int) -> None:
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
