"""The built-in reader: keeps the statements that bear on the question. No model, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import log
from typing import TYPE_CHECKING

from rank_bm25 import BM25Okapi

from memagent_graph.config import ReadingConfig
from memagent_graph.readers.base import Answer, Evidence, Reader, Update
from memagent_graph.readers.statements import Statement, statements
from memagent_graph.readers.terms import content_terms, names, terms
from memagent_graph.text.tokens import EstimatingTokenizer, Tokenizer

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.chunking import Chunk

NOTHING_FOUND = "Nothing that was read bears on the question."

_VERSION = "extractive-1"
_PRIOR = 500
"""Statements without any of the words, added to every chunk: idf must not swing with its size."""

_HOP_WEIGHT = 0.3
_HOP_STATEMENTS = 6
_TYPE_BONUS = 1.25


@dataclass(frozen=True)
class _Candidate:
    text: str
    evidence: Evidence | None


class ExtractiveReader(Reader):
    """Keeps the sentences, or lines of code, that bear on the question, and quotes them.

    It ranks statements by BM25 over stems, parts of identifiers, numbers and CJK bigrams, drops
    the lowest when the memory is full, and also looks for the names that the best ones mention,
    so that a second hop is found in a later chunk. It understands nothing: it is for trying
    things out, for tests, and for questions that share words with their answers.

    Args:
        config: the budgets; `memory_tokens` is the one that matters.
        tokenizer: measures the memory; the built-in estimate by default.
    """

    name = "extractive"

    def __init__(
        self, config: ReadingConfig | None = None, tokenizer: Tokenizer | None = None
    ) -> None:
        self.memory_tokens = (config or ReadingConfig()).memory_tokens
        self.counter = tokenizer or EstimatingTokenizer()
        parts = f"{_VERSION} {self.memory_tokens} {self.counter.name}"
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
        kept = _kept(memory, evidence)
        known = {candidate.text for candidate in kept}
        new = [found for found in statements(chunk.text) if found.text not in known]
        wanted = content_terms(question)
        bags = [terms(text) for text in (*known_texts(kept), *(found.text for found in new))]
        scores = _scores(question, wanted, [c.text for c in kept] + [f.text for f in new], bags)
        chosen = self._fill(kept, new, scores)
        if chosen == list(range(len(kept))):
            return Update(memory, changed=False)
        result = [
            kept[i]
            if i < len(kept)
            else _Candidate(new[i - len(kept)].text, _place(chunk, new[i - len(kept)]))
            for i in chosen
        ]
        return Update(
            "\n".join(candidate.text for candidate in result),
            evidence=[c.evidence for c in result if c.evidence is not None],
        )

    def _fill(self, kept: list[_Candidate], new: list[Statement], scores: list[float]) -> list[int]:
        """Indices of the best statements that fit into the memory, in reading order."""
        texts = [c.text for c in kept] + [f.text for f in new]
        left = self.memory_tokens
        chosen = []
        for index in sorted(range(len(texts)), key=lambda i: (-scores[i], i)):
            if scores[index] <= 0 and index >= len(kept):
                continue
            cost = self.counter.count(texts[index]) + 1
            if cost <= left:
                chosen.append(index)
                left -= cost
            if left < 8:
                break
        return sorted(chosen)

    async def respond(
        self,
        question: str,
        memory: str,
        *,
        evidence: Sequence[Evidence] = (),
        config: RunnableConfig | None = None,
    ) -> Answer:
        """Quote the one or two statements of the memory that answer best."""
        kept = _kept(memory, evidence)
        texts = [candidate.text for candidate in kept]
        wanted = content_terms(question)
        scores = _scores(question, wanted, texts, [terms(text) for text in texts]) if texts else []
        ranked = sorted(range(len(texts)), key=lambda i: (-scores[i], i))
        best = [kept[i] for i in ranked[:2] if scores[i] > 0]
        if not best:
            return Answer(NOTHING_FOUND, NOTHING_FOUND)
        lines = [
            f"{c.text} [{c.evidence.source}:{c.evidence.line}]" if c.evidence else c.text
            for c in best
        ]
        return Answer(
            "\n".join(lines),
            " ".join(c.text for c in best),
            evidence=[c.evidence for c in best if c.evidence is not None],
        )


def known_texts(kept: list[_Candidate]) -> Iterable[str]:
    return (candidate.text for candidate in kept)


def _kept(memory: str, evidence: Sequence[Evidence]) -> list[_Candidate]:
    places = {item.text: item for item in evidence}
    return [_Candidate(line, places.get(line)) for line in memory.splitlines() if line.strip()]


def _place(chunk: Chunk, found: Statement) -> Evidence:
    start = chunk.start + found.start
    place = chunk.source.locate(start)
    return Evidence(found.text, place.name, place.line, start, chunk.start + found.end)


class _Index(BM25Okapi):  # type: ignore[misc]
    """BM25 whose idf does not depend on how many statements happen to be compared."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        size = self.corpus_size + _PRIOR
        self.idf = {t: log(1 + (size - n + 0.5) / (n + 0.5)) for t, n in nd.items()}


def _scores(
    question: str, wanted: list[str], texts: list[str], bags: list[list[str]]
) -> list[float]:
    index = _Index([bag or [""] for bag in bags], k1=1.2, b=0.4)
    scores = index.get_scores(wanted)
    best = sorted(range(len(texts)), key=lambda i: -scores[i])[:_HOP_STATEMENTS]
    asked = set(wanted)
    hops = {
        t for i in best if scores[i] > 0 for name in names(texts[i]) for t in content_terms(name)
    }
    hops -= asked
    if hops:
        scores = scores + _HOP_WEIGHT * index.get_scores(sorted(hops))
    return [float(s) for s in scores]
