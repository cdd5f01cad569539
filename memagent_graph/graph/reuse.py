"""Reuse: a fold begins after all that the store has of it, and a named memory moves to its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.evidence.places import to_plain
from memagent_graph.graph.state import Document, begin_fold, is_segmented, mark_taken
from memagent_graph.memory import forget, runs
from memagent_graph.memory.lookup import find, newest_edit
from memagent_graph.memory.owners import adopt
from memagent_graph.memory.version import is_thinned, make_reading_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.graph.chunks import Cutter
    from memagent_graph.graph.ids import Lineage
    from memagent_graph.graph.register import Entry
    from memagent_graph.graph.state import Fold, Scope
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.items import Place
    from memagent_graph.memory.version import MemoryVersion, ReadDocument
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source


_CLOSED = (
    "Memory {name!r} could not be opened: {error} Read again when the store is back, or without "
    "memory_name."
)
_NOT_KEPT = {"calls", "input_tokens", "output_tokens", "seconds", "version"}
"""Fields of the progress that a reading that has ended is not answered again from."""
_IDS_AT_ONCE = 1000
"""Versions that the store is asked for in one round trip."""


class Reuse:
    """Begins a fold after all that the store knows of it.

    Attributes:
        begun: the stored version that it began after; None without one.
        noticed: number of the last notice of forgotten documents before it began; None if unknown.
        missed: why the store was not asked; None if it was.
        mends: whether versions after a gap are stored: the gap is read, and they are taken over.
    """

    def __init__(self, lineage: Lineage, bank: MemoryBank, entry: Entry) -> None:
        self._lineage, self._bank, self._entry = lineage, bank, entry
        self.begun: MemoryVersion | None = None
        self.noticed: int | None = None
        self.missed: str | None = None
        self.mends = False

    async def begin(
        self,
        cutter: Cutter,
        new: Fold,
        name: str | None = None,
    ) -> Fold:
        """Where to begin: at a named memory's head, or nowhere; past all chunks known from there.

        Only a named memory needs the store, and raises its error: other folds continue without it.
        """
        fold = begin_fold(new["question"], new["source"], {**new["scope"]})
        fold["progress"]["version"] = self._lineage.root
        try:
            if name or not self._lineage.reuses:
                await self._look(None, None)
            if name:
                self._entry.memory = name
                head = await self._bank.ahead(name)
                fold["scope"] |= {"memory_name": name, "head": head.id if head else None}
                if head is not None:
                    self.begun = head
                    fold = {**fold, **to_plain(head.memory)}
                    fold["progress"]["version"] = head.id
                    ended = await self._find_end(fold, name, head)
                    if ended is not None:
                        return ended
            return await self._past_what_is_known(cutter, fold) if self._lineage.reuses else fold
        except MemoryConflictError:  # the name was moved meanwhile
            return await self.begin(cutter, new, name)
        except StoreError as error:
            if name and isinstance(error, BadRecordError | MemoryNotFoundError):
                raise
            if name:
                raise StoreError(_CLOSED.format(name=name, error=error)) from error
            self.missed = str(error)
            return fold

    async def move_head(self, fold: Fold, name: str, expected: str | None) -> bool:
        """Point a named memory to the fold's version; return whether the memory has it now."""
        records, progress = self._bank.records, fold["progress"]
        version, asked = str(progress["version"]), self._lineage.identify(fold["source"])
        kept = {name: value for name, value in progress.items() if name not in _NOT_KEPT}
        noted = await runs.note(records, name, runs.EndedRun(asked, version, kept))
        if await self._bank.amove_head(name, version, expected=expected, also=[noted]):
            return True
        # It may have been moved there by a run that was killed, and on from there by others.
        run, head = await runs.find(records, name, asked), await self._bank.ahead(name)
        if run is None or run.version != version or head is None:
            return False
        return version in {one.id for one in await self._bank.ahistory(head.id)}

    async def _find_end(self, fold: Fold, name: str, head: MemoryVersion) -> Fold | None:
        """The fold at the end of an earlier run of this reading; None if it is to be read.

        That is one which was killed before its answer, or the last that moved the memory's head.
        """
        run = await runs.find(self._bank.records, name, self._lineage.identify(fold["source"]))
        if run is None or (run.answered and not self._lineage.reuses):
            return None
        history = [head] if run.version == head.id else []
        if not (history or run.answered):
            history = await self._bank.ahistory(head.id)
        version = next((one for one in history if one.id == run.version), None)
        if version is None:
            return None
        self.begun = version
        ended: Any = {**fold["progress"], **run.progress, "version": version.id}
        scope: Scope = {**fold["scope"], "head": version.id}
        return {**fold, **to_plain(version.memory), "scope": scope, "progress": ended}

    async def find_starts(self, cutter: Cutter) -> set[int]:
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

    async def end_of(self, reference: str, new: Fold) -> Fold:
        """A stored memory as the end of a fold, to be answered from."""
        version = await self._bank.aget(reference)
        read = version.document
        document = Document(
            name=read.name, digest=read.digest, length=read.length, uri=None, warnings=[]
        )
        scope: Scope = {**new["scope"], "end": read.length}
        fold = begin_fold(new["question"], document, scope)
        fold["progress"] |= {
            "position": read.end,
            "step": version.step,
            "stopped": "end",
            "version": version.id,
            "cut": version.cut,
            "skipped": [[*span] for span in read.skipped],
            "again": read.again,
        }
        return {**fold, **to_plain(version.memory)}

    async def _past_what_is_known(
        self, cutter: Cutter, fold: Fold, *, edited: bool = False
    ) -> Fold:
        """The fold, moved on past all chunks that the store knows from there.

        `edited` says whether it begins at an edit of what is known.
        """
        name, memory = fold["scope"]["memory_name"], self._entry.memory
        segmented = is_segmented(fold["scope"])
        read: list[Chunk] = []
        ids = self._ids(cutter, fold, read)
        listed = self._lineage.is_listed and not segmented
        alone = not (name or edited or self._lineage.is_segment)
        first = await asyncio.to_thread(next, ids, None) if listed else None
        found = ended = None
        knows, ended_before = await self._look(first, cutter.source if alone else None)
        if first is not None and knows:
            found = await find(self._bank.records, chain([first], ids), memory)
        if alone:
            ended = await self._read_to_its_end(cutter.source) if ended_before else None
            found = await self._last_known(found, ended)
        if found is None:
            return fold
        edit = await newest_edit(self._bank.records, found.id, memory)
        document, length = found.document, cutter.source.length
        end = length if document.again else document.end
        if segmented and end < length:
            return fold
        await asyncio.to_thread(_cut_up_to, end, ids, read)
        known = [chunk for chunk in read if chunk.end <= end and not _is_within(chunk, document)]
        await adopt(self._bank.records, memory, found.id)
        self.begun = found = edit or found
        document = found.document
        if document.again and document.skipped:
            end = document.skipped[0][0]
        whole = end >= fold["scope"]["end"]
        if whole and ended is None and alone:
            await self._bank.arecord_reading(found)  # the run that read it was killed before
        before = fold["progress"]
        fold["progress"] |= {
            "position": end,
            "step": before["step"] + len(known),
            "tokens": before["tokens"] + sum(chunk.tokens for chunk in known),
            "version": found.id,
            "stopped": "end" if whole else None,
            "cut": found.cut,
            "skipped": [[*span] for span in document.skipped],
            "again": document.again,
        }
        if crowded := {str(one.start): one.crowded_out for one in known if one.crowded_out}:
            fold["progress"]["not_shown"] = crowded
        fold = {**fold, **to_plain(found.memory)}
        if name and whole:
            await self._name_known(fold, name)
        if edit is None or whole:
            return fold
        return await self._past_what_is_known(cutter, mark_taken(fold, edit.id), edited=True)

    def _ids(self, cutter: Cutter, fold: Fold, read: list[Chunk]) -> Iterator[str]:
        """Ids of the versions after each chunk, worked out as they are asked for."""
        parent = fold["progress"]["version"] or self._lineage.root
        position, end = fold["progress"]["position"], fold["scope"]["end"]
        while position < end and (chunk := cutter.cut(position)):
            read.append(chunk)
            parent = self._lineage.child(parent, chunk)
            yield parent
            position = chunk.end

    async def _name_known(self, fold: Fold, name: str) -> None:
        """Name what was read before, by another name or by a run that was killed."""
        if not await self.move_head(fold, name, fold["scope"]["head"]):
            message = f"{name!r} was moved on meanwhile."
            raise MemoryConflictError(message)
        fold["scope"]["head"] = fold["progress"]["version"]

    async def _last_known(
        self, found: MemoryVersion | None, ended: MemoryVersion | None
    ) -> MemoryVersion | None:
        """The version to read on from: the end of an earlier reading, or one before a gap."""
        if ended is None or (found is not None and found.document.end >= ended.document.end):
            return found
        self.mends = found is not None or await self._has_gap(ended)
        return found if self.mends else ended

    async def _look(self, first: str | None, source: Source | None) -> tuple[bool, bool]:
        """Look in one round trip whether the store knows anything, and once which notices it has.

        The notices come first: what is forgotten later is found as the reading goes on. Return
        whether the store has the version `first`, and the end of a reading of `source`.
        """
        records = self._bank.records
        places: dict[str, Place] = {}
        if self.noticed is None:
            places["notices"] = forget.notice_place(records)
        if first is not None:
            places["first"] = (records.versions, first)
        if source is not None:
            key = make_reading_key(self._lineage.root, source.digest)
            places["end"] = (records.readings, key)
        found = dict(zip(places, await records.values([*places.values()]), strict=True))
        if self.noticed is None:
            self.noticed = forget.last_notice(found["notices"])
        return found.get("first") is not None, found.get("end") is not None

    async def _read_to_its_end(self, source: Source) -> MemoryVersion | None:
        """The end of a reading of this very document, whose earlier versions were thinned out."""
        root, digest = self._lineage.root, source.digest
        with suppress(BadRecordError, MemoryNotFoundError):
            found = await self._bank.aget(make_reading_key(root, digest))
            return found if (found.root, found.document.digest) == (root, digest) else None
        return None

    async def _has_gap(self, found: MemoryVersion) -> bool:
        """Whether what led to a version is lost, and was neither thinned out nor has expired."""
        records = self._bank.records
        if self._lineage.thins or records.lives is not None:
            return False
        history = await self._bank.ahistory(found.id)
        gone = {*history.gaps}  # but what was only shown with a chunk may have been forgotten
        after = [one.id for one in history if gone & {*one.parents}]
        return any(not is_thinned(value) for _, value in await records.by_id(after))


def _cut_up_to(end: int, ids: Iterator[str], read: Sequence[Chunk]) -> None:
    """Ask for more ids, each of which adds a chunk to `read`, until one ends at `end`."""
    while (not read or read[-1].end < end) and next(ids, None):
        pass


def _is_within(chunk: Chunk, document: ReadDocument) -> bool:
    """Whether a chunk is part of what was skipped."""
    return any(start <= chunk.start < end for start, end in document.skipped)
