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
