"""Where each statement of a memory stands in what was read: aligned by words, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import fsum
from typing import TYPE_CHECKING, Literal

from memagent_graph.readers.base import Evidence, Memory
from memagent_graph.readers.citing import evidence_by_note, note_passages
from memagent_graph.readers.figures import figures
from memagent_graph.readers.judging import Judge
from memagent_graph.readers.matches import LEAST_COVERED, NO_MATCH, Match, Passages
from memagent_graph.readers.notes import Note, notes
from memagent_graph.readers.passages import Passage, passage_terms, passages
from memagent_graph.text.chunking import Chunk
from memagent_graph.text.source import TextSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

State = Literal["supported", "unsupported", "unknown"]

_SAME = 0.9
"""How much of what the chunk has of a note an older note must have, for the note to rewrite it."""

_ADDED = 0.15
"""Share of a note that the chunk must add to the older notes, to be evidence too."""

_MOST_READ = 2
"""Sentences that one note is made of."""

_MOST_REWRITTEN = 4
"""Older notes that one note is made of."""


@dataclass(frozen=True, slots=True)
class AlignedNote:
    """A new or changed sentence of a memory.

    Attributes:
        text: exactly as the memory has it.
        start: offset of its first code point in the memory.
        end: one past its last.
        state: "unsupported" if it has a name or number that nothing accounts for, "unknown" if
            that cannot be judged: it is in another script than the chunk, or states nothing.
        missing: those names and numbers.
        evidence: where it stands in what was read, best first.
    """

    text: str
    start: int
    end: int
    state: State
    missing: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Aligned:
    """What is known of a memory after an update.

    Attributes:
        memory: the new text, with the evidence of all its notes, old ones included.
        notes: those that are new or changed.
    """

    memory: Memory
    notes: tuple[AlignedNote, ...] = ()


def align(
    text: str, before: Memory, chunk: Chunk, question: str, recalled: Sequence[str] = ()
) -> Aligned:
    """Find the evidence of each new or changed sentence of a memory.

    Args:
        text: the new memory.
        before: the memory that it replaces. What it has of `text` keeps its evidence as it is.
        chunk: what was read in between.
        question: what the reading is for; its names and numbers need no evidence.
        recalled: passages that the reader was shown too.
    """
    older = [*notes(before.text)]
    known = {note.text for note in older}
    cut = [*notes(text)]
    new = [note for note in cut if note.text not in known]
    kept = _kept(text, before, cut)
    if not new:
        return Aligned(Memory(text, kept))
    aligner = _Aligner(before, older, chunk, [question, *recalled])
    aligned = [aligner.align(note) for note in new]
    found = [item for note in aligned for item in note.evidence]
    places: dict[str, int] = {}
    for note in cut:
        places.setdefault(note.text, note.start)
    evidence = sorted(
        dict.fromkeys((*kept, *found)),
        key=lambda item: places[item.text] if item.text in places else text.find(item.text),
    )
    return Aligned(Memory(text, tuple(evidence)), tuple(aligned))


def carry(text: str, memories: Sequence[Memory], question: str) -> Memory:
    """A memory that several were merged into, with the evidence of what it has of them.

    Args:
        text: the merged memory.
        memories: that it was made of.
        question: what the reading is for.
    """
    evidence = tuple(item for memory in memories for item in memory.evidence)
    before = Memory("\n".join(memory.text for memory in memories), evidence)
    nothing = Chunk("", 0, 0, 0, TextSource(""))
    return align(text, before, nothing, question).memory


def _kept(text: str, before: Memory, cut: Sequence[Note]) -> tuple[Evidence, ...]:
    same = {note.text for note in cut}
    return tuple(item for item in before.evidence if item.text in same or item.text in text)


class _Aligner:
    """Aligns notes with one chunk and the memory before it."""

    def __init__(
        self, before: Memory, older: Sequence[Note], chunk: Chunk, told: Sequence[str]
    ) -> None:
        self.chunk = chunk
        self.read = Passages([*passages(chunk.text)])
        self.older = older
        self.noted = Passages(note_passages(older))
        self.evidence = evidence_by_note(before.evidence, older)
        self.judge = Judge(told, chunk.text, before.text)
        self.asked = {term for text in told[:1] for term in passage_terms(text)}

    def align(self, note: Note) -> AlignedNote:
        """The evidence and the state of one note."""
        numbers = figures(note.text)
        wanted = self.read.want(note, numbers, self.asked)
        read, noted = _choose(
            self.read.match(wanted, _MOST_READ),
            self.noted.match(wanted, _MOST_REWRITTEN),
            wanted.weights,
        )
        texts = [self.read.items[number] for number in read.places]
        lines = [self.older[number] for number in noted.places]
        judgement = self.judge.judge(note, numbers, texts, self._beside(read), lines)
        texts += judgement.lent[: max(_MOST_READ - len(texts), 0)]
        kept = (item for number in noted.places for item in self.evidence.get(number, ()))
        evidence = dict.fromkeys(self._place(note, item) for item in texts)
        evidence |= dict.fromkeys(replace(item, text=note.text) for item in kept)
        missing = judgement.missing
        state: State = "supported"
        if not judgement.judged or not (missing or texts or lines):
            state = "unknown"
        elif missing:
            state = "unsupported"
        return AlignedNote(note.text, note.start, note.end, state, missing, tuple(evidence))

    def _beside(self, match: Match) -> list[Passage]:
        near = {other for number in match.places for other in self.read.around(number)}
        return [self.read.items[number] for number in sorted(near)]

    def _place(self, note: Note, item: Passage) -> Evidence:
        start = self.chunk.start + item.start
        location = self.chunk.source.locate(start)
        return Evidence(note.text, location.name, location.line, start, self.chunk.start + item.end)


def _choose(read: Match, noted: Match, weights: Mapping[str, float]) -> tuple[Match, Match]:
    """What a note rests on: the chunk, older notes, or both."""
    read = read if read.covered >= LEAST_COVERED else NO_MATCH
    noted = noted if noted.covered >= LEAST_COVERED else NO_MATCH
    first, other = (noted, read) if noted.covered >= _SAME * read.covered else (read, noted)
    added = fsum(weights[term] for term in other.terms - first.terms)
    if added < _ADDED * fsum(weights.values()):
        other = NO_MATCH
    return (other, first) if first is noted else (first, other)
