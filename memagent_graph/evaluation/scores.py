"""Scores of one answer, each between 0 and 1, and the interval around a mean of them."""

from __future__ import annotations

from math import nan, sqrt
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.matching import exact_match, normalized, substring_match, token_f1

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["exact_match", "interval", "normalized", "substring_match", "token_f1"]


_Z = 1.96
"""Standard deviations to either side of the mean that hold 95%."""


def interval(scores: Sequence[float]) -> tuple[float, float]:
    """Wilson's 95% interval around the mean of scores between 0 and 1.

    It is made for zeros and ones; for scores in between, whose variance is smaller, it is wide.

    Raises:
        ValueError: There are no scores.
    """
    if not scores:
        raise ValueError("There are no scores to average.")
    n, mean = len(scores), sum(scores) / len(scores)
    centre = (mean + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * sqrt(mean * (1 - mean) / n + _Z**2 / (4 * n * n)) / (1 + _Z**2 / n)
    return max(0.0, centre - half), min(1.0, centre + half)


class Mean(NamedTuple):
    """A mean with its 95% interval, whose ends are NaN where it is unknown."""

    value: float
    low: float
    high: float


def mean_score(scores: Sequence[float]) -> Mean:
    """The mean of scores between 0 and 1, with Wilson's interval."""
    return Mean(sum(scores) / len(scores), *interval(scores))


def mean_cost(values: Sequence[float]) -> Mean:
    """The mean of figures of 0 or more, with Student's interval; a single one's is unknown."""
    count, mean = len(values), sum(values) / len(values)
    if count == 1:
        return Mean(mean, nan, nan)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    half = _STUDENT[min(count - 2, len(_STUDENT) - 1)] * deviation / sqrt(count)
    return Mean(mean, max(0.0, mean - half), mean + half)


_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179),
    *(2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064),
    *(2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 1.96),
)
"""The 97.5% quantiles of Student's distribution for 1 to 30 degrees of freedom, and for many."""


def paired_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The 95% interval around the mean of `after - before`, of scores of the same samples.

    Wilson's intervals of the two means, joined by how the scores go together (Newcombe,
    Statistics in Medicine 17, 1998, pages 2635 to 2650): no difference in a few
    samples is not taken for certainty, and what is hard in both runs does not count as chance.

    Args:
        before: scores between 0 and 1.
        after: those of the same samples, in the same order.

    Raises:
        ValueError: There are no scores, or not as many of the one as of the other.
    """
    if len(before) != len(after):
        raise ValueError("Scores are paired: there must be as many after as before.")
    (low_1, high_1), (low_2, high_2) = interval(before), interval(after)
    mean_1, mean_2 = sum(before) / len(before), sum(after) / len(after)
    together = _correlation(before, after)
    down = _apart(mean_2 - low_2, high_1 - mean_1, together)
    up = _apart(high_2 - mean_2, mean_1 - low_1, together)
    change = mean_2 - mean_1
    return max(-1.0, change - down), min(1.0, change + up)


def _apart(one: float, other: float, correlation: float) -> float:
    return sqrt(max(0.0, one * one + other * other - 2 * correlation * one * other))


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's, brought nearer to 0 by half a sample: a few could agree by chance."""
    mean_1, mean_2 = sum(one) / len(one), sum(other) / len(other)
    shared = sum((a - mean_1) * (b - mean_2) for a, b in zip(one, other, strict=True))
    spread = sqrt(sum((a - mean_1) ** 2 for a in one) * sum((b - mean_2) ** 2 for b in other))
    sure = max(0.0, shared - 0.5) if shared > 0 else shared
    return sure / spread if spread else 0.0
