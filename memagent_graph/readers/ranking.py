"""How much statements bear on a question, and on what the best of them name."""

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
"""Statements without any of the words, added to every chunk: idf must not swing with its size."""

_HOP_STATEMENTS = 6
"""How many of the best statements name what to look for next."""

_HOP_WEIGHT = 0.4
"""What a word that the best statement names counts, against a word of the question."""

_HOP_FOCUS = 4
"""How fast that falls with the score of the statement that names it: as its fourth power."""

_WIDEST_GAP = 2
"""Code points between a statement and one that goes on from it: a space, or an empty line."""

_PRONOUN = regex.compile(r"(?i)(?:he|she|it|they|his|her|its|their|this|these)\b|[他她它该其]")


def meanings(statements: Sequence[Statement]) -> list[list[str]]:
    """The terms of each statement; one that opens with a pronoun has its antecedent's too.

    The antecedent is taken to be the subject of the statement just before, so that "She lives
    in Trieste." is found by who she is.
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
    """Score each statement by BM25 for the question, and for what the best ones name.

    Args:
        question: what is asked.
        statements: what to rank.
        meant: their `meanings`.

    Returns:
        A score for each statement; 0 when it has nothing to do with the question.
    """
    if not statements:
        return []
    # BM25 takes no empty document, and a statement of marks alone has no terms.
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
    """Indexes from the highest score to the lowest, equal ones in order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


class _Index(BM25Okapi):  # type: ignore[misc] # the library has no types
    """BM25 whose idf does not depend on how many statements happen to be compared."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        size = self.corpus_size + _PRIOR
        self.idf = {term: log(1 + (size - n + 0.5) / (n + 0.5)) for term, n in nd.items()}
