"""Rewards of whole rollouts, added after their answers have been rewarded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from langchain_core.messages import HumanMessage

from memagent_graph.errors import ConfigurationError
from memagent_graph.models.chat_template import ChatTemplate
from memagent_graph.rl.shaping import (
    boxed_once,
    cost_rewards,
    exit_reward,
    information_rewards,
    update_rewards,
)
from memagent_graph.rl.traces import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from memagent_graph.prompts import Prompts


@dataclass(frozen=True, slots=True)
class Case:
    """The reference that the rollouts of a question are judged by.

    Attributes:
        question: the question.
        answers: the right answers.
        evidence: spans of the evidence in the document, as first and one past the last code
            point.
    """

    question: str
    answers: tuple[str, ...]
    evidence: tuple[tuple[int, int], ...] = ()


Rescore: TypeAlias = Callable[[Sequence[Rollout], Mapping[str, Case]], list[Rollout]]
"""Takes rollouts whose answers have rewards, and the case of each group; returns the rollouts with
changed rewards and step rewards."""
Likelihoods: TypeAlias = Callable[[Sequence[tuple[Sequence[int], Sequence[int]]]], list[float]]
"""Takes (prompt, completion) pairs in token ids; returns the mean log-probability per token of each
completion."""


def make_rescore(shaping: Mapping[str, float], information: Rescore) -> Rescore:
    """Make one function of the named rewards, each multiplied by its weight.

    "exit", "boxed", "calls", "written" and "information" are added to a rollout's reward; "update"
    sets the rewards of its steps.

    Args:
        shaping: weights by name.
        information: adds the information reward with weight 1.

    Raises:
        ConfigurationError: There is no reward of a name.
    """
    known = {"exit": _exit, "boxed": _boxed, "update": _update, "information": information}
    known |= {"calls": _calls, "written": _written}
    if unknown := shaping.keys() - known.keys():
        message = f"shaping has no {', '.join(sorted(unknown))}. Choose from: {', '.join(known)}."
        raise ConfigurationError(message)

    def rescore(rollouts: Sequence[Rollout], cases: Mapping[str, Case]) -> list[Rollout]:
        found = list(rollouts)
        for name, weight in shaping.items():
            others = known[name](rollouts, cases)  # each sees only the answers' rewards
            found = [
                _add(one, plain, other, weight)
                for one, plain, other in zip(found, rollouts, others, strict=True)
            ]
        return found

    return rescore


class InformationGain:
    """Adds InfoMem's reward: how much the final memory raises the right answer's log-probability.

    Args:
        likelihoods: computes log-probabilities under the current policy.
        tokenizer: the policy's tokenizer, with its chat template.
        prompts: the policy's prompts.
        success: least reward of an answer that counts as right.
    """

    def __init__(
        self,
        likelihoods: Likelihoods,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Prompts,
        *,
        success: float = 1.0,
    ) -> None:
        self._likelihoods = likelihoods
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._success = success

    def __call__(self, rollouts: Sequence[Rollout], cases: Mapping[str, Case]) -> list[Rollout]:
        """Add the reward to successful rollouts."""
        right = [one for one in rollouts if (one.reward or 0.0) >= self._success]
        template, pairs = ChatTemplate(self._tokenizer), []
        for one in right:
            case = cases[one.group]
            answer = self._tokenizer.encode(case.answers[0], add_special_tokens=False)
            prompt = HumanMessage(self._prompts.for_answer(case.question, ""))
            asked = template.token_ids([prompt])
            pairs += [(one.conversations[-1].prompt_ids, answer), (asked, answer)]
        means = self._likelihoods(pairs)
        gains = {
            one.rollout: known - unknown
            for one, known, unknown in zip(right, means[::2], means[1::2], strict=True)
        }
        added = information_rewards(
            [gains.get(one.rollout, 0.0) for one in rollouts],
            [one.reward or 0.0 for one in rollouts],
            [one.group for one in rollouts],
            success=self._success,
        )
        return _rewarded(rollouts, added)


def _exit(rollouts: Sequence[Rollout], cases: Mapping[str, Case]) -> list[Rollout]:
    return _rewarded(rollouts, [exit_reward(one, cases[one.group].evidence) for one in rollouts])


def _boxed(rollouts: Sequence[Rollout], _cases: Mapping[str, Case]) -> list[Rollout]:
    return _rewarded(rollouts, [boxed_once(one) for one in rollouts])


def _calls(rollouts: Sequence[Rollout], _cases: Mapping[str, Case]) -> list[Rollout]:
    return _cheaper(rollouts, [len(one.conversations) for one in rollouts])


def _written(rollouts: Sequence[Rollout], _cases: Mapping[str, Case]) -> list[Rollout]:
    written = [sum(len(one.completion_ids) for one in each.conversations) for each in rollouts]
    return _cheaper(rollouts, written)


def _cheaper(rollouts: Sequence[Rollout], costs: Sequence[int]) -> list[Rollout]:
    worths, groups = [one.reward or 0.0 for one in rollouts], [one.group for one in rollouts]
    return _rewarded(rollouts, cost_rewards(costs, worths, groups))


def _update(rollouts: Sequence[Rollout], cases: Mapping[str, Case]) -> list[Rollout]:
    return [
        replace(one, step_rewards=update_rewards(one, cases[one.group].evidence))
        for one in rollouts
    ]


def _rewarded(rollouts: Sequence[Rollout], added: Sequence[float]) -> list[Rollout]:
    return [
        replace(one, reward=(one.reward or 0.0) + more)
        for one, more in zip(rollouts, added, strict=True)
    ]


def _add(sum_: Rollout, plain: Rollout, other: Rollout, weight: float) -> Rollout:
    """A sum of rewards, plus the weighted difference of `other` and `plain`."""
    more = (other.reward or 0.0) - (plain.reward or 0.0)
    reward = (sum_.reward or 0.0) + weight * more
    if not other.step_rewards:
        return replace(sum_, reward=reward)
    steps = tuple(None if step is None else weight * step for step in other.step_rewards)
    return replace(sum_, reward=reward, step_rewards=steps)
