"""Places of statements: the records, and the passages that say what a note says."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import TypedDict

from memagent_graph.evidence.statements import notes, passage_terms, passages

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memagent_graph.evidence.claims import Piece
    from memagent_graph.pictures.sight import Sight
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source


@dataclass(frozen=True, slots=True)
class Evidence:
    """The place of a statement of the memory in the document.

    Attributes:
        text: the statement, exactly as the memory has it.
        source: name of the file or part that it comes from.
        line: line in that file or part, counted from 1.
        start: first code point in the whole decoded document.
        end: one past its last code point.
        page: page of the source, counted from 1; None if the source has no pages.
        heading: the nearest heading above, or the title of the slide or sheet; None if there is
            none.
    """

    text: str
    source: str
    line: int
    start: int
    end: int
    page: int | None = None
    heading: str | None = None

    @property
    def place(self) -> str:
        """The place, for display: "lease.pdf, page 3", or "notes.md:12" if there are no pages."""
        if self.page is None:
            return f"{self.source}:{self.line}"
        return f"{self.source}, page {self.page}"


def locate(text: str, source: Source, start: int, end: int) -> Evidence:
    """Return the evidence for a statement at code points `start` to `end` of a whole document."""
    at = source.locate(start)
    return Evidence(text, at.name, at.line, start, end, at.page, at.heading)


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A statement of the memory, exactly as it stands there, without support in the document.

    Missing are its names and numbers that the document lacks; none if a verifier decided.
    """

    text: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """The notes of a reading so far.

    Attributes:
        text: the notes; empty before the first chunk.
        evidence: places of its statements in the document, as far as they are known. After a
            person has edited the memory it may cover only part of it. For an unsupported
            statement it is the place that has most of its words.
        unsupported: statements without support in the document.
        dropped: number of unsupported statements left out so far, counted by the graph (see
            `ReadingConfig.unsupported`).
        pictures: those that it refers to, of which a model that sees may be shown some with it;
            only an answer gets them.
        passages: parts of the document to answer from besides, in its order; only an answer gets
            them, from a reader that shows them (`Reader.shows_passages`).
    """

    text: str = ""
    evidence: tuple[Evidence, ...] = ()
    unsupported: tuple[Unsupported, ...] = ()
    dropped: int = 0
    pictures: tuple[Sight, ...] = ()
    passages: tuple[Chunk, ...] = ()


Row = list[Any]
"""The fields of an `Evidence`, in order, without a page and heading that are None; the fields of an
`Unsupported`; or `Memory.dropped`, if it is not 0."""


class PlainMemory(TypedDict):
    """A memory for checkpoints and stores, with rows, which take half the space of dicts."""

    memory: str
    places: list[Row]


def to_plain(memory: Memory) -> PlainMemory:
    """Return a memory as plain values."""
    rows = [_row(item) for item in memory.evidence]
    rows += [[item.text, [*item.missing]] for item in memory.unsupported]
    if memory.dropped:
        rows.append([memory.dropped])
    return {"memory": memory.text, "places": rows}


def _row(item: Evidence) -> Row:
    row = [*astuple(item)]
    while row[-1] is None:
        row.pop()
    return row


def from_plain(plain: Mapping[str, Any]) -> Memory:
    """Return the memory of `to_plain`, from a mapping that may have other fields as well."""
    evidence, unsupported, dropped = [], [], 0
    for row in plain["places"]:
        match row:
            case [count]:
                dropped = count
            case [text, missing]:
                unsupported.append(Unsupported(text, tuple(missing)))
            case _:
                evidence.append(Evidence(*row))
    return Memory(plain["memory"], tuple(evidence), tuple(unsupported), dropped)


def with_text(text: str, memory: Memory) -> Memory:
    """Return a memory with another text, and the evidence and marks that still apply."""
    evidence = tuple(item for item in memory.evidence if item.text in text)
    unsupported = tuple(item for item in memory.unsupported if item.text in text)
    return Memory(text, evidence, unsupported, memory.dropped, memory.pictures)


_PRIOR = 50
"""Virtual sentences added to every text, so that idf does not depend on its length."""

_MOST_POSTINGS = 64
"""Most sentences looked at for a term; a term found everywhere says nothing."""

_ANSWERING = 1.4
"""Weight factor of a term that is not in the question."""

_ABOUT = 0.3
"""Weight factor of a term from the heading, or from the text before the note in its line."""

_CANDIDATES = 16
"""Best sentences that are considered as evidence."""

_COMPARED = 6
"""Best sentences that are also compared by word order and context."""

_ORDER = 0.3
"""Weight factor of two adjacent terms of a note that are adjacent in a sentence too."""

_AROUND = 0.3
"""Weight factor of a term that only the neighbouring sentences have."""

_NEIGHBOURS = 2
"""Sentences on either side that count as neighbours."""

_LENGTH = 0.15
"""Length penalty: a sentence of twice the mean length has its score divided by 1 plus this."""

_ADJACENT = 1.25
"""Factor for a second sentence that stands next to the first."""

LEAST_COVERED = 0.25
"""Share of a note's weight that its evidence must cover."""

_LEAST_ADDED = 0.2
"""Share of a note's weight that a second sentence must add."""

_LEAST_PIECES = 2
"""Terms that a second sentence next to the first must add, beyond one name or number."""

_LEAST_PIECES_AWAY = 3
"""Terms that a second sentence elsewhere must add, beyond one name or number."""

_QUOTED = 0.7
"""Share of a sentence's terms with which a note counts as quoting it."""

_LONGEST_RUN = 8
"""Longest name in scripts without spaces, in pairs of characters."""


class NoteTerms(NamedTuple):
    """The weights of a note's terms, in order, and of those that only name its subject."""

    weights: Mapping[str, float]
    about: Mapping[str, float]
    note: Piece


class Match(NamedTuple):
    """The numbers of the sentences that say what a note says, best first, and the sentences.

    They have some of its terms, which are `covered` of its weight, 0 to 1; the best has the score.
    Beside them stand others of their paragraphs.
    """

    places: tuple[int, ...]
    pieces: tuple[Piece, ...]
    beside: tuple[Piece, ...]
    terms: frozenset[str]
    covered: float
    score: float


NO_MATCH = Match((), (), (), frozenset(), 0.0, 0.0)


class PassageIndex:
    """An index of the sentences of a text, or of the notes of a memory, by their terms."""

    def __init__(self, items: Sequence[Piece]) -> None:
        self.items = items
        self._postings: dict[str, list[int]] = defaultdict(list)
        for number, item in enumerate(items):
            for term in item.terms:
                self._postings[term].append(number)
        self._usual = max(sum(len(item.terms) for item in items) / max(len(items), 1), 1)

    def weight(self, term: str) -> float:
        """Return the idf of a term."""
        count = len(self._postings.get(term, ()))
        return log(1 + (len(self.items) + _PRIOR) / (count + 0.5))

    def want(self, note: Piece, asked: Collection[str], about: Iterable[str] = ()) -> NoteTerms:
        """Weigh the terms of a note, more if they are not asked for; `about` names its subject."""
        weights = {
            term: self.weight(term) * (1 if term in asked else _ANSWERING) for term in note.terms
        }
        context = {
            term: self.weight(term) * _ABOUT
            for term in (*passage_terms(note.context), *about)
            if term not in weights
        }
        return NoteTerms(weights, context, note)

    def match(self, wanted: NoteTerms, most: int = 2) -> Match:
        """Return the best sentence for a note, and up to `most` - 1 others that add to it."""
        candidates, weights = self._candidates(wanted), wanted.weights
        pairs = [*pairwise(weights)]
        scores = {number: self._score(number, wanted, pairs) for number in candidates[:_COMPARED]}
        first = _best(scores)
        if first is None:
            return NO_MATCH
        chosen = [first]
        total = sum(weights.values())
        found = weights.keys() & self.items[first].terms.keys()
        while len(chosen) < most:
            gains = {
                number: self._gain(number, first, wanted, found, total)
                for number in candidates
                if number not in chosen
            }
            second = _best(gains)
            if second is None or not gains[second]:
                break
            chosen.append(second)
            found |= weights.keys() & self.items[second].terms.keys()
        covered = sum(weights[term] for term in weights if term in found) / total
        near = sorted({other for number in chosen for other in self.around(number)})
        pieces, beside = (tuple(self.items[at] for at in numbers) for numbers in (chosen, near))
        return Match((*chosen,), pieces, beside, frozenset(found), covered, scores[first])

    def _candidates(self, wanted: NoteTerms) -> list[int]:
        scores: dict[int, float] = defaultdict(float)
        for term, weight in (*wanted.weights.items(), *wanted.about.items()):
            for number in self._postings.get(term, ())[:_MOST_POSTINGS]:
                scores[number] += weight
        best = sorted([(-score, number) for number, score in scores.items()])
        return [
            number
            for _, number in best[:_CANDIDATES]
            if not self.items[number].terms.keys().isdisjoint(wanted.weights)
        ]

    def _score(self, number: int, wanted: NoteTerms, pairs: Sequence[tuple[str, str]]) -> float:
        weights = wanted.weights
        terms = self.items[number].terms
        near = {term for other in self.around(number) for term in self.items[other].terms}
        own = around = 0.0
        for term, weight in (*weights.items(), *wanted.about.items()):
            if term in terms:
                own += weight
            elif term in near:
                around += weight
        ordered = set(pairwise(terms))
        order = sum(min(weights[a], weights[b]) for a, b in pairs if (a, b) in ordered)
        length = 1 + _LENGTH * (len(terms) / self._usual - 1)
        return (own + _ORDER * order) / length + _AROUND * around

    def around(self, number: int) -> list[int]:
        """Return the numbers of the neighbouring sentences in the same paragraph."""
        block = self.items[number].block
        near = range(max(number - _NEIGHBOURS, 0), min(number + _NEIGHBOURS + 1, len(self.items)))
        return [other for other in near if other != number and self.items[other].block == block]

    def _gain(
        self, number: int, first: int, wanted: NoteTerms, found: Collection[str], total: float
    ) -> float:
        """The weight that a sentence adds to those found; 0 if it adds just one name or number."""
        item, weights = self.items[number], wanted.weights
        added = [term for term in weights if term in item.terms and term not in found]
        if len(added) < _LEAST_PIECES:
            return 0
        gain = sum(weights[term] for term in added)
        beside = abs(number - first) == 1 and item.block == self.items[first].block
        if gain < _LEAST_ADDED * total:
            shared = sum(term in weights for term in item.terms)
            if shared < _QUOTED * len(item.terms):
                return 0
        pieces = len(added) - _largest(added, wanted)
        if pieces < (_LEAST_PIECES if beside else _LEAST_PIECES_AWAY):
            return 0
        return gain * (_ADJACENT if beside else 1)


@lru_cache(32)
def index_text(text: str) -> PassageIndex:
    """Return the index of a text's sentences; all questions about a chunk share it."""
    return PassageIndex([*passages(text)])


@lru_cache(32)
def index_notes(memory: str) -> PassageIndex:
    """Return the index of a memory's notes, on which newer notes or answers may rest."""
    return PassageIndex(notes(memory))


def _best(scores: Mapping[int, float]) -> int | None:
    """Return the number with the highest score, the first of several; None if there is none."""
    return max(scores, key=lambda number: (scores[number], -number), default=None)


def _largest(added: Sequence[str], wanted: NoteTerms) -> int:
    """Return the number of added terms that form one name or number."""
    most = max((sum(term in run for term in added) for run in wanted.note.runs), default=0)
    fresh, length = set(added), 0
    for term in wanted.weights:
        length = length + 1 if term in fresh and not term.isascii() else 0
        if length <= _LONGEST_RUN:
            most = max(most, length)
    return most


_CITED = 4
"""Most notes that one sentence of an answer rests on."""

_LEAST_CITED = 0.1
"""Least share of the weight of a sentence that a further note must add."""

_BARE = frozenset({"yes", "no", "true", "false", "是", "否", "不是", "是的"})


def is_bare(answer: str) -> bool:
    """Whether an answer only means something together with its question."""
    return answer.strip(" .。,，!！*_\"'`“”").casefold() in _BARE


def cite(answer: str, memory: Memory, question: str = "") -> tuple[Evidence, ...]:
    """Return the evidence of the notes of a memory that an answer rests on, best first.

    The question decides between notes that match the answer equally well.
    """
    index = index_notes(memory.text)
    evidence = evidence_by_note(memory.evidence, index.items)
    asked = passage_terms(question)
    scores: dict[Evidence, float] = {}
    for note in notes(question if is_bare(answer) else answer):
        wanted = index.want(note, asked, asked)
        match = index.match(wanted, 1)
        places, covered = _add_notes(index, wanted, match)
        if covered < LEAST_COVERED:
            continue
        linked = _find_link(index, places, asked)
        if linked is not None and linked not in places:
            places.append(linked)
        for rank, number in enumerate(places, start=1):
            for item in evidence.get(number, ()):
                scores[item] = max(scores.get(item, 0), match.score / rank)
    return tuple(sorted(scores, key=lambda item: -scores[item]))


def _add_notes(index: PassageIndex, wanted: NoteTerms, match: Match) -> tuple[list[int], float]:
    """Return the notes that a sentence rests on, and the share of its weight that they have."""
    weights, places = wanted.weights, [*match.places]
    total = sum(weights.values()) or 1.0
    shared = [sum(weights.get(term, 0) for term in item.terms) for item in index.items]
    missing = {term: weight for term, weight in weights.items() if term not in match.terms}
    while missing and places and len(places) < _CITED:
        gains = [
            sum(weight for term, weight in missing.items() if term in item.terms)
            for item in index.items
        ]
        best = max(range(len(gains)), key=lambda number: (gains[number], shared[number], -number))
        if gains[best] < _LEAST_CITED * total:
            break
        places.append(best)
        missing = {term: missing[term] for term in missing.keys() - index.items[best].terms.keys()}
    return places, 1 - sum(missing.values()) / total


def _find_link(index: PassageIndex, places: Collection[int], asked: Collection[str]) -> int | None:
    """Return the note by which a question leads to the notes of its answer; None without one.

    "Where does the author live?" leads to "Ann lives in Husum." by "Ann wrote the book."
    """
    known = {term for number in places for term in index.items[number].terms}
    said = {term for item in index.items for term in item.terms}
    missing = {term: index.weight(term) for term in asked if term in said and term not in known}
    gains = {
        number: sum(weight for term, weight in missing.items() if term in item.terms)
        for number, item in enumerate(index.items)
        if any(term in known and term not in asked for term in item.terms)
    }
    best = _best(gains)
    return best if best is not None and gains[best] * 2 > sum(missing.values()) else None


def evidence_by_note(
    evidence: Sequence[Evidence], older: Sequence[Piece]
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
