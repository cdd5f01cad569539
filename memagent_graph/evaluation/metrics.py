"""Compare answers with the right ones, for evaluation and rewards; scores are from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Metric = Literal["all", "any"]
"""Metric of several right answers: the share that is given, or whether any is."""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{(\d+)\}\s*\{(\d+)\}")
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def substring_match(answer: str, wanted: Sequence[str], metric: Metric = "all") -> float:
    """Return whether the wanted strings occur in the answer, ignoring case, as RULER scores.

    Args:
        answer: the given answer.
        wanted: the strings of a right answer.
        metric: "all" for the share of them, "any" for whether one does.
    """
    text = answer.lower()
    there = [string_.lower() in text for string_ in wanted]
    if not there:
        return 0.0
    return float(any(there)) if metric == "any" else sum(there) / len(there)


def exact_match(answer: str, wanted: Iterable[str]) -> float:
    """Whether the answer is one of the wanted, as SQuAD compares.

    Case, punctuation, articles and runs of white space do not count.
    """
    return float(any(normalize(answer) == normalize(one) for one in wanted))


def token_f1(answer: str, wanted: Iterable[str]) -> float:
    """The best F1 of the answer's words with those of one of the wanted, as SQuAD computes it."""
    return max(
        (_f1(normalize(answer).split(), normalize(one).split()) for one in wanted), default=0.0
    )


def normalize(text: str) -> str:
    """Lower case, without punctuation and English articles, words one space apart."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def without_latex(text: str) -> str:
    r"""A text without LaTeX's `\text{}`, spaces, escapes and a pair of dollars around it."""
    text = _WRAPPED.sub(r"\1", text).replace("\\%", "%").replace("\\$", "$").replace("{,}", ",")
    text = _FRACTION.sub(r"\1/\2", re.sub(r"\\[,;! ]", " ", text)).strip()
    return text[1:-1].strip() if re.fullmatch(r"\$[^$]+\$", text) else text


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))
