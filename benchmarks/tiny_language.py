"""A small language, and questions over documents in it that take notes kept from start to end.

A document is a row of sections of 20 words. `lamo tela ;` says what belongs to the town lamo: the
thing tela, or another town whose own thing is then asked for (two hops). Of several such pairs
about a town the latest counts. `lamo not rina ;` says nothing about what belongs to it, nor does
a pair about another town, even one that leads to lamo. The question is a town. The notes are the
chain as far as it is known: `lamo gido tela`.

What is learned from and what is asked later share noise and marks alone: every town and thing of
a training document is of one half of the words, and every one of an evaluation of the other.
"""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.evaluation.samples import Sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SECTION = 20
"""Words, which are tokens here, of a section, and so of a chunk."""
LONGEST = 3
"""Words of the notes, at most."""
NOTHING, NOT, CLOSE = "none", "not", ";"
_NOISE = """
and but then when where while with without over under near far up down left right rain wind snow
sun moon star hill lake road bridge house door window table chair lamp
"""
NOISE = _NOISE.split()


class Words(NamedTuple):
    """Words that a document talks about."""

    towns: list[str]
    things: list[str]


def _make_words(count: int) -> tuple[Words, Words]:
    """Two sets of so many towns, which end in o, and things, which end in a; no word is in both."""
    rng = random.Random("words")
    starts = [one + vowel for one in "bdfgklmnprstvz" for vowel in "aeiu"]
    middles = "bdfgklmnprstvz"
    stems = rng.sample([start + middle for start in starts for middle in middles], 2 * count)
    towns, things = [stem + "o" for stem in stems], [stem + "a" for stem in stems]
    rng.shuffle(things)
    half = slice(count), slice(count, None)
    first, second = (Words(towns[one], things[one]) for one in half)
    return first, second


TRAINING, HELD_OUT = _make_words(320)

Pair = tuple[str, str]


def notes_after(question: str, notes: Sequence[str], pairs: Mapping[str, str]) -> list[str]:
    """The right notes after a section: the chain from the question, its latest pairs first.

    Args:
        question: the town that is asked about.
        notes: before the section.
        pairs: what the section says of towns.
    """
    before = dict(pairwise(known_chain(question, notes)))
    chain = [question]
    while len(chain) < LONGEST and (found := pairs.get(chain[-1]) or before.get(chain[-1])):
        chain.append(found)
    return chain if len(chain) > 1 else [question, NOTHING]


def known_chain(question: str, notes: Sequence[str]) -> list[str]:
    """What notes say of a town: nothing, or a chain that begins with it."""
    told = notes[:1] == [question] and notes[1:] != [NOTHING]
    return [*notes] if told else []


def write_section(rng: random.Random, statements: Sequence[Sequence[str]]) -> list[str]:
    """Statements strewn among noise."""
    room = SECTION - sum(len(one) + 1 for one in statements)
    parts = [[word] for word in rng.choices(NOISE, k=room)]
    parts += [[*one, CLOSE] for one in statements]
    rng.shuffle(parts)
    return [word for part in parts for word in part]


def misleading(
    rng: random.Random, words: Words, chain: Sequence[str], most: int = 2
) -> tuple[dict[str, str], list[tuple[str, ...]]]:
    """What a section says that is beside the question: pairs of other towns, and what is not so.

    Args:
        rng: chooses.
        words: to choose from.
        chain: towns that the pairs are not about; what is not so is about one of them.
        most: pairs about other towns, of which there is at least one.
    """
    others = [town for town in words.towns if town not in chain]
    pairs = {
        town: rng.choice([*rng.choices(words.things, k=2), rng.choice(others), rng.choice(chain)])
        for town in rng.sample(others, rng.randint(1, most))
    }
    denied = [(rng.choice(chain), NOT, rng.choice(words.things))] if rng.random() < 0.3 else []
    return pairs, denied


def sample(
    index: int,
    *,
    hops: int,
    chunks: int,
    seed: int,
    words: Words = TRAINING,
    evidence_within: int | None = None,
) -> Sample:
    """A question over a document of `chunks` sections.

    Each pair that the answer takes has, in half of all documents, an earlier one about the same
    town that no longer counts.

    Args:
        index: of the sample.
        hops: pairs that the answer takes.
        chunks: sections.
        seed: another one makes other samples.
        words: that the document is about.
        evidence_within: the evidence lies in so many first sections; in any by default.
    """
    rng = random.Random(f"{seed} {hops} {chunks} {index}")
    chain = rng.sample(words.towns, hops)
    thing = rng.choice(words.things)
    told: list[Pair] = []
    for town, value in zip(chain, [*chain[1:], thing], strict=True):
        kind = words.things if value == thing else words.towns
        if rng.random() < 0.5:
            told.append((town, rng.choice([one for one in kind if one not in {*chain, thing}])))
        told.append((town, value))
    room = evidence_within or chunks
    places = dict(zip(sorted(rng.sample(range(room), len(told))), told, strict=True))
    state = rng.getstate()

    def pieces() -> Iterator[str]:
        fresh = random.Random()
        fresh.setstate(state)
        for place in range(chunks):
            others, denied = misleading(fresh, words, chain)
            pair = places.get(place)
            statements = [*others.items(), *denied, *([pair] if pair else [])]
            text = " ".join(write_section(fresh, statements))
            yield text + "\n"

    return Sample(
        id=f"{hops}-hop/{chunks}/{index}",
        task=f"{hops}-hop",
        length=chunks * SECTION,
        question=chain[0],
        answers=(thing,),
        metric="any",
        pieces=pieces,
    )


def pairs_of(section: str) -> dict[str, str]:
    """What a section says of towns, read by rule; the last of several about one counts."""
    parts = [part.split() for part in section.split(f" {CLOSE}")]
    towns = {*TRAINING.towns, *HELD_OUT.towns}
    # Noise may stand before a pair, and never within.
    found = [part[-2:] for part in parts[:-1] if len(part) > 1]
    return {town: value for town, value in found if town in towns}
