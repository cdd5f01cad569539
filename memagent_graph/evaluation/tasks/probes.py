"""RULER's tasks, generated: needles in a haystack, variables to track, words to count.

The prompts, the variants and what tells them apart are RULER's (arXiv 2404.06654, section 3).

The prompt, the example, chains, hops and noise are RULER's (arXiv 2404.06654, section 3).

Prompts and frequencies are RULER's (arXiv 2404.06654, section 3): ten common words 30 times each
among others that occur three times; words of a language by Zipf's law with exponent 2, whose most
frequent one is noise and whose next three are asked for.
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, groupby, islice, repeat
from math import ceil, pi
from string import ascii_uppercase
from typing import TYPE_CHECKING, Literal

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, check_length
from memagent_graph.evaluation.tasks.haystack import (
    draw_codes,
    draw_number,
    draw_uuid,
    fit,
    hide,
    mix_words,
    pairs,
    sentences,
    vocabulary,
)
from memagent_graph.evaluation.tasks.ruler import (
    COMMON_WORDS,
    FREQUENT_WORDS,
    NEEDLE,
    NOISE,
    ONE_VALUE,
    SOME_VALUES,
    TRACKING,
    room,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

Kind = Literal["words", "number", "uuid"]
Haystack = Literal["noise", "essay", "needle"]
NEEDLE_VERSION = 2
"""Version of the generator; a change of the samples for equal arguments increases it."""
_DEPTHS = [round(100 * step / 39) for step in range(40)]
"""Percent of an essay's sentences after which a needle can stand."""


@dataclass(frozen=True)
class NeedleTask(Task):
    """Some needles hold what is asked, others give other keys their values.

    Attributes:
        name: name of the task.
        essays: text for a haystack of essays.
        haystack: kind of text between the needles.
        keys: number of keys with values.
        values: number of values of each key in the question.
        queries: number of keys in the question.
        key: kind of the keys.
        value: kind of the values.
    """

    name: str
    essays: Source | None = None
    haystack: Haystack = "essay"
    keys: int = 1
    values: int = 1
    queries: int = 1
    key: Kind = "words"
    value: Kind = "number"

    @property
    def identity(self) -> str:
        """Identity of the generator, its words, and the essays that it uses."""
        known = vocabulary().digest if self.key == "words" else ""
        essays = self.essays.digest if self.essays and self.haystack == "essay" else ""
        return " ".join(filter(None, ("needle", str(NEEDLE_VERSION), known, essays)))

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        if self.haystack == "essay" and self.essays is None:
            message = f"{self.name} hides its needles among essays: name a folder of texts."
            raise ConfigurationError(message)
        chance = f"{self.name} {length} {index} {seed}"
        rng = random.Random(chance)  # noqa: S311 - no secret
        keys = [*islice(self._keys(rng), max(self.keys, self.queries))]
        asked = keys[: self.queries]
        given = [
            (key, self._value(rng))
            for key in keys
            for _ in range(self.values if key in asked else 1)
        ]
        needles = [Piece(self._needle(*pair), evidence=pair[0] in asked) for pair in given]
        form = ONE_VALUE if len(asked) == self.values == 1 else SOME_VALUES
        fields = {"type": self.value, "query": _list_keys(asked)}
        template, question = form.template(**fields), form.ask(**fields)
        needed = tokenizer.count("\n\n".join(piece.text for piece in needles) + "\n\n")
        left = room(template, question, form.tokens, length=length, tokenizer=tokenizer) - needed
        least = needed + tokenizer.count(f"{NOISE}\n" * len(needles))  # lines to stand among
        check_length(self.name, length, length - left + least)

        measured = cache(partial(self._measure, chance, keys, left, tokenizer))
        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=question,
            answers=tuple(value for key, value in given if key in asked),
            metric="all",
            pieces=lambda: self._pieces(chance, keys, needles, *measured()),
            template=template,
            answer_tokens=form.tokens,
        )

    def _keys(self, rng: random.Random, taken: list[str] | None = None) -> Iterator[str]:
        return (
            pairs(rng, taken or ()) if self.key == "words" else (draw_uuid(rng) for _ in repeat(0))
        )

    def _value(self, rng: random.Random) -> str:
        return draw_number(rng) if self.value == "number" else draw_uuid(rng)

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(type=self.value, query=key, value=value)

    def _hay(self, chance: str, keys: list[str]) -> Iterator[str]:
        """Lines or sentences without end."""
        if self.haystack == "noise":
            return repeat(NOISE)
        if self.haystack == "essay":
            assert self.essays is not None  # noqa: S101 - `sample` checked
            return sentences(self.essays)
        rng = random.Random(f"{chance} hay")  # noqa: S311 - no secret
        return (self._needle(key, self._value(rng)) for key in self._keys(rng, keys))

    def _measure(
        self, chance: str, keys: list[str], left: int, tokenizer: Tokenizer
    ) -> tuple[int, str]:
        """Return how many parts of the haystack fit, and the part of the next: an essay is cut."""
        glue = " " if self.haystack == "essay" else "\n"
        hay = self._hay(chance, keys)
        number, left = fit((part + glue for part in hay), left, tokenizer.count)
        if self.haystack != "essay":
            return number, ""
        next_one = next(islice(self._hay(chance, keys), number, None))
        cut = next_one[: tokenizer.prefix(next_one, left)]
        return number, cut[: cut.rfind(" ")] if " " in cut else cut

    def _pieces(
        self, chance: str, keys: list[str], needles: list[Piece], number: int, rest: str
    ) -> Iterator[Piece]:
        rng = random.Random(f"{chance} places")  # noqa: S311 - no secret
        parts = islice(self._hay(chance, keys), number)
        if self.haystack != "essay":
            places = rng.sample(range(number), len(needles))
            yield from hide(parts, zip(places, needles, strict=True), "\n")
            return
        total = number + bool(rest)
        depths = rng.sample(_DEPTHS, len(needles))
        places = [total * depth // 100 for depth in depths]
        # RULER joins what is before the first needle and after the last one also if it is nothing.
        if min(places) == 0:
            yield Piece(" ")
        essay = chain(parts, [rest] if rest else [])
        yield from hide(essay, zip(places, needles, strict=True), " ")
        if max(places) == total:
            yield Piece(" ")


def _list_keys(keys: list[str]) -> str:
    return f"{', '.join(keys[:-1])}, and {keys[-1]}" if len(keys) > 1 else keys[0]


_VARIANTS: dict[str, Callable[..., NeedleTask]] = {
    "niah_single_1": partial(NeedleTask, haystack="noise"),
    "niah_single_2": NeedleTask,
    "niah_single_3": partial(NeedleTask, value="uuid"),
    "niah_multikey_1": partial(NeedleTask, keys=4),
    "niah_multikey_2": partial(NeedleTask, haystack="needle"),
    "niah_multikey_3": partial(NeedleTask, haystack="needle", key="uuid", value="uuid"),
    "niah_multivalue": partial(NeedleTask, values=4),
    "niah_multiquery": partial(NeedleTask, queries=4),
}
NEEDLE_TASKS: dict[str, Callable[[Source | None], NeedleTask]] = {
    name: partial(variant, name) for name, variant in _VARIANTS.items()
}
"""Functions that make the tasks of RULER from the essays."""


TRACKING_VERSION = 2
"""Version of the generator; a change of the samples for equal arguments increases it."""
_LETTERS, _EXAMPLE_LETTERS = 5, 3
_EXAMPLE_NOISE = 15
"""Lines of noise in the example."""
_VALUES = range(10_000, 100_000)


@dataclass(frozen=True)
class TrackingTask(Task):
    """Questions for the variables with a value: those of one chain of assignments.

    Attributes:
        hops: number of assignments after the first of a chain.
        chains: number of chains; the question is about one of them.
        name: name of the task.
    """

    hops: int = 4
    chains: int = 1
    name: str = "vt"

    @property
    def identity(self) -> str:
        """Identity of the generator."""
        return f"tracking {TRACKING_VERSION} {self.hops} {self.chains}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        own, *values = rng.sample(_VALUES, 1 + self.chains)
        (shown,) = self._chains(rng, [own], _EXAMPLE_LETTERS)
        example = TRACKING.example(
            "".join(piece.text for piece in _among(rng, _EXAMPLE_NOISE, [shown])),
            " ".join(shown),
            query=own,
            count=len(shown),
        )
        chains = self._chains(rng, values, _LETTERS)
        asked = {"query": values[0], "count": len(chains[0])}
        template, question = TRACKING.template(example, **asked), TRACKING.ask(**asked)
        lines = "".join(f"{line}\n" for chain in chains for line in chain.values())
        left = room(template, question, TRACKING.tokens, length=length, tokenizer=tokenizer)
        left -= tokenizer.count(lines)
        least = (1 + self.hops) * tokenizer.count(f"{NOISE}\n")
        check_length(self.name, length, length - left + least)
        chance = rng.random()

        @cache
        def noise() -> int:
            return fit(repeat(f"{NOISE}\n"), left, tokenizer.count)[0]

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=question,
            answers=tuple(chains[0]),
            metric="all",
            pieces=lambda: _among(random.Random(chance), noise(), chains),  # noqa: S311 - no secret
            template=template,
            answer_tokens=TRACKING.tokens,
        )

    def _chains(self, rng: random.Random, values: list[int], letters: int) -> list[dict[str, str]]:
        """Assignments by name, for each value."""
        found: dict[str, None] = {}
        while len(found) < len(values) * (self.hops + 1):
            found["".join(rng.choices(ascii_uppercase, k=letters))] = None
        names, size = [*found], self.hops + 1
        return [
            _chain(names[number * size : (number + 1) * size], value)
            for number, value in enumerate(values)
        ]


def _chain(names: list[str], value: int) -> dict[str, str]:
    """Assignments by name; RULER leaves a space after those of another name."""
    given = [str(value), *(f"VAR {name} " for name in names)]
    return {name: f"VAR {name} = {what}" for name, what in zip(names, given, strict=False)}


def _among(rng: random.Random, noise: int, chains: list[dict[str, str]]) -> Iterator[Piece]:
    """So many lines of noise, with each chain in its order; the first is asked for."""
    placed = [
        (place, Piece(line, evidence=chain is chains[0]))
        for chain in chains
        for place, line in zip(
            sorted(rng.sample(range(noise), len(chain))), chain.values(), strict=True
        )
    ]
    return hide(repeat(NOISE, noise), placed, "\n")


WORDS_VERSION = 2
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
        return f"words {WORDS_VERSION} {vocabulary().digest}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        key = f"{self.name} {length} {index} {seed}"
        often, seldom = times = _SHORT_TIMES if length < _SHORT else _TIMES
        shown, shown_times = _SHORT_EXAMPLE if length < _SHORT else _EXAMPLE
        example = [*islice(mix_words(random.Random(f"{key} example")), shown)]  # noqa: S311 - no secret
        template = COMMON_WORDS.template(
            COMMON_WORDS.example(
                "".join(piece.text for piece in _list(key, example, shown_times)),
                _number_words(example[:_COMMON], 1),
                count=_COMMON,
            ),
            count=_COMMON,
        )
        question = COMMON_WORDS.ask(count=_COMMON)
        common = [*islice(mix_words(random.Random(key)), _COMMON)]  # noqa: S311 - no secret
        left = room(
            template, question, COMMON_WORDS.tokens, length=length, tokenizer=tokenizer
        ) - tokenizer.count(_number_words(common * often, 1))
        least = tokenizer.count(_number_words(common * seldom, _COMMON * often))
        check_length(self.name, length, length - left + least)

        @cache
        def others() -> int:
            made = islice(mix_words(random.Random(key)), _COMMON, None)  # noqa: S311 - no secret
            entries = (
                f" {_number_words([word] * seldom, 1 + _COMMON * often + number * seldom)}"
                for number, word in enumerate(made)
            )
            return fit(entries, left, tokenizer.count)[0]

        def pieces() -> Iterator[Piece]:
            made = islice(mix_words(random.Random(key)), _COMMON + others())  # noqa: S311 - no secret
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


def _number_words(some: Sequence[str], first: int) -> str:
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
        return f"words {WORDS_VERSION}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        key = f"{self.name} {length} {index} {seed}"
        # Words of higher ranks do not occur in a text of so many tokens.
        ranks = min(length // _TOKENS_PER_WORD, 1 + int((length / _ZETA) ** 0.5))
        made = draw_codes(random.Random(key))  # noqa: S311 - no secret
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
