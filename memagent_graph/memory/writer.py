"""Writes versions behind the reading's back, in order, while the next chunk is read."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from memagent_graph.memory.appending import append
from memagent_graph.memory.lookup import newest_edit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.records import Place
    from memagent_graph.memory.version import MemoryVersion

_PAUSE = 0.1
"""Seconds between looks at whether a store that is away may be tried again."""
_ENOUGH = 60.0
"""Seconds without a success after which nothing is tried until the next version comes."""


class VersionWriter:
    """Holds what the store does not have yet.

    A store that is away stops no reading: versions wait here and are written, in order, when it
    is back.

    Args:
        bank: where to; with a patience, so that no write takes for ever.
        owner: the memory that the versions belong to.
        topic: name whose watchers are notified of each version.
        saw: is told what stands at `beside` at each write.
        beside: what else is read with each write.

    Attributes:
        written: ids of the versions that were written, or that the store had already.
    """

    def __init__(
        self,
        bank: MemoryBank,
        owner: str,
        topic: str | None,
        *,
        beside: Place | None = None,
        saw: Callable[[Value | None], object] = lambda _: None,
    ) -> None:
        self.bank = bank
        self._owner = owner
        self._topic = topic
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
        """Begin to write a version; does not wait.

        Args:
            version: what to write.
            also: what else is put in the same round trip.
        """
        self._waiting.append((version, also))
        self._other = None
        self._count(len(self._waiting))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    @property
    def idle(self) -> bool:
        """Whether all is written."""
        return not self._waiting

    async def settle(self) -> MemoryVersion | None:
        """Wait for the writes in flight; return what another agent stored first, if one did.

        Returns at once where the store is known to be away.
        """
        guard = self.bank.records.guard
        while self._waiting and self.error is None and not (guard.failures or self._stuck()):
            self._tried.clear()
            await self._tried.wait()
        return None if self._waiting else self._other

    async def flush(self, patience: float, *, strictly: bool = False) -> int:
        """Write all that waits; return how many versions had to be left.

        Args:
            patience: seconds to wait for the store to take a version.
            strictly: seconds for all of them instead: a deadline has come.
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
        """Let the store's metrics say how many versions of this writer wait."""
        self.bank.records.guard.count(pending=pending - self._counted)
        self._counted = pending

    def _stuck(self) -> bool:
        return self._writing is None or self._writing.done()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _ENOUGH
        try:
            while self._waiting and loop.time() < give_up:
                if self.bank.records.guard.away:
                    self._tried.set()  # it may have failed somebody else
                    await asyncio.sleep(_PAUSE)
                    continue
                if await self._write_one(*self._waiting[0]):
                    give_up = loop.time() + _ENOUGH
        finally:
            self._count(0)
            self._tried.set()

    async def _write_one(self, version: MemoryVersion, also: Sequence[PutOp]) -> bool:
        records = self.bank.records
        try:
            done = await append(
                records, version, self._owner, self._topic, also=also, beside=self._beside
            )
            edit = await newest_edit(records, version.id, self._owner) if done.edited else None
        except Exception as error:  # noqa: BLE001 - whatever a store raises, reading goes on
            self.error = error
            self._tried.set()
            await asyncio.sleep(_PAUSE)  # where the circuit is open, the guard says when
        else:
            self.error = None
            stored = edit or done.version
            self._other = stored if stored.text != version.text else None
            self.written.append(self._waiting.pop(0)[0].id)
            self._saw(done.beside)
            self._count(len(self._waiting))
        self._tried.set()
        return self.error is None
