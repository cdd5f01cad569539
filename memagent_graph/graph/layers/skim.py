"""Skim: decide, without a model call, which chunks are worth one.

Skipped spans are recorded in the fold, and are read after all if the answer is not found.
"""

from __future__ import annotations

from functools import lru_cache
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from memagent_graph.config import LEXICAL, is_decision_model
from memagent_graph.evidence.verify import choose
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.graph.state import has_room
from memagent_graph.models.failures import model_error
from memagent_graph.readers.scope import scope
from memagent_graph.text.index import Index, aopen_index, find_highest
from memagent_graph.text.terms import content_terms, names

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.reading import Advance, FoldStep
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source

# Chosen on questions of NQ, XQuAD and HotpotQA other than those in docs/benchmarks.md.
_PASSAGES = 12
"""Number of best passages for the question whose chunks are read."""
_SHARE = 0.5
"""Share of the best passage's score below which a passage is left out."""
_LINES = 4
"""Number of best lines of the memory whose names are searched for as well."""
_FOCUS = 4
"""Power with which a name's weight falls with the score of its line."""
_LED = 6
"""Number of best passages for question and names together whose chunks are read."""
_LED_SHARE = 0.7
"""Share of the best score for the question alone below which such a passage is left out."""
_LEAST = 0.5
"""Least score of a function with which a chunk is read."""
_KEPT = 4
"""Number of documents whose indexes an agent keeps."""


class Skim(Layer):
    """Skip chunks that are not worth a call."""

    name = "skim"

    def __init__(self, config: ReadingConfig) -> None:
        self._config = config
        self._known: dict[str, Lexical] = {}

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Skip the chunk, or take the step."""
        if step.chunk.text and await self._is_skipped(step):
            return FoldUpdate(None, chunk="skipped")
        return await read(step)

    def settings(self) -> list[object]:
        """Return the version of the search, and the criterion's name."""
        return ["skim 1", self._config.skim_name]

    def depends_on_memory(self, question: str) -> bool:
        """Whether chunks may be skipped: the memory introduces names to look for."""
        return is_skimmed(self._config, question)

    async def _is_skipped(self, step: FoldStep) -> bool:
        progress, chunk = step.fold["progress"], step.chunk
        if progress["again"] or not is_skimmed(self._config, step.question):
            return False
        if not has_room(progress, chunk.start):
            return False
        if self._config.skim != LEXICAL:
            return await _score(self._config.skim, step) < _LEAST
        search = await self._of(chunk.source, step.call.seconds_left())
        return not search.is_worth(step.question, step.memory.text, chunk)

    async def _of(self, source: Source, seconds: float | None) -> Lexical:
        """The search in a document; the latest are kept."""
        known = self._known.get(source.digest)
        if known is not None:
            return known
        found = self._known[source.digest] = Lexical(await aopen_index(source, seconds))
        while len(self._known) > _KEPT:
            self._known.pop(next(iter(self._known)), None)
        return found


async def _score(skim: Any, step: FoldStep) -> float:
    """Call a function of question, memory and chunk, or ask a decision model."""
    question, memory, chunk = step.question, step.memory.text, step.chunk.text
    if is_decision_model(skim):
        state = {"question": question, "notes": memory, "section": chunk}
        return await choose(skim, state, _HELPS, _HELPS_NOT)
    try:
        score = skim(question, memory, chunk)
        return float(await score if isawaitable(score) else score)
    except Exception as error:
        raise model_error(error) from error


_HELPS = "The section says something that helps to answer the question, or tells more of the notes."
_HELPS_NOT = "Nothing in the section bears on the question or on the notes."


class Lexical:
    """Searches for the words of the query, and for names that the memory has introduced."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._wanted = lru_cache(64)(self._look)
        self._of_query = lru_cache(16)(self._scores)  # 8 bytes a passage each

    def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether a chunk has a passage, or part of one, that is to be read."""
        first, last = self._index.at(chunk.start), self._index.at(chunk.end - 1)
        return any(first <= number <= last for number in self._wanted(query, memory))

    def _scores(self, query: str) -> NDArray[Any]:
        return self._index.scores(dict.fromkeys(content_terms(query), 1.0))

    def _look(self, query: str, memory: str) -> frozenset[int]:
        """Numbers of the passages to read."""
        scores = self._of_query(query)
        best = float(scores.max(initial=0))
        found = _best(scores, _PASSAGES, _SHARE * best)
        if led := leads(query, memory):
            together = scores + self._index.scores(led)
            found |= _best(together, _LED, _LED_SHARE * best)
        return frozenset(found)


def is_skimmed(config: ReadingConfig, question: str) -> bool:
    """Return whether chunks may be skipped: not if a question needs the whole document."""
    return config.skim is not None and scope(question) != "all"


def _best(scores: NDArray[Any], most: int, least: float) -> set[int]:
    order = find_highest(scores, most).tolist()
    return {number for number in order if scores[number] > 0 and scores[number] >= least}


def leads(query: str, memory: str) -> dict[str, float]:
    """Return the terms of the names that lines of a memory introduce, with weights."""
    lines = [line for line in memory.splitlines() if line.strip()]
    known = set(content_terms(query))
    found: dict[str, float] = {}
    best = Index.of(lines).find(query, _LINES)
    for line in best:
        weight = (line.score / best[0].score) ** _FOCUS
        for name in names(lines[line.number]):
            for term in content_terms(name):
                if term not in known:
                    found[term] = max(found.get(term, 0.0), weight)
    return found
