"""Choose the facts to keep of a long series: the newest, and some of every time before."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING
from zlib import crc32

from memagent_graph.conversation.rendering import ASSISTANT
from memagent_graph.conversation.salience import subject_matter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.conversation.salient import Fact

_NEWEST = 20
"""Days, and facts of a series, that are the newest."""
_ALIKE = 0.5
"""Share of the words of two facts that both have, from which on they are of one series."""
_WORDS = 3
"""Words that a fact of a series has at least: thanks to the same person are none."""
_SOME = 4
"""Others that make a series of a fact."""
_LEAST, _MORE, _LEVELS = 0.35, 0.065, 8
"""Factors on the worth of facts in a series: least for every second, more for every fourth, ..."""


def serial(facts: Sequence[Fact]) -> list[bool]:
    """Return for each fact whether its speaker said others that differ only in numbers."""
    words = [subject_matter(fact.text) for fact in facts]
    others = [0] * len(facts)
    for index, own in enumerate(words):
        for other in range(index):
            if facts[index].speaker == facts[other].speaker and _alike(own, words[other]):
                others[index] += 1
                others[other] += 1
    return [count >= _SOME for count in others]


def _alike(some: frozenset[str], others: frozenset[str]) -> bool:
    shared = len(some & others)
    return min(len(some), len(others)) >= _WORDS and shared >= _ALIKE * (
        len(some) + len(others) - shared
    )


def shares(facts: Sequence[Fact], series: Sequence[bool]) -> list[float]:
    """Return the factor on each fact's worth: 1, unless it is part of a series.

    Of a series every second fact has the least, every fourth more, every eighth still more: those
    that stay are spread over its time, and in each later choice the same ones stay. Facts are
    numbered by their days, or by a hash of their text where one day has several.
    """
    days = [fact.day for fact, of_series in zip(facts, series, strict=True) if of_series]
    several = {day for day in days if days.count(day) > 1}
    return [
        _LEAST + _MORE * _level(_number(fact, several)) if of_series else 1.0
        for fact, of_series in zip(facts, series, strict=True)
    ]


def _number(fact: Fact, several: set[str]) -> int:
    if fact.day and fact.day not in several:
        return date.fromisoformat(fact.day).toordinal()
    return crc32(fact.text.encode(errors="surrogatepass"))


def _level(number: int) -> int:
    """Return how often a number can be halved, at most eight times."""
    return next((n for n in range(_LEVELS) if number >> n & 1), _LEVELS)


def newest(facts: Sequence[Fact], worth: Sequence[float], series: Sequence[bool]) -> list[int]:
    """Return the indexes of the newest statements of people, the newest first.

    These are the best fact of each of the last 20 days, and the last 20 facts of a series.

    Args:
        facts: the facts, by speaker and day; the later of one day is the newer.
        worth: worth of each fact.
        series: whether each fact is part of a series.
    """
    said = [i for i, fact in enumerate(facts) if fact.speaker != ASSISTANT and worth[i] > 0]
    by_age = sorted(said, key=lambda i: (facts[i].day, i), reverse=True)
    best: dict[str, int] = {}
    for index in by_age:
        day = facts[index].day
        if day not in best or worth[index] > worth[best[day]]:
            best[day] = index
    chosen = {*list(best.values())[:_NEWEST], *[i for i in by_age if series[i]][:_NEWEST]}
    return [index for index in by_age if index in chosen]
