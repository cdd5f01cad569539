"""Versions: a stored version is taken, one that another reading makes is awaited, or it is read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict

from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.graph.events import edit_event
from memagent_graph.graph.fold import apply_update
from memagent_graph.graph.ids import Lineage, read_of, version_of
from memagent_graph.graph.reading import FoldUpdate, Layer
from memagent_graph.graph.register import Entry, begin_anew, move_to_edit
from memagent_graph.graph.reuse import Reuse
from memagent_graph.graph.segments import Merged
from memagent_graph.graph.state import (
    VERSIONS,
    Fold,
    begin_fold,
    fold_name,
    mark_taken,
    memory_of,
    usage_of,
    whole_scope,
)
from memagent_graph.memory import forget, runs
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.circuit import store_seconds
from memagent_graph.memory.leases import can_lease
from memagent_graph.memory.lookup import readable, versions
from memagent_graph.memory.owners import adopt
from memagent_graph.memory.version import MemoryVersion, edit_version
from memagent_graph.memory.writer import VersionWriter
from memagent_graph.readers.base import Usage
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from memagent_graph.evidence.places import Memory
    from memagent_graph.graph.reading import Advance, FoldStep, Reading
    from memagent_graph.graph.state import Run
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.version import Documents
    from memagent_graph.text.chunks import Chunk


class VersionRecord(TypedDict, total=False):
    """The state of a fold's versions.

    Attributes:
        made: record of its last version without the memory, for a run that is killed before that
            is stored; see `MemoryVersion.to_stub`.
        edit: id of the last edit by a user that the fold continued from, at the time `taken`.
    """

    made: dict[str, Any]
    edit: str | None
    taken: str


class Versions(Layer):
    """Store each memory as a version, and take stored ones instead of reading again."""

    name = VERSIONS
    needs_store = True

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the version after the chunk from the store, or read it and store it."""
        chain = step.call.chain
        assert isinstance(chain, Chain)  # noqa: S101 - the layer needs a store
        lease = chain.entry.lease(step.fold)
        step = replace(step, memory=await chain.open(step.fold))
        update = await chain.follow(step.fold, step.chunk)
        if update is None:
            async with lease.keep_alive():
                update = await read(step)
            if other := await chain.find_other():  # another reading had stored the memory first
                async with lease.keep_alive():
                    update = await read(replace(step, memory=other))
                if update.memory is None:
                    update = replace(update, memory=other)
        gated = step.update_gate and update.memory is None
        after = apply_update(step.fold, step.chunk, update)
        kept = chain.keep(after, step, update, gated=gated)
        layers = {**update.layers, self.name: kept["layers"][self.name]}
        return replace(update, version=kept["progress"]["version"], layers=layers)

    def join(self, states: Sequence[VersionRecord]) -> VersionRecord:
        """Return nothing: what is merged from segments becomes a version of its own."""
        return VersionRecord()


_BEYOND = 0.2
"""Seconds that it has for each operation after the deadline."""
_LONG = 0.1
"""Seconds that a call of the reader takes, beside which waiting for a near store is nothing."""
_SLOW = 0.75
"""Seconds beyond which a store that takes longer than the reader is not waited for."""
_NOTHING = 0.01
"""Share of the time of a call that waiting for the store may add."""

_FORGOTTEN = (
    "A document was forgotten while this was read: what this reading stored of it is deleted. Read "
    "again to keep memories of what there is now."
)
_MISSED = (
    "Memory {memory!r} was edited while it was read, and another reading moved it on first without "
    "the edit, version {edit}: merge it by hand."
)


class Chain:
    """The versions of one fold, as one call of the graph reads and stores them.

    Attributes:
        lineage: which versions these are.
        reuse: begins the fold after those that are stored.
        bank: has those that are stored.
        entry: the fold's among those under way.
        parent: id of the version that the chunk is read from.
        at: that version; None for the root, or if it is not known.
    """

    def __init__(
        self, reading: Reading, run: Run, fold: Fold, *, whole: Chain | None = None
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
        self.at: MemoryVersion | None = None
        reuses = run.config.get("configurable", {}).get("memagent_reuse", True)
        self.lineage: Lineage = Lineage(
            reading,
            fold,
            reuses=reading.config.reuse and reuses,
            whole=None if whole is None else whole.lineage,
        )
        self.entry: Entry = Entry(
            self.bank,
            self.lineage.memory(fold),
            self.lineage.root,
            shares=self.lineage.reuses and reading.config.lease and can_lease(self.bank),
            whole=None if whole is None else whole.entry,
        )
        self.reuse = Reuse(self.lineage, self.bank, self.entry)
        self.reuse.mends = whole is not None and whole.reuse.mends
        self._missed: str | None = None  # an edit that a lost race took away
        # Whether the store is asked for each chunk: until it does not know one.
        self._replays = self.lineage.reuses and not self.lineage.is_listed
        self._writer: VersionWriter | None = None
        self._finished: MemoryVersion | None = None
        self._last: MemoryVersion | None = None
        self._lost = 0
        self._left = 0  # versions that could not be stored
        self._seen: Value | BadRecordError | None = None  # the last one's record
        self._unmoved: str | None = None  # why a named memory's head is where it was
        self._read: set[str] = set()  # digests of what was read here
        self._begun_at, self._took = 0.0, 0.0  # the last chunk, in seconds

    async def open(self, fold: Fold) -> Memory:
        """Return the memory to read from; set `parent`.

        A memory that a person edited in the state first becomes a version of its own: otherwise
        the stored child of the unedited one would overtake the edit.
        """
        memory, version = memory_of(fold), fold["progress"]["version"]
        self.parent = version or self.lineage.root
        begun = [self.at, self.reuse.begun, None if self._whole is None else self._whole.at]
        known = {(one.id, one.text): one for one in begun if one is not None}
        at = (self.parent, memory.text)
        if at in known or at == (self.lineage.root, ""):
            self.at = known.get(at)
            return memory
        made = version_of(fold)
        try:
            stored: MemoryVersion | None = await self.bank.aget(self.parent)
        except MemoryNotFoundError:  # the root, or a version that was never written
            stored = made
            if made is not None:  # by a run that was killed after its checkpoint
                self._write(fold, made)
        except StoreError as error:  # not known: take it for the one that was stored
            self.reuse.missed, self.at = str(error), made
            if made is not None and not made.edited:
                self._write(fold, made)
            return memory
        if stored is None and not (fold["progress"]["step"] or fold["scope"]["head"]):
            self.parent = self.lineage.root  # of a resumed run that reuses nothing, it is another
        if stored is None and self.parent == self.lineage.root:
            stored = self.lineage.make_root(fold["source"])
        if stored is not None and stored.text != memory.text:
            stored = edit_version(stored, memory.text)
            self.parent = stored.id
            self._write(fold, stored)
        self.at = stored
        if made is not None:
            self._last = stored
        return memory

    async def take_edit(self, fold: Fold, *, last: bool = False) -> Fold:
        """Return the fold, from a user's edit of its memory if there is one that it has not.

        What was read since the edited version is to be read again. If it is the `last` call, the
        fold leaves the list of those under way, and no edit is accepted for it any more.
        """
        self._begun_at = asyncio.get_running_loop().time()
        if self._writer is None and not self.entry.due:  # it has read nothing that could be edited
            return fold
        left = self._reading.seconds_left(self._run)
        late = left is not None and left <= 0
        taken, stopped = fold, fold["progress"]["stopped"]
        with suppress(StoreError):  # the next reading of the same takes it
            if self._writer is not None and not late and (last or self._is_near(self._writer)):
                await self._writer.settle(None if last else _NOTHING * self._took)
            lists = self.entry.lease(fold).held
            self.entry.due |= last and not lists  # whom it followed may have left the list
            taken = await self._take(fold)
            lists &= self._whole is None
            while last and not late and taken["progress"]["stopped"] == stopped:
                ended = taken["progress"]["version"] if lists and self._finished else None
                if await self.entry.leave(taken, ended):
                    self._finished = None if ended else self._finished
                    break
                # Otherwise the version was forgotten meanwhile.
                lists &= self.entry.get_pending(taken) is not None
                taken = await self._take(taken)
        self._begun_at = asyncio.get_running_loop().time()
        return taken

    async def _take(self, fold: Fold) -> Fold:
        """The fold, from an edit that it has not taken; the fold itself if there is none."""
        if (found := await self.entry.find_edit(fold)) is None:
            return fold
        (edit, edited), at = found, fold["progress"]["version"]
        self.at = self._last = edit
        if self._finished is not None:
            self._finished = edit if edited == at else None
        after = move_to_edit(fold, edit, edited)
        if self.entry.lease(after).held:
            await self.enlist(after)
        self._run.emit(edit_event(self._reading, self._run, after, self.entry.memory))
        if edited != at and after["progress"]["stopped"]:
            return await self.end(after)
        return after

    async def enlist(self, fold: Fold) -> None:
        """Show others how far the fold is, if the store can be reached."""
        await self.entry.lease(fold).acquire(self.entry.describe(fold))

    def _is_near(self, writer: VersionWriter) -> bool:
        return self._took >= _LONG and writer.seconds <= _NOTHING * self._took

    async def follow(self, fold: Fold, chunk: Chunk) -> FoldUpdate | None:
        """Return the update that another reading makes of a chunk; None to read it here.

        Raises:
            TimeoutError: The deadline came first.
            EditedError: The memory was edited.
        """
        look = partial(self._find_stored, fold, self.lineage.child(self.parent, chunk))
        left = partial(self._reading.seconds_left, self._run)
        found = await self.entry.lease(fold).follow(self.entry.describe(fold), look, left)
        if found is None and (self._replays or self.reuse.mends):
            found = await look()
            self._replays = found is not None
        if found is None:
            return None
        return FoldUpdate(
            None if found.unchanged else found.memory,
            unfinished=found.cut,
            tokens=found.tokens,
        )

    async def _find_stored(self, fold: Fold, key: str) -> MemoryVersion | None:
        """The version after a chunk, if another agent, or a broken-off reading, has it."""
        records, lease = self.bank.records, self.entry.lease(fold)
        places = [(records.versions, key), (records.versions, self.parent), lease.place]
        try:
            child, before, noted = await records.values(places)
            lease.see(noted)
            own = self.parent == fold["progress"]["version"]
            await self.entry.check(fold, before if own else None)
            return None if child is None else await readable(records, key, child)
        except BadRecordError:
            return None
        except StoreError as error:
            self.reuse.missed = str(error)
            return None

    async def abandon(self) -> None:
        """Let others read on from what a fold that failed has stored, unless it was forgotten."""
        if self._writer is not None:
            await self._writer.settle()
            await self._without_forgotten()
        await self.entry.end()

    async def find_other(self) -> Memory | None:
        """Return the memory that another agent stored first in place of this one, if it differs.

        A slow store that takes longer than the reader is not waited for: it would set the pace. If
        such a run is killed, versions are lost between the last that was stored and the checkpoint.
        """
        if self._writer is None:
            return None
        is_slow = self._writer.seconds > max(_SLOW, self._took)
        other = await self._writer.settle(0 if is_slow else store_seconds())
        if other is None or other.id != self.parent:
            return None
        self.at = other
        return other.memory

    def keep(self, fold: Fold, step: FoldStep, update: FoldUpdate, *, gated: bool = False) -> Fold:
        """Begin to store the memory after a chunk, and return the fold with its version.

        `gated` says that the memory is the one that the chunk was read from.
        """
        progress, writer, chunk = fold["progress"], self._writes(fold), step.chunk
        # A memory that a reading ends with is whole, since heads lead there. So is one after
        # something that is not written yet, in the place of which another may be stored.
        ends = progress["stopped"] or chunk.end >= fold["scope"]["end"]
        shares = gated and not ends and writer.idle
        made = read_of(chunk)
        same = self.at.unchanged or self.at.id if shares and self.at else None
        version = self.lineage.after_chunk(
            (self.parent, self.at), fold, chunk, tokens=update.tokens, made_by=made, unchanged=same
        )
        self._last = self.at = version
        self._read |= {digest for digest, _ in version.documents + made.parts}
        self._took = asyncio.get_running_loop().time() - self._begun_at
        fold = self.lineage.with_version(fold, version)
        self._write(fold, version)
        return fold

    async def end(self, fold: Fold) -> Fold:
        """End a fold with its last version; move a named memory's head to it.

        If the race for the head was lost, return the fold begun anew at the winner's head.
        """
        version = fold["progress"]["version"]
        if self._last is None and version not in {None, self.lineage.root}:  # of a resumed run
            with suppress(StoreError, MemoryNotFoundError):
                self._last = await self.bank.aget(str(version))
        if self._last is None:  # nothing was read
            return fold
        self._writes(fold)
        if fold["scope"]["memory_name"]:
            return await self._move_head(fold)
        self._finished = self._last
        return fold

    async def find_merge(self, fold: Fold, parts: Sequence[Fold]) -> Merged | None:
        """Return what these segments were merged to, if that is stored."""
        key = self.lineage.id_of_merge(parts)
        if key is None or not self.lineage.reuses:
            return None
        try:
            found = await self.bank.aget(key)
            await adopt(self.bank.records, self.lineage.memory(fold), found.id)
        except (StoreError, MemoryNotFoundError):
            return None
        return Merged([found.memory], Usage(), found.cut)

    async def store_merge(self, fold: Fold, parts: Sequence[Fold]) -> Fold:
        """Begin to store what was merged from segments; the fold with what was stored first."""
        sources = await self._sources_of(parts)
        version = self.lineage.after_merge(fold, parts, sources)
        if version is None:
            return fold
        fold = self.lineage.with_version(fold, version)
        self._write(fold, version)
        self.at = self._finished = version
        return fold

    async def _sources_of(self, parts: Sequence[Fold]) -> Documents:
        """The documents that the last versions of segments are made from."""
        chains = [self._run.chains.get(fold_name(part["scope"])) for part in parts]
        known = {one.at.id: one.at for one in chains if isinstance(one, Chain) and one.at}
        ids = [str(part["progress"]["version"]) for part in parts]
        with suppress(StoreError):  # of a resumed run
            found = await versions(self.bank.records, [key for key in ids if key not in known])
            known |= {one.id: one for one in found if isinstance(one, MemoryVersion)}
        return tuple(row for one in known.values() for row in one.documents)

    async def settle(self, fold: Fold) -> Memory | None:
        """Wait until all is stored; return what another agent stored first, if that differs."""
        if self._writer is None and version_of(fold) is not None:
            await self._end_resumed(fold)
        if self._writer is None:
            return None
        await self._writer.settle()
        self._left = 0
        if self._unmoved is None:  # else it was waited for already
            self._left = await self._flush(self._writer)
        other = await self._writer.settle()
        is_last = other is not None and other.id == fold["progress"]["version"]
        return other.memory if other is not None and is_last else None

    async def close(self, fold: Fold) -> list[str]:
        """List what was stored, and let others read on; return warnings of what went wrong."""
        if self._writer is None:
            await self._leave()
            missed = self.reuse.missed
            return [] if missed is None else [f"Nothing stored was used: {missed}"]
        away = self._left or self._unmoved is not None  # asked in vain, and that is said
        message, lists = self._unmoved, False
        if self._left and self._whole is not None:
            self._whole.take_over(self, fold)
        elif self._left and message is None:
            message = str(_store_error(self._left, self._writer))
        else:
            lists = message is None and self._whole is None
        # Not before: who took the lease would read the last chunk again.
        leaving = asyncio.ensure_future(self._leave())
        try:
            message = await self._list(fold) if lists else message
        finally:
            await leaving
        if message is not None and self._reading.config.strict:
            raise StoreError(message)
        # Last, since it is of all that was stored.
        forgotten = None
        if not away:
            forgotten, _ = await asyncio.gather(self._without_forgotten(), self._see_last(fold))
        return [said for said in (message, self._missed, forgotten) if said is not None]

    async def _see_last(self, fold: Fold) -> None:
        """Read the record that the answer will be kept with, while it is being written."""
        records = self.bank.records
        with suppress(StoreError):
            place = (records.versions, str(fold["progress"]["version"]))
            (self._seen,) = await records.values([place], refresh=False)

    async def _list(self, fold: Fold) -> str | None:
        """List the reading, and thin its versions out; return what went wrong."""
        keep = self._reading.config.keep_versions
        try:
            if self._finished is not None:
                await self.bank.arecord_reading(self._finished)
            if keep is not None:
                await self.bank.athin(self.lineage.memory(fold), keep)
        except StoreError as error:
            return f"The memory is stored, and could not be listed: {error}"
        return None

    def take_over(self, part: Chain, fold: Fold) -> None:
        """Write what a segment could not store before anything that is merged from it."""
        if part._writer is not None:
            self._writes(fold).take_over(part._writer)
        self._read |= part._read

    async def _end_resumed(self, fold: Fold) -> None:
        """Store and list what a run that was killed had read to its end."""
        await self.open(fold)
        ended = fold["progress"]["stopped"] != "deadline"
        if ended and self._last is not None and fold["scope"]["memory_name"] is None:
            self._writes(fold)
            self._finished = self._last

    async def mark_answered(self, fold: Fold, answer: str) -> None:
        """Keep the answer with its version; the repeat of a reading into a name is another."""
        if self._left:  # then there is no such version
            return
        records, progress = self.bank.records, fold["progress"]
        kept = runs.KeptAnswer(
            answer,
            at=datetime.now(UTC).isoformat(),
            times=1,
            usage=usage_of(progress),
        )
        with suppress(StoreError):
            if name := fold["scope"]["memory_name"]:
                await runs.mark_answered(records, name, self.lineage.identify(fold["source"]))
            await runs.keep_answer(records, str(progress["version"]), kept, self._seen)

    async def _leave(self) -> None:
        """Let others read on, and let nobody see a reading that is over."""
        if self._whole is None:
            await self.entry.end()

    async def _without_forgotten(self) -> str | None:
        """Delete what was written of a document that was forgotten meanwhile; say so."""
        if self.reuse.noticed is None:
            return None
        try:
            late = await forget.notices_since(self.bank.records, self.reuse.noticed)
            read = sorted(self._read & late)
            unread = (await self.bank.aforget_source(*read)).unread if read else ()
        except (StoreError, OSError) as error:
            return f"Whether a document was forgotten meanwhile is not known: {error}"
        more = [f"Read {document!r} into {name!r} again." for name, document in unread]
        return " ".join([_FORGOTTEN, *more]) if read else None

    async def _move_head(self, fold: Fold) -> Fold:
        scope, progress = fold["scope"], fold["progress"]
        name, version = scope["memory_name"], progress["version"]
        assert name is not None and version is not None  # noqa: S101, PT018 - `keep` stored it
        writer = self._writes(fold)
        await writer.settle()
        left = await self._flush(writer)
        try:
            if left:  # a head must not lead to what is not stored
                raise _store_error(left, writer)
            if await self.reuse.move_head(fold, name, scope["head"]):
                return {**fold, "scope": {**scope, "head": version}}
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
        await self.entry.lease(fold).look()
        taken = fold["layers"].get(VERSIONS, {}).get("edit")
        noted = self.entry.noted.edit if self.entry.noted else taken
        history = [] if head is None or not noted else await self.bank.ahistory(head.id)
        if noted and noted not in {one.id for one in history}:
            self._missed = _MISSED.format(memory=name, edit=noted)
        at = self.lineage.root if head is None else head.id
        after = begin_anew(fold, head, at)
        await self.entry.move(after)
        return mark_taken(after, noted) if noted else after

    def _write(self, fold: Fold, version: MemoryVersion) -> None:
        self._writes(fold).add(version, self.entry.describe(fold))

    def _writes(self, fold: Fold) -> VersionWriter:
        if self._writer is None:
            self._writer = VersionWriter(
                self.bank.records,
                self.lineage.memory(fold),
                lease=self.entry.lease(fold),
                after=None if self._whole is None else self._whole._writer,  # noqa: SLF001
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


def _store_error(left: int, writer: VersionWriter) -> StoreError:
    error = writer.error or writer.records.guard.refusal or "The store took too long."
    return StoreError(f"{plural(left, 'memory version')} could not be stored: {error}")


def chain_of(reading: Reading, run: Run, fold: Fold) -> Chain | None:
    """The chain of a fold in this call; None for one that began without a store."""
    if run.store is None or fold["progress"]["version"] is None:
        return None
    chain = run.chains.get(fold_name(fold["scope"]))
    if not isinstance(chain, Chain):  # of a resumed run
        chain = begin_chain(reading, run, fold)
        chain.entry.due = chain.entry.resumed = True
    return chain


def begin_chain(reading: Reading, run: Run, fold: Fold) -> Chain:
    """Make the chain of a fold that begins in this call."""
    whole = _whole(reading, run, fold)
    chain = run.chains[fold_name(fold["scope"])] = Chain(reading, run, fold, whole=whole)
    return chain


def _whole(reading: Reading, run: Run, part: Fold) -> Chain | None:
    """Of a segment, the chain that it is merged into."""
    source, scope = part["source"], part["scope"]
    if not scope["segment"]:
        return None
    name = fold_name({**scope, "segment": 0})
    chain = run.chains.get(name)
    if not isinstance(chain, Chain):  # of a resumed run
        whole = whole_scope(source["length"], segments=scope["segments"])
        about = begin_fold(part["question"], source, {**whole, "number": scope["number"]})
        chain = run.chains[name] = Chain(reading, run, about)
    return chain


async def take_edit(chain: Chain | None, fold: Fold, *, last: bool = False) -> Fold:
    """Return a fold, from an edit of its memory if there is one; see `Chain.take_edit`."""
    if chain is None:
        return fold
    with abandon_if_cancelled(chain):
        return await chain.take_edit(fold, last=last)


async def finish(chain: Chain | None, fold: Fold) -> tuple[Memory, list[str]]:
    """Wait until a fold is stored; return its memory, or that of another writer, and warnings."""
    return await settle(chain, fold), await close(chain, fold)


async def settle(chain: Chain | None, fold: Fold) -> Memory:
    """Wait until a fold's versions are stored; return its memory, or that of another writer."""
    other = None if chain is None else await chain.settle(fold)
    return other or memory_of(fold)


async def close(chain: Chain | None, fold: Fold) -> list[str]:
    """End a settled fold in the store; see `Chain.close`."""
    return [] if chain is None else await chain.close(fold)


@asynccontextmanager
async def close_beside(
    chain: Chain | None, fold: Fold, *, strict: bool
) -> AsyncIterator[list[str]]:
    """Close a settled fold beside the body, and put what went wrong into a list after it."""
    warnings: list[str] = []
    task = asyncio.ensure_future(close(chain, fold))
    _hold(task)
    if strict:
        await asyncio.shield(task)
    try:
        yield warnings
    except Exception:
        await asyncio.wait([task])
        raise
    warnings += await asyncio.shield(task)


_ending: set[asyncio.Future[Any]] = set()  # an event loop's are weak


def _hold(task: asyncio.Future[Any]) -> None:
    _ending.add(task)
    task.add_done_callback(_ending.discard)


@contextmanager
def abandon_if_cancelled(chain: Chain) -> Iterator[None]:
    """Take a reading out of the list if it is cancelled, and then let others read on."""
    try:
        yield
    except asyncio.CancelledError:
        _hold(asyncio.ensure_future(_abandon(chain)))
        raise


async def _abandon(chain: Chain) -> None:
    with suppress(Exception):  # the store may be closed
        await chain.abandon()
