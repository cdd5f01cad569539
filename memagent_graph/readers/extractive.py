"""The built-in reader: keeps the statements that bear on the question. No model, no network."""

from __future__ import annotations

from hashlib import sha256
from math import log
from typing import TYPE_CHECKING, NamedTuple

from rank_bm25 import BM25Okapi

from memagent_graph.config import ReadingConfig
from memagent_graph.readers.base import Answer, Evidence, Reader, Update
from memagent_graph.readers.statements import Statement, statements
from memagent_graph.readers.terms import content_terms, names, terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.tokens import Tokenizer

NOTHING_FOUND = "Nothing that was read bears on the question."

_VERSION = "extractive-1"
_PRIOR = 500
"""Statements without any of the words, added to every chunk: idf must not swing with its size."""

_HOP_STATEMENTS = 6
"""How many of the best statements name what to look for next."""

_HOP_WEIGHT = 0.1
"""What a word that they name counts, against a word of the question."""

_SHORTEST = 8
"""Tokens of room in the memory that are not worth filling."""


class ExtractiveReader(Reader):
    """Keeps the sentences, or lines of code, that bear on the question, and quotes them.

    It ranks statements by BM25 over stems, parts of identifiers, numbers and CJK bigrams, drops
    the lowest when the memory is full, and also looks for the names that the best ones mention,
    so that a second hop is found in a later chunk. It understands nothing: it is for trying
    things out, for tests, and for questions that share words with their answers.

    Args:
        config: the budgets, of which it needs `memory_tokens`.
        tokenizer: measures the memory; the built-in estimate by default.
    """

    name = "extractive"

    def __init__(
        self, config: ReadingConfig | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.memory_tokens = (config or ReadingConfig()).memory_tokens
        self._counter = tokenizer or EstimatingTokenizer()
        parts = f"{_VERSION} {self.memory_tokens} {self._counter.name}"
        self.fingerprint = sha256(parts.encode()).hexdigest()[:16]

    async def update(
        self,
        question: str,
        memory: str,
        chunk: Chunk,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Update:
        """Keep the best statements of the memory and the chunk together."""
        kept = _remembered(memory, evidence)
        known = {candidate.text for candidate in kept}
        found = [_Candidate(item.text, item) for item in statements(chunk.text)]
        candidates = kept + [candidate for candidate in found if candidate.text not in known]
        chosen = self._fitting(candidates, _scores(question, candidates), len(kept))
        if chosen == kept:
            return Update(memory, changed=False)
        places = (_place(candidate, chunk) for candidate in chosen)
        return Update(
            "\n".join(candidate.text for candidate in chosen),
            evidence=[place for place in places if place is not None],
        )

    async def respond(
        self,
        question: str,
        memory: str,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Answer:
        """Quote the one or two statements of the memory that answer best."""
        quoted = _best_two(question, _remembered(memory, evidence))
        if not quoted:
            return Answer(NOTHING_FOUND, NOTHING_FOUND)
        places = [candidate.place for candidate in quoted]
        lines = [
            f"{candidate.text} [{place.source}:{place.line}]"
            if isinstance(place, Evidence)
            else candidate.text
            for candidate, place in zip(quoted, places, strict=True)
        ]
        return Answer(
            "\n".join(lines),
            "\n".join(candidate.text for candidate in quoted),
            evidence=[place for place in places if isinstance(place, Evidence)],
        )

    def _fitting(
        self, candidates: list[_Candidate], scores: Sequence[float], kept: int
    ) -> list[_Candidate]:
        """The best candidates that fit into the memory, in reading order.

        The first `kept` are in it already; of the others those that score nothing stay out.
        """
        left = self.memory_tokens
        chosen = []
        for index in _ranked(scores):
            if scores[index] <= 0 and index >= kept:
                continue
            cost = self._counter.count(candidates[index].text + "\n")
            if cost <= left:
                chosen.append(index)
                left -= cost
            if left < _SHORTEST:
                break
        return [candidates[index] for index in sorted(chosen)]


class _Candidate(NamedTuple):
    """A statement that may stay; its place is worked out only if it does."""

    text: str
    place: Evidence | Statement | None


def _remembered(memory: str, evidence: Sequence[Evidence]) -> list[_Candidate]:
    """The lines of a memory; lines that a person wrote have no place."""
    places = {item.text: item for item in evidence}
    return [_Candidate(line, places.get(line)) for line in memory.splitlines() if line.strip()]


def _place(candidate: _Candidate, chunk: Chunk) -> Evidence | None:
    if not isinstance(candidate.place, Statement):
        return candidate.place
    start = chunk.start + candidate.place.start
    location = chunk.source.locate(start)
    end = chunk.start + candidate.place.end
    return Evidence(candidate.text, location.name, location.line, start, end)


class _Index(BM25Okapi):  # type: ignore[misc]
    """BM25 whose idf does not depend on how many statements happen to be compared."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        size = self.corpus_size + _PRIOR
        self.idf = {term: log(1 + (size - n + 0.5) / (n + 0.5)) for term, n in nd.items()}


def _index(candidates: Sequence[_Candidate]) -> _Index:
    # BM25 takes no empty document, and a statement of marks alone has no terms.
    return _Index([terms(candidate.text) or [""] for candidate in candidates], k1=1.2, b=0.4)


def _scores(question: str, candidates: Sequence[_Candidate]) -> list[float]:
    """How much each candidate bears on the question, or on what the best of them name."""
    if not candidates:
        return []
    index = _index(candidates)
    wanted = content_terms(question)
    scores: list[float] = index.get_scores(wanted).tolist()
    leads = [candidates[i].text for i in _ranked(scores)[:_HOP_STATEMENTS] if scores[i] > 0]
    hop = index.get_scores([term for term in _named(leads) if term not in wanted]).tolist()
    return [score + _HOP_WEIGHT * extra for score, extra in zip(scores, hop, strict=True)]


def _best_two(question: str, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """The best candidate, and the one that goes on from it, or else the runner-up."""
    scores = _scores(question, candidates)
    ranked = [index for index in _ranked(scores) if scores[index] > 0]
    if not ranked:
        return []
    wanted = set(content_terms(question))
    first = candidates[ranked[0]].text
    left_open = wanted.difference(terms(first))
    leads = [lead for name in names(first) if (lead := set(content_terms(name)) - wanted)]
    for index in ranked[1:]:
        said = set(terms(candidates[index].text))
        if left_open & said and any(len(lead) > 1 and lead <= said for lead in leads):
            return [candidates[ranked[0]], candidates[index]]
    return [candidates[index] for index in ranked[:2]]


def _named(texts: Sequence[str]) -> list[str]:
    """Terms of all names in the texts, each once, in a stable order."""
    found = {term for text in texts for name in names(text) for term in content_terms(name)}
    return sorted(found)


def _ranked(scores: Sequence[float]) -> list[int]:
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))
