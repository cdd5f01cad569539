"""Shares with their intervals, and whether a change over the same samples is more than chance."""

from __future__ import annotations

from math import sqrt
from statistics import fmean
from typing import TYPE_CHECKING

from memagent_graph.evaluation.samples import mean_score

if TYPE_CHECKING:
    from collections.abc import Sequence


def in_percent(scores: Sequence[float], digits: int = 1) -> str:
    """Return the mean of scores between 0 and 1 with its 95% interval, as text."""
    if not scores:
        return "-"
    mean, low, high = (f"{100 * one:.{digits}f}" for one in mean_score(scores))
    return f"{mean}% ({low} to {high})"


def difference(before: Sequence[float], after: Sequence[float]) -> str:
    """Return the change of the mean in points, with its 95% interval, as text."""
    low, high = compute_paired_interval(before, after)
    change = fmean(after) - fmean(before)
    return f"{100 * change:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def compute_paired_interval(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The 95% interval around the mean of `after - before`, of scores of the same samples.

    Wilson's intervals of the two means, joined by how the scores go together (Newcombe,
    Statistics in Medicine 17, 1998, pages 2635 to 2650): no difference in a few
    samples is not taken for certainty, and what is hard in both runs does not count as chance.

    Args:
        before: scores between 0 and 1.
        after: scores of the same samples, in the same order.

    Raises:
        ValueError: There are no scores, or the two numbers differ.
    """
    if len(before) != len(after):
        raise ValueError("Scores are paired: there must be as many after as before.")
    mean_1, low_1, high_1 = mean_score(before)
    mean_2, low_2, high_2 = mean_score(after)
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
