"""How a reading writes to a store that it shares: under a lease, and in the background.

Each fold has a record while it is under way. Of several who would read the same, one holds it and
reads, and the others follow. Edits are noted there. What a fold writes depends on its record.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, StoreError
from memagent_graph.memory import chain
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause, race_error
from memagent_graph.memory.circuit import FOLLOWED
from memagent_graph.memory.items import Holder, is_gone
from memagent_graph.memory.version import ChunkRead, MemoryVersion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records, UnderWay

_AT_ONCE = 64
"""Versions that are written in one step, at most."""
LAPSE = 5.0
"""Seconds without a sign of life after which anybody can take a lease."""
BEAT = 1.0
"""Seconds between signs of life while the holder waits for a model."""


class EditedError(Exception):
    """The memory of a fold was edited: it continues from there before it takes a step."""


class Lease:
    """The record of a fold: its holder reads, and others follow what the holder stores.

    It saves work and protects nothing: after a lapse, two can read for a moment, and errors of the
    store are ignored.

    Args:
        records: the bank's records.
        key: its key, the same for all who would read the same; one of its own by default.
        clock: seconds, from any origin. Clocks of two machines are never compared.

    Attributes:
        held: whether this instance had the lease when it last looked.
        seen: the record as it was when it was last seen, at `place`.
        turn: the version from which the fold is to continue, in the place of one of its own.
        ends: what is put as the fold's last version is written, and the record deleted unless an
            edit is noted in it; None before.
        gone: whether the record went in that step.
        due: whether its version may have been edited while nothing was noted: before this call, or
            when it was not listed.
        resumed: whether what is listed may be of the call that this one resumes.
    """

    def __init__(
        self, records: Records, key: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.held = self.due = self.resumed = self.gone = False
        self.ends: PutOp | None = None
        self._records, self._clock = records, clock
        self._holder = Holder()
        self.place: Place = (records.leases, self._holder.number if key is None else key)
        self._beats = 0  # never starts again: a value that returned would look like silence
        self._fold: UnderWay
        self.seen: Value | None = None
        self.turn: MemoryVersion | None = None
        self._bad: str | None = None  # an edit that cannot be read
        self._since = clock()

    async def move_to(self, key: str) -> None:
        """Be listed under another key, unless it has one of its own, and no more where it was."""
        await self.release()
        self.held, self.seen = False, None
        if self.place[1] != self._holder.number:
            self.place = (self.place[0], key)

    async def acquire(self, fold: UnderWay) -> bool:
        """Take the lease if it is free, its holder is dead, or it did not change for `LAPSE`.

        Return whether it is held now; False as well if the store fails.
        """
        self._fold, held, self.held = fold, self.held, False
        with suppress(Exception):
            if held or not self._beats:  # free, as mostly at first
                self.held = await self._swap(self._value())
            else:
                await self.look()
            if not self.held:
                ours = self._is_ours(self.seen)  # also if the reply to an earlier put was lost
                takes = self.is_free or (ours and held)
                self.held = (takes and await self._swap(self._value())) or ours
        return self.held

    @property
    def foreign(self) -> bool:
        """Whether somebody else held the lease when this instance last looked."""
        return self.seen is not None and not self._is_ours(self.seen)

    @property
    def is_free(self) -> bool:
        """Whether anybody may take the lease, as it was seen last."""
        value, age = self.seen, self._clock() - self._since
        if not value or not isinstance(value.get("beat"), int):  # absent, or malformed
            return True
        return age >= LAPSE or is_gone(str(value.get("holder")))

    def see(self, value: object) -> None:
        """Take in what the record is now; if it is another's, `held` becomes False."""
        now = value if isinstance(value, dict) else None
        if now != self.seen:
            self.seen, self._since = now, self._clock()
        self.held = self.held and self._is_ours(now)

    async def look(self) -> None:
        """Read the record."""
        (value,) = await self._records.values([self.place], refresh=False)
        if isinstance(value, BadRecordError):  # nobody's: make room
            await self._records.items([self._records.put(*self.place, None)])
        self.see(value)

    def alive(self) -> None:
        """Note another sign of life of the holder, such as a new version."""
        self._since = self._clock()

    async def beat(self) -> None:
        """Give a sign of life; if somebody took the lease over, `held` becomes False."""
        if self.held:  # also if the reply to an earlier put was lost
            await (self._swap(self._value()) if self._is_ours(self.seen) else self.look())

    @asynccontextmanager
    async def keep_alive(self) -> AsyncIterator[None]:
        """Beat every `BEAT` seconds while the body runs; failures of the store are ignored."""
        done = asyncio.Event()

        async def beat() -> None:
            while self.held:
                with suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), BEAT)
                    return
                with suppress(Exception):  # the store may be back for the next beat
                    await self.beat()

        task = asyncio.create_task(beat())
        try:
            yield
        finally:
            done.set()
            # A beat under way may end: cancelled, it could take effect without our knowing.
            await asyncio.wait([task], timeout=BEAT)
            task.cancel()

    async def release(self) -> None:
        """Free the lease if it is still ours. If the store fails, the lease lapses instead."""
        if self._records.guard.circuit == "closed":
            with suppress(Exception):
                while self._is_ours(self.seen) and not await self._swap(None):
                    pass
            self.held = False

    async def follow(
        self,
        fold: UnderWay,
        ids: tuple[str, str],
        left: Callable[[], float],
        *,
        replays: bool = False,
        unread: bool = False,
    ) -> MemoryVersion | None:
        """Return the version that another reading makes of the next chunk; None to make it here.

        Args:
            fold: the fold before the chunk, shown to others when the lease is taken.
            ids: those of that version and of the one before.
            left: returns the seconds until the deadline.
            replays: whether a reading that was broken off may have stored it.
            unread: whether the store did not have the version a moment ago.

        Raises:
            TimeoutError: The deadline came first.
            EditedError: The fold has yet to continue from an edit.
        """
        self.ends, self.gone = None, False
        if self.held and self._clock() - self._since >= LAPSE:  # as when the process was stopped
            with suppress(Exception):
                await self.beat()
        if self.held:
            self.alive()
            return await self.find(fold, *ids) if replays else None
        looks = 0
        while self._records.guard.circuit == "closed":
            if await self.acquire(fold) and unread:  # nobody reads: no look is needed
                return None
            unread = False
            found = await self.find(fold, *ids)
            if found is not None:
                self.held = False  # the next one may be stored as well
                self.alive()
                return found
            if self.held or not self.foreign:  # else it can be neither taken nor seen
                return None
            if (seconds := left()) <= 0:
                raise TimeoutError
            looks += 1
            await asyncio.sleep(min(FOLLOWED.after(looks), seconds))
        return None

    async def find(self, fold: UnderWay, key: str, parent: str) -> MemoryVersion | None:
        """Return a stored version that follows `parent`; None without one.

        Raises:
            EditedError: The fold has yet to continue from an edit.
        """
        records = self._records
        places = [(records.versions, key), (records.versions, parent), self.place]
        with suppress(StoreError):  # the chunk is read without it
            child, before, noted = await records.values(places)
            self.see(noted)
            if parent == fold.version != fold.head and chain.edit_of(before, fold.memory):
                self.due = await chain.newest_edit(records, parent, fold.memory) is not None
            if self.due or self.get_noted(fold):
                raise EditedError
            return None if child is None else MemoryVersion.from_record(child, key)
        return None

    def get_noted(self, fold: UnderWay) -> str | None:
        """Return the id of the edit that is noted, if the fold has not continued from it."""
        noted = self.seen or {}
        edit = noted.get("edit") if noted.get("memory") == fold.memory else None
        return edit if isinstance(edit, str) and edit not in ("", fold.edit, self._bad) else None

    async def find_edit(self, fold: UnderWay) -> tuple[MemoryVersion, str] | None:
        """Return the edit to continue from, and the id of the version that was edited, if any."""
        records, at = self._records, fold.version
        if self.due:
            await self.look()
            self.due = False
            if at is not None and at != fold.head:
                newest = await chain.newest_edit(records, at, fold.memory)
                self.due = newest is not None  # it is found again if this attempt fails
                if newest is not None:
                    return newest, at
        if self.seen is None or (edit := self.get_noted(fold)) is None:
            return None
        of, (found,) = str(self.seen.get("of")), await chain.find_versions(records, [edit])
        if isinstance(found, MemoryVersion):
            return found, of
        self._bad = edit
        return None

    async def leave(self, fold: UnderWay) -> bool:
        """Remove the record, unless the fold has yet to continue from an edit; say whether."""
        if self.gone:
            return True
        if not self.held:
            await self.look()
        if self.get_noted(fold):
            return False
        others = self.foreign and not (self.is_free or self.resumed)
        return others or await self._swap(None)  # another reading of the same may be listed

    def renew(self, fold: UnderWay, *, alone: bool) -> Value | None:
        """Return what the record becomes as the fold's versions are written, or one `alone`.

        `see` it when it is written, which must depend on what was `seen`.
        """
        self._fold = fold
        if not self.held:
            return self.seen
        value = self._value()
        return None if alone and self.ends and value["edit"] == fold.edit else value

    def _value(self) -> Value:
        """The record, with an edit that is noted in it and that the fold has yet to take."""
        fold, noted = self._fold, self.seen or {}
        self._beats += 1
        value = {**asdict(fold), "holder": str(self._holder), "beat": self._beats}
        del value["seen"]  # the store's clock says it
        if noted.get("memory") == fold.memory and noted.get("edit"):
            value["of"] = noted.get("of")
            if noted["edit"] != fold.edit:
                # It may have been taken since the fold was as described: writes are made later.
                edit, taken = noted["edit"], noted.get("taken")
                value |= {"version": edit, "edit": edit, "taken": taken}
        return value

    async def _swap(self, value: Value | None) -> bool:
        """Change the record if it is as it was seen last, and else look at it; say whether."""
        put = self._records.put(*self.place, value)
        done = await self._records.commit([put], {self.place: self.seen})
        if done:
            self.see(value)
        else:
            await self.look()
        return done

    def _is_ours(self, value: Value | None) -> bool:
        return value is not None and value.get("holder") == str(self._holder)


LAST = "last"
"""Key of the number of the last notice."""


def number_of(value: Value | BadRecordError | None) -> int:
    """Return the number of a notice; 0 without one."""
    number = value.get("number") if isinstance(value, dict) else None
    return number if isinstance(number, int) else 0


class Fence:
    """The notices of forgotten documents, as a reading saw them when it began.

    Each write depends on them: nothing that was made from a document is stored after it went.

    Attributes:
        own: digests of the documents that were read here.
        read: those, and those of the memory that the reading began with.
        forgotten: those of them that were forgotten; then nothing more is stored.
        given: what a write depends on; see `AtomicStore.acommit`.
    """

    def __init__(self, records: Records) -> None:
        self.own, self.read, self.forgotten = set[str](), set[str](), set[str]()
        self.given: dict[Place, Value | None] = {}
        self._records, self._last = records, 0
        self.place: Place = (records.forgotten, LAST)

    def add(self, version: MemoryVersion) -> None:
        """Note what a version is made from."""
        parts = version.made_by.parts if isinstance(version.made_by, ChunkRead) else ()
        self.own |= {version.document.digest, *(digest for digest, _ in parts)}
        self.read |= {*self.own, *(digest for digest, _ in version.sources)}

    def begin(self, found: Value | BadRecordError | None) -> None:
        """Take in the number of the last notice, unless it is known: what follows is late."""
        if not self.given:
            self.see(found)

    def see(self, found: Value | BadRecordError | None) -> None:
        """Take in the number of the last notice, as it is stored now."""
        self._last = number_of(found)
        self.given = {} if isinstance(found, BadRecordError) else {self.place: found}

    async def look(self) -> None:
        """Look whether a document was forgotten since the notices were last seen."""
        if not self.given:
            return
        (last,) = await self._records.values([self.place])
        if number_of(last) > self._last:
            places = {digest: (self._records.forgotten, digest) for digest in self.read}
            found = zip(places, await self._records.values([*places.values()]), strict=True)
            self.forgotten |= {one for one, notice in found if number_of(notice) > self._last}
        self.see(last)


class _Waiting(NamedTuple):
    version: MemoryVersion
    fold: UnderWay  # that made it, as others are to see it
    lease: Lease


class VersionWriter:
    """The versions of a reading, with all its folds, that the store does not have yet.

    An unreachable store does not stop a reading: versions wait here, and are written in order when
    it is back. Each write depends on the leases of the folds as they were seen last, and shows how
    far the folds are. If another memory is stored in place of one, its fold turns to that.

    Args:
        records: the bank's records, with a time limit (`patience`).

    Attributes:
        fence: notices of forgotten documents.
        error: the error of the last write; None if it succeeded.
    """

    def __init__(self, records: Records) -> None:
        self.records, self.fence = records, Fence(records)
        self._waiting: list[_Waiting] = []
        self._counted = self._added = 0
        self._writing: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._seconds, self._since = 0.0, 0.0
        self.error: Exception | None = None

    def add(self, version: MemoryVersion, fold: UnderWay, lease: Lease) -> None:
        """Queue a version, without waiting; `fold` is shown to others when it is written."""
        self.fence.add(version)
        self._waiting.append(_Waiting(version, fold, lease))
        self._added += 1
        self._begin()

    @property
    def seconds(self) -> float:
        """How long the last write took, or the one under way has taken, in seconds."""
        now = asyncio.get_running_loop().time()
        return max(self._seconds, now - self._since if self._since else 0.0)

    async def settle(self, patience: float | None = None) -> None:
        """Wait until all that was added so far is written, for at most `patience` seconds.

        A store that is known to be unreachable is not waited for.
        """
        goal, guard = self._added, self.records.guard
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._added - len(self._waiting) < goal and self._writing is not None:
                    if self._writing.done() or self.error is not None or guard.failures:
                        break
                    self._tried.clear()
                    await self._tried.wait()

    async def flush(self, patience: float, *, strictly: bool = False) -> int:
        """Write all waiting versions, and return the number of those that could not be written.

        It waits `patience` seconds for each, or `strictly` for all together.
        """
        self._begin()
        waiting = len(self._waiting) + 1
        while self._writing is not None and 0 < len(self._waiting) < waiting:
            waiting = len(self._waiting) if not strictly else 0
            await asyncio.wait([self._writing], timeout=patience)
        if self._writing is not None and self._writing.cancel():
            with suppress(asyncio.CancelledError):
                await self._writing
        self._count(0)
        return len(self._waiting)

    def _begin(self) -> None:
        self._count(len(self._waiting))
        if self._waiting and (self._writing is None or self._writing.done()):
            self._writing = asyncio.ensure_future(self._write())

    def _count(self, pending: int) -> None:
        """Update the count of waiting versions in the store's metrics."""
        self.records.guard.count(pending=pending - self._counted)
        self._counted = pending

    async def _write(self) -> None:
        try:
            while self._waiting:
                self._tried.set()  # another caller may have failed
                await self.records.guard.wait()
                await self._write_some()
                if self.error is not None and not self.records.guard.failures:
                    break  # until the next version, or the end: a refusal stays one
        finally:
            self._count(0)
            self._tried.set()

    async def _write_some(self) -> None:
        some, loop = self._waiting[:_AT_ONCE], asyncio.get_running_loop()
        self._since = loop.time()
        try:
            stored = await self._append(some)
        except Exception as error:  # noqa: BLE001 - no error of a store may stop the reading
            self.error = error
        else:
            self.error, self._seconds = None, loop.time() - self._since
            del self._waiting[: len(some)]
            for version, _, lease in some:
                if (one := stored.get(version.id)) and one.text != version.text:
                    lease.turn = one
                    self._waiting = [left for left in self._waiting if left.lease is not lease]
            self._count(len(self._waiting))
        finally:
            self._since = 0.0

    async def _append(self, some: Sequence[_Waiting]) -> dict[str, MemoryVersion]:
        records, versions = self.records, [one.version for one in some]
        leases = {one.lease: one.fold for one in some}
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            if self.fence.forgotten:
                return {}
            alone = len(some) == 1  # a version that follows another may be left out
            now = {lease: lease.renew(fold, alone=alone) for lease, fold in leases.items()}
            held = {lease: value for lease, value in now.items() if lease.held}
            also = [records.put(*lease.place, value) for lease, value in held.items()]
            also += [lease.ends for lease, value in held.items() if value is None and lease.ends]
            given = {**self.fence.given, **{lease.place: lease.seen for lease in leases}}
            owner = some[-1].fold.memory
            done = await chain.append_versions(records, versions, owner, also=also, given=given)
            if done is not None:
                for lease, value in now.items():
                    lease.gone = lease in held and value is None
                    lease.see(value)
                return done
            await asyncio.gather(self.fence.look(), *(lease.look() for lease in leases))
        raise race_error("The reading of version", versions[-1].id)
