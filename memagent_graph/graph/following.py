"""Two who read the same pay once: one holds the lease, the others follow what it stores."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

from memagent_graph.memory.sharing import LAPSE, Lease, can_lease

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.2
"""Seconds between looks at what the holder of the lease has stored."""


class Sharing:
    """What one fold has to do with others that read the same.

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
        """What another agent made of a chunk; None if it is to be read here.

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
        """Free the lease; that of a store which is away lapses instead."""
        if self._lease is not None and self._answers():
            await self._lease.release()

    def forget(self) -> None:
        """Begin anew: the next chunk is of another chain."""
        self._lease = None

    def _answers(self) -> bool:
        return self._bank.records.guard.circuit == "closed"
