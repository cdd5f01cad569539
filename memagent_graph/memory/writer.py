"""Write versions: at once, or in the background while the next chunk is read."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, NewerRecordError
from memagent_graph.memory import owners
from memagent_graph.memory.lookup import edit_of, list_owners, newest_edit, readable
from memagent_graph.memory.owners import owners_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.version import MemoryVersion

_log = logging.getLogger(__name__)
_PAUSE = 0.1
"""Interval of checks on whether an unreachable store may be tried again, in seconds."""
_ENOUGH = 60.0
"""Time without success after which the writer pauses until the next version, in seconds."""


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
    records: Records,
    version: MemoryVersion,
    owner: str | None = None,
    topic: str | None = None,
    *,
    also: Sequence[PutOp] = (),
    beside: Place | None = None,
) -> Appended:
    """See `MemoryBank.aappend`.

    Args:
        records: the bank's records.
        version: see `MemoryBank.aappend`.
        owner: see `MemoryBank.aappend`.
        topic: see `MemoryBank.aappend`.
        also: further puts in the same round trip.
        beside: another item to read in it.
    """
    value = {**version.to_record(), "owners": [] if owner is None else [owner]}
    listed = [] if owner is None else [records.put(records.members(owner), version.id, {})]
    found = None
    try:
        found = await records.call(
            lambda: records.atomic.aput_if_absent(
                records.versions,
                version.id,
                value,
                topic=topic or version.root,
                also=[*listed, *also],
                beside=beside,
                ttl=records.ttl,
            )
        )
        stored = found.value
        if stored == value:
            return Appended(version, found.beside)
        kept = await readable(records, version.id, stored)
    except NewerRecordError as error:
        _log.warning("%s It was left as it is.", error)
        return Appended(version, None if found is None else found.beside)
    except BadRecordError as error:
        _log.info("%s It was replaced.", error)
        value["owners"] = sorted({*value["owners"], *await list_owners(records, version.id)})
        await records.items([records.put(records.versions, version.id, value), *listed, *also])
        return Appended(version, None if found is None else found.beside)
    if owner is not None and owner not in owners_of(stored):
        await owners.adopt(records, owner, version.id)
    return Appended(kept, found.beside, edit_of(stored, owner) is not None)


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
    def idle(self) -> bool:
        """Whether everything is written."""
        return not self._waiting

    async def settle(self) -> MemoryVersion | None:
        """Wait for pending writes; return the version that another writer stored first, if any.

        It returns at once if the store is known to be unreachable.
        """
        guard = self.records.guard
        while self._waiting and self.error is None and not (guard.failures or self._stuck()):
            self._tried.clear()
            await self._tried.wait()
        return None if self._waiting else self._other

    async def flush(self, patience: float, *, strictly: bool = False) -> int:
        """Write all waiting versions, and return the number of those that could not be written.

        Args:
            patience: time to wait for each version, in seconds.
            strictly: whether `patience` is for all of them together, because of a deadline.
        """
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
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _ENOUGH
        try:
            while self._waiting and loop.time() < give_up:
                if self.records.guard.away or self._is_behind():
                    self._tried.set()  # another caller may have failed
                    await asyncio.sleep(_PAUSE)
                    continue
                if await self._write_one(*self._waiting[0]):
                    give_up = loop.time() + _ENOUGH
        finally:
            self._count(0)
            self._tried.set()

    async def _write_one(self, version: MemoryVersion, also: Sequence[PutOp]) -> bool:
        try:
            done = await append_version(
                self.records, version, self._owner, self._topic, also=also, beside=self._beside
            )
            edit = await newest_edit(self.records, version.id, self._owner) if done.edited else None
        except Exception as error:  # noqa: BLE001 - no error of a store may stop the reading
            self.error = error
            self._tried.set()
            await asyncio.sleep(_PAUSE)  # if the circuit is open, the guard decides when to retry
        else:
            self.error = None
            stored = edit or done.version
            self._other = stored if stored.text != version.text else None
            self.written.append(self._waiting.pop(0)[0].id)
            self._saw(done.beside)
            self._count(len(self._waiting))
        self._tried.set()
        return self.error is None
