"""Needles in a haystack: sentences that give keys their values, among text that does not.

The prompts, the variants and what tells them apart are RULER's (arXiv 2404.06654, section 3).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Literal

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, check_length
from memagent_graph.evaluation.tasks.forms import NEEDLE, NOISE, ONE_VALUE, SOME_VALUES, room
from memagent_graph.evaluation.tasks.haystack import fit, hide, sentences
from memagent_graph.evaluation.tasks.vocabulary import number, pairs, uuid, vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

Kind = Literal["words", "number", "uuid"]
Haystack = Literal["noise", "essay", "needle"]
VERSION = 2
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
        return " ".join(filter(None, ("needle", str(VERSION), known, essays)))

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
        fields = {"type": self.value, "query": _listed(asked)}
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
        return pairs(rng, taken or ()) if self.key == "words" else (uuid(rng) for _ in repeat(0))

    def _value(self, rng: random.Random) -> str:
        return number(rng) if self.value == "number" else uuid(rng)

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


def _listed(keys: list[str]) -> str:
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
