"""The built-in reader: keeps the statements relevant to the question. No model, no network."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

import regex

from memagent_graph.config import ReadingConfig
from memagent_graph.readers.base import (
    Answer,
    Identity,
    Memory,
    Merge,
    Reader,
    Recall,
    Update,
    locate,
)
from memagent_graph.readers.quoting import answers, best_two, has_enough
from memagent_graph.readers.ranking import meanings, ranked, relevance
from memagent_graph.readers.statements import LONGEST, NOWHERE, Statement, statements, statements_of
from memagent_graph.text.terms import content_terms, names, terms
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.readers.base import Evidence, Step
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.tokens import Tokenizer

NOTHING_FOUND = "Nothing that was read bears on the question."

_VERSION = "extractive-3"
_LEAST_TOLD, _LEAST_PAIRS_TOLD = 0.4, 0.3
"""Share of a question's terms that an answer must have to count as found; the second, for scripts
without spaces, counts pairs of characters. Chosen so that about 2% of the answers that were in
the memory count as not found."""
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_MOST_NAMES = 12
"""Most names that a merge adds to the query of the next round."""
_MOST_LEADS = 3
"""Most names of a statement in one request to look back."""
_LEADING = 0.2
"""Share of the best score that a new statement needs before its names are looked back for."""
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

    Args:
        config: the budgets; only `memory_tokens` is used.
        tokenizer: counts the memory's tokens; the built-in estimate by default.
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
        kept = _remembered(step.memory.text, places)
        candidates = kept + _new(step, {statement.text for statement in kept})
        asked = _asked(step.question, step.query)
        scores = relevance(asked, candidates, meanings(candidates))
        chosen = self._fitting(candidates, scores, len(kept))
        enough = has_enough(step.question, chosen) if step.exit_gate else None
        wanted = _look_back(step.question, asked, kept, chosen) if step.look_back else None
        update = Update(None, done=enough is not None, answer=enough or "", recall=wanted)
        if chosen == kept:
            return update
        placed = [places.get(item.text) or _place(item, step.chunk) for item in chosen]
        return replace(update, memory=_noted(chosen, placed))

    async def merge(
        self,
        question: str,
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Keep the best statements of all memories; new names are the query of the next round."""
        places = {item.text: item for memory in memories for item in memory.evidence}
        known = {
            item.text: item for memory in memories for item in _remembered(memory.text, places)
        }
        candidates = list(known.values())
        asked = _asked(question, query)
        scores = relevance(asked, candidates, meanings(candidates))
        chosen = self._fitting(candidates, scores, len(candidates))
        memory = _noted(chosen, [places.get(item.text) for item in chosen])
        new = [] if answers(question, chosen) else _new_names(asked, chosen)
        if not new:
            return Merge(memory)
        looked_for = [] if query == question else [query]
        return Merge(memory, done=False, query=", ".join([*new, *looked_for]))

    async def respond(
        self, question: str, memory: Memory, *, config: RunnableConfig | None = None
    ) -> Answer:
        """Quote the one or two best statements of the memory.

        The answer counts as found if they have enough of the question's words.
        """
        places = {item.text: item for item in memory.evidence}
        remembered = _remembered(memory.text, places)
        quoted = [statement.text for statement in best_two(question, remembered)]
        if not quoted:
            return Answer(NOTHING_FOUND, NOTHING_FOUND, found=False)
        found = [places[text] for text in quoted if text in places]
        marks = {item.text: f" [{item.place}]" for item in found}
        lines = (text + marks.get(text, "") for text in quoted)
        least = _LEAST_PAIRS_TOLD if _UNSPACED.search(question) else _LEAST_TOLD
        told = _share_told(question, quoted) >= least
        return Answer("\n".join(lines), "\n".join(quoted), found=told, evidence=tuple(found))

    def _identity(self, version: str) -> Identity:
        parts = f"{version} {self.memory_tokens} {self._counter.name}"
        return Identity("extractive", sha256(parts.encode()).hexdigest()[:16])

    def _fitting(
        self, candidates: list[Statement], scores: Sequence[float], kept: int
    ) -> list[Statement]:
        """Return the best candidates that fit into the memory, in reading order.

        The first `kept` are already in it; of the others, those with a score of 0 stay out.
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


def _share_told(question: str, quoted: Sequence[str]) -> float:
    """Share of a question's terms that the quotes have, 0 to 1."""
    wanted = content_terms(question)
    told = set(terms("\n".join(quoted)))
    return sum(term in told for term in wanted) / max(len(wanted), 1)


def _asked(question: str, query: str) -> str:
    return question if query == question else f"{question} {query}"


def _new_names(asked: str, kept: Sequence[Statement]) -> list[str]:
    """Names in the statements that the question lacks, each once, the best statement's first."""
    known, found = set(terms(asked)), dict[str, None]()
    for index in ranked(relevance(asked, kept, meanings(kept))):
        for name in names(kept[index].text):
            if not known.issuperset(content_terms(name)):
                found[name] = None
    return [*found][:_MOST_NAMES]


def _noted(chosen: Sequence[Statement], placed: Sequence[Evidence | None]) -> Memory:
    text = "\n".join(statement.text for statement in chosen)
    return Memory(text, tuple(place for place in placed if place))


def _remembered(memory: str, places: Mapping[str, Evidence]) -> list[Statement]:
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
    for statement in [*_recalled(step), *statements_of(step.chunk)]:
        if statement.text not in known:
            found.setdefault(statement.text, statement)
    return list(found.values())


def _recalled(step: Step) -> list[Statement]:
    """Statements of the recalled passages of a step."""
    return [
        Statement(one.text, item.start + one.start, item.start + one.end)
        for item in step.recalled
        if item.start is not None
        for one in statements(item.text)
    ]


def _look_back(
    question: str, asked: str, kept: Sequence[Statement], chosen: Sequence[Statement]
) -> Recall | None:
    """Ask to look back for the names in a new statement.

    Only a statement that scores well is worth it, and only while the best statements lack words of
    the question; those words are searched for as well.
    """
    if answers(question, chosen):
        return None
    known = {*terms(asked), *(term for one in kept for term in terms(one.text))}
    old = {one.text for one in kept}
    scores = relevance(asked, chosen, meanings(chosen))
    least = _LEADING * max(scores, default=0)
    for index in ranked(scores):
        text = chosen[index].text
        if text in old or scores[index] < least:
            continue
        new = [name for name in names(text) if not known.issuperset(content_terms(name))]
        if new:
            said = {*terms(text)}
            left = [word for word in question.split() if not said.issuperset(content_terms(word))]
            return Recall(" ".join([*new[:_MOST_LEADS], *left]))
    return None


def _place(statement: Statement, chunk: Chunk) -> Evidence | None:
    """Return the place of a statement of this chunk; None for a line that a person wrote."""
    text, start, end = statement
    if start == NOWHERE:
        return None
    return locate(text, chunk.source, start, end)
