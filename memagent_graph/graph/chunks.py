"""Chunks of a run, each cut only once and ahead of a slow reader, and the segments they are in."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import SourceChangedError
from memagent_graph.text.chunks import Chunk, chunks, next_chunk, table_header
from memagent_graph.text.source import TextSource, parts_with_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.source import Source
    from memagent_graph.text.tokens import Tokenizer


_PATIENCE = 0.002
"""Time after which a reader is taken to wait for a model and not for the processor, in seconds."""
_FEW_TOKENS = 1024
"""Chunks up to this many tokens are cut inline: starting a thread takes longer."""
_KEPT = 8
"""Chunks of a segment kept for slower folds; one that is further behind cuts them again."""
_LEAST_ALONE = 4
"""Least number of chunks in a segment with `segments="auto"`."""
_SLACK = 4
"""Multiple of `segments` that a slowly growing document gains, roughly, with each doubling."""


def starts(
    chunks: int,
    config: ReadingConfig,
    concurrency: int,
    questions: int = 1,
    known: Collection[int] = (),
) -> list[int]:
    """Return the chunks at which segments begin, counted from 0.

    Segments have the same number of chunks, from a series of sizes that grow by at most a quarter.
    Segments of an earlier reading are kept, which began at the chunks that are `known`: only what
    has grown to more than twice the size, and the part after the last of them, are cut again. With
    `segments="auto"` there are as many as the calls that the model answers at once allow.
    """
    if config.segments == "auto":
        return cut_evenly(chunks, max(concurrency // questions, 1), _LEAST_ALONE, known)
    return cut_evenly(chunks, config.segments, 1, known)


def cut_evenly(chunks: int, most: int, least: int, known: Collection[int] = ()) -> list[int]:
    """Return what `starts` does, for at most `most` segments of at least `least` chunks."""
    found, size = [0], max(_size(chunks, most), least)
    for older in sorted({*known} - {0}):
        found += [*range(found[-1] + size, older - size + 1, size), older]
    at, sizes = found[-1], [end - start for start, end in pairwise(found)]
    size = max(least, _size(chunks - at, most), _size(chunks, _SLACK * most), *sizes)
    return [*found, *range(at + size, chunks, size)]


def _size(chunks: int, segments: int) -> int:
    """The smallest size with which at most so many segments are needed."""
    step = _step(least := -(-chunks // segments))
    return -(-least // step) * step


def _step(size: int) -> int:
    """The step of the series 1 to 8, 10, 12, 14, 16, 20, ... at a size."""
    return 1 << max((size - 1).bit_length() - 3, 0)


class Cutter:
    """Cuts one document for a run, each chunk once for all folds that read it."""

    def __init__(
        self,
        source: Source,
        reader: Reader,
        config: ReadingConfig,
        tokenizer: Tokenizer,
        shared: int = 1,
    ) -> None:
        self.source = source
        self._reader, self._config, self._shared = reader, config, shared
        self._sizes: Any = {
            "tokenizer": tokenizer,
            "chunk_tokens": config.chunk_tokens,
            "exact_cuts": config.exact_cuts,
        }
        self._few = type(source) is TextSource and config.chunk_tokens <= _FEW_TOKENS
        self._begun: dict[int, Future[Chunk | None]] = {}
        self._segments = 1
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
        cut = chunks(self.source, **self._sizes)
        return {chunk.start: (chunk.end, chunk.tokens) for chunk in cut}

    def spans(self, known: Collection[int] = ()) -> list[tuple[int, int]]:
        """Return the starts and ends of the document's segments; cuts the whole document.

        `known` are numbers, from 0, of chunks at which segments of earlier readings began.
        """
        begins = [*self.cuts]
        concurrency = self._reader.concurrency
        places = starts(len(begins), self._config, concurrency, self._shared, known)
        self._segments = max(len(places), 1)
        return [*pairwise([*(begins[place] for place in places), self.source.length])]

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
            for at in done[: max(len(self._begun) - _KEPT * self._segments, 0)]:
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
        chunk, most = self._cut(position), self._config.pictures
        model = getattr(self._reader, "model", None)
        if chunk is None or not most or model is None:
            return chunk
        from memagent_graph.pictures import between, within

        parts = parts_with_offsets(self.source, chunk.start, chunk.end)
        found = between(parts, chunk.start, chunk.end)
        shown = within(found, most, model)
        return replace(chunk, pictures=shown, crowded_out=len(found) - len(shown))

    def _cut(self, position: int) -> Chunk | None:
        known = self.__dict__.get("cuts", self._cuts).get(position)  # does not compute `cuts`
        if known is not None:
            end, tokens = known
            text = self.source.read(position, end - position)
            header = "" if self._config.exact_cuts else table_header(self.source, position, text)
            return Chunk(text, position, end, tokens, self.source, header)
        chunk = next_chunk(self.source, position, **self._sizes)
        if chunk is not None and self._shared > 1:
            self._cuts[position] = chunk.end, chunk.tokens
        return chunk
