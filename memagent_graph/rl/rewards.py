r"""Rewards of answers by fixed rules, which no wording of an answer can persuade.

A reward is any function of an answer and the right answers (`Reward`). Several right answers are
alternatives, and the best match counts. A reading's answer is the content of the last `\boxed{}` in
its reply, or the whole reply without one.
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
"""Takes the answer and the right answers; returns the reward."""


def exact(answer: str, truths: Sequence[str]) -> float:
    r"""Return 1 if the answer, or the content of its `\boxed{}`, is one of `truths`, else 0.

    Numbers are compared as numbers ("1,234.0" is "1234", "-5" is not "5"), everything else as in
    SQuAD, ignoring case, punctuation, articles and runs of white space. LaTeX's `\text{}` and a
    pair of dollars are ignored as well.
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
    """Return 1 if one of `truths` occurs in the answer, ignoring case, else 0.

    Long answers have better chances, so do not use it alone.
    """
    return substring_match(answer, _checked(truths), "any")


def every(answer: str, truths: Sequence[str]) -> float:
    """Return the share of `truths` that occurs in the answer, ignoring case, as in RULER."""
    return substring_match(answer, _checked(truths), "all")


def f1(answer: str, truths: Sequence[str]) -> float:
    r"""Return the best F1 of the answer's words with those of one of `truths`, as in SQuAD."""
    return token_f1(without_latex(boxed(answer)), _checked(truths))


def numeric(answer: str, truths: Sequence[str]) -> float:
    r"""Return 1 if the last number in the answer, or in its `\boxed{}`, is one of `truths`, else 0.

    Numbers within a relative difference of one millionth count as equal.

    Raises:
        TraceError: None of `truths` is a number.
    """
    wanted = [value for truth in _checked(truths) if (value := number(truth)) is not None]
    if not wanted:
        message = (
            f"None of the right answers {list(truths)!r} is a number: use another reward than "
            "numeric."
        )
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
    known = [(_named(part), weight) for part, weight in weights.items()]

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


def _checked(truths: Sequence[str]) -> Sequence[str]:
    """Return `truths`, checked: with an empty one, every answer would be right."""
    if isinstance(truths, str) or not truths or not all(truth.strip() for truth in truths):
        message = f"The right answers must be a list of texts, none of them empty, not {truths!r}."
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
        message = (
            f"The reward {name} returned {value!r} for the answer {answer[:80]!r}: it must be a "
            "finite number."
        )
        raise TraceError(message)
    return float(value)
