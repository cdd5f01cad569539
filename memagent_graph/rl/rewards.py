r"""Rewards of answers by fixed rules.

A reward is any function of an answer and the right answers (`Reward`). Several right answers are
alternatives, and the best match counts. A reading's answer is the content of the last `\boxed{}` in
its reply, or the whole reply without one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isfinite
from typing import TypeAlias

from memagent_graph.errors import ConfigurationError, TraceError
from memagent_graph.evaluation.scores import exact_match, substring_match, without_latex
from memagent_graph.models.reply import find_boxed

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


REWARDS: dict[str, Reward] = {"exact": exact, "substring": substring}
"""Rewards by their names in a configuration."""


def make_reward(wanted: str | Reward) -> Reward:
    """Make a reward from a name in `REWARDS`, or a function of an answer and the right answers.

    Raises:
        ConfigurationError: There is no reward of that name. The reward itself raises `TraceError`
            if the function returns anything but a finite number.
    """
    if not callable(wanted) and wanted not in REWARDS:
        known = ", ".join(REWARDS)
        message = f"There is no reward {wanted!r}. Choose from: {known}, or give your own."
        raise ConfigurationError(message)
    found = wanted if callable(wanted) else REWARDS[wanted]

    def reward(answer: str, truths: Sequence[str]) -> float:
        value = found(answer, truths)
        if not isinstance(value, int | float) or not isfinite(value):
            name = getattr(found, "__name__", type(found).__name__)
            message = (
                f"The reward {name} returned {value!r} for the answer {answer[:80]!r}: it must be "
                "a finite number."
            )
            raise TraceError(message)
        return float(value)

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
