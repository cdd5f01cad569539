"""An index of passages: where in a text the words of a question stand.

It ranks by BM25 over `text.terms`, and so works in all scripts. Each file has its own part of the
index, kept in the user's cache under the file's digest: if one file of a corpus changes, only that
file is indexed again. Parts are joined, and idf is computed, when the index is opened.

No BM25 library keeps an index like this. For 1M tokens (4 MB of text in 5,000 passages; cutting
it into terms takes 1.4 s in each case):

| | index, s | query, ms | kept as |
|---|---|---|---|
| numpy, as here | 0.24 | 0.05 | own bytes: by file, can be encrypted |
| bm25s 0.3.16 | 0.70, import 1.0 | 0.03 | files of scores, valid for one corpus |
| tantivy 0.27 | 0.27 | 0.04 | own files, not encrypted; a wheel of 17 MB |
| rank-bm25 0.2 | 0.31 | 6.0 | not kept; 30 MB of dictionaries |

numpy has wheels for all Python versions and systems that this package runs on.
"""

from __future__ import annotations

import threading
from array import array
from bisect import bisect_right
from collections import OrderedDict, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from hashlib import sha256
from itertools import compress
from math import ceil, log1p
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memagent_graph.sync import to_thread
from memagent_graph.text.cache import open_cache
from memagent_graph.text.chunks import passages
from memagent_graph.text.source import JoinedSource, TextSource
from memagent_graph.text.terms import content_terms
from memagent_graph.text.terms import terms as cut_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from memagent_graph.text.source import Source

_FORM = "index 2"
"""Version of passages and terms, part of each cache key."""
_K1, _B = 1.2, 0.4
"""BM25's k1 and b: saturation of repeated terms, and the penalty on long passages."""
_MOST_COUNTED = 255
_BLOCK_TERMS = 1 << 18
"""Terms counted at once: what they take in memory does not grow with the document."""
_MOST_TABLES = 256
"""Tables of an index: each query looks its terms up in all of them."""
_RECENT_BYTES = 1 << 26
"""Size of the parts kept in memory for the next question, in bytes."""
_MOST_BYTES = 1 << 30
_INT, _BYTE = np.dtype("<i4"), np.dtype("u1")


class IndexHit(NamedTuple):
    """A passage that matches.

    Attributes:
        number: number of the passage, from 0.
        start: its first code point.
        end: one past its last code point.
        score: above 0; higher is better.
    """

    number: int
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class IndexPart:
    """The index of one text: for each term, which passages have it, and how often.

    Attributes:
        ends: end of each passage, in code points of the text; `[passages]`.
        sizes: number of terms of each passage; `[passages]`.
        terms: all terms that occur, each with the number of its row.
        first: begin of each term's row in `numbers` and `counts`, and the end of the last row;
            `[terms + 1]`.
        numbers: numbers of the passages that have the term; `[postings]`.
        counts: how often each has it, at most 255; `[postings]`.
    """

    ends: NDArray[Any]
    sizes: NDArray[Any]
    terms: dict[str, int]
    first: NDArray[Any]
    numbers: NDArray[Any]
    counts: NDArray[Any]

    @classmethod
    def of(cls, texts: Iterable[str], cut: Callable[[str], Sequence[str]] = cut_terms) -> IndexPart:
        """Index texts, each one a passage that `cut` makes terms of."""
        known: defaultdict[str, int] = defaultdict()
        known.default_factory = known.__len__
        ids, first = array("I"), 0
        ends, sizes, end = [], [], 0
        blocks: list[_Block] = []
        for text in texts:
            found = cut(text)
            ids.extend(map(known.__getitem__, found))
            end += len(text)
            ends.append(end)
            sizes.append(len(found))
            if len(ids) > _BLOCK_TERMS:
                blocks.append(_count(ids, sizes, first))
                ids, first = array("I"), len(sizes)
        blocks.append(_count(ids, sizes, first))
        return cls(
            np.array(ends, _INT), np.array(sizes, _INT), {**known}, *_join(blocks, len(known))
        )

    def encode(self) -> tuple[bytes, ...]:
        """Return the part as bytes, for the cache."""
        arrays = (self.ends, self.sizes, self.first, self.numbers, self.counts)
        words = "\n".join(self.terms).encode("utf-8", "surrogatepass")
        return (words, *(array.tobytes() for array in arrays))

    @classmethod
    def decode(cls, *parts: bytes) -> IndexPart:
        """Return the part that `encode` made these bytes from.

        Raises:
            ValueError: The bytes are something else.
        """
        words, ends, sizes, first, numbers, counts = parts
        known = words.decode("utf-8", "surrogatepass").split("\n") if words else []
        found = cls(
            np.frombuffer(ends, _INT),
            np.frombuffer(sizes, _INT),
            {term: row for row, term in enumerate(known)},
            np.frombuffer(first, _INT),
            np.frombuffer(numbers, _INT),
            np.frombuffer(counts, _BYTE),
        )
        rows = (len(found.first), len(found.sizes), len(found.numbers), found.first[-1])
        if rows != (len(known) + 1, len(found.ends), len(found.counts), len(found.counts)):
            raise ValueError
        return found

    @property
    def length(self) -> int:
        """Length of the text, in code points."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def size(self) -> int:
        """Approximate size in memory, in bytes."""
        return 150 * len(self.terms) + 5 * len(self.numbers) + 8 * len(self.ends)


class _Block(NamedTuple):
    """Postings of some passages, sorted by term.

    Attributes:
        rows: the terms that occur, ascending; `[rows]`.
        lengths: number of postings of each; `[rows]`.
        numbers: see `IndexPart`.
        counts: see `IndexPart`.
    """

    rows: NDArray[Any]
    lengths: NDArray[Any]
    numbers: NDArray[Any]
    counts: NDArray[Any]


def _count(ids: array[int], sizes: list[int], first: int) -> _Block:
    """Count the terms of the passages from `first` on."""
    numbers = np.repeat(np.arange(first, len(sizes)), sizes[first:])
    pairs = np.array(ids, np.int64) * max(len(sizes), 1) + numbers
    pairs, counts = np.unique(pairs, return_counts=True)
    row, number = np.divmod(pairs, max(len(sizes), 1))
    counts = np.minimum(counts, _MOST_COUNTED).astype(_BYTE)
    return _Block(*np.unique(row, return_counts=True), number.astype(_INT), counts)


def _join(blocks: list[_Block], rows: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return `first`, `numbers` and `counts` of all blocks, whose rows are below a number."""
    lengths = np.zeros(rows + 1, np.int64)
    for block in blocks:
        lengths[block.rows + 1] += block.lengths
    first = np.cumsum(lengths)
    numbers, counts = np.empty(first[-1], _INT), np.empty(first[-1], _BYTE)
    free = first.copy()
    for block in blocks:
        begins = np.cumsum(block.lengths) - block.lengths
        places = np.repeat(free[block.rows] - begins, block.lengths)
        places += np.arange(len(places))
        numbers[places], counts[places] = block.numbers, block.counts
        free[block.rows] += block.lengths
    return first.astype(_INT), numbers, counts


class _Table(NamedTuple):
    """Postings of one part, or of several; passages are counted from `begin`.

    `first` is a view that gives numbers of Python: an array takes four times as long for one.
    """

    terms: Mapping[str, int]
    first: memoryview[int]
    numbers: NDArray[Any]
    counts: NDArray[Any]
    begin: int


def _tabulate(parts: Sequence[IndexPart], begins: Sequence[int]) -> _Table:
    """Join the postings of parts whose passages begin at these numbers."""
    if len(parts) == 1:
        (part,) = parts
        return _Table(part.terms, _view(part.first), part.numbers, part.counts, begins[0])
    known: dict[str, int] = {}
    add = known.setdefault
    blocks = [
        _Block(
            np.fromiter((add(term, len(known)) for term in part.terms), _INT, len(part.terms)),
            np.diff(part.first),
            part.numbers + _INT.type(begin),
            part.counts,
        )
        for part, begin in zip(parts, begins, strict=True)
    ]
    first, numbers, counts = _join(blocks, len(known))
    return _Table(known, _view(first), numbers, counts, 0)


def _view(first: NDArray[Any]) -> memoryview[int]:
    return first.astype(np.intc, copy=False).data


class Index:
    """Finds passages by their terms. All passages joined are the indexed text.

    Args:
        parts: the parts, in order.
        headings: numbers of parts that are headings; each counts as the begin of the next part's
            first passage.
    """

    def __init__(self, parts: Sequence[IndexPart], headings: Collection[int] = ()) -> None:
        own = [number not in headings for number in range(len(parts))]
        before = np.cumsum([0, *(len(part.ends) * it for part, it in zip(parts, own, strict=True))])
        together = max(1, ceil(len(parts) / _MOST_TABLES))
        begins = before.tolist()
        self._tables = [
            _tabulate(parts[at : at + together], begins[at : min(at + together, len(parts))])
            for at in range(0, len(parts), together)
        ]
        empty = np.empty(0, _INT)
        sizes = np.concatenate([empty, *(part.sizes for part in compress(parts, own))])
        for number in headings:
            sizes[before[number]] += parts[number].sizes.sum()
        usual = sizes.mean() if sizes.sum() else 1.0
        self._damp = (_K1 * (1 - _B + _B * sizes / usual)).astype(np.float32)
        self._parts, self._own = parts, own

    @classmethod
    def of(cls, texts: Iterable[str]) -> Index:
        """Index texts in memory, each one a passage.

        Offsets refer to all texts joined.
        """
        return cls([IndexPart.of(texts)])

    @cached_property
    def _ends(self) -> NDArray[Any]:
        offsets = np.cumsum([0, *(part.length for part in self._parts)])
        ends = [part.ends + begin for part, begin in zip(self._parts, offsets, strict=False)]
        return np.concatenate([np.empty(0, _INT), *compress(ends, self._own)])

    def __len__(self) -> int:
        return len(self._damp)

    def span(self, number: int) -> tuple[int, int]:
        """Return the begin and end of a passage, in code points."""
        return int(self._ends[number - 1]) if number else 0, int(self._ends[number])

    def at(self, offset: int) -> int:
        """Return the number of the passage with the code point at `offset`."""
        return bisect_right(self._ends, offset)

    def scores(self, wanted: Mapping[str, float]) -> NDArray[Any]:
        """Return the score of each passage, `[passages]`; 0 for one without any of the terms.

        Args:
            wanted: terms with their weights.
        """
        scores = np.zeros(len(self))
        for term, weight in wanted.items():
            numbers, counts = self._postings(term)
            weights = counts * (_K1 + 1) / (counts + self._damp[numbers])
            # `add.at` takes 30 times as long with numbers of another type.
            added = (weight * self._rarity(len(numbers)) * weights).astype(scores.dtype)
            np.add.at(scores, numbers, added)
        return scores

    def _postings(self, term: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the numbers of the passages that have a term, and how often each has it."""
        found = [
            (table, slice(table.first[row], table.first[row + 1]))
            for table in self._tables
            if (row := table.terms.get(term)) is not None
        ]
        numbers = [table.numbers[there] + table.begin for table, there in found]
        counts = [table.counts[there] for table, there in found]
        return (
            np.concatenate([np.empty(0, _INT), *numbers]),
            np.concatenate([np.empty(0, np.float32), *counts], dtype=np.float32),
        )

    def rarity(self, term: str) -> float:
        """Return the idf of a term."""
        having = (
            table.first[row + 1] - table.first[row]
            for table in self._tables
            if (row := table.terms.get(term)) is not None
        )
        return self._rarity(sum(having))

    def _rarity(self, having: int) -> float:
        return log1p((len(self) - having + 0.5) / (having + 0.5))

    def find(self, wanted: str | Iterable[str], limit: int = 10) -> list[IndexHit]:
        """Return the best matching passages, best first; fewer than `limit` if no more match.

        Args:
            wanted: a question, or terms as made by `text.terms`.
            limit: most passages to return.
        """
        sought = content_terms(wanted) if isinstance(wanted, str) else wanted
        scores = self.scores(dict.fromkeys(sought, 1.0))
        return [
            IndexHit(number, *self.span(number), float(scores[number]))
            for number in find_highest(scores, limit).tolist()
            if scores[number] > 0
        ]


def find_highest(scores: NDArray[Any], most: int) -> NDArray[Any]:
    """Return the numbers of the highest scores, the highest first; of equal ones, in order.

    Args:
        scores: the scores; `[numbers]`.
        most: how many to return.
    """
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

    Raises:
        SourceChangedError: The source changed since it was opened.
    """
    leaves = [*_leaves(source)]
    parts = [IndexPart.of([leaf]) if isinstance(leaf, str) else _part(leaf) for leaf in leaves]
    headings = [number for number, leaf in enumerate(leaves) if isinstance(leaf, str)]
    filled = max(
        (n for n, part in enumerate(parts) if part.length and n not in headings), default=-1
    )
    return Index(parts, [number for number in headings if number < filled])


def forget_recent(digests: Collection[str]) -> None:
    """Remove the indexes of these documents from this process's memory."""
    _recent.forget(digests)


def _leaves(source: Source) -> Iterator[Source | str]:
    """The sources that a joined source consists of, and the headings between them, in order."""
    if not isinstance(source, JoinedSource):
        yield source
        return
    for heading, part in source.parts_with_headings():
        yield heading
        yield from _leaves(part)


def _part(source: Source) -> IndexPart:
    key = _key(source)
    kept = open_cache() if source.uri else None
    for find in (_recent.find, partial(_decode, kept)):
        found = find(key)
        if found is not None:
            _recent.keep(key, found)
            return found
    part = IndexPart.of(text for _, text in passages(source))
    _recent.keep(key, part)
    if kept is not None:
        kept.keep(key, part.encode())
    return part


def _decode(kept: Any, key: str) -> IndexPart | None:
    found = None if kept is None else kept.find(key, _MOST_BYTES)
    if found is not None:
        with suppress(ValueError, TypeError, IndexError):  # not an index
            return IndexPart.decode(*found)
    return None


def _key(source: Source) -> str:
    """The cache key of a source's index; it begins with the source's digest."""
    text = source.digest
    if isinstance(source, TextSource):  # a converted file's own digest is that of its bytes
        text = sha256(source.text.encode("utf-8", "surrogatepass")).hexdigest()
    about = sha256(f"{_FORM} {text} {source.length}".encode()).hexdigest()[:16]
    return f"{source.digest}-{about}"


class _Recent:
    """The most recently used parts, up to a limit."""

    def __init__(self) -> None:
        self._parts: OrderedDict[str, IndexPart] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: str) -> IndexPart | None:
        with self._lock:
            return self._parts.get(key)

    def keep(self, key: str, part: IndexPart) -> None:
        with self._lock:
            self._parts[key] = part
            self._parts.move_to_end(key)
            left = _RECENT_BYTES
            for old in [*reversed(self._parts)]:
                left -= self._parts[old].size
                if left < 0:
                    del self._parts[old]

    def forget(self, digests: Collection[str]) -> None:
        with self._lock:
            for key in [key for key in self._parts if key.partition("-")[0] in digests]:
                del self._parts[key]


_recent = _Recent()


_KEPT_INDEXES = 4
"""Number of documents whose indexes are kept."""


class Indexes:
    """Opens indexes, each only once."""

    def __init__(self) -> None:
        self._known: dict[str, Index] = {}
        self._lock = threading.Lock()

    async def of(self, source: Source, seconds: float | None = None) -> Index:
        """Return the index of a document.

        Args:
            source: the document.
            seconds: time limit for opening it, in seconds; None for no limit.

        Raises:
            LateError: It took longer.
        """
        known = self._known.get(source.digest)
        if known is not None:
            return known
        return await to_thread(partial(self._open, source), seconds)

    def _open(self, source: Source) -> Index:
        with self._lock:  # a second caller finds the first one's index
            known = self._known.get(source.digest)
            if known is None:
                known = self._known[source.digest] = open_index(source)
                while len(self._known) > _KEPT_INDEXES:
                    del self._known[next(iter(self._known))]
            return known
