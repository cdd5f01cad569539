"""How a fold meets the store: versions found again, followed, stored, and heads moved."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

from memagent_graph.counted import counted
from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.graph.following import Sharing
from memagent_graph.graph.holding import HeldUpError, Holding, Pauses, lease_key
from memagent_graph.graph.recalling import recall_of, spans_of, wanted_of
from memagent_graph.graph.records import (
    Fold,
    Looks,
    SourceRecord,
    begun,
    is_segmented,
    looks_of,
    memory_of,
    noted,
    round_of,
    span_of,
)
from memagent_graph.graph.skimming import is_skimmed
from memagent_graph.memory import notices
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.guard import store_seconds
from memagent_graph.memory.lookup import edit_of, find, newest_edit, readable
from memagent_graph.memory.sources import remove_strays
from memagent_graph.memory.version import (
    MemoryVersion,
    child_id,
    edited,
    merged_id,
    reading_fingerprint,
    reading_key,
    root_id,
)
from memagent_graph.memory.writer import VersionWriter
from memagent_graph.readers.base import Memory, Update
from memagent_graph.text.source import named_parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from memagent_graph.graph.cutting import Cutter
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Progress
    from memagent_graph.graph.state import Run
    from memagent_graph.readers.base import Recalled
    from memagent_graph.text.chunking import Chunk
    from memagent_graph.text.source import Source

_BEYOND = 0.2
"""Seconds that it has for each operation after the deadline."""
_CLOSED = (
    "Memory {name!r} could not be opened: {error} Read again when the store is back, or without "
    "memory_name."
)

_LONG = 0.1
"""Seconds that a call of the reader takes, beside which waiting for the store is nothing."""

_IDS_AT_ONCE = 1000
"""Versions that the store is asked for in one round trip."""

_FORGOTTEN = (
    "A document was forgotten while this was read: what this reading stored of it is deleted. Read "
    "again to keep memories of what there is now."
)


class Chain:
    """The versions of one fold, as one call of the graph reads it. The first is the root.

    Args:
        reading: whose fold it is.
        run: the call of the graph; it has a store.
        question: of the fold.
        record: of its document, or of a segment.

    Attributes:
        fingerprint: of the versions; one of this run's own when memories are not reused.
        reuses: whether memories that the store has are taken over.
        parent: id of the version that the chunk is read from.
    """

    def __init__(self, reading: Reading, run: Run, question: str, record: SourceRecord) -> None:
        assert run.store is not None  # noqa: S101 - `chain_of` looked
        self.question, self.parent = question, ""
        self.bank = MemoryBank(
            run.store,
            run.namespace,
            ttl=reading.config.ttl,
            patience=lambda: self._patience(store_seconds()),
        )
        asked = run.config.get("configurable", {}).get("memagent_reuse", True)
        self.reuses: bool = reading.config.reuse and asked
        known = _fingerprint(reading, record)
        self.fingerprint = known if self.reuses else reading_fingerprint(known, uuid4())
        self._reading, self._run = reading, run
        self._sharing = Sharing(
            self.bank,
            partial(reading.seconds_left, run),
            alone=not (self.reuses and reading.config.lease),
        )
        self._writer: VersionWriter | None = None
        self._known: tuple[str, str] | None = None  # id and text of what was stored last
        self._holder: str | None = None  # the version that has the text of `parent`
        self._finished: MemoryVersion | None = None
        self._last: MemoryVersion | None = None
        # Whether ids depend on the memories, and cannot be listed ahead.
        self._unlisted = is_skimmed(reading.config, question) or reading.config.recalls > 0
        # Whether the store is asked for each chunk: until it does not know one.
        self._replays = self._unlisted and self.reuses
        self._passed: list[str] = []  # versions taken over from another run since it is followed
        self._lost = 0
        self._missed: str | None = None  # why the store was not asked for what it knows
        self._unmoved: str | None = None  # why a named memory's head is where it was
        self._read: set[str] = set()  # digests of what was read here
        self._noticed: int | None = None  # of what was forgotten before this run began
        self._whole = _whole(reading, run, question, record)
        self.holding: Holding = self._whole.holding if self._whole else self._holding(record)
        self._pauses = Pauses(reading, run, self.holding, self.root)
        self._begun_at, self._takes_long = 0.0, False
        self._begun = False  # not here, but by a run that was broken off

    @property
    def root(self) -> str:
        """The id before the first chunk."""
        return root_id(self.question, self.fingerprint)

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
        self._begun = True
        fold = begun(self.question, {**record})
        fold["progress"]["version"] = self.root
        if memory is not None:
            fold = {**fold, **noted(memory)}
            fold["progress"]["version"] = record["head"]
            self._known = (record["head"] or "", memory.text)
        try:
            self._noticed = await notices.last(self.bank.records)
            if name:
                head = await self.bank.ahead(name)
                fold["source"] |= {"memory_name": name, "head": head.id if head else None}
                self.holding.memory = name
                if head is not None:
                    fold = {**fold, **noted(head.memory)}
                    fold["progress"]["version"] = head.id
            return await self._past_what_is_known(cutter, fold) if self.reuses else fold
        except MemoryConflictError:  # the name was moved meanwhile
            return await self.begin(cutter, record, name, memory)
        except StoreError as error:
            if name and isinstance(error, BadRecordError | MemoryNotFoundError):
                raise
            if name:
                raise StoreError(_CLOSED.format(name=name, error=error)) from error
            self._missed = str(error)
            return fold

    async def begun_at(self, cutter: Cutter) -> set[int]:
        """The chunks, counted from 0, at which segments begin of which the store has memories."""
        if not self.reuses or self._missed is not None:
            return set()
        ids = await asyncio.to_thread(self._first_of_each, cutter)
        found: set[int] = set()
        try:
            for first in range(0, len(ids), _IDS_AT_ONCE):
                places = [(self.bank.records.versions, key) for key in ids[first:][:_IDS_AT_ONCE]]
                values = await self.bank.records.values(places, refresh=False)
                found |= {
                    first + number for number, value in enumerate(values) if value is not None
                }
        except StoreError as error:
            self._missed = str(error)
        return found - {0}

    async def end_of(self, reference: str, record: SourceRecord) -> Fold:
        """A stored memory as the end of a fold, to be answered from.

        Raises:
            MemoryNotFoundError: There is no such version or name.
        """
        self._begun = True
        version = await self.bank.aget(reference)
        fold = begun(self.question, {**record, **_record_of(version)})
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

    async def before(self, fold: Fold) -> Memory:
        """The memory to read on from; sets `parent`.

        A memory that a person edited in the state first becomes a version of its own: otherwise
        the stored child of the unedited one would overtake the edit.
        """
        memory, version = memory_of(fold), fold["progress"]["version"]
        self.parent = version or self.root
        if self._known == (version, memory.text):
            return memory
        try:
            stored: MemoryVersion | None = await self.bank.aget(self.parent)
        except MemoryNotFoundError:  # the root, or a version that was never written
            stored = None
        except StoreError as error:  # not known: take it for the one that was stored
            self._missed, self._holder = str(error), None
            return memory
        self._holder = None if stored is None else stored.unchanged or stored.id
        if stored is None and self.parent == self.root:
            stored = self._nothing(fold)
        if stored is not None and stored.text != memory.text:
            after = edited(stored, memory.text)
            self.parent = self._holder = after.id
            self._writes(fold).add(after)
        return memory

    async def held(self, fold: Fold, *, reads: bool = True) -> Fold:
        """Wait while the memory is held, up to the deadline; the fold to go on from.

        If a person edited its version meanwhile, it goes on from the edit.

        Args:
            fold: as it is.
            reads: whether a chunk is to be read next.
        """
        other, version = None, fold["progress"]["version"] or self.root
        if self._writer is not None and (self._takes_long or not reads):
            other = await self._writer.settle()
        if other is not None and other.edited:
            self._pauses.edits[version] = other
        leads = self._sharing.leads
        if not self._pauses.looked and (reads or not self._begun):
            await (self._pauses.enter if leads or not reads else self._pauses.look)(fold)
        # A follower waits where its leader does: a version that this one has passed is not edited.
        if self.holding.asked is not None and (leads or not reads) and await self._all_stored():
            await self._pauses.wait(fold, self.beating())
        await self._pauses.look_for_edits(fold)
        after = self._pauses.edited(fold)
        if after is not fold:
            key = after["progress"]["version"] or ""
            self._known, self._holder = (key, after["memory"]), key
            if self._finished is not None and self._finished.id == version:
                self._finished = self._pauses.edits[version]
        self._begun_at = monotonic()
        return after

    async def _all_stored(self) -> bool:
        """Wait for what is being written: what is not stored cannot be edited."""
        if self._writer is not None:
            await self._writer.settle()
        return self._writer is None or self._writer.idle

    async def followed(
        self, fold: Fold, chunk: Chunk, recalled: Sequence[Recalled] = ()
    ) -> Update | None:
        """What another agent, which reads the same, made of a chunk; None to read it here.

        Args:
            fold: before the chunk.
            chunk: to read.
            recalled: what is shown again with it.

        Raises:
            TimeoutError: The deadline came first.
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        found, look = None, partial(self._stored, fold, self._child(chunk, recalled))
        if self.reuses and self._reading.config.lease:
            begin = lease_key(fold["source"], self.root)
            found = await self._sharing.followed(begin, look)
        if found is None and self._replays:
            found = await look()
            self._replays = found is not None
        if found is None:
            await self._lead(fold)
            return None
        if not self._sharing.leads:
            self._pauses.listed = False
            self._passed.append(self.parent)
        return Update(
            None if found.unchanged else found.memory,
            done=found.enough is not None,
            answer=found.enough or "",
            recall=found.recall,
            unfinished=found.cut,
        )

    async def _lead(self, fold: Fold) -> None:
        """Read for others too: list the fold, unless it is.

        Raises:
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        if self._pauses.listed:
            return
        await self._pauses.enter(fold)
        await self._pauses.look_at(self._passed)
        self._passed.clear()
        held = self.holding.asked is not None and await self._all_stored()
        if held or self._pauses.edited(fold) is not fold:
            raise HeldUpError

    async def _stored(self, fold: Fold, key: str) -> MemoryVersion | None:
        """The version after a chunk, if another agent, or a reading that was broken off, has it.

        Raises:
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        records, memory = self.bank.records, self.holding.memory
        places = [(records.versions, key), (records.versions, self.parent), self.holding.place]
        try:
            child, parent, hold = await records.values(places)
            self.holding.saw(hold)
            if edit_of(parent, memory) is not None:
                await self._pauses.find_edit(fold)
                if self._pauses.edited(fold) is not fold:
                    raise HeldUpError
            found = None if child is None else await readable(records, key, child)
        except BadRecordError:
            found = None
        except StoreError as error:
            self._missed = str(error)
            return None
        held = found is None and self.holding.asked is not None and self._sharing.leads
        if held and await self._all_stored():
            raise HeldUpError
        return found

    def beating(self) -> AbstractAsyncContextManager[object]:
        """Shows who follows that this run lives while it waits for its model."""
        return self._sharing.beating()

    async def release(self) -> None:
        """Let others read on."""
        await self._sharing.release()

    async def abandon(self) -> None:
        """Let others read on from what a fold that failed has stored, unless it was forgotten."""
        if self._writer is not None:
            await self._writer.settle()
            await self._without_forgotten(self._writer.written)
        await self.leave()

    async def leave(self) -> None:
        """Take the reading out of the list, and only then let others read on: they list theirs."""
        await self.holding.end()
        await self.release()

    async def overtaken(self) -> Memory | None:
        """What another agent stored first as the memory that was read from, if it differs."""
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
            self._missed = str(error)
            return None

    async def earlier(self, which: int | str) -> MemoryVersion | None:
        """An earlier memory of this reading; None if there is none to be read.

        Args:
            which: number of a step, or a version's id.
        """
        if self._writer is not None:
            await self._writer.settle()
        try:
            history = await self.bank.ahistory(self.parent)
        except MemoryNotFoundError:  # nothing was read yet
            return None
        except StoreError as error:
            self._missed = str(error)
            return None
        own = (version for version in history if version.root == self.root)
        return next((one for one in own if which in {one.id, one.step}), None)

    async def keep(
        self,
        fold: Fold,
        chunk: Chunk,
        tokens: int,
        *,
        gated: bool = False,
        recalled: Sequence[Recalled] = (),
    ) -> Fold:
        """Begin to store the memory after `chunk`; at the end move a named memory's head to it.

        Args:
            fold: after the chunk.
            chunk: what was read.
            tokens: of the memory.
            gated: whether it is the one that the chunk was read from.
            recalled: what was shown again with it.

        Returns:
            The fold, begun anew at the winner's head if a race for the head was lost.
        """
        progress, memory = fold["progress"], memory_of(fold)
        writer = self._writes(fold)
        # A memory that a reading ends with is whole, since heads lead there. So is one after
        # something that is not written yet, in the place of which another may be stored.
        ends = progress["stopped"] or chunk.end >= span_of(fold["source"]).end
        shares = gated and not ends and writer.idle
        version = MemoryVersion(
            id=self._child(chunk, recalled),
            parent=self.parent,
            root=self.root,
            text=memory.text,
            tokens=tokens,
            step=progress["step"],
            question=self.question,
            source=chunk.source.digest,
            source_name=chunk.source.name,
            start=chunk.start,
            end=chunk.end,
            length=chunk.source.length,
            fingerprint=self.fingerprint,
            evidence=memory.evidence,
            unsupported=memory.unsupported,
            dropped=memory.dropped,
            cut=progress["cut"],
            parts=_parts_of(chunk, recalled),
            unchanged=self._holder if shares else None,
            skipped=tuple((start, end) for start, end in progress["skipped"]),
            again=progress["again"],
            recall=recall_of(looks_of(progress)["wanted"]),
            recalled=tuple(item.version for item in recalled if item.version is not None),
            enough=progress["enough"] if progress["stopped"] == "done" else None,
            sought=_sought(fold["source"]),
        )
        self._last = version
        self._read |= {version.source, *(digest for digest, _ in version.parts)}
        self._takes_long = monotonic() - self._begun_at >= _LONG
        self._known, self._holder = (version.id, version.text), version.unchanged or version.id
        fold = {**fold, "progress": {**progress, "version": version.id}}
        # A follower's place in the list is its leader's.
        writer.add(version, *([self._pauses.note(fold)] if self._sharing.leads else []))
        if not progress["stopped"]:
            return fold
        if fold["source"].get("memory_name"):
            return await self._move_head(fold)
        self._finished = version
        return fold

    async def end(self, fold: Fold) -> Fold:
        """End a fold that has skipped its last chunk: its last version is that of the document.

        Returns:
            As `keep`.
        """
        version = fold["progress"]["version"]
        if self._last is None and version not in {None, self.root}:  # of a resumed run
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
        """What the store has as merged from these segments."""
        ids = _read_versions(parts)
        if not (self.reuses and ids):
            return None
        try:
            found = await self.bank.aget(merged_id(ids, self.fingerprint))
            await self.bank.aadopt(self._memory(fold["source"]), found.id)
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
        progress, memory, source = fold["progress"], memory_of(fold), fold["source"]
        ids = _read_versions(parts)
        if not ids:  # the deadline came before the first chunk
            return fold
        version = MemoryVersion(
            id=merged_id(ids, self.fingerprint),
            parent=self.root,
            root=self.root,
            text=memory.text,
            tokens=self._reading.tokenizer.count(memory.text),
            step=progress["step"],
            question=self.question,
            source=source["digest"],
            source_name=source["name"],
            start=0,
            end=progress["position"],
            length=source["length"],
            fingerprint=self.fingerprint,
            evidence=memory.evidence,
            unsupported=memory.unsupported,
            dropped=memory.dropped,
            cut=progress["cut"],
            merged=ids,
            skipped=tuple((start, end) for start, end in progress["skipped"]),
            query=query,
            sought=_sought(source),
        )
        self._writes(fold).add(version)
        fold = {**fold, "progress": {**progress, "version": version.id}}
        if query is not None and (other := await self._writes(fold).settle()) is not None:
            at: Progress = {**fold["progress"], "version": other.id}
            version, fold = other, {**fold, **noted(other.memory), "progress": at}
        self._known, self._finished = (version.id, version.text), version
        return fold

    async def finish(self, fold: Fold) -> tuple[Memory | None, list[str]]:
        """Wait until all is stored; say what another agent stored first, and what went wrong.

        Raises:
            StoreError: Strict, and something could not be stored.
        """
        if self._writer is None:
            missed = None if self._missed is None else f"Nothing stored was used: {self._missed}"
            if missed is None:
                missed = await self._pauses.missed()
            await self._leave()
            return None, [] if missed is None else [missed]
        await self._writer.settle()
        left = 0
        if self._unmoved is None:  # else it was waited for already
            left = await self._flush(self._writer)
        other = await self._writer.settle()
        edited = other is not None and other.id != fold["progress"]["version"]
        away = left or self._unmoved is not None  # it would be asked in vain, and that is said
        edits = None if away else await self._pauses.missed()
        await self._leave()  # not before: who took the lease would read the last chunk again
        message = self._unmoved
        if left and message is None:
            message = str(_unstored(left, self._writer.error))
        elif message is None and self._whole is None:
            try:
                if self._finished is not None:
                    await self.bank.arecord_reading(self._finished)
                if self._reading.config.keep_versions is not None:
                    await self.bank.athin(
                        self._memory(fold["source"]), self._reading.config.keep_versions
                    )
            except StoreError as error:
                message = f"The memory is stored, and could not be listed: {error}"
        if message is not None and self._reading.config.strict:
            raise StoreError(message)
        memory = None if other is None or edited else other.memory
        forgotten = None if away else await self._without_forgotten(self._writer.written)
        return memory, [said for said in (message, edits, forgotten) if said is not None]

    async def _leave(self) -> None:
        """Let others read on, and let nobody see a reading that is over."""
        await (self.leave() if self._whole is None else self.release())

    async def _without_forgotten(self, written: Sequence[str]) -> str | None:
        """Delete what was written of a document that was forgotten meanwhile; say so."""
        if self._noticed is None:
            return None
        try:
            late = await notices.since(self.bank.records, self._noticed)
            read = sorted(self._read & late)
            for digest in read:
                await self.bank.aforget_source(digest)
            strays = await remove_strays(self.bank.records, written) if late else 0
        except (StoreError, OSError) as error:
            return f"Whether a document was forgotten meanwhile is not known: {error}"
        return _FORGOTTEN if read or strays else None

    async def _past_what_is_known(
        self, cutter: Cutter, fold: Fold, *, edited: bool = False
    ) -> Fold:
        """The fold, moved on past all chunks that the store knows from there.

        Args:
            cutter: of the document.
            fold: as it begins.
            edited: whether it begins at an edit of what is known.
        """
        name, memory = fold["source"].get("memory_name"), self.holding.memory
        segmented = is_segmented(fold["source"])
        read: list[Chunk] = []
        ids = self._ids(cutter, fold, read)
        found = None
        if not (segmented or self._unlisted):
            found = await find(self.bank.records, ids, memory)
        if found is None and not (name or edited) and self._whole is None:
            found = await self._read_to_its_end(cutter.source)
        if found is None:
            return fold
        edit = await newest_edit(self.bank.records, found.id, memory)
        end = cutter.source.length if found.again else found.end
        if segmented and (end < cutter.source.length or found.query is not None):
            return fold
        await asyncio.to_thread(_cut_up_to, end, ids, read)
        known = [chunk for chunk in read if chunk.end <= end and not _is_within(chunk, found)]
        await self.bank.aadopt(memory, found.id)
        found = edit or found
        if found.again and found.skipped:
            end = found.skipped[0][0]
        whole = end >= span_of(fold["source"]).end
        ended = whole or found.enough is not None
        # All of it may have been read before, by another name or by a run that was killed here.
        head = fold["source"].get("head")
        if name and ended and not await self.bank.amove_head(name, found.id, expected=head):
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
        self.parent = fold["progress"]["version"] or self.root
        position, end = fold["progress"]["position"], span_of(fold["source"]).end
        while position < end and (chunk := cutter.cut(position)):
            read.append(chunk)
            self.parent = self._child(chunk)
            yield self.parent
            position = chunk.end

    def _first_of_each(self, cutter: Cutter) -> list[str]:
        """Of each chunk the id of the version that a segment which begins there has after it."""
        found = []
        for start in cutter.cuts:
            chunk = cutter.cut(start)
            assert chunk is not None  # noqa: S101 - it was cut
            fingerprint = _from(self._reading.fingerprint, start)
            root = root_id(self.question, fingerprint)
            found.append(child_id(root, chunk.digest, fingerprint))
        return found

    async def _read_to_its_end(self, source: Source) -> MemoryVersion | None:
        """The end of a reading of this very document, whose earlier versions were thinned out."""
        found = await self.bank.areading(reading_key(self.root, source.digest))
        return found if found and (found.root, found.source) == (self.root, source.digest) else None

    async def _move_head(self, fold: Fold) -> Fold:
        record, progress = fold["source"], fold["progress"]
        name, version = record["memory_name"], progress["version"]
        assert version is not None  # noqa: S101 - `keep` stored it
        writer = self._writes(fold)
        await writer.settle()
        left = await self._flush(writer)
        try:
            if left:  # a head must not lead to what is not stored
                raise _unstored(left, writer.error)
            if await self.bank.amove_head(name, version, expected=record["head"]):
                return fold
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
        await self.release()
        self._sharing.forget()  # the chain which begins at the new head is another one's to read
        at = self.root if head is None else head.id
        self._pauses.begin_anew(at)
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
                "looks": {**looks_of(progress), "wanted": None, "after": 0},
            },
        }

    def _child(self, chunk: Chunk, recalled: Sequence[Recalled] = ()) -> str:
        shown = [f"{item.place}\n{item.text}" for item in recalled]
        return child_id(self.parent, chunk.digest, self.fingerprint, shown)

    def _nothing(self, fold: Fold) -> MemoryVersion:
        """The memory before the first chunk, which is not stored, as what an edit follows."""
        source = fold["source"]
        return MemoryVersion(
            id=self.parent,
            parent="",
            root=self.parent,
            text="",
            tokens=0,
            step=0,
            question=self.question,
            source=source["digest"],
            source_name=source["name"],
            start=0,
            end=0,
            length=source["length"],
            fingerprint=self.fingerprint,
        )

    def _writes(self, fold: Fold) -> VersionWriter:
        if self._writer is None:
            name = fold["source"].get("memory_name")
            self._writer = VersionWriter(
                self.bank,
                self._memory(fold["source"]),
                name,
                beside=self.holding.place,
                saw=self.holding.saw,
            )
        return self._writer

    def _memory(self, source: SourceRecord) -> str:
        """The memory that the versions belong to."""
        root = (self._whole or self).root
        return source.get("memory_name") or reading_key(root, source.get("digest", ""))

    def _holding(self, record: SourceRecord) -> Holding:
        left = partial(self._reading.seconds_left, self._run)
        return Holding(self.bank.records, self._memory(record), left)

    async def _flush(self, writer: VersionWriter) -> int:
        most = 2 * store_seconds()  # for all that the store has not taken yet
        patience = self._patience(most)
        return await writer.flush(patience, strictly=patience < most)

    def _patience(self, most: float) -> float:
        """Seconds to wait for the store: `most`, and hardly any beyond the deadline."""
        left = self._reading.seconds_left(self._run)
        return most if left is None else min(most, max(left, 0.0) + _BEYOND)


def chain_of(reading: Reading, run: Run, fold: Fold) -> Chain | None:
    """The chain of a fold in this call; None for one that began without a store."""
    if run.store is None or fold["progress"]["version"] is None:
        return None
    name = chain_name(fold["source"])
    if name not in run.chains:  # of a resumed run
        run.chains[name] = Chain(reading, run, fold["question"], fold["source"])
    return run.chains[name]


def chain_name(record: SourceRecord) -> str:
    """Tells the chains of a run apart: each segment has another in each round."""
    name = record.get("fold", "")
    return f"{name} {round_of(record)}" if "whole" in record else name


def _sought(record: SourceRecord) -> str | None:
    """What the last round of a document in segments looked for, if not the question."""
    return record.get("query") if is_segmented(record) else None


def _read_versions(parts: Sequence[Fold]) -> tuple[str, ...]:
    """The last versions of those segments of which anything was read."""
    read = [part["progress"] for part in parts if part["progress"]["step"]]
    return tuple(progress["version"] for progress in read if progress["version"])


def _fingerprint(reading: Reading, record: SourceRecord) -> str:
    """Of a reading; a first segment is read as the beginning of the whole document is."""
    known = _from(reading.fingerprint, record.get("start", 0))
    if is_segmented(record):
        config = reading.config
        known = reading_fingerprint(known, "segments", config.segments, "rounds", config.rounds)
    elif "query" in record:
        known = reading_fingerprint(known, "query", record["query"])
    return known


def _from(fingerprint: str, start: int) -> str:
    return reading_fingerprint(fingerprint, "from", start) if start else fingerprint


def _whole(reading: Reading, run: Run, question: str, record: SourceRecord) -> Chain | None:
    """Of a segment, the chain that it is merged into."""
    if "whole" not in record:
        return None
    name = record["whole"]
    if name not in run.chains:  # of a resumed run
        about = SourceRecord(fold=name, digest=record["digest"], segments=record["segments"])
        run.chains[name] = Chain(reading, run, question, about)
    return run.chains[name]


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


def _parts_of(chunk: Chunk, recalled: Sequence[Recalled]) -> tuple[tuple[str, str], ...]:
    """The documents that a chunk of joined ones, and passages shown with it, are of."""
    spans = spans_of(recalled)
    spans += [(chunk.start, chunk.end)] if chunk.text else []
    return tuple(dict.fromkeys(row for span in spans for row in named_parts(chunk.source, *span)))


def _unstored(left: int, error: Exception | None) -> StoreError:
    return StoreError(f"{counted(left, 'memory version')} could not be stored: {error}")
