"""Cut a source into chunks: `next_chunk` is a pure function of (source, offset).

A `Cutter` calls it once for all that read a chunk.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections import Counter, deque
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import chain
from math import inf
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import regex

from memagent_graph.errors import SourceChangedError
from memagent_graph.text.source import JoinedSource, TextSource, parts_with_offsets
from memagent_graph.text.terms import same_line_ends

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.pictures import Sight
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a source, from `start` to `end`, with its length in tokens.

    The text is exactly as decoded. `header` is that of the table within which it begins, which is
    shown before it and no part of it; `pictures` are what a model that sees is shown with it, and
    `crowded_out` counts those that there is no room for.
    """

    text: str
    start: int
    end: int
    tokens: int
    source: Source
    header: str = ""
    pictures: tuple[Sight, ...] = ()
    crowded_out: int = 0

    @property
    def shown(self) -> str:
        """The text as a model sees it: rows of a table have their header."""
        return f"{self.header}{self.text}"

    @property
    def digest(self) -> str:
        """SHA-256 of what is shown, in hex."""
        shown = "".join([self.shown, *(one.picture.digest for one in self.pictures)])
        return sha256(shown.encode("utf-8", "surrogatepass")).hexdigest()


def next_chunk(
    source: Source,
    offset: int,
    *,
    tokenizer: Tokenizer,
    chunk_tokens: int,
    exact_cuts: bool = False,
) -> Chunk | None:
    """Cut the chunk that begins at `offset`; None at the end. All chunks joined are the source.

    The chunk ends at the last paragraph, sentence, line or word end within the final tenth of the
    budget, if there is one; within a table, after the last row that fits; of joined files, where
    `_steady_end` says. A grapheme is split only if it alone is over the budget; only a single code
    point may exceed the budget. With `exact_cuts` it is cut after exactly `chunk_tokens` tokens of
    the text ahead, even within a word, as the paper does (arXiv 2507.02259).
    """
    window, fits = _prefix_that_fits(source, offset, tokenizer, chunk_tokens)
    if not window:
        return None
    if exact_cuts:
        return Chunk(window[:fits], offset, offset + fits, tokenizer.count(window[:fits]), source)
    header = table_header(source, offset, window)
    if header and (own := tokenizer.count(header)) * 2 <= chunk_tokens:
        chunk_tokens -= own
        fits = max(tokenizer.prefix(window, chunk_tokens), 1)
    else:
        header = ""
    end = 0
    if fits < len(window):
        end = _steady_end(source, offset, window, fits, chunk_tokens)
        end = end or _last_row_end(source, offset, window, fits)
    cuts = chain([end] if end else [], _cuts(window, fits))  # lazily: the first mostly fits
    counted = ((at, tokenizer.count(window[:at])) for at in cuts)  # a cut word has other tokens
    cut, tokens = next((at, own) for at, own in counted if own <= chunk_tokens or at == 1)
    return Chunk(window[:cut], offset, offset + cut, tokens, source, header)


def chunks(
    source: Source,
    offset: int = 0,
    *,
    tokenizer: Tokenizer,
    chunk_tokens: int,
    exact_cuts: bool = False,
) -> Iterator[Chunk]:
    """Yield all chunks of a source from `offset` on; the arguments are those of `next_chunk`."""
    of: Any = {"tokenizer": tokenizer, "chunk_tokens": chunk_tokens, "exact_cuts": exact_cuts}
    while chunk := next_chunk(source, offset, **of):
        yield chunk
        offset = chunk.end


_PATIENCE = 0.002
"""Time after which a reader is taken to wait for a model and not for the processor, in seconds."""
_FEW_TOKENS = 1024
"""Chunks up to this many tokens are cut inline: starting a thread takes longer."""
_KEPT = 8
"""Chunks of a segment kept for slower folds; one that is further behind cuts them again."""


class Cutter:
    """Cuts one source for a run, each chunk once for all folds that read it.

    Args:
        source: the source.
        shared: number of questions about it.
        pictures: most pictures of a chunk that are shown, to a `model` that sees.
        sizes: those of `next_chunk`.

    Attributes:
        segments: number of segments, for each of which some chunks are kept.
    """

    def __init__(
        self, source: Source, *, shared: int = 1, pictures: int = 0, model: Any = None, **sizes: Any
    ) -> None:
        self.source, self.shared, self.segments = source, shared, 1
        self._pictures, self._model, self._sizes = pictures, model, sizes
        self._few = type(source) is TextSource and sizes["chunk_tokens"] <= _FEW_TOKENS
        self._begun: dict[int, Future[Chunk | None]] = {}
        self._lock = threading.Lock()
        self._cuts: dict[int, tuple[int, int]] = {}  # a skipping fold can be far ahead

    @cached_property
    def origins(self) -> dict[int, tuple[str, str]]:
        """Each chunk's digest, and what a segment that begins there is known by, by its start.

        That is the digest, and how many chunks before have the same.
        """
        seen, found = Counter[str](), {}
        for start in self.cuts:
            chunk = self.cut(start)
            assert chunk is not None  # noqa: S101 - it was cut
            found[start] = chunk.digest, f"{chunk.digest}-{seen[chunk.digest]}"
            seen[chunk.digest] += 1
        return found

    @cached_property
    def cuts(self) -> dict[int, tuple[int, int]]:
        """End and tokens of each chunk, by start; cuts the whole document at the first use."""
        return {one.start: (one.end, one.tokens) for one in chunks(self.source, **self._sizes)}

    async def chunk(self, position: int, seconds: float | None = None) -> Chunk:
        """Return the chunk at the position of a fold; another thread cuts a long one.

        Raises:
            TimeoutError: It was not cut after these seconds.
            SourceChangedError: The document ends before the position.
        """
        begun = self._begin(position)
        if not begun.done():  # shielded: other folds may wait for the same chunk
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(begun)), seconds)
        if (chunk := begun.result()) is None:
            what = f"{self.source.name} ends before the position that the reading had reached"
            message = f"{what}: start over with the question and the document."
            raise SourceChangedError(message)
        return chunk

    @contextmanager
    def ahead(self, chunk: Chunk, end: int) -> Iterator[None]:
        """Cut the chunk after `chunk` in a thread, while a slow reader reads this one."""
        if self._few or chunk.end >= end:
            yield
            return
        starting = asyncio.get_running_loop().call_later(_PATIENCE, self._begin, chunk.end)
        try:
            yield
        finally:
            starting.cancel()

    def _begin(self, position: int) -> Future[Chunk | None]:
        """The chunk at a position, for all folds that need it; the first caller has it cut."""
        with self._lock:
            if (known := self._begun.get(position)) is not None:
                return known
            begun = self._begun[position] = Future[Chunk | None]()
            done = [at for at, one in self._begun.items() if one.done()]
            for at in done[: max(len(self._begun) - _KEPT * self.segments, 0)]:
                del self._begun[at]
        begun.set_running_or_notify_cancel()  # no fold that gives up cancels it

        def settle() -> None:
            try:
                begun.set_result(self.cut(position))
            except BaseException as error:  # noqa: BLE001 - raised by those who take the chunk
                begun.set_exception(error)

        if self._few:
            settle()
        else:  # a pool's threads would not survive a fork
            threading.Thread(target=settle, name="memagent-cut", daemon=True).start()
        return begun

    def cut(self, position: int) -> Chunk | None:
        """Return the chunk that begins at a position; None at the end of the document."""
        chunk = self._cut(position)
        if chunk is None or not self._pictures or self._model is None:
            return chunk
        from memagent_graph.pictures import between, within

        parts = parts_with_offsets(self.source, chunk.start, chunk.end)
        found = between(parts, chunk.start, chunk.end)
        shown = within(found, self._pictures, self._model)
        return replace(chunk, pictures=shown, crowded_out=len(found) - len(shown))

    def _cut(self, position: int) -> Chunk | None:
        known = self.__dict__.get("cuts", self._cuts)  # does not compute `cuts`
        if position in known:
            end, tokens = known[position]
            text = self.source.read(position, end - position)
            is_exact = self._sizes.get("exact_cuts")
            header = "" if is_exact else table_header(self.source, position, text)
            return Chunk(text, position, end, tokens, self.source, header)
        chunk = next_chunk(self.source, position, **self._sizes)
        if chunk is not None and self.shared > 1:
            self._cuts[position] = chunk.end, chunk.tokens
        return chunk


_FULL = 0.8
"""Least share of its budget that a chunk of joined files has.

Of 50 made-up folders, 7% more chunks than with cuts as late as possible, and 15% at most. At 3/4 a
line more changes fewer chunks, for up to 25% more of them."""
_COMPARED = 64  # code points after a cut by which it is ranked: of a file, those of its heading


def _steady_end(source: Source, offset: int, window: str, fits: int, tokens: int) -> int:
    """Return where a chunk of joined files ends wherever it begins; 0 for other sources.

    In the last fifth of the budget that is where a file begins, or else a paragraph, sentence, line
    or word: of several, the one whose text has the lowest digest. So chunks that begin elsewhere,
    since a file before them has changed, mostly end at the same place. Text that repeats itself is
    cut by its distance from the beginning of its file.
    """
    if not isinstance(source, JoinedSource):
        return 0
    least = int(_FULL * fits)
    first, last = (bisect_right(source.borders, offset + at) for at in (least, fits))
    if files := [border - offset for border in source.borders[first:last]]:
        return min(files, key=lambda at: _rank(window, at))
    text = same_line_ends(window)
    part, begin = next(parts_with_offsets(source, offset + fits - 1))
    found = ([one.end() for one in pattern.finditer(text, least, fits)] for pattern in _ENDS)
    step = max(tokens // 2, 1)  # of a grid, which begins elsewhere in each file
    begin += int(_rank(part.name, 0) * step) - offset
    cuts = next(filter(None, found), [0])
    end = min(cuts, key=lambda at: (_rank(window, at), (begin - at) % step))
    return _last_row_end(source, offset, window, end) or end


def _rank(text: str, at: int) -> float:
    """Return the digest of what stands at a place in a text, 0 to 1."""
    after = text[at : at + _COMPARED].encode("utf-8", "surrogatepass")
    return int.from_bytes(sha256(after).digest()[:8]) / (1 << 64)


_ROWS = {".csv", ".tsv", ".tab"}
"""Suffixes of files in which each line is a row, and the first one the header."""
_LONGEST_HEADER = 1000  # code points of a header that is repeated; a longer one is not
_FARTHEST_HEADER = 1 << 22  # code points looked back for the header of a table
_RULE = regex.compile(r"\|(?:[ :]*+-++[ :]*+\|)++\n")


def table_header(source: Source, offset: int, text: str) -> str:
    """Return the header of the table that continues at `offset`, with `text`; "" outside of one."""
    part, begin = next(parts_with_offsets(source, offset))
    if offset <= begin:
        return ""
    if _has_rows(part):
        line = same_line_ends(source.read(begin, _LONGEST_HEADER))
        first, end, _ = line.partition("\n")
        return first.rstrip("\r") + "\n" if end and begin + len(first) < offset else ""
    return _look_back(source, begin, offset) if text.startswith("|") else ""


def _look_back(source: Source, begin: int, offset: int) -> str:
    size = _WINDOW
    while size < 2 * _FARTHEST_HEADER:
        start = max(offset - size, begin)
        lines = same_line_ends(source.read(start, offset - start)).split("\n")
        outside = [at for at, line in enumerate(lines[:-1]) if not line.startswith("|")]
        if start == begin or any(outside):  # the first line may be cut
            rows = [row.rstrip("\r") for row in lines[outside[-1] + 1 if outside else 0 :]]
            found = "".join(f"{row}\n" for row in rows[:2])
            rule = f"{rows[1]}\n" if len(rows) > 2 else ""  # noqa: PLR2004 - header, rule and a row
            return found if _RULE.fullmatch(rule) and len(found) <= _LONGEST_HEADER else ""
        size *= 2
    return ""


def _has_rows(part: Source) -> bool:
    return PurePosixPath(part.name).suffix.lower() in _ROWS


def _last_row_end(source: Source, offset: int, window: str, end: int) -> int:
    """Return where the last whole row before `end` ends; 0 outside of a table."""
    text = same_line_ends(window)
    part, begin = next(parts_with_offsets(source, offset + end - 1))
    first = max(begin - offset, 0)
    at = text.rfind("\n", first, end) + 1
    if not (_has_rows(part) and begin <= offset + end - 1):
        return at if at > first and text.startswith("|", at) else 0
    while at > first and text.count('"', first, at) % 2:
        at = text.rfind("\n", first, at - 1) + 1  # this line ends within a cell
    return at if at > first else 0


LONGEST_PASSAGE = 800  # in code points
_WINDOW = 1 << 16  # code points read at once to cut passages


def passages(source: Source, start: int = 0, end: float = inf) -> Iterator[tuple[int, str]]:
    """Cut a source into passages of a paragraph or a few sentences; yield (start, text) of each.

    Joined, they are the source from `start` on; the last begins before `end`. Each ends at the
    last paragraph, sentence, line or word end in the second half of the longest passage allowed.
    """
    window, at = "", 0
    while True:
        if len(window) - at <= LONGEST_PASSAGE + _LONGEST_GRAPHEME:
            window, at = window[at:] + source.read(start + len(window) - at, _WINDOW), 0
        if at == len(window) or start >= end:
            return
        cut = _passage_end(window, at)
        yield start, window[at:cut]
        start, at = start + cut - at, cut


def _passage_end(window: str, start: int) -> int:
    text = window[start : start + LONGEST_PASSAGE + _LONGEST_GRAPHEME]
    if len(text) <= LONGEST_PASSAGE:
        return start + len(text)
    end = _grapheme_end(text, LONGEST_PASSAGE) or LONGEST_PASSAGE
    return start + (_grapheme_end(text, _natural_end(text, end // 2, end)) or end)


_LONGEST_GRAPHEME = 64
"""Code points looked at past the end of a passage, so that no grapheme is split."""


_LIKELY_SIZE = 6  # code points that a token rarely exceeds


def _prefix_that_fits(
    source: Source, offset: int, tokenizer: Tokenizer, tokens: int
) -> tuple[str, int]:
    """A window that exceeds the budget or reaches the end, and how many code points of it fit."""
    size = _LIKELY_SIZE * tokens + 64
    while True:
        window = source.read(offset, size)
        end = max(tokenizer.prefix(window, tokens), 1)
        if end < len(window) or len(window) < size:
            return window, end
        size *= 2


# \X alone is quadratic in a row of flags: for each, it looks back over all of them.
_GRAPHEME = regex.compile(r"\p{GCB=RI}{2}[\p{GCB=EX}\p{GCB=ZWJ}\p{GCB=SM}]*+|\X")
_SAFE = regex.compile(r"(?r)[\x20-\x7e](?=[\x20-\x7e])")


def _grapheme_end(text: str, end: int) -> int:
    """The last end of a grapheme at or before `end`; 0 if the first one is longer."""
    around = text[max(end - 1, 0) : end + 1]
    if end == 0 or (around.isascii() and around != "\r\n"):
        return end
    safe = _SAFE.search(text, 0, end)  # nothing joins two printable ASCII characters
    last = safe.end() if safe else 0
    for grapheme in _GRAPHEME.finditer(text, last):
        if grapheme.end() > end:
            break
        last = grapheme.end()
    return last


_ENDS = [  # of a paragraph, a sentence, a line and a word
    *map(regex.compile, (r"\n[^\S\n]*\n\s*", r"[.!?…]['\"”’)\]]*\s+|[。！？｡][」』”’）]*\s*")),
    *map(regex.compile, (r"\n", r"\s+|[，、；：]")),
]


def _cuts(window: str, end: int) -> Iterator[int]:
    """Yield places to cut at or before `end`, best first; the last is after one code point."""
    if end == len(window):  # nothing follows: there is no word to split
        yield end
    end = grapheme = _grapheme_end(window, end) or end
    natural = _grapheme_end(window, _natural_end(window, end - end // 10, end))
    if natural:
        yield natural
    while grapheme:
        yield grapheme
        end = grapheme
        grapheme = _grapheme_end(window, grapheme - 1)
    yield from range(end - 1, 0, -1)  # within the first grapheme, which is too long itself


def _natural_end(text: str, first: int, end: int) -> int:
    text = same_line_ends(text)
    for pattern in _ENDS:
        if found := deque(pattern.finditer(text, first, end), maxlen=1):
            return int(found[0].end())
    return end


def cut_at_sentence(text: str, tokens: int, tokenizer: Tokenizer) -> str:
    """Return the longest prefix of `text` of whole sentences and at most `tokens` tokens.

    Without a sentence end it is cut after a line or a word, or else after the last token that fits.
    """
    end = tokenizer.prefix(text, tokens)
    while tokenizer.count(text[:end]) > tokens:
        end = min(end - 1, tokenizer.prefix(text[:end], tokens))
    if end == len(text):
        return text
    cut = text[: last_sentence_end(text[: end + 1], end)].rstrip()
    return cut or text[: _grapheme_end(text, end) or end]


def last_sentence_end(text: str, end: int | None = None) -> int:
    """Return where the last sentence or line before `end` ends, or else the last word."""
    end = len(text) if end is None else end
    for patterns in (_ENDS[1:3], _ENDS[3:]):
        found = (at.end() for pattern in patterns for at in pattern.finditer(text))
        if last := max((at for at in found if at <= end), default=0):
            return int(last)
    return end
