"""Where a fold begins after stored versions, and to which it moves."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from memagent_graph import errors
from memagent_graph.evidence.places import Memory, locate, to_plain
from memagent_graph.graph.reading import memory_of
from memagent_graph.graph.state import VERSIONS, Document, begin_fold, is_segmented, mark_taken
from memagent_graph.memory.bank import has_answer
from memagent_graph.memory.chain import adopt
from memagent_graph.memory.items import find_prefix, newest_edit, read_head
from memagent_graph.memory.version import (
    MemoryVersion,
    child_id,
    make_fingerprint,
    make_reading_key,
    root_id,
)
from memagent_graph.sync import see_checkpoints, to_sync

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.state import Fold, Progress, Scope
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.chain import Fence
    from memagent_graph.memory.items import Place
    from memagent_graph.memory.store import Value
    from memagent_graph.text.chunks import Chunk, Cutter
    from memagent_graph.text.source import Source

_HAS = {"question", "source", "scope", "memory", "places", "progress", "layers"}
"""Channels of a fold that has begun."""
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


class Lineage:
    """The versions of a fold, whether they are stored or not. The first is the root.

    Attributes:
        fingerprint: distinguishes its versions from those of other settings; if memories are not
            reused, from those of any other run.
        reuses: whether versions are taken over from readings of the same.
        is_segment: whether it is that of a segment, which is merged into `whole`.
        is_listed: whether its ids follow from the document alone, before anything is read.
        root: the id before the first chunk.
        whole_root: that of the fold which a segment is merged into, or its own.
        begun: the stored version that the fold began after; None without one.
        record: its record as it was found; None if it is not known.
        missed: why the store was not asked; None if it was.
        absent: id of a version that the store did not have a moment ago; None if it was not asked.
    """

    def __init__(
        self,
        reading: Reading,
        fold: Fold,
        bank: MemoryBank,
        fence: Fence,
        *,
        reuses: bool,
        whole: Lineage | None = None,
    ) -> None:
        known, question = _from(reading.fingerprint, fold["scope"]["origin"]), fold["question"]
        if is_segmented(fold["scope"]):
            known = make_fingerprint(known, "segments", reading.config.segments)
        self.question, self.reuses = question, reuses
        self.fingerprint = known if reuses else make_fingerprint(known, uuid4())
        self.is_segment = whole is not None
        self.is_listed = not any(layer.depends_on_memory(question) for layer in reading.layers)
        self.root = root_id(question, self.fingerprint)
        self.begun: MemoryVersion | None = None
        self.record: Value | None = None
        self.missed: str | None = None
        self.absent: str | None = None
        self._asked = root_id(question, known)
        self.whole_root = self.root if whole is None else whole.root
        self._reading, self._bank, self._fence = reading, bank, fence

    def key(self, fold: Fold) -> str:
        """Return the key that readings of the same text from the same version share."""
        return f"{fold['scope']['head'] or ''}-{self.root}-{fold['source']['digest']}"

    def _first_of_each(self, cutter: Cutter) -> Iterator[str]:
        """Yield for each chunk the first id of a segment that begins there."""
        for start, (digest, _) in cutter.origins.items():
            known = _from(self._reading.fingerprint, self.origin(cutter, start))
            yield child_id(root := root_id(self.question, known), digest, root)

    def origin(self, cutter: Cutter, start: int) -> str:
        """Return what a segment is known by: its place, if what it skips is not in its ids."""
        if not start:
            return ""  # a first segment is read as the beginning of the document is
        return cutter.origins[start][1] if self.is_listed else str(start)

    async def begin(self, cutter: Cutter, new: Fold, name: str | None = None) -> Fold:
        """Where to begin: at a named memory's head, or nowhere; past all chunks known from there.

        Only a named memory needs the store, and raises its error: other folds continue without it.
        """
        fold = begin_fold(new["question"], new["source"], {**new["scope"]})
        fold["progress"]["version"] = self.root
        try:
            if name:
                places = self._fence.place, self._place_of_run(name, fold)
                head, (notice, run) = await read_head(self._bank, name, *places)
                self._fence.begin(notice)
                fold["scope"] |= {"memory_name": name, "head": None if head is None else head.id}
                if head is not None:
                    self.begun = head
                    fold = {**fold, **to_plain(head.memory)}
                    fold["progress"]["version"] = head.id
                    ended = await self._find_end(fold, head, run)
                    if ended is not None:
                        return ended
            if self.reuses:
                fold = await self._past_what_is_known(cutter, fold)
            elif not name:
                self._fence.begin(*await self._bank.values([self._fence.place]))
        except errors.MemoryConflictError:  # the name was moved meanwhile
            return await self.begin(cutter, new, name)
        except errors.StoreError as error:
            if name and isinstance(error, errors.BadRecordError | errors.MemoryNotFoundError):
                raise
            if name:
                raise errors.StoreError(_CLOSED.format(name=name, error=error)) from error
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
        return self._bank.runs_of(name), make_fingerprint(self._asked, fold["source"]["digest"])

    async def _find_end(self, fold: Fold, head: MemoryVersion, run: object) -> Fold | None:
        """The fold at the end of an earlier run of this reading; None if it is to be read.

        That is one which was killed before its answer, or the last that moved the memory's head.
        """
        match run:
            case {"version": str(ended_at), "progress": dict(kept)}:
                is_head = ended_at == head.id
            case _:
                return None
        if not (is_head and self.reuses) and await has_answer(self._bank, ended_at):
            return None
        for one in [head] if is_head else await self._bank.ahistory(head.id):
            if one.id == ended_at:
                self.begun, scope = one, cast("Scope", {**fold["scope"], "head": one.id})
                progress: Any = {**fold["progress"], **kept, "version": one.id}
                return {**fold, **to_plain(one.memory), "scope": scope, "progress": progress}
        return None

    async def find_starts(self, cutter: Cutter) -> set[int]:
        """The chunks, counted from 0, at which segments begin of which the store has memories."""
        if not self.reuses or self.missed is not None:
            return set()
        ids = await asyncio.to_thread(list, self._first_of_each(cutter))
        found: set[int] = set()
        try:
            for first in range(0, len(ids), _IDS_AT_ONCE):
                places = [(self._bank.versions, key) for key in ids[first:][:_IDS_AT_ONCE]]
                values = await self._bank.values(places, refresh=False)
                found |= {at for at, value in enumerate(values, first) if value is not None}
        except errors.StoreError as error:
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
        name, digest = fold["scope"]["memory_name"], cutter.source.digest
        memory = name or make_reading_key(self.whole_root, digest)
        segmented, records = is_segmented(fold["scope"]), self._bank
        read: list[Chunk] = []
        ids = self._ids(cutter, fold, read)
        listed = self.is_listed and not segmented
        alone = not (name or edited or self.is_segment)
        first = await asyncio.to_thread(list, islice(ids, _FIRST)) if listed else []
        key = make_reading_key(self.root, digest)
        places = [(records.readings, key)] * alone + [(records.versions, one) for one in first]
        # In the same round trip, as what is forgotten later is found as the reading goes on.
        notice, *values = await records.values([self._fence.place, *places])
        self._fence.begin(notice)
        ended = await self._find_ended(values[0], digest) if alone else None
        known = [*zip(first, values[alone:], strict=True)]
        size = 2 * _FIRST if ended is None else _IDS_AT_ONCE
        found, record = await find_prefix(records, known, ids, memory, size)
        if ended and (found is None or found.document.end < ended[0].document.end):
            found, record = ended  # though versions before it are gone
        self.record = record
        if found is None or record is None:
            self.absent = first[0] if first else None
            return fold
        edit = await newest_edit(records, found.id, memory, record)
        found = relocate(found, fold, cutter.source)
        edit = edit and relocate(edit, fold, cutter.source)
        document, length = found.document, cutter.source.length
        end = length if document.again else document.end
        if segmented and end < length:
            return fold
        await asyncio.to_thread(_cut_up_to, end, ids, read)
        chunks = [
            one
            for one in read
            if one.end <= end and not any(a <= one.start < b for a, b in document.skipped)
        ]
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
                raise errors.MemoryConflictError
            fold["scope"]["head"] = found.id
        if edit is None or whole:
            return fold
        return await self._past_what_is_known(cutter, mark_taken(fold, edit.id), edited=True)

    def _ids(self, cutter: Cutter, fold: Fold, read: list[Chunk]) -> Iterator[str]:
        """Ids of the versions after each chunk, worked out as they are asked for."""
        parent = fold["progress"]["version"] or self.root
        position, end = fold["progress"]["position"], fold["scope"]["end"]
        while position < end and (chunk := cutter.cut(position)):
            read.append(chunk)
            parent = child_id(parent, chunk.digest, self.root)
            yield parent
            position = chunk.end

    async def _find_ended(self, pointer: object, digest: str) -> tuple[MemoryVersion, Value] | None:
        """The end of an earlier reading of this very document, and its record, from its pointer."""
        key = pointer.get("version") if isinstance(pointer, dict) else None
        if isinstance(key, str):
            ((_, value),) = await self._bank.by_id([key])
            with suppress(errors.BadRecordError):
                found = MemoryVersion.from_record(value, key)
                if (found.root, found.document.digest) == (self.root, digest):
                    return found, cast("Value", value)
        return None


def version_of(fold: Fold) -> MemoryVersion | None:
    """Return the version of a fold from what a checkpoint has of it; None if it has not."""
    made = fold["layers"].get(VERSIONS, {}).get("made")
    with suppress(errors.BadRecordError):  # of another release
        if made is not None and made["content"]["id"] == fold["progress"]["version"]:
            return MemoryVersion.from_stub(made, memory_of(fold))
    return None


async def aversions_in(checkpointer: BaseCheckpointSaver[Any]) -> list[MemoryVersion]:
    """Return the versions that the checkpoints of readings have, for `MemoryBank.check`.

    Every checkpoint of every thread is examined.
    """
    found: dict[str, MemoryVersion] = {}

    def keep(saved: CheckpointTuple) -> None:
        values = saved.checkpoint["channel_values"]
        tasks: dict[str, dict[str, Any]] = {}  # what was written after the checkpoint
        for task, channel, value in saved.pending_writes or ():
            tasks.setdefault(task, dict(values))[channel] = value
        for state in (values, *tasks.values()):
            folds = state.get("folds")  # of segments; a state of another graph may have others
            for fold in (state, *(folds.values() if isinstance(folds, dict) else ())):
                has = isinstance(fold, dict) and fold.keys() >= _HAS
                version = version_of(cast("Fold", fold)) if has else None
                # An edit of the state has the id of the version that it edits.
                if version is not None and not (version.edited and version.id in found):
                    found[version.id] = version

    await see_checkpoints(checkpointer, keep)
    return [*found.values()]


versions_in = to_sync(aversions_in)


def _from(fingerprint: str, origin: str) -> str:
    return make_fingerprint(fingerprint, "from", origin) if origin else fingerprint


def relocate(version: MemoryVersion, fold: Fold, source: Source) -> MemoryVersion:
    """Return a stored version of a segment with the places that its text has in a fold's source."""
    document, memory = version.document, version.memory
    by = fold["scope"]["start"] - document.begin
    if document.digest == source.digest or not fold["scope"]["segment"]:
        return version
    evidence = tuple(
        locate(item.text, source, item.start + by, item.end + by) for item in memory.evidence
    )
    read = replace(document, begin=document.begin + by, end=document.end + by)
    return replace(version, document=read, memory=replace(memory, evidence=evidence))


def _cut_up_to(end: int, ids: Iterator[str], read: Sequence[Chunk]) -> None:
    """Ask for more ids, each of which adds a chunk to `read`, until one ends at `end`."""
    while (not read or read[-1].end < end) and next(ids, None):
        pass


def move_to(fold: Fold, edit: MemoryVersion, edited: str) -> Fold:
    """Return a fold at an edit of the version `edited`, which it is at or has read on from."""
    scope, progress = fold["scope"], fold["progress"]
    is_head = edited == scope["head"]
    if edited == progress["version"]:
        progress = {**progress, "version": edit.id}
        scope = {**scope, "head": edit.id} if scope["memory_name"] and is_head else scope
    elif is_head:
        return begin_anew(fold, edit, edit.id)
    else:
        stopped, progress = progress["stopped"], progress_at(edit, progress)
        if stopped in {"end", None}:
            progress["stopped"] = "end" if progress["position"] >= scope["end"] else None
    return {**fold, **to_plain(edit.memory), "scope": scope, "progress": progress}


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
