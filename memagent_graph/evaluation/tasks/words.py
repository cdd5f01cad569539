"""Which words occur most often? Of a list, and of a made-up language.

Frequencies as in RULER (arXiv 2404.06654, section 3): ten common words 30 times each among others
that occur three times; words of a language by Zipf's law with exponent 2, of which three are
asked for. The wording is ours.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from memagent_graph.evaluation.samples import Piece, Sample, Task, check_length
from memagent_graph.evaluation.tasks.haystack import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.tokens import Tokenizer

VERSION = 1
"""To be raised when samples of the same arguments become others."""
_COMMON, _COMMON_TIMES, _OTHER_TIMES = 10, 30, 3
_FREQUENT, _VOCABULARY, _EXPONENT = 3, 2000, 2.0
_LINE, _LINES, _GROUP = 20, 5, 20
_LEAST = 4000
"""Tokens of a text in which it is hardly ever chance that decides which word is the third."""


@dataclass(frozen=True)
class CommonWordsTask(Task):
    """A numbered list of words, of which ten occur ten times as often as the others."""

    name: str = "cwe"

    @property
    def identity(self) -> str:
        """Of the generator."""
        return f"words {VERSION}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        key = f"{self.name} {length} {index} {seed}"
        common = [*islice(words(random.Random(key)), _COMMON)]  # noqa: S311 - no secret
        others = self._others(length, key, tokenizer)

        def pieces() -> Iterator[Piece]:
            rng = random.Random(key)  # noqa: S311 - no secret
            made = [*islice(words(rng), _COMMON + others)]
            order = array("L")
            for number in range(len(made)):
                times = _COMMON_TIMES if number < _COMMON else _OTHER_TIMES
                order.extend([number] * times)
            rng.shuffle(order)
            for place, number in enumerate(order, 1):
                yield Piece(f"{place}. {made[number]}\n", evidence=number < _COMMON)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=f"Which {_COMMON} words occur most often in the list?",
            answers=tuple(common),
            metric="all",
            pieces=pieces,
        )

    def _others(self, length: int, key: str, tokenizer: Tokenizer) -> int:
        """How many other words make the list as long as asked."""
        made = words(random.Random(key))  # noqa: S311 - no secret
        lines = _lines([*islice(made, _COMMON)], 0, _COMMON_TIMES)
        needed, place, others = tokenizer.count(lines), _COMMON * _COMMON_TIMES, 0
        left = length - needed
        while True:
            # Many at once: a tokenizer's estimate of one line is off by half a token.
            lines = _lines([*islice(made, _GROUP)], place, _OTHER_TIMES)
            cost = tokenizer.count(lines)
            if not others:
                check_length(self.name, length, needed + cost)
            if cost > left:
                return others + max(0, _GROUP * left // cost)
            left, place, others = left - cost, place + _GROUP * _OTHER_TIMES, others + _GROUP


def _lines(some: list[str], place: int, times: int) -> str:
    """How these words stand in a list, from that place on; in any order they are as long."""
    repeated = [word for word in some for _ in range(times)]
    return "".join(f"{place + number}. {word}\n" for number, word in enumerate(repeated, 1))


@dataclass(frozen=True)
class FrequentWordsTask(Task):
    """A text in a made-up language, whose words are the rarer the higher their rank."""

    name: str = "fwe"

    @property
    def identity(self) -> str:
        """Of the generator."""
        return f"words {VERSION}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        check_length(self.name, length, _LEAST)
        key = f"{self.name} {length} {index} {seed}"
        made = [*islice(words(random.Random(key)), _VOCABULARY)]  # noqa: S311 - no secret
        top = made[:_FREQUENT]
        weights = [*accumulate(rank**-_EXPONENT for rank in range(1, _VOCABULARY + 1))]

        def pieces() -> Iterator[Piece]:
            rng = random.Random(key)  # noqa: S311 - no secret
            left = length
            while left > 0:
                # Some lines at once, for the same reason.
                picked = rng.choices(made, cum_weights=weights, k=_LINE * _LINES)
                cost = tokenizer.count("".join(" ".join(line) + "\n" for line in _cut(picked)))
                for line in _cut(picked[: -(-len(picked) * left // cost)]):
                    yield Piece(" ".join(line) + "\n", any(one in top for one in line))
                left -= cost

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=f"Which {_FREQUENT} words occur most often in the text?",
            answers=tuple(top),
            metric="all",
            pieces=pieces,
        )


def _cut(some: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(some), _LINE):
        yield some[start : start + _LINE]
