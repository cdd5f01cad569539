"""Variable tracking: names that are given a value, and others that are given that name's.

Chains, hops and noise as in RULER (arXiv 2404.06654, section 3); the wording is ours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.evaluation.samples import Piece, Sample, Task, check_length, filled
from memagent_graph.evaluation.tasks.haystack import noise, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.tokens import Tokenizer

VERSION = 1
"""To be raised when samples of the same arguments become others."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class TrackingTask(Task):
    """Which variables have this value? Those of one chain of assignments.

    Attributes:
        hops: assignments after the first of a chain.
        chains: chains, of which one is asked for.
        name: what to call it.
    """

    hops: int = 4
    chains: int = 1
    name: str = "vt"

    @property
    def identity(self) -> str:
        """Of the generator."""
        return f"tracking {VERSION} {self.hops} {self.chains}"

    def sample(self, length: int, index: int, *, seed: int, tokenizer: Tokenizer) -> Sample:
        """Make one sample."""
        rng = random.Random(f"{self.name} {length} {index} {seed}")  # noqa: S311 - no secret
        found: set[str] = set()
        while len(found) < self.chains * (self.hops + 1):
            found.add("".join(rng.choices(_LETTERS, k=5)))
        names = rng.sample(sorted(found), len(found))
        values = [number(rng) for _ in range(self.chains)]
        inserts: list[tuple[float, Piece]] = []
        for chain, value in enumerate(values):
            chained = names[chain * (self.hops + 1) : (chain + 1) * (self.hops + 1)]
            given = [value, *(f"the same as {name}" for name in chained)]
            depths = sorted(rng.random() for _ in chained)
            inserts += [
                (depth, Piece(f"Let {name} be {what}.\n", evidence=chain == 0))
                for depth, name, what in zip(depths, chained, given, strict=False)
            ]
        chain_tokens = tokenizer.count("".join(piece.text for _, piece in inserts))
        check_length(self.name, length, chain_tokens)
        state = rng.getstate()

        def pieces() -> Iterator[Piece]:
            fresh = random.Random()  # noqa: S311 - no secret
            fresh.setstate(state)
            return filled(noise(fresh), inserts, length, tokenizer.count)

        return Sample(
            id=f"{self.name}/{length}/{index}",
            task=self.name,
            length=length,
            question=(
                f"Which variables have the value {values[0]}, directly or because they are the "
                f"same as another that has? There are {self.hops + 1}."
            ),
            answers=tuple(names[: self.hops + 1]),
            metric="all",
            pieces=pieces,
        )
