"""Reuse: a fold begins after all that the store has of it, and a named memory moves to its end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.evidence.places import Memory, to_plain
from memagent_graph.graph.ids import relocate
from memagent_graph.graph.state import Document, begin_fold, is_segmented, mark_taken
from memagent_graph.memory.chain import find_prefix, has_answer, newest_edit, read_head
from memagent_graph.memory.version import MemoryVersion, make_reading_key
from memagent_graph.memory.writer import adopt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.graph.chunks import Cutter
    from memagent_graph.graph.ids import Lineage
    from memagent_graph.graph.state import Fold, Progress, Scope
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.items import Place
    from memagent_graph.memory.leases import Lease
    from memagent_graph.memory.version import ReadDocument
    from memagent_graph.memory.writer import Fence
    from memagent_graph.text.chunks import Chunk


_CLOSED = (
    "Memory {name!r} could not be opened: {error} Read again when the store is back, or without "
    "memory_name."
)
_NOT_KEPT = {"calls", "input_tokens", "output_tokens", "seconds", "version"}
"""Fields of the progress that a reading that has ended is not answered again from."""
_IDS_AT_ONCE = 1000
"""Versions that the store is asked for in one round trip."""
_FIRST = 2
"""Versions that it is asked for in the first, before it is known whether it has any."""


class Reuse:
    """Begins a fold after all that the store knows of it.

    Attributes:
        begun: the stored version that it began after; None without one.
        record: its record as it was found; None if it is not known.
        missed: why the store was not asked; None if it was.
    """

    def __init__(self, lineage: Lineage, bank: MemoryBank, lease: Lease, fence: Fence) -> None:
        self._lineage, self._bank, self._lease, self._fence = lineage, bank, lease, fence
        self.begun: MemoryVersion | None = None
        self.record: Value | None = None
        self.missed: str | None = None

    async def begin(self, cutter: Cutter, new: Fold, name: str | None = None) -> Fold:
        """Where to begin: at a named memory's head, or nowhere; past all chunks known from there.

        Only a named memory needs the store, and raises its error: other folds continue without it.
        """
        fold = begin_fold(new["question"], new["source"], {**new["scope"]})
        fold["progress"]["version"] = self._lineage.root
        try:
            if name:
                places = self._fence.place, self._place_of_run(name, fold)
                head, (notice, run) = await read_head(self._bank, name, *places)
                self._fence.begin(notice)
                at = None if head is None else head.id
                fold["scope"] |= {"memory_name": name, "head": at}
                await self._lease.move_to(key_of(self._lineage, fold))
                if head is not None:
                    self.begun = head
                    fold = {**fold, **to_plain(head.memory)}
                    fold["progress"]["version"] = head.id
                    ended = await self._find_end(fold, head, run)
                    if ended is not None:
                        return ended
            if self._lineage.reuses:
                fold = await self._past_what_is_known(cutter, fold)
            elif not name:
                self._fence.begin(*await self._bank.values([self._fence.place]))
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
        records, progress, place = self._bank, fold["progress"], self._place_of_run(name, fold)
        version = str(progress["version"])
        kept = {name: value for name, value in progress.items() if name not in _NOT_KEPT}
        also = [records.put(*place, {"version": version, "progress": kept})]
        if await records.amove_head(name, version, expected=expected, also=also):
            return True
        # It may have been moved there by a run that was killed, and on from there by others.
        head, (run,) = await read_head(records, name, place)
        if head is None or not isinstance(run, dict) or run.get("version") != version:
            return False
        return version in {one.id for one in await records.ahistory(head.id)}

    def _place_of_run(self, name: str, fold: Fold) -> Place:
        """The place of the record with which a reading of this into a named memory ended."""
        return self._bank.runs_of(name), self._lineage.identify(fold["source"])

    async def _find_end(self, fold: Fold, head: MemoryVersion, run: object) -> Fold | None:
        """The fold at the end of an earlier run of this reading; None if it is to be read.

        That is one which was killed before its answer, or the last that moved the memory's head.
        """
        match run:
            case {"version": str(ended_at), "progress": dict(progress)}:
                is_head = ended_at == head.id
            case _:
                return None
        if not (is_head and self._lineage.reuses) and await has_answer(self._bank, ended_at):
            return None
        history = [head] if is_head else await self._bank.ahistory(head.id)
        version = next((one for one in history if one.id == ended_at), None)
        if version is None:
            return None
        self.begun = version
        ended: Any = {**fold["progress"], **progress, "version": version.id}
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
                places = [(self._bank.versions, key) for key in ids[first:][:_IDS_AT_ONCE]]
                values = await self._bank.values(places, refresh=False)
                found |= {at for at, value in enumerate(values, first) if value is not None}
        except StoreError as error:
            self.missed = str(error)
        return found - {0}

    async def end_of(self, reference: str, new: Fold) -> Fold:
        """A stored memory as the end of a fold, to be answered from."""
        version = await self._bank.aget(reference)
        read = version.document
        name, digest, length = read.name, read.digest, read.length
        document = Document(name=name, digest=digest, length=length, uri=None, warnings=[])
        fold = begin_fold(new["question"], document, {**new["scope"], "end": length})
        after = progress_at(version, fold["progress"])
        after |= {"position": read.end, "stopped": "end", "cut": version.cut}
        return {**fold, **to_plain(version.memory), "progress": after}

    async def _past_what_is_known(
        self, cutter: Cutter, fold: Fold, *, edited: bool = False
    ) -> Fold:
        """The fold, moved on past all chunks that the store knows from there.

        `edited` says whether it begins at an edit of what is known.
        """
        name, memory = fold["scope"]["memory_name"], self._lineage.memory(fold)
        segmented, records = is_segmented(fold["scope"]), self._bank
        read: list[Chunk] = []
        ids = self._ids(cutter, fold, read)
        listed = self._lineage.is_listed and not segmented
        alone = not (name or edited or self._lineage.is_segment)
        first = await asyncio.to_thread(list, islice(ids, _FIRST)) if listed else []
        key = make_reading_key(self._lineage.root, cutter.source.digest)
        places = [(records.readings, key)] * alone + [(records.versions, one) for one in first]
        # In the same round trip, as what is forgotten later is found as the reading goes on.
        notice, *values = await records.values([self._fence.place, *places])
        self._fence.begin(notice)
        ended = await self._find_ended(values[0], cutter.source.digest) if alone else None
        known = [*zip(first, values[alone:], strict=True)]
        size = 2 * _FIRST if ended is None else _IDS_AT_ONCE
        found, record = await find_prefix(records, known, ids, memory, size)
        if ended and (found is None or found.document.end < ended[0].document.end):
            found, record = ended  # though versions before it are gone
        self.record = record
        if found is None or record is None:
            self._lease.absent = first[0] if first else None
            return fold
        edit = await newest_edit(records, found.id, memory, record)
        found = relocate(found, fold, cutter.source)
        edit = edit and relocate(edit, fold, cutter.source)
        document, length = found.document, cutter.source.length
        end = length if document.again else document.end
        if segmented and end < length:
            return fold
        await asyncio.to_thread(_cut_up_to, end, ids, read)
        chunks = [chunk for chunk in read if chunk.end <= end and not _is_within(chunk, document)]
        await adopt(records, memory, found.id, record)
        self.begun = found = edit or found
        before, after = fold["progress"], progress_at(found, fold["progress"])
        whole = after["position"] >= fold["scope"]["end"]
        if whole and ended is None and alone:
            await self._bank.arecord_reading(found)  # the run that read it was killed before
        after |= {
            "step": before["step"] + len(chunks),
            "tokens": before["tokens"] + sum(chunk.tokens for chunk in chunks),
            "stopped": "end" if whole else None,
            "cut": found.cut,
        }
        if crowded := {str(one.start): one.crowded_out for one in chunks if one.crowded_out}:
            after["not_shown"] = crowded
        fold = {**fold, **to_plain(found.memory), "progress": after}
        if name and whole:  # read before, by another name or by a run that was killed
            if not await self.move_head(fold, name, fold["scope"]["head"]):
                message = f"{name!r} was moved on meanwhile."
                raise MemoryConflictError(message)
            fold["scope"]["head"] = found.id
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

    async def _find_ended(self, pointer: object, digest: str) -> tuple[MemoryVersion, Value] | None:
        """The end of an earlier reading of this very document, and its record, from its pointer."""
        key = pointer.get("version") if isinstance(pointer, dict) else None
        if isinstance(key, str):
            ((_, value),) = await self._bank.by_id([key])
            with suppress(BadRecordError):
                found = MemoryVersion.from_record(value, key)
                if (found.root, found.document.digest) == (self._lineage.root, digest):
                    return found, cast("Value", value)
        return None


def key_of(lineage: Lineage, fold: Fold) -> str:
    """Return the key that readings of the same text from the same version share."""
    return f"{fold['scope']['head'] or ''}-{lineage.root}-{fold['source']['digest']}"


def _cut_up_to(end: int, ids: Iterator[str], read: Sequence[Chunk]) -> None:
    """Ask for more ids, each of which adds a chunk to `read`, until one ends at `end`."""
    while (not read or read[-1].end < end) and next(ids, None):
        pass


def _is_within(chunk: Chunk, document: ReadDocument) -> bool:
    return any(start <= chunk.start < end for start, end in document.skipped)


def move_to(fold: Fold, edit: MemoryVersion, edited: str) -> Fold:
    """Return a fold at an edit of the version `edited`, which it is at or has read on from."""
    scope, progress = fold["scope"], fold["progress"]
    at, stopped = progress["version"], progress["stopped"]
    if edited == at:
        named = scope["memory_name"] and scope["head"] == at
        after: Fold = {
            **fold,
            **to_plain(edit.memory),
            "scope": {**scope, "head": edit.id} if named else scope,
            "progress": {**progress, "version": edit.id},
        }
    elif edited == scope["head"]:
        after = begin_anew(fold, edit, edit.id)
    else:
        back = progress_at(edit, progress)
        if stopped in {"end", None}:
            back["stopped"] = "end" if back["position"] >= scope["end"] else None
        after = {**fold, **to_plain(edit.memory), "progress": back}
    return after


def progress_at(version: MemoryVersion, progress: Progress) -> Progress:
    """Return the progress of a fold that has read what a version has."""
    document = version.document
    skipped = [[*span] for span in document.skipped]
    return {
        **progress,
        "position": skipped[0][0] if document.again and skipped else document.end,
        "step": version.step,
        "skipped": skipped,
        "again": document.again,
        "version": version.id,
    }


def begin_anew(fold: Fold, head: MemoryVersion | None, at: str) -> Fold:
    """Return a fold at the beginning of its span, at the head of a named memory or the root."""
    return {
        **fold,
        **to_plain(Memory() if head is None else head.memory),
        "scope": {**fold["scope"], "head": None if head is None else head.id},
        "progress": {
            **fold["progress"],
            "position": fold["scope"]["start"],
            "stopped": None,
            "version": at,
            "skipped": [],
            "again": False,
        },
    }
