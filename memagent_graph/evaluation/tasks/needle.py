"""Needles in a haystack: sentences that give keys their values, among text that does not.

The variants, and what tells them apart, are those of RULER (arXiv 2404.06654, section 3); the
wording is ours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece, Sample, Task, check_length, filled
from memagent_graph.evaluation.tasks.haystack import essay, noise, number, uuid, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer

Kind = Literal["word", "number", "uuid"]
Haystack = Literal["noise", "essay", "needle"]
VERSION = 1
"""To be raised when samples of the same arguments become others."""
_TOGETHER = 8
"""Needles of a haystack between two places where another can be put."""


@dataclass(frozen=True)
class NeedleTask(Task):
    """Some needles hold what is asked, others give other keys their values.

    Attributes:
        name: what to call it.
        essays: text for a haystack of essays.
        haystack: what lies between the needles.
        keys: keys that are given values.
        values: values of each key that is asked for.
        queries: keys that are asked for.
        key: what keys are.
        value: what values are.
    """

    name: str
    essays: Source | None = None
    haystack: Haystack = "essay"
    keys: int = 1
    values: int = 1
    queries: int = 1
    key: Kind = "word"
    value: Kind = "number"

    @property
    def identity(self) -> str:
        """Of the generator, and of the essays that it takes."""
        essays = self.essays.digest if self.essays and self.haystack == "essay" else ""
        return f"needle {VERSION} {essays}".rstrip()

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        if self.haystack == "essay" and self.essays is None:
            message = f"{self.name} hides its needles among essays: name a folder of texts."
            raise ConfigurationError(message)
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        made = words(rng)
        keys = [self._made(self.key, rng, made) for _ in range(max(self.keys, self.queries))]
        asked = keys[: self.queries]
        pairs = [
            (key, self._made(self.value, rng, made))
            for key in keys
            for _ in range(self.values if key in asked else 1)
        ]
        inserts = [
            (rng.random(), Piece(self._needle(key, value), evidence=key in asked))
            for key, value in pairs
        ]
        needles = "".join(piece.text for _, piece in inserts)
        check_length(self.name, length, tokenizer.count(needles))
        state = rng.getstate()

        def pieces() -> Iterator[Piece]:
            fresh = random.Random()  # noqa: S311 - no secret
            fresh.setstate(state)
            return filled(self._hay(fresh), inserts, length, tokenizer.count)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=self._question(asked),
            answers=tuple(value for key, value in pairs if key in asked),
            metric="all",
            pieces=pieces,
        )

    def _made(self, kind: Kind, rng: random.Random, made: Iterator[str]) -> str:
        return next(made) if kind == "word" else number(rng) if kind == "number" else uuid(rng)

    def _needle(self, key: str, value: str) -> str:
        return f"The secret {self.value} of {key} is {value}.\n"

    def _question(self, keys: list[str]) -> str:
        if len(keys) > 1:
            listed = f"{', '.join(keys[:-1])} and {keys[-1]}"
            return f"What are the secret {self.value}s of {listed}?"
        if self.values > 1:
            return f"What are all {self.values} secret {self.value}s of {keys[0]}?"
        return f"What is the secret {self.value} of {keys[0]}?"

    def _hay(self, rng: random.Random) -> Iterator[str]:
        if self.haystack == "noise":
            yield from noise(rng)
        elif self.haystack == "essay":
            assert self.essays is not None  # noqa: S101 - `sample` checked
            yield from essay(self.essays, rng)
        made = words(rng)
        while True:
            keys = [self._made(self.key, rng, made) for _ in range(_TOGETHER)]
            yield "".join(self._needle(key, self._made(self.value, rng, made)) for key in keys)


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
"""As RULER numbers them; each takes the essays."""
