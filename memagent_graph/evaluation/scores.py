"""Scores of one answer, each between 0 and 1, and the interval around a mean of them."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from memagent_graph.matching import exact_match, normalized, substring_match, token_f1

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["exact_match", "interval", "normalized", "substring_match", "token_f1"]


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


def paired_interval(
    before: Sequence[float], after: Sequence[float], z: float = 1.96
) -> tuple[float, float]:
    """The interval around the mean of `after - before`, of scores of the same samples.

    Wilson's intervals of the two means, joined by how the scores go together (Newcombe,
    Statistics in Medicine 17, 1998, pages 2635 to 2650): no difference in a few
    samples is not taken for certainty, and what is hard in both runs does not count as chance.

    Args:
        before: scores between 0 and 1.
        after: those of the same samples, in the same order.
        z: how many standard deviations: 95% by default.

    Raises:
        ValueError: There are no scores, or not as many of the one as of the other.
    """
    if len(before) != len(after):
        raise ValueError("Scores are paired: there must be as many after as before.")
    (low_1, high_1), (low_2, high_2) = interval(before, z), interval(after, z)
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
