"""Write versions: at once, or in the background while the next chunk is read."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from langgraph.store.base import PutOp

from memagent_graph.errors import BadRecordError, NewerRecordError, StoreRefusedError
from memagent_graph.memory import owners
from memagent_graph.memory.atomic import ConditionalPut
from memagent_graph.memory.lookup import edit_of, list_owners, newest_edit, readable
from memagent_graph.memory.owners import owners_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memagent_graph.memory.atomic import Present, Value
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.version import MemoryVersion

_log = logging.getLogger(__name__)
_PAUSE = 0.1
"""Interval of checks on whether an unreachable store may be tried again, in seconds."""
_AT_ONCE = 64
"""Versions that are written in one round trip, at most."""


class Appended(NamedTuple):
    """The result of `append_version`.

    Attributes:
        version: the version now stored: the given one, or that of a writer who was first.
        beside: the other item that was asked for; None if there is none.
        edited: whether a person has replaced the version by an edit.
    """

    version: MemoryVersion
    beside: Value | None = None
    edited: bool = False


async def append_version(
    records: Records, version: MemoryVersion, owner: str | None = None, topic: str | None = None
) -> Appended:
    """See `MemoryBank.aappend`."""
    return (await append_versions(records, [(version, ())], owner, topic))[0]


async def append_versions(
    records: Records,
    versions: Sequence[tuple[MemoryVersion, Sequence[PutOp]]],
    owner: str | None = None,
    topic: str | None = None,
    *,
    beside: Place | None = None,
) -> list[Appended]:
    """Store versions in their order, several in one round trip if the store `groups`.

    Args:
        records: the bank's records.
        versions: the versions, each with further puts in the same atomic step.
        owner: see `MemoryBank.aappend`.
        topic: see `MemoryBank.aappend`.
        beside: another item to read in the round trip.
    """
    puts = []
    for version, also in versions:
        value = {**version.to_record(), "owners": [] if owner is None else [owner]}
        listed = [] if owner is None else [records.put(records.members(owner), version.id, {})]
        op = PutOp(records.versions, version.id, value, ttl=records.ttl)
        puts.append(ConditionalPut(op, topic or version.root, [*listed, *also], beside))
    found = await records.put_each_if_absent(puts)
    return [
        await _append(records, version, owner, put, one)
        for (version, _), put, one in zip(versions, puts, found, strict=True)
    ]


async def _append(
    records: Records,
    version: MemoryVersion,
    owner: str | None,
    put: ConditionalPut,
    found: Present | BadRecordError,
) -> Appended:
    """Return what is stored; a record that cannot be read is replaced."""
    beside = None if isinstance(found, BadRecordError) else found.beside
    try:
        if isinstance(found, BadRecordError):
            raise found
        if found.value == put.op.value:
            return Appended(version, beside)
        kept = await readable(records, version.id, found.value)
    except NewerRecordError as error:
        _log.warning("%s It was left as it is.", error)
        return Appended(version, beside)
    except BadRecordError as error:
        _log.info("%s It was replaced.", error)
        owners_ = {*([] if owner is None else [owner]), *await list_owners(records, version.id)}
        value = {**version.to_record(), "owners": sorted(owners_)}
        await records.items([records.put(records.versions, version.id, value), *put.also])
        return Appended(version, beside)
    if owner is not None and owner not in owners_of(found.value):
        await owners.adopt(records, owner, version.id)
    return Appended(kept, beside, edit_of(found.value, owner) is not None)


class VersionWriter:
    """A queue of versions that the store does not have yet.

    An unreachable store does not stop a reading: versions wait here, and are written in order when
    it is back.

    Args:
        records: the bank's records, with a time limit (`patience`).
        owner: the memory that the versions belong to.
        topic: topic whose watchers are notified of each version.
        after: another writer; nothing is written before all that it has.
        beside: an item to read with each write.
        saw: called with the value at `beside` after each write.

    Attributes:
        seconds: how long the last write took, or the one under way has taken, in seconds.
        written: ids of the versions that the store has, written here or before.
        error: the error of the last write; None if it succeeded.
    """

    def __init__(
        self,
        records: Records,
        owner: str,
        topic: str | None,
        *,
        after: VersionWriter | None = None,
        beside: Place | None = None,
        saw: Callable[[Value | None], object] = lambda _: None,
    ) -> None:
        self.records = records
        self._owner = owner
        self._topic = topic
        self._after = after
        self._beside = beside
        self._saw = saw
        self._waiting: list[tuple[MemoryVersion, Sequence[PutOp]]] = []
        self._counted = 0
        self._writing: asyncio.Task[None] | None = None
        self._tried = asyncio.Event()
        self._other: MemoryVersion | None = None
        self._seconds, self._since = 0.0, 0.0
        self.error: Exception | None = None
        self.written: list[str] = []

    def add(self, version: MemoryVersion, *also: PutOp) -> None:
        """Queue a version, without waiting.

        Args:
            version: the version.
            also: further puts in the same round trip.
        """
        self._waiting.append((version, also))
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
        """See the class."""
        if not self._since:
            return self._seconds
        return max(self._seconds, asyncio.get_running_loop().time() - self._since)

    @property
    def idle(self) -> bool:
        """Whether everything is written."""
        return not self._waiting

    async def settle(self, patience: float | None = None) -> MemoryVersion | None:
        """Wait for pending writes; return the version that another writer stored first, if any.

        It returns at once if the store is known to be unreachable.

        Args:
            patience: longest time to wait, in seconds; None for no limit.
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

        Args:
            patience: time to wait for each version, in seconds.
            strictly: whether `patience` is for all of them together, because of a deadline.
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
        some = self._waiting[: _AT_ONCE if self.records.groups else 1]
        loop = asyncio.get_running_loop()
        self._since = loop.time()
        try:
            done = await append_versions(
                self.records,
                some,
                self._owner,
                self._topic,
                beside=self._beside,
            )
            last, version = done[-1], some[-1][0]
            edit = await newest_edit(self.records, version.id, self._owner) if last.edited else None
        except Exception as error:  # noqa: BLE001 - no error of a store may stop the reading
            self.error = error
            self._tried.set()
            await asyncio.sleep(_PAUSE)  # if the circuit is open, the guard decides when to retry
        else:
            self.error = None
            self._seconds = loop.time() - self._since
            stored = edit or last.version
            self._other = stored if stored.text != version.text else None
            del self._waiting[: len(some)]
            self.written += [one.id for one, _ in some]
            self._saw(last.beside)
            self._count(len(self._waiting))
        finally:
            self._since = 0.0
        self._tried.set()
