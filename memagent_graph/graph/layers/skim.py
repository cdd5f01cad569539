"""Skim: decide, without a model call, which chunks are worth one.

Skipped spans are recorded in the fold, and are read after all if the answer is not found.
"""

from __future__ import annotations

from functools import lru_cache, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memagent_graph.config import LEXICAL, is_decision_model, is_embeddings
from memagent_graph.evidence.verify import choose
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.graph.state import has_room
from memagent_graph.models.failures import model_error
from memagent_graph.readers.scope import scope
from memagent_graph.sync import to_thread
from memagent_graph.text.chunks import passages
from memagent_graph.text.index import Index, aopen_index, find_highest
from memagent_graph.text.terms import content_terms, names

if TYPE_CHECKING:
    from langchain_core.embeddings import Embeddings
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
"""Number of documents whose indexes and embeddings an agent keeps."""


class SkimCriterion(Protocol):
    """Decides on the chunks of one document."""

    async def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether a chunk is worth a call, for a query and the current memory.

        Raises:
            ModelError: The criterion failed.
        """
        ...


class Skim(Layer):
    """Skip chunks that are not worth a call.

    Args:
        config: gives `skim`.
    """

    name = "skim"

    def __init__(self, config: ReadingConfig) -> None:
        self._config = config
        self._known: dict[str, SkimCriterion] = {}

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Skip the chunk, or take the step.

        Raises:
            ModelError: The criterion failed.
            LateError: Opening the document's index took longer than the time left.
        """
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
        if progress["again"] or not is_skimmed(self._config, step.question, step.query):
            return False
        criterion = await self._of(chunk.source, step.call.seconds_left())
        if not has_room(progress, chunk.start):
            return False
        return not await criterion.is_worth(step.query, step.memory.text, chunk)

    async def _of(self, source: Source, seconds: float | None) -> SkimCriterion:
        """The criterion for a document; the latest are kept."""
        known = self._known.get(source.digest)
        if known is not None:
            return known
        found: SkimCriterion
        if self._config.skim == LEXICAL:
            found = Lexical(await aopen_index(source, seconds))
        elif is_embeddings(self._config.skim):
            found = await Semantic.of(source, self._config.skim)
        else:
            found = Scored(_scoring(self._config.skim))
        self._known[source.digest] = found
        while len(self._known) > _KEPT:
            self._known.pop(next(iter(self._known)), None)
        return found


class Lexical:
    """Searches for the words of the query, and for names that the memory has introduced.

    Args:
        index: the document's index.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._wanted = lru_cache(64)(self._look)
        self._of_query = lru_cache(16)(self._scores)  # 8 bytes a passage each

    async def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether a chunk has a passage, or part of one, that is to be read."""
        return self.decide(query, memory, chunk)

    def decide(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Return `is_worth`, from synchronous code."""
        return _is_in(chunk, self._wanted(query, memory), self._index)

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


class Semantic:
    """Searches by embeddings for passages close to the query and to the memory's best line.

    Args:
        index: the document's index, for the spans of passages.
        vectors: unit vectors of the passages, `[passages, dimensions]`.
        embeddings: the embeddings model.
    """

    def __init__(self, index: Index, vectors: NDArray[Any], embeddings: Embeddings) -> None:
        self._index, self._vectors, self._embeddings = index, vectors, embeddings
        self._near: dict[str, set[int]] = {}

    @classmethod
    async def of(cls, source: Source, embeddings: Embeddings) -> Semantic:
        """Embed the passages of a document.

        Raises:
            ModelError: The embeddings' provider failed.
        """
        texts = await to_thread(lambda: [text for _, text in passages(source)], None)
        index = await to_thread(partial(Index.of, texts), None)
        try:
            vectors = np.array(await embeddings.aembed_documents(texts))
        except Exception as error:
            raise model_error(error) from error
        return cls(index, _of_length_one(vectors), embeddings)

    async def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether a chunk has one of the nearest passages, or part of one."""
        wanted = await self._nearest(query, _PASSAGES)
        lines = [line for line in memory.splitlines() if line.strip()]
        best = Index.of(lines).find(query, 1)
        if best:
            known = f"{query}\n{lines[best[0].number]}"
            wanted = wanted | await self._nearest(known, _LED)
        return _is_in(chunk, wanted, self._index)

    async def _nearest(self, text: str, most: int) -> set[int]:
        if text not in self._near:
            try:
                vector = np.array(await self._embeddings.aembed_query(text))
            except Exception as error:
                raise model_error(error) from error
            scores = self._vectors @ _of_length_one(vector)
            self._near[text] = {*np.argsort(-scores, kind="stable")[:most].tolist()}
        return self._near[text]


class Scored:
    """Calls a function of query, memory and chunk; a score of at least 0.5 means to read."""

    def __init__(self, score: Any) -> None:
        self._score = score

    async def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether the function's score is at least 0.5."""
        try:
            score = self._score(query, memory, chunk.text)
            return float(await score if isawaitable(score) else score) >= _LEAST
        except Exception as error:
            raise model_error(error) from error


def _scoring(skim: Any) -> Any:
    """The function that scores a chunk: the given one, or one that asks a decision model."""
    return partial(_choose_chunk, skim) if is_decision_model(skim) else skim


async def _choose_chunk(model: Any, query: str, memory: str, chunk: str) -> float:
    state = {"question": query, "notes": memory, "section": chunk}
    return await choose(model, state, _HELPS, _HELPS_NOT)


_HELPS = "The section says something that helps to answer the question, or tells more of the notes."
_HELPS_NOT = "Nothing in the section bears on the question or on the notes."


def is_skimmed(config: ReadingConfig, question: str, query: str | None = None) -> bool:
    """Return whether chunks may be skipped: not if a question needs the whole document.

    Args:
        config: gives `skim`.
        question: the question of the reading.
        query: query of a later round; None in the first.
    """
    return config.skim is not None and "all" not in {scope(question), scope(query or question)}


def _is_in(chunk: Chunk, wanted: set[int] | frozenset[int], index: Index) -> bool:
    first, last = index.at(chunk.start), index.at(chunk.end - 1)
    return any(first <= number <= last for number in wanted)


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


def _of_length_one(vectors: NDArray[Any]) -> NDArray[Any]:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    shortened: NDArray[Any] = vectors / np.maximum(lengths, 1e-12)
    return shortened
