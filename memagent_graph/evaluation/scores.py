"""Scores of one answer, each between 0 and 1, and the interval around a mean of them."""

from __future__ import annotations

import re
import string
from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memagent_graph.evaluation.samples import Metric

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def substring_match(answer: str, wanted: Sequence[str], metric: Metric = "all") -> float:
    """Whether the wanted strings occur in the answer, in any case, as RULER scores.

    Args:
        answer: what was answered.
        wanted: what a right answer holds.
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
    return float(any(normalized(answer) == normalized(one) for one in wanted))


def token_f1(answer: str, wanted: Iterable[str]) -> float:
    """The best F1 of the answer's words with those of one of the wanted, as SQuAD computes it."""
    return max(
        (_f1(normalized(answer).split(), normalized(one).split()) for one in wanted), default=0.0
    )


def normalized(text: str) -> str:
    """Lower case, without punctuation and English articles, words one space apart."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _f1(given: list[str], wanted: list[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted))


def interval(scores: Sequence[float], z: float = 1.96) -> tuple[float, float]:
    """Wilson's interval around the mean of scores between 0 and 1 (95% by default).

    It is made for zeros and ones; for scores in between, whose variance is smaller, it is wide.

    Raises:
        ValueError: There are no scores.
    """
    if not scores:
        raise ValueError("There are no scores to average.")
    n, mean = len(scores), sum(scores) / len(scores)
    centre = (mean + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(mean * (1 - mean) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, centre - half), min(1.0, centre + half)
