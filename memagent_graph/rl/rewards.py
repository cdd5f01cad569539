r"""Rewards of answers by fixed rules, and of steps and whole rollouts.

A reward is any function of an answer and the right answers (`Reward`). Several right answers are
alternatives, and the best match counts. A reading's answer is the content of the last `\boxed{}` in
its reply, or the whole reply without one.

Each can be earned without a right answer, so keep their weights small compared with the answer's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import fsum, isfinite
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, TypeAlias

from langchain_core.messages import HumanMessage

from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.evaluation.samples import exact_match, substring_match, token_f1, without_latex
from memagent_graph.models.completion import ChatTemplate
from memagent_graph.readers.completion import find_boxed
from memagent_graph.rl.traces import Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from memagent_graph.prompts import Prompts
    from memagent_graph.rl.traces import Conversation

Reward: TypeAlias = Callable[[str, Sequence[str]], float]
"""Takes the answer and the right answers; returns the reward."""


def exact(answer: str, truths: Sequence[str]) -> float:
    r"""Return 1 if the answer, or the content of its `\boxed{}`, is one of `truths`, else 0.

    Numbers are compared as numbers ("1,234.0" is "1234", "-5" is not "5"), everything else as in
    SQuAD, ignoring case, punctuation, articles and runs of white space. LaTeX's `\text{}` and a
    pair of dollars are ignored as well.
    """
    given = without_latex(find_boxed(answer))
    value = number(given)
    for truth in map(without_latex, _check_truths(truths)):
        wanted = number(truth)
        same = exact_match(given, [truth]) == 1 if wanted is None else value == wanted
        if same and (value is None) == (wanted is None):
            return 1.0
    return 0.0


def substring(answer: str, truths: Sequence[str]) -> float:
    """Return 1 if one of `truths` occurs in the answer, ignoring case, else 0.

    Long answers have better chances, so do not use it alone.
    """
    return substring_match(answer, _check_truths(truths), "any")


def every(answer: str, truths: Sequence[str]) -> float:
    """Return the share of `truths` that occurs in the answer, ignoring case, as in RULER."""
    return substring_match(answer, _check_truths(truths), "all")


def f1(answer: str, truths: Sequence[str]) -> float:
    r"""Return the best F1 of the answer's words with those of one of `truths`, as in SQuAD."""
    return token_f1(without_latex(find_boxed(answer)), _check_truths(truths))


def numeric(answer: str, truths: Sequence[str]) -> float:
    r"""Return 1 if the last number in the answer, or in its `\boxed{}`, is one of `truths`, else 0.

    Numbers within a relative difference of one millionth count as equal.

    Raises:
        TraceError: None of `truths` is a number.
    """
    wanted = [value for truth in _check_truths(truths) if (value := number(truth)) is not None]
    if not wanted:
        message = (
            f"None of the right answers {list(truths)!r} is a number: use another reward than "
            "numeric."
        )
        raise TraceError(message)
    found = _NUMBER.findall(without_latex(find_boxed(answer)))
    value = number(found[-1]) if found else None
    if value is None:
        return 0.0
    return float(any(abs(value - one) <= abs(one) * _CLOSE for one in wanted))


REWARDS: dict[str, Reward] = {
    "exact": exact,
    "substring": substring,
    "every": every,
    "f1": f1,
    "numeric": numeric,
}
"""Rewards by their names in a configuration."""


def make_reward(parts: str | Reward | Mapping[str | Reward, float]) -> Reward:
    """Make a reward from a name, a function, or several with weights.

    Args:
        parts: a name in `REWARDS` or a function; or several, each with its weight in the sum:
            `{"exact": 1.0, "f1": 0.2}`.

    Returns:
        A reward that always returns a finite number.

    Raises:
        ConfigurationError: There is no reward of that name, or `parts` is empty. The reward itself
            raises `TraceError` if a part returns anything but a finite number.

    Examples:
        >>> from memagent_graph.rl.rewards import make_reward
        >>> reward = make_reward({"exact": 1.0, "f1": 0.2})
        >>> reward("Edda Hansen", ["Edda Hansen", "Hansen"])
        1.2
    """
    weights = parts if isinstance(parts, Mapping) else {parts: 1.0}
    if not weights:
        raise ConfigurationError("The reward is empty: name at least one, or give a function.")
    known = [(_find_reward(part), weight) for part, weight in weights.items()]

    def reward(answer: str, truths: Sequence[str]) -> float:
        return sum(weight * _finite(part, answer, truths) for part, weight in known)

    return reward


def number(text: str) -> Fraction | None:
    """Return the exact number that the whole text is; None if it is not a number.

    Fractions, exponents and groups of thousands are understood; currency and per cent signs are
    ignored.
    """
    text = text.strip(_AROUND).rstrip("." + _AROUND)
    if not _NUMBER.fullmatch(text):
        return None
    plain = re.sub(r"[,\s$€£¥%]", "", text).replace("−", "-").lstrip("+")
    try:
        return Fraction(plain)
    except (ValueError, ZeroDivisionError):
        return None


_CLOSE = Fraction(1, 1_000_000)
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,400})(?:\.\d{1,400})?|\.\d{1,400}"
_NUMBER = re.compile(
    rf"(?:(?<!\w)[-−+])?[$€£¥]?(?<![\w.])(?:{_DIGITS})(?:e[-+]?\d{{1,3}}|/\d{{1,400}})?\s?%?",
    re.IGNORECASE,
)
_AROUND = "()[]{}\"'`*,;:!? \n"
"""Characters that may stand around a number."""


def _check_truths(truths: Sequence[str]) -> Sequence[str]:
    """Return `truths`, checked: with an empty one, every answer would be right."""
    if isinstance(truths, str) or not truths or not all(truth.strip() for truth in truths):
        message = f"The right answers must be a list of texts, none of them empty, not {truths!r}."
        raise TraceError(message)
    return truths


def _find_reward(part: str | Reward) -> Reward:
    if callable(part):
        return part
    if part not in REWARDS:
        known = ", ".join(REWARDS)
        message = f"There is no reward {part!r}. Choose from: {known}, or give your own."
        raise ConfigurationError(message)
    return REWARDS[part]


def _finite(part: Reward, answer: str, truths: Sequence[str]) -> float:
    value = part(answer, truths)
    if not isinstance(value, int | float) or not isfinite(value):
        name = getattr(part, "__name__", type(part).__name__)
        message = (
            f"The reward {name} returned {value!r} for the answer {answer[:80]!r}: it must be a "
            "finite number."
        )
        raise TraceError(message)
    return float(value)


if TYPE_CHECKING:
    Span: TypeAlias = tuple[int, int]


def length_penalty(rollout: Rollout, *, budget: int, margin: int) -> float:
    """Return the mean penalty of the conversations' lengths, from 0 to -1.

    The soft overlong punishment of DAPO (arXiv 2503.14476, section 3.4): 0 up to `budget` minus
    `margin` tokens, falling linearly to -1 at `budget`.

    Args:
        rollout: the rollout.
        budget: longest completion, in tokens.
        margin: the last tokens of the budget, which are penalized.

    Raises:
        TraceError: The margin is not between 1 and the budget.
    """
    if not 1 <= margin <= budget:
        message = f"margin must be from 1 to the budget of {budget} tokens, not {margin}."
        raise TraceError(message)
    lengths = [len(one.completion_ids) for one in rollout.conversations]
    over = [min(1.0, max(0.0, (length - budget + margin) / margin)) for length in lengths]
    return -fsum(over) / len(over)


def has_one_box(rollout: Rollout) -> float:
    r"""Return 1 if the reply has exactly one `\boxed{}`, closed and not empty, else 0.

    A format reward like that of GRU-Mem (arXiv 2602.10560), for the paper's answer format.
    """
    _, opened, after = rollout.response.partition("\\boxed{")
    if not opened or "\\boxed{" in after:
        return 0.0
    depth = 1
    for place, character in enumerate(after):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return float(bool(after[:place].strip()))
    return 0.0


def update_rewards(rollout: Rollout, evidence: Sequence[Span]) -> tuple[float | None, ...]:
    """Return for each conversation 1 if its update gate was right, -1 if not.

    The update reward of GRU-Mem (arXiv 2602.10560): the memory should change if the chunk has
    evidence, and stay if it has none. The gate counts as open if the memory changed, whether the
    reader has gates or repeats its memory. None for conversations that read no chunk.

    Args:
        rollout: the rollout.
        evidence: spans of the evidence in the document, as first and one past the last code
            point.
    """
    return tuple(
        None if one.changed is None else 1.0 if one.changed == _holds(one, evidence) else -1.0
        for one in rollout.conversations
    )


def exit_reward(rollout: Rollout, evidence: Sequence[Span]) -> float:
    """Return 0 if the reading ended at the chunk of the last evidence, -0.75 before, -0.5 after.

    The exit reward of GRU-Mem (arXiv 2602.10560).

    Args:
        rollout: a rollout that read the document from its beginning.
        evidence: spans of the evidence in the document, as first and one past the last code
            point.

    Raises:
        TraceError: There is no evidence, the rollout was recorded without its chunks, or the
            document was read in segments.
    """
    ends = [one.end for one in rollout.conversations if one.end is not None]
    parts = any(one.segment is not None for one in rollout.conversations)
    if parts or not evidence or not ends:
        message = (
            f"The exit of rollout {rollout.rollout!r} cannot be judged: read in one segment, and "
            "use a task that has the places of its evidence."
        )
        raise TraceError(message)
    last = max(end for _, end in evidence)
    enough = sum(end >= last for end in ends)
    return _EARLY if enough == 0 else _LATE if enough > 1 else 0.0


_EARLY, _LATE = -0.75, -0.5


def _holds(conversation: Conversation, evidence: Sequence[Span]) -> bool:
    """Whether the conversation's chunk has some of the evidence."""
    start, end = conversation.start or 0, conversation.end or 0
    return any(first < end and start < last for first, last in evidence)


def information_rewards(
    gains: Sequence[float], rewards: Sequence[float], groups: Sequence[str], *, success: float = 1.0
) -> list[float]:
    """Return information gains as rewards, normalized over the successful rollouts of a group.

    InfoMem (arXiv 2606.03329): how much the final memory raises the log-probability of a token of
    the right answer, in nats, minus the mean over the group's successful rollouts, divided by their
    standard deviation. A rollout that failed, or is the only successful one, gets 0.

    Args:
        gains: mean log-probability of a token of the right answer given the final memory, minus
            that given an empty one, `[rollouts]`; ignored for failed rollouts.
        rewards: reward of each rollout's answer, `[rollouts]`.
        groups: group of each rollout, `[rollouts]`.
        success: least reward of an answer that counts as right.
    """
    found = [0.0] * len(gains)
    members: dict[str, list[int]] = {}
    for place, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if reward >= success:
            members.setdefault(group, []).append(place)
    for places in members.values():
        own = [gains[place] for place in places]
        mean, deviation = fmean(own), pstdev(own)
        for place in places:
            found[place] = (gains[place] - mean) / deviation if deviation > _LEAST else 0.0
    return found


def cost_rewards(
    costs: Sequence[float], rewards: Sequence[float], groups: Sequence[str], *, success: float = 1.0
) -> list[float]:
    """Return costs of readings as rewards from -1 to 0, for successful rollouts only.

    A cost is taken as a share of the highest cost in its group. A failed rollout gets 0 whatever
    its cost: being cheap does not make it better.

    Args:
        costs: cost of each rollout, such as its number of calls; 0 or more.
        rewards: reward of each rollout's answer, `[rollouts]`.
        groups: group of each rollout, `[rollouts]`.
        success: least reward of an answer that counts as right.
    """
    most: dict[str, float] = {}
    for cost, group in zip(costs, groups, strict=True):
        most[group] = max(cost, most.get(group, 0.0))
    return [
        -cost / most[group] if reward >= success and most[group] else 0.0
        for cost, reward, group in zip(costs, rewards, groups, strict=True)
    ]


_LEAST = 1e-6
"""Largest standard deviation that counts as rounding, in nats."""


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
    known = {"exit": _exit, "boxed": _score_boxed, "update": _update, "information": information}
    known |= {"calls": _calls, "written": _score_written}
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
        return _add_rewards(rollouts, added)


def _exit(rollouts: Sequence[Rollout], cases: Mapping[str, Case]) -> list[Rollout]:
    return _add_rewards(rollouts, [exit_reward(one, cases[one.group].evidence) for one in rollouts])


def _score_boxed(rollouts: Sequence[Rollout], _cases: Mapping[str, Case]) -> list[Rollout]:
    return _add_rewards(rollouts, [has_one_box(one) for one in rollouts])


def _calls(rollouts: Sequence[Rollout], _cases: Mapping[str, Case]) -> list[Rollout]:
    return _cheaper(rollouts, [len(one.conversations) for one in rollouts])


def _score_written(rollouts: Sequence[Rollout], _cases: Mapping[str, Case]) -> list[Rollout]:
    written = [sum(len(one.completion_ids) for one in each.conversations) for each in rollouts]
    return _cheaper(rollouts, written)


def _cheaper(rollouts: Sequence[Rollout], costs: Sequence[int]) -> list[Rollout]:
    worths, groups = [one.reward or 0.0 for one in rollouts], [one.group for one in rollouts]
    return _add_rewards(rollouts, cost_rewards(costs, worths, groups))


def _update(rollouts: Sequence[Rollout], cases: Mapping[str, Case]) -> list[Rollout]:
    return [
        replace(one, step_rewards=update_rewards(one, cases[one.group].evidence))
        for one in rollouts
    ]


def _add_rewards(rollouts: Sequence[Rollout], added: Sequence[float]) -> list[Rollout]:
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
