"""What supervised training shows: the format of notes, or the right ones.

The warm-up is of the format alone: to look a town up in a section, to write and
extend notes as a chain, and to answer from them. Where notes are at stake, every reply that the
format knows is shown equally often, whatever would be right: the notes as they were, the notes
with the newer pair, a pair about another town. What to keep and what to overwrite is thus left
for reinforcement learning to find out, or for labels to show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tiny_language import (
    CLOSE,
    NOT,
    NOTHING,
    TRAINING,
    known_chain,
    misleading,
    notes_after,
    pairs_of,
    write_section,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

    from memagent_graph.evaluation.samples import Sample

PAD, END, GO = "<pad>", "<end>", "<go>"
EMPTY = ["(empty:", "this", "is", "the", "first", "section)"]  # as the prompts say it


class Example(NamedTuple):
    """Words of a sequence, and which of them are learned."""

    words: list[str]
    learned: list[bool]


def labelled(samples: Iterator[Sample]) -> Iterator[Example]:
    """Each update of each document with the right notes before and after it, and the answer."""
    for one in samples:
        notes: list[str] = []
        for piece in one.pieces():
            before = notes or EMPTY
            notes = notes_after(one.question, notes, pairs_of(piece))
            prompt = ["text", *piece.split(), "notes", *before, "question", one.question]
            yield ask(prompt, notes)
        yield ask(["notes", *notes, "answer", one.question], [one.answers[0]])


def recall_chains(rng: random.Random) -> Example:
    """Several pairs, then several towns, each with where it leads to, or that this is unknown."""
    towns = rng.sample(TRAINING.towns, 4)
    known = {
        town: rng.choice([*rng.choices(TRAINING.things, k=2), *rng.choices(towns, k=2)])
        for town in towns[:3]
    }
    denied = (rng.choice(towns), NOT, rng.choice(TRAINING.things))
    words = write_section(rng, [*known.items(), denied])
    shown = [Example([*words, "question"], [False] * (len(words) + 1))]
    for town in rng.choices([*towns, rng.choice(TRAINING.towns)], k=12):
        _, *chain = notes_after(town, [], known)
        shown.append(Example([town, *chain, CLOSE], [False, *[True] * (len(chain) + 1)]))
    return _join(shown)


def show_several(rng: random.Random) -> Example:
    """Several questions: about the same notes and section, or each about notes of its own."""
    if rng.random() < 0.15:
        return _join([_answer(rng) for _ in range(6)])
    chain, notes, text, pairs = _update(rng)
    asked = [*pairs, *chain[:1] * 3, rng.choice(TRAINING.towns)]
    first, *others = [chain[0], *rng.choices(asked, k=5)]
    words = ["text", *text, "notes", *(notes or EMPTY)]
    examples = [ask([*words, "question", first], _reply(rng, first, notes, pairs))]
    examples += [ask(["question", town], _reply(rng, town, notes, pairs)) for town in others]
    return _join(examples)


def _answer(rng: random.Random) -> Example:
    """An answer from notes of one hop or of two."""
    town, middle, thing = [*rng.sample(TRAINING.towns, 2), rng.choice(TRAINING.things)]
    notes = rng.choice([[town, thing], [town, middle, thing]])
    return ask(["notes", *notes, "answer", town], [thing])


def _join(examples: Sequence[Example]) -> Example:
    return Example(
        [word for example in examples for word in example.words],
        [learned for example in examples for learned in example.learned],
    )


def _update(
    rng: random.Random,
) -> tuple[list[str], list[str], list[str], dict[str, str]]:
    """A chain, notes that may hold some of it, a section, and what that says of towns."""
    towns, things = TRAINING
    chain = [*rng.sample(towns, 2), rng.choice(things)]
    town, middle, thing = chain
    other = [rng.choice(towns), rng.choice([rng.choice(towns), rng.choice(things)])]
    half = chain[:2]
    notes = rng.choice([[], [town, NOTHING], other, half, half, half, [town, thing], chain])
    pairs, denied = misleading(rng, TRAINING, half)
    about, kind = rng.choice([(town, towns), (town, things), (middle, things), (middle, things)])
    if rng.random() < 0.8:
        pairs[about] = rng.choice(kind)
    text = write_section(rng, [*pairs.items(), *denied])
    return chain, notes, text, pairs


def _reply(rng: random.Random, town: str, notes: Sequence[str], pairs: dict[str, str]) -> list[str]:
    """Notes on a town: looked up or extended, or else any that the format knows."""
    right = notes_after(town, notes, pairs)
    kept = known_chain(town, notes)
    if not kept or (right[: len(kept)] == kept and right != kept):
        return right
    others = [[*pair] for pair in pairs.items() if pair[0] != town]
    known = [*others, [*notes], *([right] if right != notes else [])]
    return rng.choice(known)


def ask(prompt: Sequence[str], reply: Sequence[str]) -> Example:
    """A prompt, and the reply to learn."""
    begun = [False] * (len(prompt) + 1)
    return Example([*prompt, GO, *reply, END], begun + [True] * (len(reply) + 1))
