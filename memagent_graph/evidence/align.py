"""Find where each statement of a memory stands in the text: matched by words, without a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import fsum
from typing import TYPE_CHECKING, Literal

import regex

from memagent_graph.evidence.claims import (
    MOST_READ,
    NoteJudge,
    Piece,
    claims,
    is_in_language,
    may_share_language,
    roots,
    scripts,
)
from memagent_graph.evidence.places import (
    LEAST_COVERED,
    NO_MATCH,
    Evidence,
    Match,
    Memory,
    Unsupported,
    evidence_by_note,
    index_notes,
    index_text,
    is_bare,
    locate,
    with_text,
)
from memagent_graph.evidence.statements import (
    leave_out,
    note_terms,
    notes,
    passage_terms,
    statements,
)
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource
from memagent_graph.text.terms import figures, names, specific_terms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memagent_graph.text.source import Source

State = Literal["supported", "unsupported", "unknown"]

_SAME = 0.9
"""A note rewrites an older one if that covers at least this share of what the chunk covers."""

_ADDED = 0.15
"""Share of a note's weight that the second basis (chunk or older notes) must add to count too."""

_MOST_REWRITTEN = 4
"""Most older notes that one note rewrites."""

_CLAUSE_END = regex.compile(r"[,;，；、][ ]?(?:(?:and|or|und|et|y)\s)?|\s(?:and|und|et|y)\s")
"""What stands between the parts of a list."""

_SAID = 0.6
"""Share of a clause's weight from which a single sentence says the same, in at least so many words
besides the name or number."""
_LEAST_SAID = 2

_FOUND_LATER = 0.6
"""Share of an older note's weight that a later chunk must cover to become its evidence."""

_ASKED = 0.5
"""Share of the question's words, and at least two, from which a note speaks of its subject."""

_BORROWED = 0.3
"""Share of these below which the text around a note's evidence does not speak of it."""

_AROUND = 8
"""Sentences before and after a note's evidence that may name its subject."""


@dataclass(frozen=True, slots=True)
class AlignedNote:
    """A sentence of a memory, as the memory has it, with its place there and its evidence.

    Attributes:
        state: "unsupported" if it has a name or number that nothing accounts for, or says of the
            question's subject what the text says of another; "unknown" if it cannot be judged,
            because it is in another script than the chunk or states nothing.
        missing: the names and numbers that nothing accounts for.
        evidence: places of the sentence in the document, best first.
        passage: the text of the evidence, after the older notes that it rewrites; "" if none.
        is_new: False for an older note without support, which this chunk supports after all.
    """

    text: str
    start: int
    end: int
    state: State
    missing: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    passage: str = ""
    is_new: bool = True


@dataclass(frozen=True)
class Aligned:
    """The text of a memory after an update, and the memory before it.

    Its `notes` are those that are new, changed, or supported for the first time.
    """

    text: str
    before: Memory
    notes: tuple[AlignedNote, ...] = ()

    @cached_property
    def memory(self) -> Memory:
        """The memory with evidence and marks: of notes that stayed, and of those aligned anew."""
        places: dict[str, int] = {}
        for note in notes(self.text):
            places.setdefault(note.text, note.start)
        found = [item for note in self.notes for item in note.evidence]
        evidence = sorted(
            dict.fromkeys((*with_text(self.text, self.before).evidence, *found)),
            key=lambda one: places[one.text] if one.text in places else self.text.find(one.text),
        )
        left = places.keys() - {note.text for note in self.notes}
        marks = [item for item in self.before.unsupported if item.text in left]
        missing = [note for note in self.notes if note.state == "unsupported"]
        marks += [Unsupported(note.text, note.missing) for note in missing]
        marks.sort(key=lambda item: places[item.text])
        return Memory(self.text, tuple(evidence), tuple(dict.fromkeys(marks)))

    @property
    def has_support(self) -> bool:
        """Whether anything of an answer stands in the memory, or nothing of it can be missing."""
        states = {note.state for note in self.notes}
        return "unsupported" not in states or "supported" in states


def align(
    text: str,
    before: Memory,
    chunk: Chunk,
    question: str,
) -> Aligned:
    """Find the evidence of each new or changed sentence of a memory, in the chunk that was read.

    Notes that stay as they were before keep their evidence. Names and numbers of the question need
    none.
    """
    cut, known = notes(text), {note.text for note in notes(before.text)}
    placed = evidence_by_note(with_text(text, before).evidence, cut)
    marked = {item.text for item in before.unsupported}
    new = [note for note in cut if note.text not in known]
    again = [
        note
        for number, note in enumerate(cut)
        if note.text in known and (number not in placed or note.text in marked)
    ]
    if not (new or again):
        return Aligned(text, before)
    aligner = _Aligner(before, chunk, question)
    aligned = [aligner.align(note) for note in new]
    aligned += [found for note in again if (found := aligner.find(note))]
    return Aligned(text, before, tuple(aligned))


def carry(text: str, memories: Sequence[Memory], question: str) -> Aligned:
    """Align a merged memory with the memories that it was made of."""
    return align(text, join_memories(memories), Chunk("", 0, 0, 0, TextSource("")), question)


def align_answer(answer: str, memory: Memory, question: str) -> Aligned:
    """Align an answer with the memory that it was written from, as notes are with a chunk.

    A short answer that is a name has no sentence around it: its first word counts as one too. A
    small count needs no support if the question asks for one. What nothing supports in the memory,
    names and numbers or else whole statements, supports no answer.
    """
    known = leave_out(memory.text, {item.text for item in memory.unsupported if not item.missing})
    for item in memory.unsupported:
        bare = item.text
        for name in item.missing:
            bare = bare.replace(name, "")
        known = known.replace(item.text, bare)
    aligned = align(answer, Memory(), Chunk(known, 0, len(known), 0, TextSource(known)), question)
    found = [_as_answer(note, known, question) for note in aligned.notes]
    if not known.strip():
        found = [replace(note, state="unsupported", missing=()) for note in found]
    return replace(aligned, notes=tuple(found))


_COUNTS = regex.compile(r"\bhow many\b|\bnumber of\b|多少|几|幾", regex.IGNORECASE)
_SMALL = frozenset(map(str, range(2, 13)))
"""Counts that a reader can work out from what the memory lists."""
_NAME = regex.compile(
    r"\A[\s\"'*_(]*(?P<first>\p{Lu}[\p{L}\p{M}'’-]+)(?:\s+[\p{L}\p{M}\p{N}'’.-]+){0,3}[\s\"'*_).!]*\Z"
)


def _as_answer(note: AlignedNote, memory: str, question: str) -> AlignedNote:
    missing = note.missing
    if _COUNTS.search(question):
        counts = ([one for found in figures(name) for one in found.values] for name in missing)
        pairs = zip(missing, counts, strict=True)
        missing = tuple(name for name, count in pairs if not (count and count[0] in _SMALL))
    elif not missing and note.state == "unknown" and (name := _NAME.match(note.text)):
        first, had = name["first"], {*specific_terms(memory), *specific_terms(question)}
        is_strange = had.isdisjoint(specific_terms(note.text))
        if is_strange and not is_bare(note.text) and scripts(memory) & scripts(first):
            missing = (first,)
    if missing == note.missing:
        return note
    return replace(note, missing=missing, state="unsupported" if missing else "unknown")


def is_beside(answer: str, places: Sequence[Evidence], question: str, source: Source) -> bool:
    """Whether what an answer rests on stands where the text speaks of something else.

    Left alone are answers of yes or no, and texts in another language than the question. Without
    places in the source, an answer rests on none of it.
    """
    asked = roots(question)
    opening = answer.replace("，", " ").replace(",", " ").split(maxsplit=1)[:1]
    if len(asked) < LEAST_ASKED or any(map(is_bare, opening)):
        return False
    starts = [max(0, place.start - _SAMPLE // 2) for place in places]
    starts = starts or [max(0, (source.length - _SAMPLE) // 2)]
    pages = [source.read(start, _SAMPLE) for start in starts]
    if not is_in_language(question, pages[0]):
        return False
    around = [
        page[max(0, place.start - start - _NEARBY) : place.end - start + _NEARBY]
        for place, start, page in zip(places, starts, pages, strict=False)
    ]
    spoken = [*map(roots, around)]
    if any(roots(one.text).isdisjoint(said) for one, said in zip(places, spoken, strict=True)):
        return False  # of an earlier document
    return not places or max(len(asked & said) for said in spoken) < _SPOKEN * len(asked)


LEAST_ASKED = 3
"""Least number of words of a question from which its subject is known."""
_NEARBY = 400
"""Code points before and after the place of a note that may speak of the question."""
_SAMPLE = 4000
"""Code points of the document by which its language is known."""
_SPOKEN = 0.25
"""Share of the question's words from which a text speaks of it. On Natural Questions with a model
of 1.5B, between a fifth and a third of the made-up answers and no right one are below it."""


def with_passages(memory: Memory) -> Memory:
    """Return a memory whose text has its passages as well, a sentence a line, with its place."""
    said = [
        locate(cut.text, one.source, one.start + cut.start, one.start + cut.end)
        for one in memory.passages
        for cut in statements(one.text)
    ]
    quoted = Memory("\n".join(item.text for item in said), tuple(said))
    return join_memories([memory, quoted]) if said else memory


def join_memories(memories: Sequence[Memory]) -> Memory:
    """Join memories into one, in order: text, evidence, and marks of what none of them supports."""
    evidence = tuple(item for memory in memories for item in memory.evidence)
    supported = set[str]()
    for memory in memories:
        placed = {item.text for item in memory.evidence}
        supported |= placed - {mark.text for mark in memory.unsupported}
    marks = (item for memory in memories for item in memory.unsupported)
    unsupported = tuple(item for item in marks if item.text not in supported)
    return Memory("\n".join(memory.text for memory in memories), evidence, unsupported)


class _Aligner:
    """Aligns notes with one chunk and the memory before it."""

    def __init__(self, before: Memory, chunk: Chunk, question: str) -> None:
        self.chunk, self.unsupported = chunk, before.unsupported
        self.read, self.noted = index_text(chunk.text), index_notes(before.text)
        self.evidence = evidence_by_note(before.evidence, self.noted.items)
        self.marked = {item.text for item in before.unsupported}
        self.judge = NoteJudge(Piece.of(question), chunk.text, before.text)
        self.asked, self.subject = {*passage_terms(question)}, roots(question)
        known = [note.line for note in self.noted.items if note.text not in self.marked]
        self.known = "\n".join(known)

    def align(self, note: Piece) -> AlignedNote:
        """Find the evidence and the state of one note."""
        wanted = self.read.want(note, self.asked)
        matched = self.read.match(wanted, MOST_READ)
        noted = self.noted.match(wanted, _MOST_REWRITTEN)
        read, noted = _choose(matched, noted, wanted.weights)
        lines = noted.pieces
        doubts = [one for one in self.unsupported if any(one.text in item.line for item in lines)]
        doubted = [name for item in doubts for name in item.missing]
        judgement = self.judge.judge(note, read.pieces, read.beside, lines, doubted)
        if judgement.missing and not read.places and matched.covered >= LEAST_COVERED:
            # An older note in other words but for one value, which the chunk may state.
            again = self.judge.judge(note, matched.pieces, matched.beside, lines, doubted)
            if len(again.missing) < len(judgement.missing):
                read, judgement = matched, again
        texts, missing = [*read.pieces, *judgement.lent], judgement.missing
        if missing:
            listed, missing = self._look_up_clauses(note, missing)
            texts += [item for item in listed if item not in texts]
        state: State = "supported"
        if not judgement.judged or not (missing or texts or lines):
            state = "unknown"
        elif missing or (not texts and any(not item.missing for item in doubts)):
            state = "unsupported"
        if judgement.judged and self._borrows(note, read):
            state = "unsupported"
        found = self._place(note, state, texts, lines)
        kept = (item for number in noted.places for item in self.evidence.get(number, ()))
        evidence = dict.fromkeys((*found.evidence, *(replace(one, text=note.text) for one in kept)))
        return replace(found, missing=missing, evidence=tuple(evidence))

    def find(self, note: Piece) -> AlignedNote | None:
        """Find support in the chunk for an older note that has none; None if there is none."""
        read = self.read.match(self.read.want(note, self.asked), MOST_READ)
        if read.covered < _FOUND_LATER:
            return None
        judgement = self.judge.judge(note, read.pieces, read.beside)
        if judgement.missing or not judgement.judged:
            return None
        found = self._place(note, "supported", [*read.pieces, *judgement.lent])
        return replace(found, is_new=False)

    def _place(
        self, note: Piece, state: State, texts: Sequence[Piece], lines: Sequence[Piece] = ()
    ) -> AlignedNote:
        source, begin = self.chunk.source, self.chunk.start
        places = [locate(note.text, source, begin + one.start, begin + one.end) for one in texts]
        rests_on = [line.text for line in lines if line.text not in self.marked]
        passage = " ".join([*rests_on, *(item.text for item in texts)])
        evidence = tuple(dict.fromkeys(places))
        return AlignedNote(note.text, note.start, note.end, state, (), evidence, passage)

    def _look_up_clauses(
        self, note: Piece, missing: Sequence[str]
    ) -> tuple[list[Piece], tuple[str, ...]]:
        """Sentences that say what clauses of a note say, and the names and numbers that none has.

        A note may list what more sentences say than it can rest on as a whole.
        """
        found: list[Piece] = []
        said, doubted = set[str](), set[str]()
        clauses = _CLAUSE_END.split(note.text)
        for clause in clauses if len(clauses) > 1 else ():
            own = {claim.text for claim in claims(clause)}.intersection(missing)
            if not own:
                continue
            part = replace(note, text=clause, terms=note_terms(clause), label=0)
            match = self.read.match(self.read.want(part, self.asked), 1)
            words = match.terms.difference(*map(note_terms, own))
            is_said = match.covered >= _SAID and len(words) >= _LEAST_SAID
            if is_said and not self.judge.judge(part, match.pieces, match.beside).missing:
                said |= own
                found += match.pieces
            else:
                doubted |= own
        return found, tuple(name for name in missing if name in doubted or name not in said)

    def _borrows(self, note: Piece, read: Match) -> bool:
        """Whether a note is about the question's subject, and the text it rests on is of another.

        A text that names nobody else may go on about the document's subject without naming it.
        """
        own = roots(note.text)
        asked = own & self.subject
        if len(asked) < max(2, _ASKED * len(self.subject)):
            return False
        near = [range(max(place - _AROUND, 0), place + _AROUND + 1) for place in read.places]
        numbers = sorted({*chain(*near)} & {*range(len(self.read.items))})
        shown = [self.read.items[number].text for number in numbers] or [self.chunk.text]
        spoken = asked & roots("\n".join([self.known, *shown]))
        if len(spoken) >= _BORROWED * len(asked):
            return False
        if not may_share_language(note.text, f"{self.known}\n{self.chunk.text}", asked):
            return False
        return any(own.isdisjoint(roots(name)) for sentence in shown for name in names(sentence))


def _choose(read: Match, noted: Match, weights: Mapping[str, float]) -> tuple[Match, Match]:
    """Choose what a note rests on: the chunk, older notes, or both."""
    read, noted = (one if one.covered >= LEAST_COVERED else NO_MATCH for one in (read, noted))
    first, other = (noted, read) if noted.covered >= _SAME * read.covered else (read, noted)
    added = fsum(weights[term] for term in other.terms - first.terms)
    if added < _ADDED * fsum(weights.values()):
        other = NO_MATCH
    return (other, first) if first is noted else (first, other)
