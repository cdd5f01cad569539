"""Variable tracking: names that are given a value, and others that are given that name's.

The prompt, the example, chains, hops and noise are RULER's (arXiv 2404.06654, section 3).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from string import ascii_uppercase
from typing import TYPE_CHECKING

from memagent_graph.evaluation.samples import Piece, Sample, Task, check_length
from memagent_graph.evaluation.tasks.forms import NOISE, TRACKING, room
from memagent_graph.evaluation.tasks.haystack import fit, hide

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.tokens import Tokenizer

VERSION = 2
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
        return f"tracking {VERSION} {self.hops} {self.chains}"

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
