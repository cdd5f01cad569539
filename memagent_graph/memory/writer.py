"""Writes versions behind the reading's back, in order, while the next chunk is read."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion

_PATIENCE = 5.0
"""Seconds that `flush` waits for a store that is away."""

_PAUSE = 0.2


class VersionWriter:
    """Holds what the store does not have yet.

    A store that is away stops no reading: versions wait here and are written, in order, when it
    is back.

    Args:
        bank: where to.
        topic: who watches this name hears of each version.
    """

    def __init__(self, bank: MemoryBank, topic: str | None) -> None:
        self.bank = bank
        self._topic = topic
        self._waiting: list[MemoryVersion] = []
        self._writing: asyncio.Task[MemoryVersion | None] | None = None
        self.error: Exception | None = None

    def add(self, version: MemoryVersion) -> None:
        """Begin to write a version; does not wait."""
        self._waiting.append(version)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    async def settle(self) -> MemoryVersion | None:
        """Wait for the write in flight; return what another agent stored first, if one did."""
        return None if self._writing is None else await asyncio.shield(self._writing)

    async def flush(self) -> int:
        """Write all that waits, with some patience; return how many versions had to be left."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _PATIENCE
        await self.settle()
        while self._waiting and loop.time() < give_up:
            await asyncio.sleep(_PAUSE)
            await self._write()
        return len(self._waiting)

    async def _write(self) -> MemoryVersion | None:
        other = None
        while self._waiting:
            version = self._waiting[0]
            try:
                stored = await self.bank.aappend(version, topic=self._topic)
            except Exception as error:  # noqa: BLE001 - whatever a store raises, reading goes on
                self.error = error
                return None
            other = stored if stored.text != version.text else None
            self._waiting.pop(0)
        return other
