"""A fold and the others: it follows one that reads the same, and waits while its memory is held."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.errors import BadRecordError, StoreError
from memagent_graph.graph.coverage import covered
from memagent_graph.graph.events import HeldEvent, PausedFold, ReleasedEvent, about
from memagent_graph.graph.state import noted, round_of, segment_name, span_of
from memagent_graph.memory import sharing
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.lookup import edit_of, newest_edit, readable
from memagent_graph.memory.sharing import (
    LAPSE,
    Lease,
    UnderWay,
    can_lease,
    enlist,
    holder_of,
    is_alive,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.evidence.places import Recalled
    from memagent_graph.graph.ids import Lineage
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.state import Fold, Progress, Run, SourceRecord
    from memagent_graph.graph.versions import Chain, Known
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.sharing import Hold
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.text.chunks import Chunk


_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2
"""Seconds between looks at what the holder of the lease has stored."""


class Sharing:
    """One fold, and the others that read the same.

    Args:
        bank: where all of them store.
        left: seconds until the deadline, None without one.
        alone: whether nobody is followed.
    """

    def __init__(
        self,
        bank: MemoryBank,
        left: Callable[[], float | None],
        *,
        alone: bool,
    ) -> None:
        self._bank = bank
        self._left = left
        self._lease: Lease | None = None
        self._alone = alone or not can_lease(bank.store)

    @property
    def leads(self) -> bool:
        """Whether this run reads for itself, and follows nobody."""
        return self._alone or (self._lease is not None and self._lease.held)

    async def followed(
        self, subject: str, look: Callable[[], Awaitable[MemoryVersion | None]]
    ) -> MemoryVersion | None:
        """Return the version that another reading makes of a chunk; None to read it here.

        Waits as long as that agent shows that it lives, and no longer than the deadline.

        Args:
            subject: what all read on from where this fold began.
            look: finds the version after the chunk; None if it is not stored.

        Raises:
            TimeoutError: The deadline came first.
            HeldUpError: As `look` raised it.
        """
        if self._lease is None and can_lease(self._bank.store):
            self._lease = Lease(self._bank.records, subject)
        lease = self._lease
        if lease is None or await lease.confirm():
            return None
        self._alone = False
        loop = asyncio.get_running_loop()
        pause, alone_at = _FIRST_PAUSE, loop.time() + 2 * LAPSE
        while self._answers():
            await lease.acquire()
            # If the lease can be neither taken nor seen, this run reads on its own.
            self._alone = not (lease.held or lease.foreign) and loop.time() > alone_at
            found = await look()
            if found is not None:
                self._alone = lease.held = False  # the next chunk may be stored as well
                lease.alive()
                return found
            if self.leads:
                return None
            if lease.foreign:
                alone_at = loop.time() + 2 * LAPSE
            left = self._left()
            if left is not None and left <= 0:
                raise TimeoutError
            await asyncio.sleep(pause if left is None else min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._alone = True
        return None

    def beating(self) -> AbstractAsyncContextManager[object]:
        """Shows others that this run lives, if it holds the lease, while it waits for its model."""
        if self._lease is None or not self._lease.held or not self._answers():
            return nullcontext()
        return self._lease.beating()

    async def release(self) -> None:
        """Free the lease; that of an unreachable store lapses instead."""
        if self._lease is not None and self._answers():
            await self._lease.release()

    def forget(self) -> None:
        """Begin anew: the next chunk is of another chain."""
        self._lease = None

    def _answers(self) -> bool:
        return self._bank.records.guard.circuit == "closed"


_FIRST_WAIT = 0.02
_LONGEST_WAIT = 0.25
"""Seconds between looks at whether a memory is still held."""

_ending: set[asyncio.Task[None]] = set()  # an event loop's are weak


class HeldUpError(Exception):
    """A fold that follows another's must wait, or go on from an edit."""


class Holding:
    """All folds of a reading, and the holds of its memory.

    Args:
        records: of the bank.
        memory: its name, or the reading's key.
        left: seconds until the deadline, None without one.

    Attributes:
        asked: the hold that was there at the last look.
        waits: how often a fold has waited: others' versions may have been edited meanwhile too.
        since: when the reading began, ISO 8601, UTC.
        listed: what takes each fold out of the list of those that are under way.
        left: what does so with folds that an earlier run may have left in it.
    """

    def __init__(self, records: Records, memory: str, left: Callable[[], float | None]) -> None:
        self.records = records
        self.memory = memory
        self.asked: Hold | None = None
        self.waits = 0
        self.since = datetime.now(UTC).isoformat()
        self.listed: dict[str, PutOp] = {}
        self.left: dict[str, PutOp] = {}
        self._seconds_left = left
        self._nonce = enlist(self)

    @property
    def place(self) -> Place:
        """Where a hold would be."""
        return sharing.hold_place(self.records, self.memory)

    @property
    def holder(self) -> str:
        """Names this reading to others."""
        return holder_of(self._nonce)

    def saw(self, value: object) -> None:
        """Note what is at `place`."""
        self.asked = sharing.hold_of(value)

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        left = self._seconds_left()
        return left is not None and left <= 0

    async def end(self) -> None:
        """Take this reading's folds out of the list, but none that another one lists by now."""
        with suppress(Exception):  # of a run that is cancelled, the store may be closed
            for lost in range(MOST_LOST_RACES if self.listed else 0):
                await pause(lost)
                gone = {(op.namespace, op.key): op for op in (self.left | self.listed).values()}
                values = await self.records.values([*gone], refresh=False)
                given = {
                    place: value
                    for place, value in zip(gone, values, strict=True)
                    if isinstance(value, dict) and self._may_forget(place, value)
                }
                if await self.records.commit([gone[place] for place in given], given):
                    return

    def _may_forget(self, place: Place, value: Mapping[str, object]) -> bool:
        holder = str(value.get("holder"))
        ours = place in {(op.namespace, op.key) for op in self.listed.values()}
        return holder == self.holder or (not ours and not is_alive(holder))

    async def wait(self, note: PutOp, tell: Callable[[Hold], object]) -> bool:
        """Wait until nobody holds the memory, but not beyond the deadline; say whether anybody did.

        An unreachable store is not waited for longer than the holder of a lease is.

        Args:
            note: what lists a fold as one that waits. It is put again if another reading, which
                lists the same fold, has overwritten it.
            tell: is called once, if anybody holds the memory.
        """
        loop = asyncio.get_running_loop()
        seen, since, answered, seconds = None, loop.time(), loop.time(), _FIRST_WAIT
        places = [self.place, (note.namespace, note.key)]
        while self.asked is not None:
            try:
                held, listed = await self.records.values(places, refresh=False)
                there, answered = sharing.hold_of(held), loop.time()
                if there is not None and not (seen and sharing.is_held(listed)):
                    await self.records.items([note])
            except StoreError:
                there = (seen or self.asked) if loop.time() - answered < LAPSE else None
            if there is None:
                self.asked = None
                break
            if seen is None:
                self.waits += 1
                tell(there)
            if there != seen:
                seen, since = there, loop.time()
            elif loop.time() - since >= there.seconds:
                with suppress(StoreError):  # an edit under it is refused from now on
                    await sharing.release_hold(self.records, there)
            if self.is_late:
                break
            left = self._seconds_left()
            await asyncio.sleep(seconds if left is None else min(seconds, left))
            seconds = min(2 * seconds, _LONGEST_WAIT)
        return seen is not None


@contextmanager
def abandon_if_cancelled(chain: Chain) -> Iterator[None]:
    """Take a reading out of the list if it is cancelled, and then let others read on."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.ensure_future(_abandon(chain))
        _ending.add(task)
        task.add_done_callback(_ending.discard)
        raise


async def _abandon(chain: Chain) -> None:
    with suppress(Exception):  # the store may be closed
        await chain.abandon()


_IDS_AT_ONCE = 100
"""Versions to look at in one round trip."""

_MISSED = (
    "Memory {memory!r} was edited while it was read, and this reading does not have version {ids}: "
    "the edit came too late, the store was unreachable, or another reading moved the memory on "
    "first. Read again, or merge it by hand."
)
_UNKNOWN = "Whether memory {memory!r} was edited while it was held is not known: {error}"


@dataclass(slots=True)
class Pauses:
    """One fold, and the holds of its memory.

    Attributes:
        reading: whose fold it is.
        run: the call of the graph.
        holding: what it shares with the other folds of its question.
        root: the id before the first chunk.
        shares: whether it shares its work with others that read the same.
        edits: what persons made of versions of this fold, by the ids of these.
        looked: whether it was looked, as the fold began, if its memory is held or was edited.
        listed: whether others can see this fold.
    """

    reading: Reading
    run: Run
    holding: Holding
    root: str
    shares: bool
    edits: dict[str, MemoryVersion] = field(default_factory=dict)
    looked: bool = False
    listed: bool = False
    _waits: int = 0  # up to which edits were looked for
    _doubtful: set[str] = field(default_factory=set)  # versions of which there may be edits
    _heads: set[str] = field(default_factory=set)  # versions to begin anew at

    def note(self, fold: Fold, *, held: bool = False) -> PutOp:
        """Return the write that lets others see how far the fold is."""
        there = self._there(fold, held=held)
        self.holding.listed[there.fold] = sharing.forget_reading(self.holding.records, there)
        return sharing.note_reading(self.holding.records, there)

    def _there(self, fold: Fold, *, held: bool = False) -> UnderWay:
        source, progress = fold["source"], fold["progress"]
        name, start, end = span_of(source)
        passed = progress["position"] - start
        return UnderWay(
            memory=self.holding.memory,
            question=fold["question"],
            source=source["digest"],
            source_name=source["name"],
            fold=name,
            round=round_of(source),
            step=progress["step"],
            position=covered(progress, start, end) if progress["again"] else passed,
            length=end - start,
            version=self._version(fold),
            since=self.holding.since,
            holder=self.holding.holder,
            held=held,
            lease=lease_key(source, self.root) if self.shares else "",
        )

    async def enter(self, fold: Fold) -> None:
        """List the fold, and only then look whether its memory is held, or was edited.

        Edits need a hold, and are refused while a fold is listed that does not wait at the version
        that was edited. So of an edit that was accepted before the fold was listed, either the edit
        or its hold is seen here.
        """
        self.listed = True
        there = self._there(fold)
        for name in _siblings(fold["source"]):
            left = sharing.forget_reading(self.holding.records, replace(there, fold=name))
            self.holding.left[name] = left
        with suppress(StoreError):
            await self.holding.records.items([self.note(fold)])
        await self.look(fold)

    async def look(self, fold: Fold) -> None:
        """Look whether the fold's memory is held, or its version was edited."""
        self.looked = True
        records, version = self.holding.records, fold["progress"]["version"] or self.root
        try:
            places = [self.holding.place, (records.versions, version)]
            hold, stored = await records.values(places, refresh=False)
            self.holding.saw(hold)
            if edit_of(stored, self.holding.memory):
                await self.find_edit(fold)
        except StoreError:
            self._doubtful.add(version)

    async def look_at(self, versions: Sequence[str]) -> None:
        """Look whether versions were edited that the fold has passed, so that it misses the edits.

        Another reading had stored them, and this one was not listed while it took them over.
        """
        records, memory = self.holding.records, self.holding.memory
        for first in range(0, len(versions), _IDS_AT_ONCE):
            ids = versions[first:][:_IDS_AT_ONCE]
            try:
                places = [(records.versions, version) for version in ids]
                values = await records.values(places, refresh=False)
            except StoreError:
                self._doubtful.update(ids)
                continue
            found = zip(ids, values, strict=True)
            edited = {version for version, value in found if edit_of(value, memory)}
            self._doubtful |= edited - {*self.edits}

    def begin_anew(self, head: str) -> None:
        """Begin at another reading's version, which has no edits of what was read here."""
        self._doubtful |= {*self.edits}
        self.edits.clear()
        self._heads.add(head)
        self.listed = False

    async def wait(self, fold: Fold, beating: AbstractAsyncContextManager[object]) -> None:
        """Wait until the memory is let go, and look for edits.

        Args:
            fold: all of which is stored.
            beating: shows that this run lives.
        """

        def tell(hold: Hold) -> None:
            told = self._told(fold)
            self.run.emit(HeldEvent(event="held", by=hold.by, since=hold.since, **told))

        async with beating:
            while self.holding.asked is not None and not self.holding.is_late:
                waited = await self.holding.wait(self.note(fold, held=True), tell)
                self._waits = self.holding.waits
                self._doubtful.add(fold["progress"]["version"] or self.root)
                await self.enter(fold)  # somebody may hold and edit it again already
                after = self.edited(fold)
                if waited:
                    told, edited = self._told(after), after is not fold
                    self.run.emit(ReleasedEvent(event="released", edited=edited, **told))
                if after is not fold:
                    with suppress(StoreError):
                        await self.holding.records.items([self.note(after)])
                fold = after

    async def look_for_edits(self, fold: Fold) -> None:
        """Look whether the fold's version was edited while it, or another fold, waited."""
        if self._waits != self.holding.waits:
            self._waits = self.holding.waits
            await self.find_edit(fold)

    async def find_edit(self, fold: Fold) -> None:
        """Find what a person made of the fold's version."""
        records, memory = self.holding.records, self.holding.memory
        version = fold["progress"]["version"] or self.root
        self._doubtful.add(version)
        with suppress(StoreError):
            edit = await newest_edit(records, version, memory)
            if edit is None:
                return
            if _begins_at_head(fold):  # it may have been moved back since that edit
                (head,) = await records.values([(records.heads, memory)])
                if head != {"version": edit.id}:
                    self._doubtful.discard(version)
                    return
            self.edits[version] = edit

    async def missed(self) -> str | None:
        """Say which edits the fold does not have: too late, or the store was unreachable."""
        records, memory = self.holding.records, self.holding.memory
        known = {edit.id for edit in self.edits.values()} | self._heads
        try:
            found = [await newest_edit(records, one, memory) for one in self._doubtful]
        except StoreError as error:
            return _UNKNOWN.format(memory=memory, error=error)
        lost = sorted({edit.id for edit in found if edit is not None} - known)
        return _MISSED.format(memory=memory, ids=", ".join(lost)) if lost else None

    def edited(self, fold: Fold) -> Fold:
        """The fold with what a person made of its memory; the fold itself if nobody did."""
        source, version = fold["source"], fold["progress"]["version"] or self.root
        if version not in self.edits:
            return fold
        edit = self.edits[version]
        while edit.id in self.edits:
            edit = self.edits[edit.id]
        if _begins_at_head(fold):
            source = {**source, "head": edit.id}  # it was moved in one step with the edit
        progress: Progress = {**fold["progress"], "version": edit.id}
        return {**fold, **noted(edit.memory), "source": source, "progress": progress}

    def _version(self, fold: Fold) -> str | None:
        version = fold["progress"]["version"]
        return None if version == self.root else version

    def _told(self, fold: Fold) -> PausedFold:
        _, start, end = span_of(fold["source"])
        return PausedFold(
            **about(self.reading, self.run, fold, fold["source"]["name"]),
            memory=self.holding.memory,
            version=self._version(fold),
            position=fold["progress"]["position"] - start,
            length=end - start,
        )


def _siblings(source: SourceRecord) -> list[str]:
    """The folds of all segments of a document that is read in some."""
    if "whole" not in source:
        return []
    return [segment_name(source["whole"], number) for number in range(source["segments"])]


def _begins_at_head(fold: Fold) -> bool:
    """Whether nothing has been read since a named memory's head."""
    source = fold["source"]
    return "memory_name" in source and source.get("head") == fold["progress"]["version"]


def lease_key(source: SourceRecord, root: str) -> str:
    """Return the key of the lease that readings of the same text from the same version share."""
    return f"{source.get('head') or ''}-{root}-{source['digest']}"


class Company:
    """One fold, and the others that read the same or hold its memory.

    Args:
        reading: the reading's settings.
        run: the call of the graph.
        lineage: the fold's versions.
        known: says whether the fold began in this call, and is told why the store was not asked.
        bank: has the versions that are stored.
        holding: the fold's memory, which others may hold.
        all_stored: waits for the versions that are being written, and returns whether all are
            stored: others cannot edit the rest.
    """

    def __init__(
        self,
        reading: Reading,
        run: Run,
        lineage: Lineage,
        known: Known,
        bank: MemoryBank,
        holding: Holding,
        *,
        all_stored: Callable[[], Awaitable[bool]],
    ) -> None:
        self._lineage, self._known, self._bank, self._holding = lineage, known, bank, holding
        self._all_stored = all_stored
        self._follows = lineage.reuses and reading.config.lease
        left = partial(reading.seconds_left, run)
        self._sharing = Sharing(bank, left, alone=not self._follows)
        self._pauses = Pauses(reading, run, holding, lineage.root, shares=self._follows)
        # Whether the store is asked for each chunk: until it does not know one.
        self._replays = lineage.reuses and not lineage.is_listed
        self._passed: list[str] = []  # versions taken over from another run since it is followed

    @property
    def edits(self) -> dict[str, MemoryVersion]:
        """The edits of versions of this fold, by the ids of the versions."""
        return self._pauses.edits

    def notes(self, fold: Fold) -> list[PutOp]:
        """Return the writes that list a fold; none for a follower, whose leader is listed."""
        return [self._pauses.note(fold)] if self._sharing.leads else []

    async def wait(self, fold: Fold, *, reads: bool) -> Fold:
        """Wait while the memory is held, up to the deadline; return the fold to continue from.

        If a user edited its version, it continues from the edit.

        Args:
            fold: the fold as it is.
            reads: whether a chunk is to be read next.
        """
        leads = self._sharing.leads
        if not self._pauses.looked and (reads or not self._known.begun):
            await (self._pauses.enter if leads or not reads else self._pauses.look)(fold)
        # A follower waits where its leader does: a version that this one has passed is not edited.
        if self._holding.asked is not None and (leads or not reads) and await self._all_stored():
            await self._pauses.wait(fold, self.beating())
        await self._pauses.look_for_edits(fold)
        return self._pauses.edited(fold)

    async def followed(
        self, fold: Fold, parent: str, chunk: Chunk, recalled: Sequence[Recalled]
    ) -> MemoryVersion | None:
        """Return the version that another reading makes of a chunk; None to read it here.

        Args:
            fold: the fold before the chunk.
            parent: id of the version to read from.
            chunk: the chunk to read.
            recalled: what is shown again with it.

        Raises:
            TimeoutError: The deadline came first.
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        key = self._lineage.child(parent, chunk, recalled)
        found, look = None, partial(self._stored, fold, parent, key)
        if self._follows:
            begin = lease_key(fold["source"], self._lineage.root)
            found = await self._sharing.followed(begin, look)
        if found is None and (self._replays or self._known.mends):
            found = await look()
            self._replays = found is not None
        if found is None:
            await self._lead(fold)
        elif not self._sharing.leads:
            self._pauses.listed = False
            self._passed.append(parent)
        return found

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
        held = self._holding.asked is not None and await self._all_stored()
        if held or self._pauses.edited(fold) is not fold:
            raise HeldUpError

    async def _stored(self, fold: Fold, parent: str, key: str) -> MemoryVersion | None:
        """The version after a chunk, if another agent, or a reading that was broken off, has it.

        Raises:
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        records, memory = self._bank.records, self._holding.memory
        places = [(records.versions, key), (records.versions, parent), self._holding.place]
        try:
            child, before, hold = await records.values(places)
            self._holding.saw(hold)
            if edit_of(before, memory) is not None:
                await self._pauses.find_edit(fold)
                if self._pauses.edited(fold) is not fold:
                    raise HeldUpError
            found = None if child is None else await readable(records, key, child)
        except BadRecordError:
            found = None
        except StoreError as error:
            self._known.missed = str(error)
            return None
        held = found is None and self._holding.asked is not None and self._sharing.leads
        if held and await self._all_stored():
            raise HeldUpError
        return found

    def beating(self) -> AbstractAsyncContextManager[object]:
        """Shows who follows that this run lives while it waits for its model."""
        return self._sharing.beating()

    async def missed(self) -> str | None:
        """Say which edits the fold does not have: too late, or the store was unreachable."""
        return await self._pauses.missed()

    async def release(self) -> None:
        """Let others read on."""
        await self._sharing.release()

    async def leave(self) -> None:
        """Take the reading out of the list, and only then let others read on: they list theirs."""
        await self._holding.end()
        await self.release()

    async def begin_anew(self, head: str) -> None:
        """Begin at another reading's version; the chain from there is another's to read."""
        await self.release()
        self._sharing.forget()
        self._pauses.begin_anew(head)
