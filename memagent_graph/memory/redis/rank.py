"""Rank the items of a search by the words of a query, or by embeddings stored with them."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any

import numpy as np
from langgraph.store.base import PutOp, SearchOp, tokenize_path
from langgraph.store.base.embed import ensure_embeddings, get_text_at_path

from memagent_graph.memory.redis.layout import EmbeddedValue
from memagent_graph.text.index import Index

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from langgraph.store.base import IndexConfig, Op
    from numpy.typing import NDArray

    from memagent_graph.memory.redis.layout import Vector

_STORED = np.dtype("<f2")
"""Half precision: embeddings are unit vectors, whose order it keeps."""


class Embedder:
    """Embeds values and queries as LangGraph's `index=` says."""

    def __init__(self, config: IndexConfig) -> None:
        self._embeddings = ensure_embeddings(config["embed"])
        self._fields = [*(config.get("fields") or ["$"])]

    def prepare(self, ops: Sequence[Op]) -> tuple[list[Op], dict[str, Vector]]:
        """Return operations with the embeddings of what they put, and those of queries."""
        texts, queries = [*self._texts(ops)], _queries(ops)
        vectors = self._embeddings.embed_documents(texts) if texts else []
        found: dict[str, Vector] = {q: self._embeddings.embed_query(q) for q in queries}
        return self._fill(ops, vectors), found

    async def aprepare(self, ops: Sequence[Op]) -> tuple[list[Op], dict[str, Vector]]:
        """Do what `prepare` does."""
        texts, queries = [*self._texts(ops)], _queries(ops)
        vectors = await self._embeddings.aembed_documents(texts) if texts else []
        found: dict[str, Vector] = {q: await self._embeddings.aembed_query(q) for q in queries}
        return self._fill(ops, vectors), found

    def _texts(self, ops: Iterable[Op]) -> Iterator[str]:
        for op in ops:
            yield from self._texts_of(op)

    def _texts_of(self, op: Op) -> list[str]:
        if not isinstance(op, PutOp) or op.value is None or op.index is False:
            return []
        fields = self._fields if op.index is None else op.index
        return [
            text for field in fields for text in get_text_at_path(op.value, tokenize_path(field))
        ]

    def _fill(self, ops: Iterable[Op], vectors: Sequence[Vector]) -> list[Op]:
        left = iter(vectors)
        found: list[Op] = []
        for op in ops:
            count = len(self._texts_of(op))
            if count and isinstance(op, PutOp):
                value = EmbeddedValue(op.value or {})
                value.vectors = [_encode(next(left)) for _ in range(count)]
                op = op._replace(value=value)  # noqa: PLW2901 - the same put, with its vectors
            found.append(op)
        return found


def _queries(ops: Iterable[Op]) -> list[str]:
    return [op.query for op in ops if isinstance(op, SearchOp) and op.query]


def _encode(vector: Vector) -> str:
    return b64encode(_normalize(vector).astype(_STORED).tobytes()).decode()


def _normalize(vector: Vector) -> NDArray[Any]:
    found = np.asarray(vector, float)
    return found / (np.linalg.norm(found) or 1.0)


def rank_by_vectors(
    stored: Sequence[Sequence[str]], query: Vector
) -> list[tuple[int, float | None]]:
    """Return the numbers of items with their scores, the best first.

    An item counts with the best of its embeddings. Those without one, or with one of another
    length, come last and have no score.
    """
    wanted = _normalize(query)
    rows: list[NDArray[Any]] = []
    owners: list[int] = []
    for number, vectors in enumerate(stored):
        for text in vectors:
            row = np.frombuffer(b64decode(text), _STORED)
            if row.shape == wanted.shape:
                rows.append(row)
                owners.append(number)
    best: dict[int, float] = {}
    similarities = np.array(rows, float) @ wanted if rows else []
    for number, similarity in zip(owners, similarities, strict=True):
        best[number] = max(best.get(number, -1.0), float(similarity))
    ranked = sorted(best.items(), key=lambda one: -one[1])
    return [*ranked, *((number, None) for number in range(len(stored)) if number not in best)]


def rank_by_words(values: Iterable[Mapping[str, object]], query: str) -> list[tuple[int, float]]:
    """Return the numbers of items that have words of a query, with their scores, the best first."""
    texts = ["\n".join(_strings(value)) for value in values]
    hits = Index.of(texts).find(query, len(texts))
    return [(hit.number, hit.score) for hit in hits]


def _strings(value: object) -> Iterator[str]:
    """All texts in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
