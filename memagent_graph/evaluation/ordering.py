"""Score the order of events in an answer by Kendall's tau-b."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def order_score(events: int, order: Sequence[int]) -> float:
    """Return Kendall's tau-b of the right order and the answer's, from 0 to 1: `(tau + 1) / 2`.

    As BEAM (arXiv 2510.27246, section 2.4, and its evaluator) ranks them: over the events and
    whatever else the answer lists; what one of the two lacks is tied there, last. So an answer
    that leaves events out, but adds none, loses little. Two cases have no tau there, or one that
    pays for nothing: an answer that lists no event at all scores 0, the only event there is 1.

    Args:
        events: number of events; 1 comes first.
        order: numbers of the events as the answer lists them; 0 for anything else, and repetitions.

    Raises:
        ValueError: A number names no event.
    """
    if any(not 0 <= number <= events for number in order):
        message = f"There are events 1 to {events}, not all of {list(order)}."
        raise ValueError(message)
    place: dict[int, int] = {}
    extra = events
    for position, number in enumerate(order):
        known = number in range(1, events + 1) and number not in place
        extra += not known
        place[number if known else extra] = position
    if not any(number <= events for number in place):
        return 0.0
    items = range(1, extra + 1)
    last = extra + len(order)
    right = [min(number, events + 1) for number in items]
    given = [place.get(number, last) for number in items]
    return (_tau_b(right, given) + 1) / 2


def _tau_b(one: Sequence[int], other: Sequence[int]) -> float:
    """Kendall's tau-b; 1 if there is only one item."""
    agree = apart_1 = apart_2 = 0
    for (a, b), (c, d) in combinations(zip(one, other, strict=True), 2):
        first, second = (a > c) - (a < c), (b > d) - (b < d)
        agree += first * second
        apart_1 += abs(first)
        apart_2 += abs(second)
    return agree / sqrt(apart_1 * apart_2) if apart_1 and apart_2 else 1.0
