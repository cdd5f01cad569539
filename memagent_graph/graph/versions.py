"""How a fold meets the store as it reads: versions followed, stored, and heads moved."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.fold import FoldUpdate
from memagent_graph.graph.ids import Lineage, version_of
from memagent_graph.graph.sharing import Company, Holding, abandon_if_cancelled
from memagent_graph.graph.state import (
    Fold,
    SourceRecord,
    begun,
    is_segmented,
    memory_of,
    noted,
    round_of,
    span_of,
)
from memagent_graph.memory import forget, runs
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.circuit import store_seconds
from memagent_graph.memory.forget import remove_strays
from memagent_graph.memory.lookup import find, is_thinned, newest_edit
from memagent_graph.memory.version import MemoryVersion, edit_version, reading_key
from memagent_graph.memory.writer import VersionWriter
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from memagent_graph.evidence.places import Recalled
    from memagent_graph.graph.chunks import Cutter
    from memagent_graph.graph.fold import FoldStep, Layer
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.state import Run
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.source import Source


_CLOSED = (
    "Memory {name!r} could not be opened: {error} Read again when the store is back, or without "
    "memory_name."
)
_KEPT = (
    "position",
    "step",
    "tokens",
    "skipped",
    "unreached",
    "again",
    "cut",
    "enough",
    "stopped",
)
"""Fields of the progress from which a reading that has ended is answered again."""
_IDS_AT_ONCE = 1000
"""Versions that the store is asked for in one round trip."""


class Known:
    """Begins a fold after all that the store knows of it.

    Args:
        lineage: the fold's versions.
        bank: has those that are stored.
        holding: gets the name of a named memory.
        layers: the layers of the reading, which resume what a version left open.

    Attributes:
        begun: whether the fold began in this call of the graph, not in one that was broken off.
        given: id and text of the memory that it began with, if that is stored.
        noticed: number of the last notice of forgotten documents before it began; None if unknown.
        missed: why the store was not asked; None if it was.
        mends: whether versions after a gap are stored: the gap is read, and they are taken over.
    """

    def __init__(
        self, lineage: Lineage, bank: MemoryBank, holding: Holding, layers: Sequence[Layer]
    ) -> None:
        self._lineage, self._bank, self._holding = lineage, bank, holding
        self._layers = layers
        self.begun = False
        self.given: tuple[str, str] | None = None
        self.noticed: int | None = None
        self.missed: str | None = None
        self.mends = False

    async def begin(
        self,
        cutter: Cutter,
        record: SourceRecord,
        name: str | None = None,
        memory: Memory | None = None,
    ) -> Fold:
        """Where to begin: at a named memory's head, or nowhere; past all chunks known from there.

        A later round begins with the `memory` of the one before, whose version the record has.
        Only a named memory needs the store: a fold without a name continues without what it knows.

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
                    ended = await self._ended(fold, name, head)
                    if ended is not None:
                        return ended
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

    async def move_head(self, fold: Fold, name: str, expected: str | None) -> bool:
        """Point a named memory to the fold's version; return whether the memory has it now.

        Raises:
            MemoryNotFoundError: The version is gone.
        """
        records, progress = self._bank.records, fold["progress"]
        version, asked = str(progress["version"]), self._lineage.asked(fold["source"])
        kept = {name: progress[name] for name in _KEPT}  # type: ignore[literal-required]
        noted = await runs.note(records, name, runs.EndedRun(asked, version, kept))
        if await self._bank.amove_head(name, version, expected=expected, also=[noted]):
            return True
        # It may have been moved there by a run that was killed, and on from there by others.
        run, head = await runs.find(records, name, asked), await self._bank.ahead(name)
        if run is None or run.version != version or head is None:
            return False
        return version in {one.id for one in await self._bank.ahistory(head.id)}

    async def _ended(self, fold: Fold, name: str, head: MemoryVersion) -> Fold | None:
        """The fold at the end of an earlier run of this reading; None if it is to be read.

        That is one which was killed before its answer, or the last that moved the memory's head.
        """
        run = await runs.find(self._bank.records, name, self._lineage.asked(fold["source"]))
        if run is None or (run.answered and not self._lineage.reuses):
            return None
        history = [head] if run.version == head.id else []
        if not (history or run.answered):
            history = await self._bank.ahistory(head.id)
        version = next((one for one in history if one.id == run.version), None)
        if version is None:
            return None
        ended: Any = {**fold["progress"], **run.progress, "version": version.id}
        source: SourceRecord = {**fold["source"], "head": version.id}
        return {**fold, **noted(version.memory), "source": source, "progress": ended}

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
        found = ended = None
        if self._lineage.is_listed and not segmented:
            found = await find(self._bank.records, ids, memory)
        alone = not (name or edited or self._lineage.is_segment)
        if alone:
            ended = await self._read_to_its_end(cutter.source)
            found = await self._last_known(found, ended)
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
        stops = whole or found.enough is not None
        if stops and ended is None and alone:
            await self._bank.arecord_reading(found)  # the run that read it was killed before
        before = fold["progress"]
        fold["progress"] |= {
            "position": end,
            "step": before["step"] + len(known),
            "tokens": before["tokens"] + sum(chunk.tokens for chunk in known),
            "version": found.id,
            "enough": found.enough,
            "stopped": "end" if whole else "done" if stops else None,
            "cut": found.cut,
            "skipped": [[*span] for span in found.skipped],
            "again": found.again,
        }
        self._seek(fold, found, stops=stops)
        fold = {**fold, **noted(found.memory)}
        if name and stops:
            await self._name_known(fold, name)
        if edit is None or stops:
            return fold
        return await self._past_what_is_known(cutter, fold, edited=True)

    def _seek(self, fold: Fold, found: MemoryVersion, *, stops: bool) -> None:
        """Continue with what the reading of a version looked for, and asked to see again."""
        if found.sought is not None:  # as what was skipped will be read, if it has to be
            fold["source"]["query"] = found.sought
        if not stops:
            states = ((layer.name, layer.resume(found)) for layer in self._layers)
            fold["layers"] |= {name: state for name, state in states if state is not None}

    def _ids(self, cutter: Cutter, fold: Fold, read: list[Chunk]) -> Iterator[str]:
        """Ids of the versions after each chunk, worked out as they are asked for."""
        parent = fold["progress"]["version"] or self._lineage.root
        position, end = fold["progress"]["position"], span_of(fold["source"]).end
        while position < end and (chunk := cutter.cut(position)):
            read.append(chunk)
            parent = self._lineage.child(parent, chunk)
            yield parent
            position = chunk.end

    async def _name_known(self, fold: Fold, name: str) -> None:
        """Name what was read before, by another name or by a run that was killed.

        Raises:
            MemoryConflictError: The name was moved meanwhile.
        """
        if not await self.move_head(fold, name, fold["source"].get("head")):
            message = f"{name!r} was moved on meanwhile."
            raise MemoryConflictError(message)
        fold["source"]["head"] = fold["progress"]["version"]

    async def _last_known(
        self, found: MemoryVersion | None, ended: MemoryVersion | None
    ) -> MemoryVersion | None:
        """The version to read on from: the end of an earlier reading, or one before a gap.

        Args:
            found: the last of those whose ids are known ahead.
            ended: the end of an earlier reading.
        """
        if ended is None or (found is not None and found.end >= ended.end):
            return found
        self.mends = found is not None or await self._has_gap(ended)
        return found if self.mends else ended

    async def _read_to_its_end(self, source: Source) -> MemoryVersion | None:
        """The end of a reading of this very document, whose earlier versions were thinned out."""
        found = await self._bank.areading(reading_key(self._lineage.root, source.digest))
        return (
            found
            if found and (found.root, found.source) == (self._lineage.root, source.digest)
            else None
        )

    async def _has_gap(self, found: MemoryVersion) -> bool:
        """Whether what led to a version is lost, and was neither thinned out nor has expired."""
        records = self._bank.records
        if self._lineage.thins or records.lives is not None:
            return False
        history = await self._bank.ahistory(found.id)
        gone = {*history.gaps}  # but what was only shown with a chunk may have been forgotten
        after = [one.id for one in history if gone & {one.parent, *one.merged}]
        return any(not is_thinned(value) for _, value in await records.by_id(after))


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


_BEYOND = 0.2
"""Seconds that it has for each operation after the deadline."""
_LONG = 0.1
"""Seconds that a call of the reader takes, beside which waiting for the store is nothing."""

_FORGOTTEN = (
    "A document was forgotten while this was read: what this reading stored of it is deleted. Read "
    "again to keep memories of what there is now."
)


class Chain:
    """The versions of one fold, as one call of the graph reads and stores them.

    Args:
        reading: the reading's settings.
        run: the call of the graph; it has a store.
        question: the fold's question.
        record: its document, or its segment of one.
        whole: for a segment, the chain that it is merged into.

    Attributes:
        lineage: which versions these are.
        known: begins the fold after those that are stored.
        bank: has those that are stored.
        holding: the fold's memory, which others may hold.
        parent: id of the version that the chunk is read from.
    """

    def __init__(
        self,
        reading: Reading,
        run: Run,
        question: str,
        record: SourceRecord,
        *,
        whole: Chain | None = None,
    ) -> None:
        assert run.store is not None  # noqa: S101 - `chains` looked
        self._reading, self._run, self.parent = reading, run, ""
        self.bank = MemoryBank(
            run.store,
            run.namespace,
            ttl=reading.config.ttl,
            patience=lambda: self._patience(store_seconds()),
        )
        self._whole = whole
        reuses = run.config.get("configurable", {}).get("memagent_reuse", True)
        self.lineage: Lineage = Lineage(
            reading,
            question,
            record,
            reuses=reading.config.reuse and reuses,
            whole=None if self._whole is None else self._whole.lineage,
        )
        left = partial(reading.seconds_left, run)
        self.holding: Holding = (
            self._whole.holding
            if self._whole
            else Holding(self.bank.records, self.lineage.memory(record), left)
        )
        self.known = Known(self.lineage, self.bank, self.holding, reading.layers)
        self.known.mends = whole is not None and whole.known.mends
        self._company = Company(
            reading,
            run,
            self.lineage,
            self.known,
            self.bank,
            self.holding,
            all_stored=self._all_stored,
        )
        self._writer: VersionWriter | None = None
        self._stored_last: tuple[str, str] | None = None  # its id and text
        self._holder: str | None = None  # the version that has the text of `parent`
        self._finished: MemoryVersion | None = None
        self._last: MemoryVersion | None = None
        self._lost = 0
        self._unmoved: str | None = None  # why a named memory's head is where it was
        self._read: set[str] = set()  # digests of what was read here
        self._begun_at, self._takes_long = 0.0, False

    async def before(self, fold: Fold) -> Memory:
        """The memory to read on from; sets `parent`.

        A memory that a person edited in the state first becomes a version of its own: otherwise
        the stored child of the unedited one would overtake the edit.
        """
        memory, version = memory_of(fold), fold["progress"]["version"]
        self.parent = version or self.lineage.root
        if (version, memory.text) in {self._stored_last, self.known.given}:
            return memory
        made = version_of(fold)
        try:
            stored: MemoryVersion | None = await self.bank.aget(self.parent)
        except MemoryNotFoundError:  # the root, or a version that was never written
            stored = made
            if made is not None:  # by a run that was killed after its checkpoint
                self._writes(fold).add(made)
        except StoreError as error:  # not known: take it for the one that was stored
            self.known.missed, self._holder = str(error), None
            if made is not None and not made.edited:
                self._writes(fold).add(made)
            return memory
        if stored is None and not (fold["progress"]["step"] or fold["source"].get("head")):
            self.parent = self.lineage.root  # of a resumed run that reuses nothing, it is another
        self._holder = None if stored is None else stored.unchanged or stored.id
        if stored is None and self.parent == self.lineage.root:
            stored = self.lineage.nothing(fold["source"])
        if stored is not None and stored.text != memory.text:
            stored = edit_version(stored, memory.text)
            self.parent = self._holder = stored.id
            self._writes(fold).add(stored)
        if made is not None:
            self._last = stored
        return memory

    async def held(self, fold: Fold, *, reads: bool = True) -> Fold:
        """Wait while the memory is held, up to the deadline; return the fold to continue from.

        If a user edited its version, it continues from the edit.

        Args:
            fold: as it is.
            reads: whether a chunk is to be read next.
        """
        other, version = None, fold["progress"]["version"] or self.lineage.root
        if self._writer is not None and (self._takes_long or not reads):
            other = await self._writer.settle()
        if other is not None and other.edited:
            self._company.edits[version] = other
        after = await self._company.wait(fold, reads=reads)
        if after is not fold:
            key = after["progress"]["version"] or ""
            self._stored_last, self._holder = (key, after["memory"]), key
            if self._finished is not None and self._finished.id == version:
                self._finished = self._company.edits[version]
        self._begun_at = monotonic()
        return after

    async def _all_stored(self) -> bool:
        """Wait for what is being written: what is not stored cannot be edited."""
        if self._writer is not None:
            await self._writer.settle()
        return self._writer is None or self._writer.idle

    async def followed(
        self, fold: Fold, chunk: Chunk, recalled: Sequence[Recalled] = ()
    ) -> FoldUpdate | None:
        """Return the update that another reading makes of a chunk; None to read it here.

        Args:
            fold: before the chunk.
            chunk: to read.
            recalled: what is shown again with it.

        Raises:
            TimeoutError: The deadline came first.
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        found = await self._company.followed(fold, self.parent, chunk, recalled)
        if found is None:
            return None
        return FoldUpdate(
            None if found.unchanged else found.memory,
            done=found.enough is not None,
            answer=found.enough or "",
            recall=found.recall,
            unfinished=found.cut,
            tokens=found.tokens,
        )

    def beating(self) -> AbstractAsyncContextManager[object]:
        """Shows who follows that this run lives while it waits for its model."""
        return self._company.beating()

    async def abandon(self) -> None:
        """Let others read on from what a fold that failed has stored, unless it was forgotten."""
        if self._writer is not None:
            await self._writer.settle()
            await self._without_forgotten(self._writer.written)
        await self._company.leave()

    async def overtaken(self) -> Memory | None:
        """Return the memory that another agent stored first in place of this one, if it differs."""
        other = None if self._writer is None else await self._writer.settle()
        if other is None or (other.id != self.parent and not other.edited):
            return None
        self.parent, self._holder = other.id, other.unchanged or other.id
        return other.memory

    async def named(self, name: str) -> MemoryVersion | None:
        """Another memory, as it is now; None if there is none to be read."""
        try:
            return await self.bank.ahead(name)
        except (StoreError, MemoryNotFoundError) as error:
            self.known.missed = str(error)
            return None

    async def earlier(self, fold: Fold, which: int | str) -> MemoryVersion | None:
        """An earlier memory of this reading; None if there is none to be read.

        Args:
            fold: the fold, which has read further.
            which: number of a step, or a version's id.
        """
        if self._writer is not None:
            await self._writer.settle()
        try:
            history = await self.bank.ahistory(fold["progress"]["version"] or self.lineage.root)
        except MemoryNotFoundError:  # nothing was read yet
            return None
        except StoreError as error:
            self.known.missed = str(error)
            return None
        own = (version for version in history if version.root == self.lineage.root)
        return next((one for one in own if which in {one.id, one.step}), None)

    def keep(self, fold: Fold, step: FoldStep, update: FoldUpdate, *, gated: bool = False) -> Fold:
        """Begin to store the memory after a chunk, and return the fold with its version.

        Args:
            fold: the fold after the chunk.
            step: the step that read it.
            update: the update.
            gated: whether the memory is the one that the chunk was read from.
        """
        progress, writer, chunk = fold["progress"], self._writes(fold), step.chunk
        # A memory that a reading ends with is whole, since heads lead there. So is one after
        # something that is not written yet, in the place of which another may be stored.
        ends = progress["stopped"] or chunk.end >= span_of(fold["source"]).end
        shares = gated and not ends and writer.idle
        version = self.lineage.after_chunk(
            self.parent,
            fold,
            chunk,
            update.tokens,
            recalled=step.recalled,
            recall=None if update.done else update.recall,
            unchanged=self._holder if shares else None,
        )
        self._last = version
        self._read |= {version.source, *(digest for digest, _ in version.parts)}
        self._takes_long = monotonic() - self._begun_at >= _LONG
        self._stored_last = (version.id, version.text)
        self._holder = version.unchanged or version.id
        fold = self.lineage.made(fold, version)
        writer.add(version, *self._company.notes(fold))
        return fold

    async def end(self, fold: Fold) -> Fold:
        """End a fold with its last version; move a named memory's head to it.

        Returns:
            The fold, begun anew at the winner's head if a race for the head was lost.
        """
        version = fold["progress"]["version"]
        if self._last is None and version not in {None, self.lineage.root}:  # of a resumed run
            with suppress(StoreError, MemoryNotFoundError):
                self._last = await self.bank.aget(str(version))
        if self._last is None:  # nothing was read
            return fold
        self._writes(fold)
        if fold["source"].get("memory_name"):
            return await self._move_head(fold)
        self._finished = self._last
        return fold

    async def merge_of(self, fold: Fold, parts: Sequence[Fold]) -> MemoryVersion | None:
        """Return the stored memory that was merged from these segments."""
        key = self.lineage.merged_id(parts)
        if key is None or not self.lineage.reuses:
            return None
        try:
            found = await self.bank.aget(key)
            await self.bank.aadopt(self.lineage.memory(fold["source"]), found.id)
        except (StoreError, MemoryNotFoundError):
            return None
        return found

    async def merged(self, fold: Fold, parts: Sequence[Fold], query: str | None) -> Fold:
        """Begin to store what was merged from segments; the fold with what was stored first.

        Args:
            fold: after the merge.
            parts: the segments' folds.
            query: what the next round looks for.
        """
        version = self.lineage.after_merge(fold, parts, query)
        if version is None:
            return fold
        self._writes(fold).add(version)
        fold = self.lineage.made(fold, version)
        if query is not None and (other := await self._writes(fold).settle()) is not None:
            version, fold = other, self.lineage.made({**fold, **noted(other.memory)}, other)
        self._stored_last, self._finished = (version.id, version.text), version
        return fold

    async def finish(self, fold: Fold) -> tuple[Memory | None, list[str]]:
        """Wait until all is stored; say what another agent stored first, and what went wrong.

        Raises:
            StoreError: Strict, and something could not be stored.
        """
        if self._writer is None and version_of(fold) is not None:
            await self._end_resumed(fold)
        if self._writer is None:
            return None, await self._finish_unwritten()
        await self._writer.settle()
        left = 0
        if self._unmoved is None:  # else it was waited for already
            left = await self._flush(self._writer)
        other = await self._writer.settle()
        edited = other is not None and other.id != fold["progress"]["version"]
        away = left or self._unmoved is not None  # it would be asked in vain, and that is said
        edits = None if away else await self._company.missed()
        await self._leave()  # not before: who took the lease would read the last chunk again
        message = self._unmoved
        if left and self._whole is not None:
            self._whole.take_over(self, fold)
        elif left and message is None:
            message = str(_unstored(left, self._writer))
        elif message is None and self._whole is None:
            message = await self._list(fold)
        if message is not None and self._reading.config.strict:
            raise StoreError(message)
        memory = None if other is None or edited else other.memory
        forgotten = None if away else await self._without_forgotten(self._writer.written)
        return memory, [said for said in (message, edits, forgotten) if said is not None]

    async def _finish_unwritten(self) -> list[str]:
        missed = (
            None if self.known.missed is None else f"Nothing stored was used: {self.known.missed}"
        )
        if missed is None:
            missed = await self._company.missed()
        await self._leave()
        return [] if missed is None else [missed]

    async def _list(self, fold: Fold) -> str | None:
        """List the reading, and thin its versions out; return what went wrong."""
        keep = self._reading.config.keep_versions
        try:
            if self._finished is not None:
                await self.bank.arecord_reading(self._finished)
            if keep is not None:
                await self.bank.athin(self.lineage.memory(fold["source"]), keep)
        except StoreError as error:
            return f"The memory is stored, and could not be listed: {error}"
        return None

    def take_over(self, part: Chain, fold: Fold) -> None:
        """Write what a segment could not store before anything that is merged from it.

        Args:
            part: the segment's chain.
            fold: the segment's fold.
        """
        if part._writer is not None:
            self._writes(fold).take_over(part._writer)
        self._read |= part._read

    async def _end_resumed(self, fold: Fold) -> None:
        """Store and list what a run that was killed had read to its end."""
        await self.before(fold)
        ended = fold["progress"]["stopped"] != "deadline"
        if ended and self._last is not None and "memory_name" not in fold["source"]:
            self._writes(fold)
            self._finished = self._last

    async def answered(self, fold: Fold) -> None:
        """Note that a reading into a named memory was answered: its repeat is another."""
        name = fold["source"].get("memory_name")
        if name:
            with suppress(StoreError):
                await runs.mark_answered(
                    self.bank.records, name, self.lineage.asked(fold["source"])
                )

    async def _leave(self) -> None:
        """Let others read on, and let nobody see a reading that is over."""
        await (self._company.leave() if self._whole is None else self._company.release())

    async def _without_forgotten(self, written: Sequence[str]) -> str | None:
        """Delete what was written of a document that was forgotten meanwhile; say so."""
        if self.known.noticed is None:
            return None
        try:
            late = await forget.notices_since(self.bank.records, self.known.noticed)
            read = sorted(self._read & late)
            for digest in read:
                await self.bank.aforget_source(digest)
            strays = await remove_strays(self.bank.records, written) if late else 0
        except (StoreError, OSError) as error:
            return f"Whether a document was forgotten meanwhile is not known: {error}"
        return _FORGOTTEN if read or strays else None

    async def _move_head(self, fold: Fold) -> Fold:
        record, progress = fold["source"], fold["progress"]
        name, version = record["memory_name"], progress["version"]
        assert version is not None  # noqa: S101 - `keep` stored it
        writer = self._writes(fold)
        await writer.settle()
        left = await self._flush(writer)
        try:
            if left:  # a head must not lead to what is not stored
                raise _unstored(left, writer)
            if await self.known.move_head(fold, name, record["head"]):
                return {**fold, "source": {**record, "head": version}}
        except MemoryNotFoundError:
            pass  # somebody forgot this memory meanwhile: read it again, from its beginning
        except StoreError as error:
            self._unmoved = f"Memory {name!r} is still what it was before this reading: {error}"
            return fold
        self._lost += 1
        self.bank.records.guard.count(lost_races=1)
        if self._lost > MOST_LOST_RACES:
            message = (
                f"Other writers moved {name!r} on {self._lost} times. What was read is kept as "
                f"version {version}: branch it, or read again."
            )
            raise MemoryConflictError(message)
        await pause(self._lost)
        head = await self.bank.ahead(name)  # None: it was deleted meanwhile, as if never been
        at = self.lineage.root if head is None else head.id
        await self._company.begin_anew(at)
        own = {layer.name: layer for layer in self._reading.layers}
        return {
            **fold,
            **noted(Memory() if head is None else head.memory),
            "source": {**record, "head": None if head is None else head.id},
            "progress": {
                **progress,
                "position": 0,
                "stopped": None,
                "version": at,
                "skipped": [],
                "again": False,
            },
            "layers": {name: own[name].restart(state) for name, state in fold["layers"].items()},
        }

    def _writes(self, fold: Fold) -> VersionWriter:
        if self._writer is None:
            name = fold["source"].get("memory_name")
            self._writer = VersionWriter(
                self.bank,
                self.lineage.memory(fold["source"]),
                name,
                after=None if self._whole is None else self._whole._writer,  # noqa: SLF001
                beside=self.holding.place,
                saw=self.holding.saw,
            )
        return self._writer

    async def _flush(self, writer: VersionWriter) -> int:
        most = 2 * store_seconds()  # for all that the store has not taken yet
        patience = self._patience(most)
        return await writer.flush(patience, strictly=patience < most)

    def _patience(self, most: float) -> float:
        """Seconds to wait for the store: `most`, and hardly any beyond the deadline."""
        left = self._reading.seconds_left(self._run)
        return most if left is None else min(most, max(left, 0.0) + _BEYOND)


def _unstored(left: int, writer: VersionWriter) -> StoreError:
    error = writer.error or writer.bank.records.guard.refusal or "The store took too long."
    return StoreError(f"{plural(left, 'memory version')} could not be stored: {error}")


def chain_of(reading: Reading, run: Run, fold: Fold) -> Chain | None:
    """The chain of a fold in this call; None for one that began without a store."""
    if run.store is None or fold["progress"]["version"] is None:
        return None
    name = chain_name(fold["source"])
    if name not in run.chains:  # of a resumed run
        return begin_chain(reading, run, fold["question"], fold["source"])
    return run.chains[name]


def begin_chain(reading: Reading, run: Run, question: str, record: SourceRecord) -> Chain:
    """Make the chain of a fold that begins in this call; for the arguments, see `Chain`."""
    whole = _whole(reading, run, question, record)
    chain = run.chains[chain_name(record)] = Chain(reading, run, question, record, whole=whole)
    return chain


def chain_name(record: SourceRecord) -> str:
    """Tells the chains of a run apart: each segment has another in each round."""
    name = record.get("fold", "")
    return f"{name} {round_of(record)}" if "whole" in record else name


def _whole(reading: Reading, run: Run, question: str, record: SourceRecord) -> Chain | None:
    """Of a segment, the chain that it is merged into."""
    if "whole" not in record:
        return None
    name = record["whole"]
    if name not in run.chains:  # of a resumed run
        about = SourceRecord(fold=name, digest=record["digest"], segments=record["segments"])
        run.chains[name] = Chain(reading, run, question, about)
    return run.chains[name]


async def wait_while_held(reading: Reading, run: Run, fold: Fold) -> Fold:
    """Wait until a fold's memory is not held, or the deadline; return the fold with any edit."""
    left, chain = reading.seconds_left(run), chain_of(reading, run, fold)
    if chain is None or (left is not None and left <= 0):
        return fold
    with abandon_if_cancelled(chain):
        return await chain.held(fold, reads=False)


async def finish(reading: Reading, run: Run, fold: Fold) -> tuple[Memory, list[str]]:
    """Wait until a fold is stored; return its memory (or that of another writer) and warnings.

    Raises:
        StoreError: A version could not be stored, and the configuration is strict.
    """
    chain = chain_of(reading, run, fold)
    other, warnings = (None, []) if chain is None else await chain.finish(fold)
    return other or memory_of(fold), warnings
