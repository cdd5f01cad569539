"""Places of statements: the records, and the passages that say what a note says."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import regex
from typing_extensions import TypedDict

from memagent_graph.evidence.statements import notes, passage_terms, passages, statements
from memagent_graph.text.terms import LATIN, specific_terms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memagent_graph.evidence.statements import Piece
    from memagent_graph.pictures import Sight
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
    row = [getattr(item, name) for name in item.__slots__]
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
        found = defaultdict[str, list[int]](list)
        for number, item in enumerate(items):
            for term in item.terms:
                found[term].append(number)
        # Tuples of numbers, unlike lists, are no objects that the garbage collector walks through.
        self.postings = {term: (*numbers,) for term, numbers in found.items()}
        self._usual = max(sum(len(item.terms) for item in items) / max(len(items), 1), 1)
        self.weight, self._around = cache(self._weigh), cache(self._look_around)

    def _weigh(self, term: str) -> float:
        """Return the idf of a term."""
        count = len(self.postings.get(term, ()))
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
        first = best_of(scores)
        if first is None:
            return NO_MATCH
        chosen, total = [first], sum(weights.values())
        found = weights.keys() & self.items[first].terms.keys()
        while len(chosen) < most:
            left = (number for number in candidates if number not in chosen)
            gains = {number: self._gain(number, first, wanted, found, total) for number in left}
            second = best_of(gains)
            if second is None or not gains[second]:
                break
            chosen.append(second)
            found |= weights.keys() & self.items[second].terms.keys()
        covered = sum(weights[term] for term in weights if term in found) / total
        near = sorted({other for number in chosen for other in self._around(number)[0]})
        pieces, beside = (tuple(self.items[at] for at in numbers) for numbers in (chosen, near))
        return Match((*chosen,), pieces, beside, frozenset(found), covered, scores[first])

    def add_up(self, weights: Mapping[str, float], most: int | None = None) -> dict[int, float]:
        """Return the weight of each sentence with any of these terms, in `most` sentences each."""
        found: dict[int, float] = defaultdict(float)
        for term, weight in weights.items():
            for number in self.postings.get(term, ())[:most]:
                found[number] += weight
        return found

    def _candidates(self, wanted: NoteTerms) -> list[int]:
        scores = self.add_up({**wanted.weights, **wanted.about}, _MOST_POSTINGS)
        best = sorted(sorted(scores), key=scores.__getitem__, reverse=True)[:_CANDIDATES]
        return [at for at in best if not self.items[at].terms.keys().isdisjoint(wanted.weights)]

    def _score(self, number: int, wanted: NoteTerms, pairs: Sequence[tuple[str, str]]) -> float:
        weights, terms = wanted.weights, self.items[number].terms
        _, near, following, length = self._around(number)
        own = around = 0.0
        for some in (weights, wanted.about):
            for term, weight in some.items():
                if term in terms:
                    own += weight
                elif term in near:
                    around += weight
        order = sum(min(weights[a], weights[b]) for a, b in pairs if following.get(a) == b)
        return (own + _ORDER * order) / length + _AROUND * around

    def _look_around(self, number: int) -> tuple[list[int], set[str], dict[str, str], float]:
        """Return a sentence's neighbours in its paragraph, and what else it is compared by.

        That is their terms, the term after each of its own, and the divisor of its score by length.
        """
        items, item = self.items, self.items[number]
        near = range(max(number - _NEIGHBOURS, 0), min(number + _NEIGHBOURS + 1, len(items)))
        numbers = [other for other in near if other != number and items[other].block == item.block]
        terms = set[str]().union(*(items[other].terms for other in numbers))
        length = 1 + _LENGTH * (len(item.terms) / self._usual - 1)
        return numbers, terms, dict(pairwise(item.terms)), length

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
        quoted = sum(term in weights for term in item.terms) >= _QUOTED * len(item.terms)
        pieces = len(added) - _largest(added, wanted)
        least = _LEAST_PIECES if beside else _LEAST_PIECES_AWAY
        if pieces < least or not (quoted or gain >= _LEAST_ADDED * total):
            return 0
        return gain * (_ADJACENT if beside else 1)


@lru_cache(32)
def index_text(text: str) -> PassageIndex:
    """Return the index of a text's sentences; all questions about a chunk share it."""
    return PassageIndex(passages(text))


@lru_cache(32)
def index_notes(memory: str) -> PassageIndex:
    """Return the index of a memory's notes, on which newer notes or answers may rest."""
    return PassageIndex(notes(memory))


def best_of(scores: Mapping[int, float]) -> int | None:
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


_BARE = frozenset({"yes", "no", "true", "false", "是", "否", "不是", "是的"})


def is_bare(answer: str) -> bool:
    """Whether an answer only means something together with its question."""
    return answer.strip(" .。,，!！*_\"'`“”").casefold() in _BARE


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


_LETTERS = {
    "unspaced": regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"),
    "latin": regex.compile(r"\p{Latin}"),
    "other": regex.compile(r"[^\P{L}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Latin}]"),
}
_SHARE = 0.15
"""Share of a text's letters above which the text counts as written in a script."""


def roots(text: str) -> set[str]:
    """Return the beginnings of a text's terms: "champion" and "championship" have one."""
    return {term[:_ROOT] for term in specific_terms(text)}


def may_share_language(one: str, other: str, but: Collection[str] = ()) -> bool:
    """Whether two texts may be in one language, by their shortest words but those given."""
    short = [{*_SHORT.findall(text.casefold())}.difference(but) for text in (one, other)]
    least = min(map(len, short))
    return least > 1 and len(short[0] & short[1]) >= _ALIKE * least


def is_in_language(question: str, text: str) -> bool:
    """Whether a longer text can be in the language of a question: in its script, with its words."""
    shared = scripts(question) & scripts(text)
    if shared != {"latin"}:
        return bool(shared)
    short, known = ({*_SHORT.findall(one.casefold())} for one in (question, text))
    return len(short) > 1 and len(short & known) >= _AKIN * len(short)


_ROOT = 5
_SHORT = regex.compile(r"(?<![\p{L}\p{M}\p{N}])\p{Ll}{1,3}(?![\p{L}\p{M}\p{N}])")
_ALIKE = 0.7
"""Share of a text's short words that a longer one in its language has."""
_AKIN = 0.5
"""Share of a question's short words that some pages in its language have."""


@lru_cache(16)
def scripts(text: str) -> frozenset[str]:
    """Return the scripts that a text is written in: "latin", "unspaced" or "other"."""
    if LATIN.match(text):
        return frozenset({"latin"} if _LETTERS["latin"].search(text) else ())
    counts = {script: len(letters.findall(text)) for script, letters in _LETTERS.items()}
    total = sum(counts.values())
    return frozenset(script for script, count in counts.items() if count > _SHARE * total)


def may_be_translated(text: str, other: str) -> bool:
    """Whether another text may be a translation into another script.

    It has more than half of the numbers, and is at least about half as long.
    """
    if not scripts(text).isdisjoint(scripts(other)):
        return False
    had, has = ({*map(int, _DIGITS.findall(one))} for one in (text, other))
    kept = not had or len(had & has) > _TRANSLATED * len(had)
    lengths = [  # as if they were written in letters of an alphabet
        sum(_WIDE if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in signs)
        for signs in ("".join(one.split()) for one in (text, other))
    ]
    return kept and lengths[1] >= _TRANSLATED * lengths[0]


_TRANSLATED = 0.5
"""Share of the numbers and of the length of a text that a translation has."""
_WIDE = 3
"""Letters of an alphabet that a character of a wide script stands for."""
_DIGITS = regex.compile(r"\d{1,9}")
