"""Cut the chunks of a run: each only once, and ahead of a slow reader."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import SourceChangedError, SourceError
from memagent_graph.graph.segments import room_of, starts
from memagent_graph.sync import in_thread
from memagent_graph.text.chunks import Chunk, next_chunk, table_header
from memagent_graph.text.files import open_source
from memagent_graph.text.source import TextSource, parts_with_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.state import Document, Fold, Run
    from memagent_graph.text.source import Source


_PATIENCE = 0.002
"""Time after which a reader is taken to wait for a model and not for the processor, in seconds."""
_FEW_TOKENS = 256
"""Chunks up to this many tokens are cut inline: starting a thread takes longer."""


_KEPT = 8
"""Chunks of a segment kept for slower folds; one that is further behind cuts them again."""


class _Begun:
    """A chunk that is being cut, for all folds that need it.

    Attributes:
        future: holds the chunk.
        taken: number of folds that have taken it.
    """

    def __init__(self) -> None:
        self.future: Future[Chunk | None] = Future()
        self.taken = 0


class Cutter:
    """Cuts one document for a run, each chunk once for all folds that read it.

    Args:
        reading: gives tokenizer and budgets.
        source: the document.
        shared: number of folds that read the same chunks.
    """

    def __init__(self, reading: Reading, source: Source, shared: int = 1) -> None:
        self.source = source
        self._reading = reading
        self._shared = shared
        self._few = type(source) is TextSource and reading.config.chunk_tokens <= _FEW_TOKENS
        self._begun: dict[int, _Begun] = {}
        self._segments = 1
        self._lock = threading.Lock()
        self._cuts: dict[int, tuple[int, int]] = {}  # a skipping fold can be far ahead

    @cached_property
    def cuts(self) -> dict[int, tuple[int, int]]:
        """End and tokens of each chunk, by start; cuts the whole document at the first use."""
        cut = self._reading.chunks(self.source)
        return {chunk.start: (chunk.end, chunk.tokens) for chunk in cut}

    def spans(self, known: Collection[int] = ()) -> list[tuple[int, int]]:
        """Return the starts and ends of the document's segments; cuts the whole document.

        Args:
            known: numbers, from 0, of chunks at which segments of earlier readings began.
        """
        reading, begins = self._reading, [*self.cuts]
        room = room_of(reading.config, len(begins), reading.reader.concurrency, self._shared)
        places = starts(len(begins), room, known)
        self._segments = max(len(places), 1)
        return [*pairwise([*(begins[place] for place in places), self.source.length])]

    def chunk(self, fold: Fold) -> Chunk:
        """Return the chunk at a fold's position.

        Raises:
            SourceChangedError: The document ends before it.
        """
        position = fold["progress"]["position"]
        begun, mine = self._take(position, taken=1)
        if mine:
            _settle(begun.future, partial(self.cut, position))
        chunk = begun.future.result()
        if chunk is None:
            message = (
                f"{self.source.name} ends before the position that the reading had reached: start "
                "over with the question and the document."
            )
            raise SourceChangedError(message)
        return chunk

    def at_once(self, position: int) -> bool:
        """Whether the chunk at a position is cut already, or faster to cut than in a thread."""
        begun = self._begun.get(position)
        return self._few or (begun is not None and begun.future.done())

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

    def _begin(self, position: int) -> None:
        begun, mine = self._take(position, taken=0)
        if mine:
            in_thread(partial(_settle, begun.future, partial(self.cut, position)))

    def _take(self, position: int, taken: int) -> tuple[_Begun, bool]:
        """The chunk at a position, and whether the caller has to cut it."""
        with self._lock:
            found = self._begun.get(position)
            begun = found or _Begun()
            begun.taken += taken
            if begun.taken >= self._shared:
                self._begun.pop(position, None)
            else:
                self._begun[position] = begun
            while len(self._begun) > _KEPT * self._segments:
                del self._begun[next(iter(self._begun))]
            return begun, found is None

    def cut(self, position: int) -> Chunk | None:
        """Return the chunk that begins at a position; None at the end of the document."""
        chunk, most = self._cut(position), self._reading.config.pictures
        if chunk is None or not most:
            return chunk
        from memagent_graph.pictures.sight import between, within

        parts = parts_with_offsets(self.source, chunk.start, chunk.end)
        found = between(parts, chunk.start, chunk.end)
        model = getattr(self._reading.reader, "model", None)
        return replace(chunk, pictures=within(found, most, model)) if model else chunk

    def _cut(self, position: int) -> Chunk | None:
        reading = self._reading
        known = self.__dict__.get("cuts", self._cuts).get(position)  # does not compute `cuts`
        if known is not None:
            end, tokens = known
            text = self.source.read(position, end - position)
            header = "" if reading.config.exact_cuts else table_header(self.source, position, text)
            return Chunk(text, position, end, tokens, self.source, header)
        chunk = next_chunk(
            self.source,
            position,
            tokenizer=reading.tokenizer,
            chunk_tokens=reading.config.chunk_tokens,
            exact_cuts=reading.config.exact_cuts,
        )
        if chunk is not None and self._shared > 1:
            self._cuts[position] = chunk.end, chunk.tokens
        return chunk


def _settle(future: Future[Chunk | None], cut: Callable[[], Chunk | None]) -> None:
    try:
        future.set_result(cut())
    except BaseException as error:  # noqa: BLE001 - raised by those who take the chunk
        future.set_exception(error)


def cutter_of(reading: Reading, run: Run, fold: Fold) -> Cutter:
    """Return the run's cutter; a resumed run opens its document again, given or by its uri.

    Raises:
        SourceError: The document cannot be opened again.
        SourceChangedError: The document is not the one that the reading began with.
    """
    with run.opening:
        if run.cutter is None:
            source = _reopen(run.document, fold["source"])
            run.cutter = Cutter(reading, source, fold["scope"]["questions"])
        return run.cutter


def _reopen(document: Any, record: Document) -> Source:
    if document is None and record["uri"] is None:
        message = (
            f"{record['name']} cannot be opened again: resume with "
            'invoke(None, config, context={"document": ...}).'
        )
        raise SourceError(message)
    source = open_source({"uri": record["uri"]} if document is None else document)
    if source.digest != record["digest"]:
        message = (
            f"{record['name']} has changed since the reading began. Start over by invoking with "
            "the question and the document."
        )
        raise SourceChangedError(message)
    return source
