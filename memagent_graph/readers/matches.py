"""Find the passages that say what a note says: an inverted index with idf, order and context."""

from __future__ import annotations

from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.readers.claims import runs
from memagent_graph.readers.passages import note_terms, passage_terms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memagent_graph.readers.figures import Figure
    from memagent_graph.readers.notes import Note
    from memagent_graph.readers.passages import Passage

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


class Wanted(NamedTuple):
    """The weighted terms of a note.

    Attributes:
        weights: weights of the note's terms, in order.
        about: weights of terms that only name its subject.
        runs: the terms of each name and number in it.
    """

    weights: Mapping[str, float]
    about: Mapping[str, float]
    runs: Sequence[Collection[str]]


class Match(NamedTuple):
    """The sentences that say what a note says.

    Attributes:
        places: their numbers, best first.
        terms: the note's terms that they have.
        covered: share of the note's weight that these terms have, 0 to 1.
        score: score of the best sentence.
    """

    places: tuple[int, ...]
    terms: frozenset[str]
    covered: float
    score: float


NO_MATCH = Match((), frozenset(), 0.0, 0.0)


class Passages:
    """An index of sentences by their terms.

    Args:
        items: the sentences, in the order of the text.
    """

    def __init__(self, items: Sequence[Passage]) -> None:
        self.items = items
        self._postings: dict[str, list[int]] = {}
        for number, item in enumerate(items):
            for term in item.terms:
                self._postings.setdefault(term, []).append(number)
        self._usual = max(sum(len(item.terms) for item in items) / max(len(items), 1), 1)

    def weight(self, term: str) -> float:
        """Return the idf of a term."""
        count = len(self._postings.get(term, ()))
        return log(1 + (len(self.items) + _PRIOR) / (count + 0.5))

    def want(
        self,
        note: Note,
        numbers: Sequence[Figure],
        asked: Collection[str],
        about: Iterable[str] = (),
    ) -> Wanted:
        """Weigh the terms of a note.

        Args:
            note: the note.
            numbers: the numbers in it.
            asked: terms of the question; the note's other terms weigh more.
            about: further terms that name its subject.
        """
        weights = {
            term: self.weight(term) * (1 if term in asked else _ANSWERING)
            for term in note_terms(note.text, numbers)
        }
        context = {
            term: self.weight(term) * _ABOUT
            for term in (*passage_terms(note.context), *about)
            if term not in weights
        }
        return Wanted(weights, context, runs(note.text, numbers))

    def match(self, wanted: Wanted, most: int = 2) -> Match:
        """Return the best sentence for a note, and up to `most` - 1 others that add to it."""
        candidates = self._candidates(wanted)
        if not candidates:
            return NO_MATCH
        weights = wanted.weights
        pairs = [*pairwise(weights)]
        scores = {number: self._score(number, wanted, pairs) for number in candidates[:_COMPARED]}
        first = max(scores, key=lambda number: (scores[number], -number))
        chosen = [first]
        total = sum(weights.values())
        found = weights.keys() & self.items[first].terms.keys()
        while len(chosen) < most:
            gains = {
                number: self._gain(number, first, wanted, found, total)
                for number in candidates
                if number not in chosen
            }
            second = max(gains, key=lambda number: (gains[number], -number), default=first)
            if not gains.get(second):
                break
            chosen.append(second)
            found |= weights.keys() & self.items[second].terms.keys()
        covered = sum(weights[term] for term in weights if term in found) / total
        return Match(tuple(chosen), frozenset(found), covered, scores[first])

    def _candidates(self, wanted: Wanted) -> list[int]:
        scores: dict[int, float] = {}
        for terms in (wanted.weights, wanted.about):
            for term, weight in terms.items():
                for number in self._postings.get(term, ())[:_MOST_POSTINGS]:
                    scores[number] = scores.get(number, 0) + weight
        best = sorted(scores, key=lambda number: (-scores[number], number))
        return [
            number
            for number in best[:_CANDIDATES]
            if not self.items[number].terms.keys().isdisjoint(wanted.weights)
        ]

    def _score(self, number: int, wanted: Wanted, pairs: Sequence[tuple[str, str]]) -> float:
        weights = wanted.weights
        terms = self.items[number].terms
        near = {term for other in self.around(number) for term in self.items[other].terms}
        own = around = 0.0
        for terms_of in (wanted.weights, wanted.about):
            for term, weight in terms_of.items():
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
        self, number: int, first: int, wanted: Wanted, found: Collection[str], total: float
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


def _largest(added: Sequence[str], wanted: Wanted) -> int:
    """Return the number of added terms that form one name or number."""
    most = max((sum(term in run for term in added) for run in wanted.runs), default=0)
    fresh, length = set(added), 0
    for term in wanted.weights:
        length = length + 1 if term in fresh and not term.isascii() else 0
        if length <= _LONGEST_RUN:
            most = max(most, length)
    return most
