"""Write versions: at once, or in the background while the next chunk is read."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    NewerRecordError,
    StoreRefusedError,
)
from memagent_graph.memory.atomic import MOST_LOST_RACES, NO_CONDITIONS, agrees, pause
from memagent_graph.memory.lookup import list_owners, readable
from memagent_graph.memory.owners import owners_of, pointer_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Given, Value
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.leases import Lease, UnderWay
    from memagent_graph.memory.version import MemoryVersion

_log = logging.getLogger(__name__)
_PAUSE = 0.1
"""Interval of checks on whether an unreachable store may be tried again, in seconds."""
_AT_ONCE = 64
"""Versions that are written in one step, at most."""


async def append_version(
    records: Records, version: MemoryVersion, *, owner: str | None = None
) -> MemoryVersion:
    """Store a version unless its id exists, and return the stored one.

    A record that cannot be read is replaced.

    Args:
        records: the bank.
        version: the version.
        owner: the memory that it belongs to; `collect` deletes versions without an owner.
    """
    done = await append_versions(records, [version], owner)
    return version if done is None else done[0]


async def advance(
    records: Records,
    name: str,
    version: MemoryVersion,
    *,
    expected: str | None,
    also: Sequence[PutOp] = (),
    given: Given = NO_CONDITIONS,
) -> bool:
    """Store a version and point a name to it in one step, unless the name has moved.

    Args:
        records: the bank.
        name: the memory's name.
        version: its new head.
        expected: id of the current head; None if the name does not exist.
        also: further puts in the same step.
        given: further conditions; see `AtomicStore.acommit`.

    Returns:
        Whether it was done.
    """
    head = (records.heads, name)
    puts = [records.put(*head, {"version": version.id}), *also]
    conditions = {**given, head: pointer_to(expected)}
    done = await append_versions(records, [version], name, also=puts, given=conditions)
    if done is not None:
        records.note(name, version.id)
    return done is not None


async def append_versions(
    records: Records,
    versions: Sequence[MemoryVersion],
    owner: str | None = None,
    *,
    also: Sequence[PutOp] = (),
    given: Given = NO_CONDITIONS,
) -> list[MemoryVersion] | None:
    """Store versions in one step, each unless its id exists; a record that is damaged is replaced.

    Args:
        records: the bank's records.
        versions: the versions.
        owner: see `append_version`.
        also: further puts in the same step.
        given: further conditions; see `AtomicStore.acommit`.

    Returns:
        The versions now stored: the given ones, or those of writers who were first. None if other
        items are not as given.
    """
    places = [(records.versions, version.id) for version in versions]
    found: dict[Place, Value | BadRecordError | None] = dict.fromkeys(places)
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        kept: list[MemoryVersion] = []
        puts = [*also]
        seen: dict[Place, Value | None] = {}
        for place, version in zip(places, versions, strict=True):
            there = found[place]
            one, value = await _choose(records, version, owner, there)
            kept.append(one)
            if not isinstance(there, BadRecordError):
                seen[place] = there
            if value is not None:
                puts.append(records.put(*place, value))
                if owner is not None:
                    puts.append(records.put(records.members(owner), version.id, {}))
        if not puts or await records.commit(puts, {**given, **seen}):
            return kept
        now = dict(zip(given, await records.values([*given], refresh=False), strict=True))
        if not all(agrees(_value(now[place]), value) for place, value in given.items()):
            return None
        found = dict(zip(places, await records.values(places), strict=True))
    raise _conflict_at(versions[-1])


def _conflict_at(version: MemoryVersion) -> MemoryConflictError:
    message = f"Version {version.id} was changed {MOST_LOST_RACES} times meanwhile: try again."
    return MemoryConflictError(message)


def _value(found: Value | BadRecordError | None) -> Value | None:
    """The value that a condition is compared with; an item that cannot be read is some value."""
    return {} if isinstance(found, BadRecordError) else found


async def _choose(
    records: Records,
    version: MemoryVersion,
    owner: str | None,
    found: Value | BadRecordError | None,
) -> tuple[MemoryVersion, Value | None]:
    """Return the version that is to be stored, and its record, or None if that is there."""
    names = set() if owner is None else {owner}
    if found is None:
        return version, {**version.to_record(), "owners": sorted(names)}
    try:
        kept = await readable(records, version.id, found)
    except NewerRecordError as error:
        _log.warning("%s It was left as it is.", error)
        return version, None
    except BadRecordError as error:
        _log.info("%s It was replaced.", error)
        names |= {*await list_owners(records, version.id)}
        return version, {**version.to_record(), "owners": sorted(names)}
    known = {*owners_of(found)}
    if names <= known or not isinstance(found, dict):
        return kept, None
    return kept, {**found, "owners": sorted(known | names)}


class VersionWriter:
    """A queue of versions that the store does not have yet.

    An unreachable store does not stop a reading: versions wait here, and are written in order when
    it is back.

    Args:
        records: the bank's records, with a time limit (`patience`).
        owner: the memory that the versions belong to.
        after: another writer; nothing is written before all that it has.
        lease: the fold's: each write depends on it as it was seen last, and shows how far the fold
            is.

    Attributes:
        error: the error of the last write; None if it succeeded.
    """

    def __init__(
        self,
        records: Records,
        owner: str,
        *,
        lease: Lease,
        after: VersionWriter | None = None,
    ) -> None:
        self.records = records
        self._owner = owner
        self._after = after
        self._lease = lease
        self._waiting: list[tuple[MemoryVersion, UnderWay]] = []
        self._counted = 0
        self._writing: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._other: MemoryVersion | None = None
        self._seconds, self._since = 0.0, 0.0
        self.error: Exception | None = None

    def add(self, version: MemoryVersion, fold: UnderWay) -> None:
        """Queue a version, without waiting; `fold` is shown to others when it is written."""
        self._waiting.append((version, fold))
        self._other = None
        self.begin()

    def take_over(self, other: VersionWriter) -> None:
        """Queue what another writer has given up."""
        self._waiting += other._waiting
        other._waiting = []
        self.error = other.error
        self.begin()

    def begin(self) -> None:
        """Write what waits, if there is anything and it is not being written."""
        self._count(len(self._waiting))
        if self._waiting and self._stuck():
            self._writing = asyncio.ensure_future(self._write())

    @property
    def seconds(self) -> float:
        """How long the last write took, or the one under way has taken, in seconds."""
        if not self._since:
            return self._seconds
        return max(self._seconds, asyncio.get_running_loop().time() - self._since)

    @property
    def idle(self) -> bool:
        """Whether everything is written."""
        return not self._waiting

    async def settle(self, patience: float | None = None) -> MemoryVersion | None:
        """Wait for pending writes; return the version that another writer stored first, if any.

        It waits for at most `patience` seconds, and not for a store that is known to be
        unreachable.
        """
        guard = self.records.guard
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while (
                    self._waiting and self.error is None and not (guard.failures or self._stuck())
                ):
                    self._tried.clear()
                    await self._tried.wait()
        return None if self._waiting else self._other

    async def flush(self, patience: float, *, strictly: bool = False) -> int:
        """Write all waiting versions, and return the number of those that could not be written.

        It waits `patience` seconds for each or, because of a deadline, `strictly` for all together.
        """
        self.begin()
        waiting = len(self._waiting) + 1
        while self._writing is not None and 0 < len(self._waiting) < waiting:
            waiting = len(self._waiting) if not strictly else 0
            await asyncio.wait([self._writing], timeout=patience)
        if self._writing is not None and not self._writing.done():
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing
        self._count(0)
        return len(self._waiting)

    def _count(self, pending: int) -> None:
        """Update the count of waiting versions in the store's metrics."""
        self.records.guard.count(pending=pending - self._counted)
        self._counted = pending

    def _is_behind(self) -> bool:
        """Whether another writer is to write first; if it has given up, it tries again."""
        if self._after is None or self._after.idle:
            return False
        self._after.begin()
        return True

    def _stuck(self) -> bool:
        return self._writing is None or self._writing.done()

    async def _write(self) -> None:
        try:
            while self._waiting:
                if self.records.guard.away or self._is_behind():
                    self._tried.set()  # another caller may have failed
                    await asyncio.sleep(_PAUSE)
                    continue
                await self._write_some()
                if isinstance(self.error, StoreRefusedError):
                    break  # until the next version, or the end: a refusal stays one
        finally:
            self._count(0)
            self._tried.set()

    async def _write_some(self) -> None:
        some = self._waiting[:_AT_ONCE]
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        try:
            stored = (await self._append(some))[-1]
        except Exception as error:  # noqa: BLE001 - no error of a store may stop the reading
            self.error = error
            self._tried.set()
            await asyncio.sleep(_PAUSE)  # if the circuit is open, the guard decides when to retry
        else:
            self.error = None
            self._seconds = loop.time() - self._since
            self._other = stored if stored.text != some[-1][0].text else None
            del self._waiting[: len(some)]
            self._count(len(self._waiting))
        finally:
            self._since = 0.0
        self._tried.set()

    async def _append(self, some: Sequence[tuple[MemoryVersion, UnderWay]]) -> list[MemoryVersion]:
        versions, lease = [one for one, _ in some], self._lease
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            also, given = lease.renew(some[-1][1])
            done = await append_versions(
                self.records, versions, self._owner, also=also, given=given
            )
            if done is not None:
                for put in also:
                    lease.see(put.value)
                return done
            await lease.look()
        raise _conflict_at(versions[-1])
