"""The built-in reader: keeps the statements relevant to the question. No model, no network."""

from __future__ import annotations

from hashlib import sha256
from math import log
from typing import TYPE_CHECKING

import regex
from rank_bm25 import BM25Okapi

from memagent_graph.config import ReadingConfig
from memagent_graph.evidence.places import Memory, locate
from memagent_graph.evidence.statements import (
    LONGEST,
    NOWHERE,
    Statement,
    statements,
    statements_of,
)
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update
from memagent_graph.text.terms import content_terms, join_lines, names, specific_terms, terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.evidence.places import Evidence
    from memagent_graph.readers.base import Step
    from memagent_graph.text.tokens import Tokenizer

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


_OPENING = regex.compile(
    r"\p{Lu}[\p{L}\p{M}'’-]*(?:\s+(?:(?:of|de|van|von|da|the|and)\s+)*\p{Lu}[\p{L}\p{M}'’-]*)*"
)


def _subject(text: str) -> str:
    """Return the name that opens a sentence, or else its first name; "" if it has none."""
    opening = _OPENING.match(text)
    if opening and specific_terms(opening[0]):
        return opening[0]
    return next(iter(names(text)), "")


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
            inherited = content_terms(_subject(join_lines(statements[index - 1].text)))
        found.append(terms(text) + inherited)
    return found


def relevance(
    question: str, statements: Sequence[Statement], meant: Sequence[list[str]]
) -> list[float]:
    """Score each statement by BM25 for the question, and for the names in the best statements.

    `meant` are the `meanings` of the statements; one that has nothing to do with the question
    scores 0.
    """
    if not statements:
        return []
    # BM25 rejects empty documents, and a statement of punctuation alone has no terms.
    index = _StatementScores([found or [""] for found in meant], k1=1.2, b=0.4)
    wanted = content_terms(question)
    scores = index.get_scores(wanted)
    own: list[float] = scores.tolist()
    leads = [lead for lead in rank(own)[:_HOP_STATEMENTS] if own[lead] > 0]
    sought = set(wanted)
    for lead in leads:
        named = {term for name in names(statements[lead].text) for term in content_terms(name)}
        weight = _HOP_WEIGHT * (own[lead] / own[leads[0]]) ** _HOP_FOCUS
        scores = scores + weight * index.get_scores(sorted(named - sought))
        sought |= named
    total: list[float] = scores.tolist()
    return total


def rank(scores: Sequence[float]) -> list[int]:
    """Return indexes from the highest score to the lowest; equal scores keep their order."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


class _StatementScores(BM25Okapi):  # type: ignore[misc] # the library has no types
    """BM25 whose idf does not depend on the number of statements compared."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        size = self.corpus_size + _PRIOR
        self.idf = {term: log(1 + (size - n + 0.5) / (n + 0.5)) for term, n in nd.items()}


def best_two(question: str, statements: Sequence[Statement]) -> list[Statement]:
    """Return the best statement and, if it lacks a word of the question, a second one.

    The second is reached by following names from the first: the one with most of the missing words
    and, of several, the farthest. Else it is the runner-up.
    """
    meant = meanings(statements)
    scores = relevance(question, statements, meant)
    order = [index for index in rank(scores) if scores[index] > 0]
    if not order:
        return []
    wanted, trail = set(content_terms(question)), order[:1]
    left_open = wanted.difference(meant[trail[0]])
    for at in trail if left_open else ():  # grows within the loop
        leads = _leads(statements[at].text, wanted)
        trail += [
            index
            for index, said in enumerate(meant)
            if index not in trail and any(set(said).issuperset(lead) for lead in leads)
        ]
    added = {index: len(left_open.intersection(meant[index])) for index in reversed(trail[1:])}
    second = [max(added, key=added.__getitem__)] if added else order[1:2]
    return [statements[index] for index in (*order[:1], *(second if left_open else ()))]


def _leads(text: str, wanted: Collection[str]) -> list[list[str]]:
    """Names of several words in a text, as those of their terms that the question lacks."""
    return [
        lead
        for name in names(text)
        if len(lead := [term for term in content_terms(name) if term not in wanted]) > 1
    ]


NOTHING_FOUND = "Nothing that was read bears on the question."

_VERSION = "extractive-7"
_LEAST_TOLD, _LEAST_PAIRS_TOLD = 0.4, 0.3
"""Share of a question's terms that an answer must have to count as found; the second, for scripts
without spaces, counts pairs of characters. Chosen so that about 2% of the answers that were in
the memory count as not found."""
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_SHORTEST = 8
"""Room in the memory, in tokens, below which no more statements are tried."""


class ExtractiveReader(Reader):
    """Keeps the sentences, or lines of code, that are relevant to the question, and quotes them.

    Statements are ranked by BM25 over stems, parts of identifiers, numbers and CJK bigrams; when
    the memory is full, the lowest are dropped. Names in the best statements are searched for as
    well, so that a second hop in a later chunk is found. It matches words and understands nothing:
    use it for trials, for tests, and for questions that share words with their answers.

    The memory holds one statement per line, in reading order. Lines that a person wrote or changed
    are ranked and quoted like the others, but have no place.
    """

    concurrency = 1  # it is bound by the processor

    def __init__(
        self, config: ReadingConfig | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.memory_tokens = (config or ReadingConfig()).memory_tokens
        self._counter = tokenizer or EstimatingTokenizer()
        self.identity = self._identity(_VERSION)

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Keep the best statements of the memory and the chunk together."""
        places = {item.text: item for item in step.memory.evidence}
        kept = _read_notes(step.memory.text, places)
        candidates = kept + _new(step, {statement.text for statement in kept})
        chosen = self._choose_fitting(step.question, candidates, len(kept))
        if chosen == kept:
            return Update(None)
        for text, start, end in chosen:  # lines that a person wrote have no place
            if start != NOWHERE and text not in places:
                places[text] = locate(text, step.chunk.source, start, end)
        return Update(_write_notes(chosen, places))

    async def merge(
        self,
        question: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Keep the best statements of all memories."""
        places = {item.text: item for memory in memories for item in memory.evidence}
        known = {
            item.text: item for memory in memories for item in _read_notes(memory.text, places)
        }
        candidates = list(known.values())
        chosen = self._choose_fitting(question, candidates, len(candidates))
        return Merge(_write_notes(chosen, places))

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Quote the one or two best statements of the memory.

        The answer counts as found if they have enough of the question's words.
        """
        places = {item.text: item for item in memory.evidence}
        remembered = _read_notes(memory.text, places)
        quoted = [statement.text for statement in best_two(question, remembered)]
        if not quoted:
            return Answer(NOTHING_FOUND, NOTHING_FOUND, found=False)
        found = [places[text] for text in quoted if text in places]
        marks = {item.text: f" [{item.place}]" for item in found}
        lines = (text + marks.get(text, "") for text in quoted)
        least = _LEAST_PAIRS_TOLD if _UNSPACED.search(question) else _LEAST_TOLD
        wanted, told = content_terms(question), set(terms("\n".join(quoted)))
        covered = sum(term in told for term in wanted) >= least * max(len(wanted), 1)
        return Answer("\n".join(lines), "\n".join(quoted), found=covered, evidence=tuple(found))

    def _identity(self, version: str) -> Identity:
        parts = f"{version} {self.memory_tokens} {self._counter.name}"
        return Identity("extractive", sha256(parts.encode()).hexdigest()[:16])

    def _choose_fitting(
        self, asked: str, candidates: list[Statement], kept: int
    ) -> list[Statement]:
        """Return the best candidates that fit into the memory, in reading order.

        The first `kept` are already in it; of the others, those with a score of 0 stay out.
        """
        scores = relevance(asked, candidates, meanings(candidates))
        left, chosen = self.memory_tokens, []
        for index in rank(scores):
            if scores[index] <= 0 and index >= kept:
                continue
            cost = self._counter.count(candidates[index].text + "\n")
            if cost <= left:
                chosen.append(index)
                left -= cost
            if left < _SHORTEST:
                break
        return [candidates[index] for index in sorted(chosen)]


def _write_notes(chosen: Sequence[Statement], places: Mapping[str, Evidence]) -> Memory:
    texts = [statement.text for statement in chosen]
    return Memory("\n".join(texts), tuple(places[text] for text in texts if text in places))


def _read_notes(memory: str, places: Mapping[str, Evidence]) -> list[Statement]:
    found = []
    for line in memory.splitlines():
        place = places.get(line)
        if place is not None:
            found.append(Statement(line, place.start, place.end))
        elif len(line) <= LONGEST:
            found += [Statement(line, NOWHERE, NOWHERE)] if line.strip() else []
        else:  # prose that a person wrote
            found += [Statement(part.text, NOWHERE, NOWHERE) for part in statements(line)]
    return found


def _new(step: Step, known: set[str]) -> list[Statement]:
    """New statements of a step, each once, with offsets in the whole document."""
    found: dict[str, Statement] = {}
    for statement in statements_of(step.chunk):
        if statement.text not in known:
            found.setdefault(statement.text, statement)
    return list(found.values())
