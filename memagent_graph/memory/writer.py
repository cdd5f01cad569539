"""How a reading writes: in the background, each write given its lease and the notices."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError
from memagent_graph.memory import chain
from memagent_graph.memory.store import MOST_LOST_RACES, pause, race_error
from memagent_graph.memory.version import ChunkRead, MemoryVersion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.lease import Lease, UnderWay
    from memagent_graph.memory.store import Value

_AT_ONCE = 64
"""Versions that are written in one step, at most."""
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
        self._records = records
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
        self.given = {} if isinstance(found, BadRecordError) else {self.place: found}

    async def look(self) -> None:
        """Look whether a document was forgotten since the notices were last seen."""
        if not self.given:
            return
        before = number_of(self.given[self.place])
        (last,) = await self._records.values([self.place])
        if number_of(last) > before:
            places = {digest: (self._records.forgotten, digest) for digest in self.read}
            found = zip(places, await self._records.values([*places.values()]), strict=True)
            self.forgotten |= {one for one, notice in found if number_of(notice) > before}
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
        leases: those of the folds.
        since: when the reading began, ISO 8601, UTC.
        error: the error of the last write; None if it succeeded.
    """

    def __init__(self, records: Records) -> None:
        self.records, self.fence = records, Fence(records)
        self.since = datetime.now(UTC).isoformat()
        self.leases: list[Lease] = []
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
