"""Skim: a look that costs no model call decides which chunks are worth one.

What is skipped is on record in the fold, as spans, and is read after all where the answer is not
found.
"""

from __future__ import annotations

from functools import lru_cache, partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from memagent_graph.config import LEXICAL, is_embeddings
from memagent_graph.graph.records import query_of
from memagent_graph.models.failures import model_error
from memagent_graph.readers.exhaustive import scope
from memagent_graph.sync import to_thread
from memagent_graph.text.chunking import passages
from memagent_graph.text.index import Index
from memagent_graph.text.terms import content_terms, names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langchain_core.embeddings import Embeddings
    from numpy.typing import NDArray

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.indexes import Indexes
    from memagent_graph.graph.records import Fold, Progress
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.source import Source

# Chosen on questions of NQ, XQuAD and HotpotQA other than those in docs/benchmarks.md.
_PASSAGES = 12
"""Passages that match the question best, of which the chunks are read."""
_SHARE = 0.5
"""Of the best passage's score, below which one is left out."""
_LINES = 4
"""Of the memory: those that match best, whose names are looked for as well."""
_FOCUS = 4
"""How fast what a name counts falls with the match of its line: as its fourth power."""
_LED = 6
"""Passages that match question and names together best, of which the chunks are read."""
_LED_SHARE = 0.7
"""As `_SHARE`, of these: against the best match of the question alone."""
_LEAST = 0.5
"""The score of a function from which on a chunk is read."""
_MOST_RUNS = 256
"""Spans that a fold can have skipped; what would be one more is read."""
_KEPT = 4
"""Documents whose indexes and embeddings an agent keeps."""


class Skim(Protocol):
    """Decides for one document."""

    async def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether a chunk is worth a call, for what is looked for and with the memory as it is.

        Raises:
            ModelError: What decides has failed.
        """
        ...


class Skims:
    """The skims of one agent: of each document that it read last.

    Args:
        config: says how to skim.
        indexes: of the documents.
    """

    def __init__(self, config: ReadingConfig, indexes: Indexes) -> None:
        self._skim = config.skim
        self._indexes = indexes
        self._known: dict[str, Skim] = {}

    async def of(self, source: Source, seconds: float | None = None) -> Skim:
        """What decides for a document.

        Args:
            source: the document.
            seconds: that it may take to open its index; None for no limit.

        Raises:
            ModelError: The embeddings' provider failed.
            LateError: It took longer.
        """
        known = self._known.get(source.digest)
        if known is not None:
            return known
        found: Skim
        if self._skim == LEXICAL:
            found = Lexical(await self._indexes.of(source, seconds))
        elif is_embeddings(self._skim):
            found = await Semantic.of(source, self._skim)
        else:
            found = Scored(self._skim)
        self._known[source.digest] = found
        while len(self._known) > _KEPT:
            self._known.pop(next(iter(self._known)), None)
        return found


class Lexical:
    """Looks for the words of the query, and for names that the memory has introduced.

    Args:
        index: of the document.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._wanted = lru_cache(64)(self._look)
        self._of_query = lru_cache(64)(self._scores)

    async def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether one of the passages that are to be read is in a chunk, wholly or in part."""
        return self.decide(query, memory, chunk)

    def decide(self, query: str, memory: str, chunk: Chunk) -> bool:
        """As `is_worth`, for code that does not wait."""
        return _is_in(chunk, self._wanted(query, memory), self._index)

    def _scores(self, query: str) -> NDArray[Any]:
        return self._index.scores(dict.fromkeys(content_terms(query), 1.0))

    def _look(self, query: str, memory: str) -> frozenset[int]:
        """Numbers of the passages that are worth reading."""
        scores = self._of_query(query)
        best = float(scores.max(initial=0))
        found = _best(scores, _PASSAGES, _SHARE * best)
        leads = _leads(query, memory)
        if leads:
            together = scores + self._index.scores(leads)
            found |= _best(together, _LED, _LED_SHARE * best)
        return frozenset(found)


class Semantic:
    """Looks for passages that mean what the query asks, and what the memory knows of it.

    Args:
        index: of the document, for its passages' places.
        vectors: of the passages, of length 1.
        embeddings: that they were made with.
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
        """Whether one of the passages that are nearest is in a chunk, wholly or in part."""
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
    """Asks a function of query, memory and chunk: it reads what scores 0.5 or more."""

    def __init__(self, score: Any) -> None:
        self._score = score

    async def is_worth(self, query: str, memory: str, chunk: Chunk) -> bool:
        """Whether the function finds so."""
        try:
            score = self._score(query, memory, chunk.text)
            return float(await score if isawaitable(score) else score) >= _LEAST
        except Exception as error:
            raise model_error(error) from error


def is_skimmed(config: ReadingConfig, question: str, query: str | None = None) -> bool:
    """Whether chunks may be skipped: not for what needs all of the document.

    Args:
        config: says how to skim.
        question: that is read for.
        query: what a later round looks for.
    """
    return config.skim is not None and "all" not in {scope(question), scope(query or question)}


async def is_skipped(skim: Skim, fold: Fold, chunk: Chunk) -> bool:
    """Whether a fold leaves out a chunk, for now.

    Raises:
        ModelError: What decides has failed.
    """
    progress = fold["progress"]
    if progress["again"] or not has_room(progress, chunk.start):
        return False
    return not await skim.is_worth(query_of(fold), fold["memory"], chunk)


def has_room(progress: Progress, start: int) -> bool:
    """Whether what begins at `start` can be put down as skipped."""
    skipped = progress["skipped"]
    return len(skipped) < _MOST_RUNS or skipped[-1][1] == start


def skip(progress: Progress, chunk: Chunk, end: int) -> Progress:
    """How far a fold is when it has skipped a chunk.

    Args:
        progress: before it.
        chunk: at the fold's position.
        end: of what the fold reads.
    """
    skipped = merge_spans([*progress["skipped"], [chunk.start, chunk.end]])
    stopped = "end" if chunk.end >= end else progress["stopped"]
    return {**progress, "position": chunk.end, "skipped": skipped, "stopped": stopped}


def merge_spans(spans: Sequence[list[int]]) -> list[list[int]]:
    """Spans in their order, those that touch each other as one."""
    merged: list[list[int]] = []
    for start, end in spans:
        if merged and merged[-1][1] == start:
            merged[-1] = [merged[-1][0], end]
        else:
            merged.append([start, end])
    return merged


def common_spans(spans: Sequence[list[int]], others: Sequence[list[int]]) -> list[list[int]]:
    """What is in both of two lists of spans, each in its order and without overlaps."""
    found, left, right = list[list[int]](), iter(spans), iter(others)
    one, other = next(left, None), next(right, None)
    while one and other:
        start, end = max(one[0], other[0]), min(one[1], other[1])
        if start < end:
            found.append([start, end])
        if one[1] == end:
            one = next(left, None)
        else:
            other = next(right, None)
    return found


def move(progress: Progress, chunk: Chunk, end: int) -> tuple[int, list[list[int]]]:
    """Where a fold goes on when it has read a chunk, and what it has then still skipped.

    Args:
        progress: before it.
        chunk: at the fold's position.
        end: of what the fold reads.
    """
    skipped = progress["skipped"]
    if not progress["again"]:
        return chunk.end, skipped
    (_, stop), *others = skipped
    left = [[chunk.end, stop], *others] if chunk.end < stop else others
    return (left[0][0] if left else end), left


def reopen(progress: Progress, end: int) -> Progress | None:
    """Where a fold begins to read what it has skipped; None if there is nothing.

    Args:
        progress: of a fold that has ended.
        end: of what the fold reads.
    """
    if progress["again"] or progress["stopped"] not in {"end", "done"}:
        return None
    if not progress["skipped"]:
        return None
    rest = progress["unreached"]
    if not rest and progress["position"] < end:
        rest = [[progress["position"], end]]
    left = merge_spans(sorted([*progress["skipped"], *rest]))
    return {
        **progress,
        "position": left[0][0],
        "skipped": left,
        "unreached": [],
        "again": True,
        "stopped": None,
    }


def covered(progress: Progress, start: int, end: int) -> int:
    """Code points that a fold has read, of those from `start` to `end`."""
    reached = end if progress["again"] else progress["position"]
    return reached - start - sum(last - first for first, last in progress["skipped"])


def _is_in(chunk: Chunk, wanted: set[int] | frozenset[int], index: Index) -> bool:
    first, last = index.at(chunk.start), index.at(chunk.end - 1)
    return any(first <= number <= last for number in wanted)


def _best(scores: NDArray[Any], most: int, least: float) -> set[int]:
    order = np.argsort(-scores, kind="stable")[:most].tolist()
    return {number for number in order if scores[number] > 0 and scores[number] >= least}


def _leads(query: str, memory: str) -> dict[str, float]:
    """Terms of names that the lines of a memory introduce, and what each of them counts."""
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
