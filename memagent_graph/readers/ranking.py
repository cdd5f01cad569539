"""Rank statements by relevance to a question and to the names in the best of them."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import regex
from rank_bm25 import BM25Okapi

from memagent_graph.text.terms import content_terms, names, subject, terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.readers.statements import Statement

_PRIOR = 500
"""Virtual statements added to every chunk, so that idf does not depend on its size."""

_HOP_STATEMENTS = 6
"""Best statements whose names are searched for."""

_HOP_WEIGHT = 0.4
"""Weight of a word named by the best statement, relative to a word of the question."""

_HOP_FOCUS = 4
"""Power with which that weight falls with the score of the naming statement."""

_WIDEST_GAP = 2
"""Most code points between a statement and the one that continues it."""

_PRONOUN = regex.compile(r"(?i)(?:he|she|it|they|his|her|its|their|this|these)\b|[他她它该其]")


def meanings(statements: Sequence[Statement]) -> list[list[str]]:
    """Return the terms of each statement; one that opens with a pronoun has its antecedent's too.

    The antecedent is taken to be the subject of the statement before, so that "She lives in
    Trieste." is found by her name.
    """
    found: list[list[str]] = []
    inherited: list[str] = []
    for index, (text, start, _) in enumerate(statements):
        gap = start - statements[index - 1].end if index else -1
        if not (_PRONOUN.match(text) and 0 <= gap <= _WIDEST_GAP):
            inherited = []
        elif not inherited:
            inherited = content_terms(subject(statements[index - 1].text))
        found.append(terms(text) + inherited)
    return found


def relevance(
    question: str, statements: Sequence[Statement], meant: Sequence[list[str]]
) -> list[float]:
    """Score each statement by BM25 for the question, and for the names in the best statements.

    Args:
        question: the question.
        statements: the statements to rank.
        meant: their `meanings`.

    Returns:
        A score for each statement; 0 for one that has nothing to do with the question.
    """
    if not statements:
        return []
    # BM25 rejects empty documents, and a statement of punctuation alone has no terms.
    index = _Index([found or [""] for found in meant], k1=1.2, b=0.4)
    wanted = content_terms(question)
    scores = index.get_scores(wanted)
    own: list[float] = scores.tolist()
    leads = [lead for lead in ranked(own)[:_HOP_STATEMENTS] if own[lead] > 0]
    sought = set(wanted)
    for lead in leads:
        named = {term for name in names(statements[lead].text) for term in content_terms(name)}
        weight = _HOP_WEIGHT * (own[lead] / own[leads[0]]) ** _HOP_FOCUS
        scores = scores + weight * index.get_scores(sorted(named - sought))
        sought |= named
    total: list[float] = scores.tolist()
    return total


def ranked(scores: Sequence[float]) -> list[int]:
    """Return indexes from the highest score to the lowest; equal scores keep their order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


class _Index(BM25Okapi):  # type: ignore[misc] # the library has no types
    """BM25 whose idf does not depend on the number of statements compared."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        size = self.corpus_size + _PRIOR
        self.idf = {term: log(1 + (size - n + 0.5) / (n + 0.5)) for term, n in nd.items()}
