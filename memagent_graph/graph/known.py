"""What the store knows of a fold that begins."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.graph.recalling import wanted_of
from memagent_graph.graph.records import Looks, begun, is_segmented, noted, span_of
from memagent_graph.memory import forget
from memagent_graph.memory.lookup import find, newest_edit
from memagent_graph.memory.version import reading_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.evidence.places import Memory
    from memagent_graph.graph.cutting import Cutter
    from memagent_graph.graph.holding import Holding
    from memagent_graph.graph.lineage import Lineage
    from memagent_graph.graph.records import Fold, SourceRecord
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source

_CLOSED = (
    "Memory {name!r} could not be opened: {error} Read again when the store is back, or without "
    "memory_name."
)
_IDS_AT_ONCE = 1000
"""Versions that the store is asked for in one round trip."""


class Known:
    """Begins a fold after all that the store knows of it.

    Args:
        lineage: the fold's versions.
        bank: has those that are stored.
        holding: gets the name of a named memory.

    Attributes:
        begun: whether the fold began in this call of the graph, not in one that was broken off.
        given: id and text of the memory that it began with, if that is stored.
        noticed: number of the last notice of forgotten documents before it began; None if unknown.
        missed: why the store was not asked; None if it was.
    """

    def __init__(self, lineage: Lineage, bank: MemoryBank, holding: Holding) -> None:
        self._lineage, self._bank, self._holding = lineage, bank, holding
        self.begun = False
        self.given: tuple[str, str] | None = None
        self.noticed: int | None = None
        self.missed: str | None = None

    async def begin(
        self,
        cutter: Cutter,
        record: SourceRecord,
        name: str | None = None,
        memory: Memory | None = None,
    ) -> Fold:
        """Where to begin: at a named memory's head, or nowhere; past all chunks known from there.

        A later round begins with the `memory` of the one before, whose version the record has.
        Only a named memory needs the store: a fold without a name goes on without what it knows.

        Raises:
            StoreError: The store cannot be reached, and a memory is named.
        """
        self.begun = True
        fold = begun(self._lineage.question, {**record})
        fold["progress"]["version"] = self._lineage.root
        if memory is not None:
            fold = {**fold, **noted(memory)}
            fold["progress"]["version"] = record["head"]
            self.given = (record["head"] or "", memory.text)
        try:
            self.noticed = await forget.last_notice(self._bank.records)
            if name:
                head = await self._bank.ahead(name)
                fold["source"] |= {"memory_name": name, "head": head.id if head else None}
                self._holding.memory = name
                if head is not None:
                    fold = {**fold, **noted(head.memory)}
                    fold["progress"]["version"] = head.id
            return await self._past_what_is_known(cutter, fold) if self._lineage.reuses else fold
        except MemoryConflictError:  # the name was moved meanwhile
            return await self.begin(cutter, record, name, memory)
        except StoreError as error:
            if name and isinstance(error, BadRecordError | MemoryNotFoundError):
                raise
            if name:
                raise StoreError(_CLOSED.format(name=name, error=error)) from error
            self.missed = str(error)
            return fold

    async def begun_at(self, cutter: Cutter) -> set[int]:
        """The chunks, counted from 0, at which segments begin of which the store has memories."""
        if not self._lineage.reuses or self.missed is not None:
            return set()
        ids = await asyncio.to_thread(self._lineage.first_of_each, cutter)
        found: set[int] = set()
        try:
            for first in range(0, len(ids), _IDS_AT_ONCE):
                places = [(self._bank.records.versions, key) for key in ids[first:][:_IDS_AT_ONCE]]
                values = await self._bank.records.values(places, refresh=False)
                found |= {
                    first + number for number, value in enumerate(values) if value is not None
                }
        except StoreError as error:
            self.missed = str(error)
        return found - {0}

    async def end_of(self, reference: str, record: SourceRecord) -> Fold:
        """A stored memory as the end of a fold, to be answered from.

        Raises:
            MemoryNotFoundError: There is no such version or name.
        """
        self.begun = True
        version = await self._bank.aget(reference)
        fold = begun(self._lineage.question, {**record, **_record_of(version)})
        fold["progress"] |= {
            "position": version.end,
            "step": version.step,
            "stopped": "end",
            "version": version.id,
            "cut": version.cut,
            "skipped": [[*span] for span in version.skipped],
            "again": version.again,
        }
        return {**fold, **noted(version.memory)}

    async def _past_what_is_known(
        self, cutter: Cutter, fold: Fold, *, edited: bool = False
    ) -> Fold:
        """The fold, moved on past all chunks that the store knows from there.

        Args:
            cutter: of the document.
            fold: as it begins.
            edited: whether it begins at an edit of what is known.
        """
        name, memory = fold["source"].get("memory_name"), self._holding.memory
        segmented = is_segmented(fold["source"])
        read: list[Chunk] = []
        ids = self._ids(cutter, fold, read)
        found = None
        if self._lineage.is_listed and not segmented:
            found = await find(self._bank.records, ids, memory)
        if found is None and not (name or edited) and not self._lineage.is_segment:
            found = await self._read_to_its_end(cutter.source)
        if found is None:
            return fold
        edit = await newest_edit(self._bank.records, found.id, memory)
        end = cutter.source.length if found.again else found.end
        if segmented and (end < cutter.source.length or found.query is not None):
            return fold
        await asyncio.to_thread(_cut_up_to, end, ids, read)
        known = [chunk for chunk in read if chunk.end <= end and not _is_within(chunk, found)]
        await self._bank.aadopt(memory, found.id)
        found = edit or found
        if found.again and found.skipped:
            end = found.skipped[0][0]
        whole = end >= span_of(fold["source"]).end
        ended = whole or found.enough is not None
        # All of it may have been read before, by another name or by a run that was killed here.
        head = fold["source"].get("head")
        if name and ended and not await self._bank.amove_head(name, found.id, expected=head):
            message = f"{name!r} was moved on meanwhile."
            raise MemoryConflictError(message)
        before = fold["progress"]
        fold["progress"] |= {
            "position": end,
            "step": before["step"] + len(known),
            "tokens": before["tokens"] + sum(chunk.tokens for chunk in known),
            "version": found.id,
            "enough": found.enough,
            "stopped": "end" if whole else "done" if ended else None,
            "cut": found.cut,
            "skipped": [[*span] for span in found.skipped],
            "again": found.again,
        }
        if found.sought is not None:  # as what was skipped will be read, if it has to be
            fold["source"]["query"] = found.sought
        if not ended and found.recall is not None:
            wanted = wanted_of(found.recall, [(found.start, found.end)])
            fold["progress"]["looks"] = Looks(wanted=wanted, shown=0, after=0)
        fold = {**fold, **noted(found.memory)}
        if edit is None or ended:
            return fold
        return await self._past_what_is_known(cutter, fold, edited=True)

    def _ids(self, cutter: Cutter, fold: Fold, read: list[Chunk]) -> Iterator[str]:
        """Ids of the versions after each chunk, worked out as they are asked for."""
        parent = fold["progress"]["version"] or self._lineage.root
        position, end = fold["progress"]["position"], span_of(fold["source"]).end
        while position < end and (chunk := cutter.cut(position)):
            read.append(chunk)
            parent = self._lineage.child(parent, chunk)
            yield parent
            position = chunk.end

    async def _read_to_its_end(self, source: Source) -> MemoryVersion | None:
        """The end of a reading of this very document, whose earlier versions were thinned out."""
        found = await self._bank.areading(reading_key(self._lineage.root, source.digest))
        return (
            found
            if found and (found.root, found.source) == (self._lineage.root, source.digest)
            else None
        )


def _cut_up_to(end: int, ids: Iterator[str], read: Sequence[Chunk]) -> None:
    """Ask for more ids, each of which adds a chunk to `read`, until one ends at `end`."""
    while (not read or read[-1].end < end) and next(ids, None):
        pass


def _is_within(chunk: Chunk, version: MemoryVersion) -> bool:
    """Whether a chunk is part of what was skipped."""
    return any(start <= chunk.start < end for start, end in version.skipped)


def _record_of(version: MemoryVersion) -> SourceRecord:
    return {
        "name": version.source_name,
        "digest": version.source,
        "length": version.length,
        "uri": None,
    }
