"""Find which evidence of a memory an answer rests on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.readers.figures import figures
from memagent_graph.readers.matches import LEAST_COVERED, Passages
from memagent_graph.readers.notes import Note, notes
from memagent_graph.readers.passages import Passage, note_terms, passage_terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.readers.base import Evidence, Memory

_CITED = 2
"""Most notes that one sentence of an answer rests on."""

BARE = frozenset({"yes", "no", "true", "false", "是", "否", "不是", "是的"})
"""Answers that only mean something together with their question."""


def cite(answer: str, memory: Memory, question: str = "") -> tuple[Evidence, ...]:
    """Return the evidence of the notes that an answer rests on, best first.

    Args:
        answer: the answer.
        memory: the memory that it was written from.
        question: the question; it decides between notes that match the answer equally well.
    """
    older = [*notes(memory.text)]
    evidence = evidence_by_note(memory.evidence, older)
    index = Passages(note_passages(older))
    asked = passage_terms(question)
    bare = answer.strip(" .。*_").casefold() in BARE
    scores: dict[Evidence, float] = {}
    for note in notes(question if bare else answer):
        match = index.match(index.want(note, figures(note.text), asked, asked), _CITED)
        if match.covered < LEAST_COVERED:
            continue
        for rank, number in enumerate(match.places, start=1):
            for item in evidence.get(number, ()):
                scores[item] = max(scores.get(item, 0), match.score / rank)
    return tuple(sorted(scores, key=lambda item: -scores[item]))


def note_passages(older: Sequence[Note]) -> list[Passage]:
    """Notes as passages that newer notes, or answers, may rest on."""
    return [
        Passage(note.text, note.start, note.end, number, note_terms(note.text, figures(note.text)))
        for number, note in enumerate(older)
    ]


def evidence_by_note(
    evidence: Sequence[Evidence], older: Sequence[Note]
) -> dict[int, list[Evidence]]:
    """Group evidence by the number of its note; evidence of a line counts for all its notes."""
    numbers: dict[str, list[int]] = {}
    for number, note in enumerate(older):
        for text in dict.fromkeys((note.text, note.line.strip())):
            numbers.setdefault(text, []).append(number)
    found: dict[int, list[Evidence]] = {}
    for item in evidence:
        for number in numbers.get(item.text.strip(), ()):
            found.setdefault(number, []).append(item)
    return found
