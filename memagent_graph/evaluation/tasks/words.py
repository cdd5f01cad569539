"""Ask for the most frequent words of a list, and of a made-up language.

Prompts and frequencies are RULER's (arXiv 2404.06654, section 3): ten common words 30 times each
among others that occur three times; words of a language by Zipf's law with exponent 2, whose most
frequent one is noise and whose next three are asked for.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import chain, groupby, islice
from math import ceil, pi
from typing import TYPE_CHECKING

from memagent_graph.evaluation.samples import Piece, Sample, Task, check_length
from memagent_graph.evaluation.tasks.forms import COMMON_WORDS, FREQUENT_WORDS, room
from memagent_graph.evaluation.tasks.haystack import fit
from memagent_graph.evaluation.tasks.vocabulary import coded, mixed, vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.text.tokens import Tokenizer

VERSION = 2
"""Version of the generator; a change of the samples for equal arguments increases it."""
_COMMON = 10
_SHORT = 4096
"""Tokens below which words occur less often."""
_TIMES, _SHORT_TIMES = (30, 3), (6, 1)
"""Repetitions of common words, and of others."""
_EXAMPLE, _SHORT_EXAMPLE = (40, (10, 3)), (20, (3, 1))
"""Number of words of the example, and their repetitions."""
_FREQUENT = 3
_NOISE = "..."
_ZETA = pi**2 / 6
"""Zeta of 2: the sum of all frequencies of the language, of which the first is 1."""
_TOKENS_PER_WORD = 50
"""Tokens of a prompt for each word of the language."""
_SOME = 50
"""Repetitions in which a word's tokens are counted: the estimate of one is off by half a token."""


@dataclass(frozen=True)
class CommonWordsTask(Task):
    """A numbered list of words, of which ten occur ten times as often as the others."""

    name: str = "cwe"

    @property
    def identity(self) -> str:
        """Identity of the generator and its words."""
        return f"words {VERSION} {vocabulary().digest}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        key = f"{self.name} {length} {index} {seed}"
        often, seldom = times = _SHORT_TIMES if length < _SHORT else _TIMES
        shown, shown_times = _SHORT_EXAMPLE if length < _SHORT else _EXAMPLE
        example = [*islice(mixed(random.Random(f"{key} example")), shown)]  # noqa: S311 - no secret
        template = COMMON_WORDS.template(
            COMMON_WORDS.example(
                "".join(piece.text for piece in _list(key, example, shown_times)),
                _numbered(example[:_COMMON], 1),
                count=_COMMON,
            ),
            count=_COMMON,
        )
        question = COMMON_WORDS.ask(count=_COMMON)
        common = [*islice(mixed(random.Random(key)), _COMMON)]  # noqa: S311 - no secret
        left = room(
            template, question, COMMON_WORDS.tokens, length=length, tokenizer=tokenizer
        ) - tokenizer.count(_numbered(common * often, 1))
        least = tokenizer.count(_numbered(common * seldom, _COMMON * often))
        check_length(self.name, length, length - left + least)

        @cache
        def others() -> int:
            made = islice(mixed(random.Random(key)), _COMMON, None)  # noqa: S311 - no secret
            entries = (
                f" {_numbered([word] * seldom, 1 + _COMMON * often + number * seldom)}"
                for number, word in enumerate(made)
            )
            return fit(entries, left, tokenizer.count)[0]

        def pieces() -> Iterator[Piece]:
            made = islice(mixed(random.Random(key)), _COMMON + others())  # noqa: S311 - no secret
            return _list(key, [*made], times)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=question,
            answers=tuple(common),
            metric="all",
            pieces=pieces,
            template=template,
            answer_tokens=COMMON_WORDS.tokens,
        )


def _numbered(some: Sequence[str], first: int) -> str:
    return " ".join(f"{place}. {word}" for place, word in enumerate(some, first))


def _list(key: str, some: Sequence[str], times: tuple[int, int]) -> Iterator[Piece]:
    """A numbered list in no order of words, the first of which are common."""
    order = array("L")
    for number in range(len(some)):
        order.extend([number] * times[number >= _COMMON])
    random.Random(f"{key} order").shuffle(order)  # noqa: S311 - no secret
    for place, number in enumerate(order, 1):
        if place > 1:
            yield Piece(" ")
        yield Piece(f"{place}. {some[number]}", evidence=number < _COMMON)


@dataclass(frozen=True)
class FrequentWordsTask(Task):
    """A text in a made-up language, whose words are the rarer the higher their rank."""

    name: str = "fwe"

    @property
    def identity(self) -> str:
        """Identity of the generator."""
        return f"words {VERSION}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        key = f"{self.name} {length} {index} {seed}"
        # Words of higher ranks do not occur in a text of so many tokens.
        ranks = min(length // _TOKENS_PER_WORD, 1 + int((length / _ZETA) ** 0.5))
        made = coded(random.Random(key))  # noqa: S311 - no secret
        known = [*islice(chain([_NOISE], made), max(ranks, _FREQUENT + 2))]
        template, question = FREQUENT_WORDS.template(), FREQUENT_WORDS.ask()
        left = room(template, question, FREQUENT_WORDS.tokens, length=length, tokenizer=tokenizer)
        costs = [tokenizer.count(f" {word}" * _SOME) / _SOME for word in known]

        def tokens(total: int) -> int:
            counts = _counts(total, len(known))
            return ceil(sum(cost * times for cost, times in zip(costs, counts, strict=True)))

        total = bisect_right(range(1, length + 1), left, key=tokens)
        least = _least(len(known))
        check_length(self.name, length, length - left + tokens(least))

        def pieces() -> Iterator[Piece]:
            order = array("L")
            for number, times in enumerate(_counts(total, len(known))):
                order.extend([number] * times)
            random.Random(f"{key} order").shuffle(order)  # noqa: S311 - no secret
            between = ""
            for evidence, numbers in groupby(order, lambda number: 0 < number <= _FREQUENT):
                if between:
                    yield Piece(between)
                yield Piece(" ".join(known[number] for number in numbers), evidence=evidence)
                between = " "

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=question,
            answers=tuple(known[1 : 1 + _FREQUENT]),
            metric="all",
            pieces=pieces,
            template=template,
            answer_tokens=FREQUENT_WORDS.tokens,
        )


def _counts(total: int, ranks: int) -> list[int]:
    """Return the frequency of each rank's word in a text of `total` words by Zipf's law."""
    return [int(total * rank**-2.0 / _ZETA) for rank in range(1, ranks + 1)]


@cache
def _least(ranks: int) -> int:
    """Words of a text in which no rank occurs as often as one that is asked for."""
    total = 1
    while len(set(_counts(total, ranks)[: _FREQUENT + 2])) < _FREQUENT + 2:
        total += 1
    return total
