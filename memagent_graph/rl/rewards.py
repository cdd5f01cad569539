r"""What an answer is worth, by rules: nothing that a model could talk round.

A reward is any function of the answer and of what would be right (`Reward`); several right answers
are alternatives, and the best match counts. The graph's answer is the content of its last
`\boxed{}`, or the whole reply where there is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import isfinite
from typing import TypeAlias

from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.matching import exact_match, substring_match, token_f1, without_latex
from memagent_graph.readers.replies import boxed

Reward: TypeAlias = Callable[[str, Sequence[str]], float]
"""From the answer and the right answers to what it is worth."""


def exact(answer: str, truths: Sequence[str]) -> float:
    r"""1 if the answer is one of `truths`, else 0; what stands in `\boxed{}` is the answer.

    Numbers are compared as numbers ("1,234.0" is "1234", "-5" is not "5"), and all else as SQuAD
    does: case, punctuation, articles and runs of white space do not count, nor does LaTeX's
    `\text{}` or a pair of dollars.
    """
    given = without_latex(boxed(answer))
    value = number(given)
    for truth in map(without_latex, _checked(truths)):
        wanted = number(truth)
        same = exact_match(given, [truth]) == 1 if wanted is None else value == wanted
        if same and (value is None) == (wanted is None):
            return 1.0
    return 0.0


def substring(answer: str, truths: Sequence[str]) -> float:
    """1 if one of `truths` occurs in the answer, in any case, else 0.

    A long answer has better chances: not to be used alone.
    """
    return substring_match(answer, _checked(truths), "any")


def every(answer: str, truths: Sequence[str]) -> float:
    """The share of `truths` that occurs in the answer, in any case, as RULER scores."""
    return substring_match(answer, _checked(truths), "all")


def f1(answer: str, truths: Sequence[str]) -> float:
    r"""The best F1 of the answer's words with those of one of `truths`, as SQuAD computes it."""
    return token_f1(without_latex(boxed(answer)), _checked(truths))


def numeric(answer: str, truths: Sequence[str]) -> float:
    r"""1 if the last number in the answer, or in its `\boxed{}`, is one of `truths`, else 0.

    Equal means within a millionth of the right one.

    Raises:
        TraceError: None of `truths` is a number.
    """
    wanted = [value for truth in _checked(truths) if (value := number(truth)) is not None]
    if not wanted:
        message = f"None of the right answers {list(truths)!r} is a number."
        raise TraceError(message)
    found = _NUMBER.findall(without_latex(boxed(answer)))
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
"""By the names that a configuration has for them."""


def make_reward(parts: str | Reward | Mapping[str | Reward, float]) -> Reward:
    """One reward of a name, of a function, or of several with their weights.

    Args:
        parts: one of `REWARDS` or a function; or such, each with its weight, to be added up:
            `{"exact": 1.0, "f1": 0.2}`.

    Returns:
        A reward that is always a finite number.

    Raises:
        ConfigurationError: There is no reward of that name, or none at all. From the reward:
            `TraceError`, when a part gives something other than a finite number.

    Examples:
        >>> from memagent_graph.rl.rewards import make_reward
        >>> reward = make_reward({"exact": 1.0, "f1": 0.2})
        >>> reward("Edda Hansen", ["Edda Hansen", "Hansen"])
        1.2
    """
    weights = parts if isinstance(parts, Mapping) else {parts: 1.0}
    if not weights:
        raise ConfigurationError("A reward needs a part: name one, or give a function.")
    known = [(_named(part), weight) for part, weight in weights.items()]

    def reward(answer: str, truths: Sequence[str]) -> float:
        return sum(weight * _finite(part, answer, truths) for part, weight in known)

    return reward


def number(text: str) -> Fraction | None:
    """The number that `text` is as a whole, exactly; None if it is none.

    Fractions, exponents, thousands in groups of three, currency signs and a per cent sign, which
    does not count, are understood.
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
"""What may stand around a number."""


def _checked(truths: Sequence[str]) -> Sequence[str]:
    """`truths`, unless every answer would be right or none could be."""
    if isinstance(truths, str) or not truths or not all(truth.strip() for truth in truths):
        message = f"The right answers must be a list of texts that are not empty, not {truths!r}."
        raise TraceError(message)
    return truths


def _named(part: str | Reward) -> Reward:
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
        message = f"The reward {name} gave {value!r} for the answer {answer[:80]!r}: not a number."
        raise TraceError(message)
    return float(value)
