"""Means with their 95% intervals: of scores, of costs, and of what changed between two runs."""

from __future__ import annotations

from collections import defaultdict
from math import nan, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_Z = 1.96
"""Standard deviations to either side of the mean that hold 95%."""


def interval(scores: Sequence[float], clusters: Sequence[str] = ()) -> tuple[float, float]:
    """Wilson's 95% interval around the mean of scores between 0 and 1.

    It is made for zeros and ones; for scores in between, whose variance is smaller, it is wide.
    Scores of one cluster, such as of questions about one conversation, are not independent: they
    count as fewer, by the design effect (Kish, Survey Sampling, 1965, section 5.4), and Student's
    quantile for the number of clusters takes the place of the normal one.

    Args:
        scores: the scores, in any order.
        clusters: cluster of each score, shared with related ones; empty for a score by itself. None
            if all scores are independent.

    Raises:
        ValueError: There are no scores.
    """
    if not scores:
        raise ValueError("There are no scores to average.")
    mean = fmean(scores)
    n, z = _independent(scores, clusters or [""] * len(scores))
    centre = (mean + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * sqrt(max(0.0, mean * (1 - mean)) / n + z**2 / (4 * n * n)) / (1 + z**2 / n)
    # Rounding takes an end past 0, past 1, and where all scores are 0 or 1, past the mean.
    return max(0.0, min(mean, centre - half)), min(1.0, max(mean, centre + half))


def _independent(scores: Sequence[float], clusters: Sequence[str]) -> tuple[float, float]:
    """Return the number of independent scores that these are worth, and the quantile to use."""
    groups: dict[str | int, list[float]] = defaultdict(list)
    for number, (score, cluster) in enumerate(zip(scores, clusters, strict=True)):
        groups[cluster or number].append(score)
    n, count = len(scores), len(groups)
    if count == n:
        return n, _Z
    mean = fmean(scores)
    spread = sum((score - mean) ** 2 for score in scores) / (n - 1)
    least = n * n / sum(len(group) ** 2 for group in groups.values())  # all of a cluster alike
    worth = least
    if spread and count > 1:
        off = sum(sum(score - mean for score in group) ** 2 for group in groups.values())
        between = off * count / (count - 1) / n
        worth = n * spread / between if between else n
    return min(float(n), max(worth, least)), student(count - 1)


class Mean(NamedTuple):
    """A mean with its 95% interval, whose ends are NaN where it is unknown."""

    value: float
    low: float
    high: float


def mean_score(scores: Sequence[float], clusters: Sequence[str] = ()) -> Mean:
    """The mean of scores between 0 and 1, with its `interval`.

    Raises:
        ValueError: There are no scores.
    """
    low, high = interval(scores, clusters)
    return Mean(fmean(scores), low, high)


def mean_cost(values: Sequence[float]) -> Mean:
    """The mean of figures of 0 or more, with Student's interval; a single one's is unknown.

    Raises:
        ValueError: There are no figures.
    """
    if not values:
        raise ValueError("There are no figures to average.")
    count, mean = len(values), fmean(values)
    if count == 1:
        return Mean(mean, nan, nan)
    deviation = sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    half = student(count - 1) * deviation / sqrt(count)
    return Mean(mean, max(0.0, mean - half), mean + half)


def student(freedom: int) -> float:
    """The 97.5% quantile of Student's distribution for so many degrees of freedom."""
    return _STUDENT[max(0, min(freedom, len(_STUDENT)) - 1)]


_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179),
    *(2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064),
    *(2.060, 2.056, 2.052, 2.048, 2.045, 2.042, 1.96),
)
"""The 97.5% quantiles of Student's distribution for 1 to 30 degrees of freedom, and for many."""


def paired_interval(
    before: Sequence[float], after: Sequence[float], clusters: Sequence[str] = ()
) -> tuple[float, float]:
    """The 95% interval around the mean of `after - before`, of scores of the same samples.

    Wilson's intervals of the two means, joined by how the scores go together (Newcombe,
    Statistics in Medicine 17, 1998, pages 2635 to 2650): no difference in a few
    samples is not taken for certainty, and what is hard in both runs does not count as chance.

    Args:
        before: scores between 0 and 1.
        after: scores of the same samples, in the same order.
        clusters: cluster of each sample, as for `interval`.

    Raises:
        ValueError: There are no scores, or the two numbers differ.
    """
    if len(before) != len(after):
        raise ValueError("Scores are paired: there must be as many after as before.")
    (low_1, high_1), (low_2, high_2) = interval(before, clusters), interval(after, clusters)
    mean_1, mean_2 = fmean(before), fmean(after)
    together = _correlation(before, after)
    down = _apart(mean_2 - low_2, high_1 - mean_1, together)
    up = _apart(high_2 - mean_2, mean_1 - low_1, together)
    change = mean_2 - mean_1
    return max(-1.0, change - down), min(1.0, change + up)


def _apart(one: float, other: float, correlation: float) -> float:
    return sqrt(max(0.0, one * one + other * other - 2 * correlation * one * other))


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's, brought nearer to 0 by half a sample: a few could agree by chance."""
    mean_1, mean_2 = fmean(one), fmean(other)
    shared = sum((a - mean_1) * (b - mean_2) for a, b in zip(one, other, strict=True))
    spread = sqrt(sum((a - mean_1) ** 2 for a in one) * sum((b - mean_2) ** 2 for b in other))
    sure = max(0.0, shared - 0.5) if shared > 0 else shared
    return max(-1.0, sure / spread) if spread else 0.0
