"""The chain of versions: append to it and move names in one step, and do so behind a reading.

A version can belong to several memories, its owners, and is deleted with the last. A reading writes
in the background, each write given its leases and the notices of forgotten documents.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, NewerRecordError
from memagent_graph.memory.items import no_such_version, owners_of
from memagent_graph.memory.store import NOTHING, Tries, agrees
from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.items import Place, Records, Stored
    from memagent_graph.memory.lease import Lease, UnderWay
    from memagent_graph.memory.store import Given, Value

_log = logging.getLogger(__name__)


def pointer_to(version: str | None) -> Value | None:
    """Return the record of a name that points to a version; None for a name that does not exist."""
    return None if version is None else {"version": version}


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
    return version if done is None else done[version.id]


async def advance_head(
    records: Records,
    name: str,
    version: MemoryVersion,
    *,
    expected: str | None,
    also: Sequence[PutOp] = (),
    given: Given = NOTHING,
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


async def move_head(
    records: Records, name: str, to: str, *, expected: str | None, also: Sequence[PutOp] = ()
) -> bool:
    """Point a name to another version, unless the name has moved.

    Args:
        records: the bank.
        name: the memory's name.
        to: id of its new head.
        expected: id of the current head; None if the name does not exist.
        also: further puts in the same step.

    Returns:
        Whether the name points to the version now.

    Raises:
        MemoryNotFoundError: There is no such version.
    """
    head, place, listed = (records.heads, name), (records.versions, to), (records.members(name), to)
    puts, given = [records.put(*head, {"version": to}), *also], {head: pointer_to(expected)}
    if not await records.commit(puts, {**given, place: ..., listed: ...}):
        now, value = await records.values([head, place])
        if not isinstance(value, dict):
            raise no_such_version(to)
        if now != pointer_to(expected):
            return now == {"version": to}  # another writer moved it to the same version
        if not await adopt(records, name, to, value, also=puts, given=given):
            return False
    records.note(name, to)
    return True


async def adopt(
    records: Records,
    owner: str,
    key: str,
    value: Stored,
    *,
    also: Sequence[PutOp] = (),
    given: Given = NOTHING,
) -> bool:
    """Add a memory to the owners of a version with this record, and return whether it is there.

    Earlier versions need not be adopted: they are inherited when their owner releases them. See
    `append_versions` for what is done `also`, and what is `given`.
    """
    version, there = MemoryVersion.from_record(value, key), {(records.versions, key): ...}
    done = await append_versions(
        records, [version], owner, also=also, given={**given, **there}, found={key: value}
    )
    return done is not None


async def append_versions(
    records: Records,
    versions: Sequence[MemoryVersion],
    owner: str | None = None,
    *,
    also: Sequence[PutOp] = (),
    given: Given = NOTHING,
    found: Mapping[str, Stored] = NOTHING,
) -> dict[str, MemoryVersion] | None:
    """Store versions in one step, each unless its id exists; a record that is damaged is replaced.

    Args:
        records: the bank's records.
        versions: the versions, each after those that it follows.
        owner: see `append_version`.
        also: further puts in the same step.
        given: further conditions; see `AtomicStore.acommit`.
        found: records of versions as they were seen; none is expected of the others.

    Returns:
        The versions now stored, by id: the given ones, or those of writers who were first. What
        follows one in the place of which another memory is stored is left out. None if other items
        are not as given.
    """
    ids = [version.id for version in versions]
    found = {key: found.get(key) for key in ids}
    async for _ in Tries(f"Version {ids[-1]!r}"):
        kept: dict[str, MemoryVersion] = {}
        replaced: set[str] = set()
        after: dict[str, Stored] = {}
        for version in versions:
            if not replaced.isdisjoint(version.parents):
                replaced.add(version.id)
                continue
            one, after[one.id] = _choose(version, owner, found[version.id])
            kept[one.id] = one
            if one.text != version.text:
                replaced.add(one.id)
        puts, seen = records.changes(found, after)
        puts += also
        if not puts or await records.commit(puts, {**given, **seen}):
            return kept
        stored = await records.values([*given], refresh=False)
        now = [{} if isinstance(one, BadRecordError) else one for one in stored]
        if not all(map(agrees, now, given.values())):
            break
        found = dict(await records.by_id(ids))
    return None


def _choose(
    version: MemoryVersion, owner: str | None, found: Stored
) -> tuple[MemoryVersion, Stored]:
    """Return the version that is to be stored, and its record, which may be there."""
    names = set() if owner is None else {owner}
    if found is None:
        return version, version.to_record(names)
    try:
        kept = MemoryVersion.from_record(found, version.id)
    except NewerRecordError as error:
        _log.warning("%s It was left as it is.", error)
        return version, found
    except BadRecordError as error:
        _log.info("%s It was replaced.", error)
        names |= {*owners_of(found)}
        return version, version.to_record(names)
    known = {*owners_of(found)}
    if names <= known or not isinstance(found, dict):
        return kept, found
    return kept, {**found, "owners": sorted(known | names)}


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
        self.own |= {digest for digest, _ in version.own}
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
        async for _ in Tries(f"The reading of version {versions[-1].id!r}"):
            if self.fence.forgotten:
                break
            alone = len(some) == 1  # a version that follows another may be left out
            now = {lease: lease.renew(fold, alone=alone) for lease, fold in leases.items()}
            held = {lease: value for lease, value in now.items() if lease.held}
            also = [records.put(*lease.place, value) for lease, value in held.items()]
            also += [lease.ends for lease, value in held.items() if value is None and lease.ends]
            given = {**self.fence.given, **{lease.place: lease.seen for lease in leases}}
            owner = some[-1].fold.memory
            done = await append_versions(records, versions, owner, also=also, given=given)
            if done is not None:
                for lease, value in now.items():
                    lease.gone = lease in held and value is None
                    lease.see(value)
                return done
            await asyncio.gather(self.fence.look(), *(lease.look() for lease in leases))
        return {}
