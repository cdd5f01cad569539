"""An index of passages: where in a text the words of a question stand.

It ranks by BM25 over `text.terms`, and so works in all scripts. Each file has its own part of the
index, a long one several, kept in the user's cache under the file's digest: if one file of a corpus
changes, only that file is indexed again. Parts are joined, and idf is computed, when the index is
opened. Words are kept as hashes, a long document's in some three bytes a token.

No BM25 library keeps an index like this: by file, and so that it can be encrypted
(docs/speed.md, "A long document").
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b, sha256
from io import BytesIO
from math import log1p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memagent_graph.sync import to_thread
from memagent_graph.text.cache import open_cache
from memagent_graph.text.chunks import passages
from memagent_graph.text.source import JoinedSource, TextSource, digests_of
from memagent_graph.text.terms import content_terms
from memagent_graph.text.terms import terms as cut_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from memagent_graph.text.source import Source

_FORM = "index 5"  # version of passages and terms, part of each cache key
_K1, _B = 1.2, 0.4
"""BM25's k1 and b: saturation of repeated terms, and the penalty on long passages."""
_MOST_COUNTED = 255
_PART_LENGTH = 1 << 20  # code points of a text that make a part
_RECENT_BYTES = 1 << 26  # size of the indexes kept in memory for the next question, in bytes
_MOST_BYTES = 1 << 30
_INT, _BYTE = np.dtype("<i4"), np.dtype("u1")
_ARRAYS = ("ends", "sizes", "terms", "first", "numbers", "counts")


class IndexHit(NamedTuple):
    """A passage that matches, by its number and place; a higher score, above 0, is better."""

    number: int
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class IndexPart:
    """The index of one text: for each term, which passages have it, and how often.

    `ends` and `sizes` have the end of each passage, in code points of the text, and its number of
    terms; `terms` the hashes of all terms, in order. From `first[row]` to `first[row + 1]`,
    `numbers` are the passages that have the term, and `counts` how often, at most 255. A `heading`
    counts as the begin of the next part's first passage. Of an index, that passage has the number
    `begin`.
    """

    ends: NDArray[Any]
    sizes: NDArray[Any]
    terms: NDArray[Any]
    first: NDArray[Any]
    numbers: NDArray[Any]
    counts: NDArray[Any]
    heading: bool = False
    begin: int = 0

    @classmethod
    def of(cls, texts: Iterable[str], cut: Callable[[str], Sequence[str]] = cut_terms) -> IndexPart:
        """Index texts, each one a passage that `cut` makes terms of."""
        known: defaultdict[str, int] = defaultdict()
        known.default_factory = known.__len__
        ids, sizes, ends, end = array("I"), [], [], 0
        for text in texts:
            found = cut(text)
            ids.extend(map(known.__getitem__, found))
            end += len(text)
            ends.append(end)
            sizes.append(len(found))
        known.default_factory = None  # it refers to `known`, which would wait for the collector
        hashes, row_of = np.unique([*map(_hash, known)], return_inverse=True)
        passages_of = max(len(sizes), 1)
        pairs = row_of[np.array(ids, int)] * passages_of + np.repeat(np.arange(len(sizes)), sizes)
        pairs, counts = np.unique(pairs, return_counts=True)
        rows, numbers = np.divmod(pairs, passages_of)
        return cls(
            np.array(ends, _INT),
            np.array(sizes, _INT),
            hashes.astype(np.int64),
            np.searchsorted(rows, np.arange(len(hashes) + 1)).astype(_INT),
            numbers.astype(_INT),
            np.minimum(counts, _MOST_COUNTED).astype(_BYTE),
        )

    def encode(self) -> bytes:
        """Return the part as bytes, for the cache."""
        kept = BytesIO()
        np.savez(kept, **{name: getattr(self, name) for name in _ARRAYS})
        return kept.getvalue()

    @classmethod
    def decode(cls, content: bytes) -> IndexPart:
        """Return the part that `encode` made these bytes from."""
        with np.load(BytesIO(content), allow_pickle=False) as kept:
            return cls(**{name: kept[name] for name in _ARRAYS})

    @property
    def length(self) -> int:
        """Length of the text, in code points."""
        return int(self.ends[-1]) if len(self.ends) else 0


def _hash(term: str) -> int:
    """Return a hash: two of a million terms share one with a chance of 1 in 40 million."""
    digest = blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


_MOST_TABLES = 256
"""Most parts whose postings are not joined: a query asks them all."""


def _join(parts: Sequence[IndexPart]) -> IndexPart:
    """Return a part with the postings of several."""
    hashes, rows = np.unique(np.concatenate([part.terms for part in parts]), return_inverse=True)
    rows = np.repeat(rows, np.concatenate([np.diff(part.first) for part in parts]))
    order = np.argsort(rows, kind="stable")  # within a row, passages stay in order
    found = np.concatenate([part.numbers + _INT.type(part.begin) for part in parts])[order]
    counts = np.concatenate([part.counts for part in parts])[order]
    first = np.searchsorted(rows[order], np.arange(len(hashes) + 1))
    return replace(parts[0], terms=hashes, first=first, numbers=found, counts=counts, begin=0)


class Index:
    """Finds passages by their terms. All passages joined are the indexed text.

    After headings comes a part with a passage.
    """

    def __init__(self, parts: Iterable[IndexPart]) -> None:
        ends, sizes = [np.empty(0, np.int64)], [np.empty(0, _INT)]
        tables = list[IndexPart]()
        begin = offset = above = 0
        for part in parts:
            tables.append(replace(part, begin=begin))
            if part.heading:
                above += int(part.sizes.sum())
            elif len(part.ends):
                ends.append(part.ends + np.int64(offset))
                sizes.append(part.sizes.copy())
                sizes[-1][0] += above
                above, begin = 0, begin + len(part.ends)
            offset += part.length
        self._ends, all_sizes = np.concatenate(ends), np.concatenate(sizes)
        usual = all_sizes.mean() if all_sizes.sum() else 1.0
        self._damp = (_K1 * (1 - _B + _B * all_sizes / usual)).astype(np.float32)
        tables = tables if len(tables) <= _MOST_TABLES else [_join(tables)]
        # A view gives numbers of Python: an array takes four times as long for one.
        self._tables = [(table.terms.data, table) for table in tables]
        kept = sum(12 * len(table.terms) + 5 * len(table.numbers) for table in tables)
        self.size = kept + 12 * len(self)
        """Approximate size in memory, in bytes."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> Index:
        """Index texts in memory, each one a passage of all texts joined."""
        return cls([IndexPart.of(texts)])

    def __len__(self) -> int:
        return len(self._damp)

    def span(self, number: int) -> tuple[int, int]:
        """Return the begin and end of a passage, in code points."""
        return int(self._ends[number - 1]) if number else 0, int(self._ends[number])

    def at(self, offset: int) -> int:
        """Return the number of the passage with the code point at `offset`."""
        return bisect_right(self._ends, offset)

    def scores(self, wanted: Mapping[str, float]) -> NDArray[Any]:
        """Return the score of each passage by terms with weights, `[passages]`; 0 without any."""
        scores = np.zeros(len(self))
        for term, weight in wanted.items():
            numbers, counts = self._postings(term)
            weights = counts * (_K1 + 1) / (counts + self._damp[numbers])
            # `add.at` takes 30 times as long with numbers of another type.
            added = (weight * self._rarity(len(numbers)) * weights).astype(scores.dtype)
            np.add.at(scores, numbers, added)
        return scores

    def _postings(self, term: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the passages that have a term, and how often each has it."""
        sought, numbers, counts = _hash(term), [np.empty(0, _INT)], [np.empty(0, np.float32)]
        for hashes, table in self._tables:
            row = bisect_left(hashes, sought)
            if row < len(hashes) and hashes[row] == sought:
                there = slice(*table.first[row : row + 2])
                numbers.append(table.numbers[there] + table.begin)
                counts.append(table.counts[there])
        return np.concatenate(numbers), np.concatenate(counts, dtype=np.float32)

    def rarity(self, term: str) -> float:
        """Return the idf of a term."""
        return self._rarity(len(self._postings(term)[0]))

    def _rarity(self, having: int) -> float:
        return log1p((len(self) - having + 0.5) / (having + 0.5))

    def find(self, wanted: str | Iterable[str], limit: int = 10) -> list[IndexHit]:
        """Return the best matching passages for a question, or for terms, best first."""
        sought = content_terms(wanted) if isinstance(wanted, str) else wanted
        scores = self.scores(dict.fromkeys(sought, 1.0))
        return [
            IndexHit(number, *self.span(number), float(scores[number]))
            for number in find_highest(scores, limit).tolist()
            if scores[number] > 0
        ]


def find_highest(scores: NDArray[Any], most: int) -> NDArray[Any]:
    """Return the numbers of the highest scores, the highest first; of equal ones, in order."""
    if not 0 < most < len(scores):
        return np.argsort(-scores, kind="stable")[: max(most, 0)]
    least = np.sort(scores)[-most]  # faster than a stable sort, and than a partition with equals
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: most - len(above)]
    return np.concatenate([above[np.argsort(-scores[above], kind="stable")], equal])


def open_index(source: Source) -> Index:
    """Return the index of a source; parts missing from the cache are built and kept.

    For a source that is not on disk itself (text, streams) nothing is written: its index is only
    kept in memory for a while.
    """
    leaves = source.leaves() if isinstance(source, JoinedSource) else [source]
    key = " ".join(leaf if isinstance(leaf, str) else _key(leaf) for leaf in leaves)
    with _opens[hash(key) % len(_opens)]:  # a second caller finds the first one's index
        if (found := recent.find(key)) is None:
            found = Index(_parts(leaves))
            recent.keep(key, found, digests_of(source))
    return found


def _parts(leaves: Sequence[Source | str]) -> Iterator[IndexPart]:
    texts = (at for at, leaf in enumerate(leaves) if not isinstance(leaf, str) and leaf.length)
    filled = max(texts, default=0)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, str):
            yield replace(IndexPart.of([leaf]), heading=number < filled)
        else:
            yield from _parts_of(leaf)


def _parts_of(source: Source) -> Iterator[IndexPart]:
    start, kept, whole = 0, open_cache() if source.uri else None, _key(source)
    while start < source.length:
        key = f"{source.digest}-{sha256(f'{whole} {start}'.encode()).hexdigest()[:16]}"
        found = kept.find(key, _MOST_BYTES) if kept is not None else None
        if found:
            part = IndexPart.decode(found)
        else:
            cut = passages(source, start, start + _PART_LENGTH)
            part = IndexPart.of(text for _, text in cut)
            if kept is not None:
                kept.keep(key, part.encode())
        yield part
        start += part.length or source.length


def _key(source: Source) -> str:
    text = source.digest
    if isinstance(source, TextSource) and source.uri:  # converted: the digest is that of its bytes
        text = sha256(source.text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_FORM} {source.digest} {text} {source.length}"


class _Recent:
    def __init__(self) -> None:
        self._indexes: OrderedDict[str, tuple[Index, list[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: str) -> Index | None:
        with self._lock, suppress(KeyError):
            self._indexes.move_to_end(key)
            return self._indexes[key][0]
        return None

    def keep(self, key: str, index: Index, digests: list[str]) -> None:
        with self._lock:
            self._indexes[key] = index, digests
            left = _RECENT_BYTES - index.size
            for old in [*reversed(self._indexes)][1:]:
                left -= self._indexes[old][0].size
                if left < 0:
                    del self._indexes[old]

    def forget(self, digests: Collection[str]) -> None:
        """Remove the indexes of these documents from this process's memory."""
        with self._lock:
            for key, (_, own) in [*self._indexes.items()]:
                if not {*own}.isdisjoint(digests):
                    del self._indexes[key]


recent = _Recent()  # indexes of the last questions, in memory
_opens = [threading.Lock() for _ in range(64)]


async def aopen_index(source: Source, seconds: float | None = None) -> Index:
    """Do what `open_index` does, or raise `LateError` after this time."""
    return await to_thread(partial(open_index, source), seconds)
