"""The built-in reader: keeps the statements that bear on the question. No model, no network."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from memagent_graph.config import ReadingConfig
from memagent_graph.readers.base import Answer, Evidence, Reader, Update
from memagent_graph.readers.quoting import best_two
from memagent_graph.readers.ranking import meanings, ranked, relevance
from memagent_graph.readers.statements import LONGEST, NOWHERE, Statement, statements
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.tokens import Tokenizer

NOTHING_FOUND = "Nothing that was read bears on the question."

_VERSION = "extractive-2"
_SHORTEST = 8
"""Tokens of room in the memory that are not worth filling."""


class ExtractiveReader(Reader):
    """Keeps the sentences, or lines of code, that bear on the question, and quotes them.

    It ranks statements by BM25 over stems, parts of identifiers, numbers and CJK bigrams, drops
    the lowest when the memory is full, and also looks for the names that the best ones mention,
    so that a second hop is found in a later chunk. It understands nothing: it is for trying
    things out, for tests, and for questions that share words with their answers.

    The memory is one statement a line, in reading order. Lines that a person wrote or changed
    are ranked and quoted like the others, without a place.

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
        places = {item.text: item for item in evidence}
        kept = _remembered(memory, places)
        candidates = kept + _new(chunk, {statement.text for statement in kept})
        scores = relevance(question, candidates, meanings(candidates))
        chosen = self._fitting(candidates, scores, len(kept))
        if chosen == kept:
            return Update(memory, changed=False)
        placed = (places.get(statement.text) or _place(statement, chunk) for statement in chosen)
        return Update(
            "\n".join(statement.text for statement in chosen),
            evidence=[place for place in placed if place],
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
        places = {item.text: item for item in evidence}
        quoted = [statement.text for statement in best_two(question, _remembered(memory, places))]
        if not quoted:
            return Answer(NOTHING_FOUND, NOTHING_FOUND)
        found = [places[text] for text in quoted if text in places]
        marks = {place.text: f" [{place.source}:{place.line}]" for place in found}
        lines = (text + marks.get(text, "") for text in quoted)
        return Answer("\n".join(lines), "\n".join(quoted), evidence=found)

    def _fitting(
        self, candidates: list[Statement], scores: Sequence[float], kept: int
    ) -> list[Statement]:
        """The best candidates that fit into the memory, in reading order.

        The first `kept` are in it already; of the others those that score nothing stay out.
        """
        left = self.memory_tokens
        chosen = []
        for index in ranked(scores):
            if scores[index] <= 0 and index >= kept:
                continue
            cost = self._counter.count(candidates[index].text + "\n")
            if cost <= left:
                chosen.append(index)
                left -= cost
            if left < _SHORTEST:
                break
        return [candidates[index] for index in sorted(chosen)]


def _remembered(memory: str, places: Mapping[str, Evidence]) -> list[Statement]:
    found = []
    for line in memory.splitlines():
        place = places.get(line)
        if place is not None:
            found.append(Statement(line, place.start, place.end))
        elif len(line) <= LONGEST:
            found += [Statement(line, NOWHERE, NOWHERE)] if line.strip() else []
        else:  # prose that somebody put there
            found += [Statement(part.text, NOWHERE, NOWHERE) for part in statements(line)]
    return found


def _new(chunk: Chunk, known: set[str]) -> list[Statement]:
    """Statements of a chunk that are not known yet, each once, placed in the whole document."""
    found: dict[str, Statement] = {}
    for text, start, end in statements(chunk.text):
        if text not in known and text not in found:
            found[text] = Statement(text, chunk.start + start, chunk.start + end)
    return list(found.values())


def _place(statement: Statement, chunk: Chunk) -> Evidence | None:
    """Where a statement of this chunk stands; None for a line that a person wrote."""
    text, start, end = statement
    if start == NOWHERE:
        return None
    location = chunk.source.locate(start)
    return Evidence(text, location.name, location.line, start, end)
