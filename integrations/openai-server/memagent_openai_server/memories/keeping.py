"""Delete what a tenant has not used for long, and what is over its quota."""

from __future__ import annotations

import asyncio
from collections import Counter
from time import time
from typing import TYPE_CHECKING

from langgraph.store.base import ListNamespacesOp, MatchCondition

from memagent_graph.errors import StoreError
from memagent_openai_server.http.records import log
from memagent_openai_server.memories.sessions import Sessions, reach

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import BaseStore

    from memagent_openai_server.http.limits import Limits

_DAY = 24 * 3600.0
_EVERY = 3600.0
"""Interval of sweeps over all tenants, in seconds."""
_SHARE = 16
"""Parts of a quota: one is freed at once, and one may be written before the next check."""
_PAGE = 100


class Keeper:
    """Keeps every tenant's part of a store within the limits.

    Args:
        store: the server's store.
        namespace: namespace of the server in the store, after the tenant's label.
        limits: limits on time and size.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str], limits: Limits) -> None:
        self._store = store
        self._namespace = tuple(namespace)
        self._limits = limits
        self._written: Counter[tuple[str, ...]] = Counter()
        self._tidying: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def room(self) -> float:
        """Bytes that a tenant may use; the rest is for writes before the next check."""
        most = self._limits.keep_bytes
        return most - most / _SHARE if most else float("inf")

    def start(self) -> None:
        """Sweep over all tenants now and every hour, in the background."""
        self._sweeping = asyncio.create_task(self._sweep_on())

    async def aclose(self) -> None:
        """Cancel what is under way; the next sweep continues."""
        tasks = [*self._tidying.values(), *filter(None, [self._sweeping])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wrote(self, sessions: Sessions, size: int) -> None:
        """Count what was written, and check the tenant's quota from time to time.

        A writer that is faster than the cleanup waits for it.
        """
        where = sessions.bank.namespace
        self._written[where] += size
        while self._limits.keep_bytes and self._written[where] >= self._limits.keep_bytes / _SHARE:
            tidying = self._tidying.get(where)
            if tidying is not None and not tidying.done():
                await asyncio.wait([tidying])  # it may not have seen all of this, so check again
                continue
            self._written[where] = 0
            self._tidying[where] = asyncio.create_task(self._try_to_tidy(sessions))

    async def sweep(self) -> None:
        """Clean up for all tenants, including those whose keys are gone."""
        for sessions in await self._tenants():
            await self._try_to_tidy(sessions)
            await reach(sessions.drop_leases(before=time() - _DAY))

    async def tidy(self, sessions: Sessions) -> None:
        """Delete what was not used for long, and the least recently used until the rest fits."""
        limits = self._limits
        entries = await reach(sessions.ledger.entries())
        total = sum(entry.size for entry in entries)
        room = self.room
        expired = time() - limits.keep_days * _DAY if limits.keep_days else 0.0
        for entry in entries:
            if entry.used >= expired and total <= room:
                return
            if not entry.held:
                total -= await sessions.forget(entry.name, as_of=entry.used)

    async def _try_to_tidy(self, sessions: Sessions) -> None:
        try:
            await self.tidy(sessions)
        except StoreError as error:
            log.warning("Old data could not be deleted: %s", type(error).__name__)

    async def _sweep_on(self) -> None:
        while True:
            try:
                await self.sweep()
            except StoreError as error:
                log.warning("Old data could not be searched for: %s", type(error).__name__)
            await asyncio.sleep(_EVERY)

    async def _tenants(self) -> list[Sessions]:
        suffix = (MatchCondition("suffix", (*self._namespace, "kept")),)
        records = Sessions(self._store, None, self._namespace).bank.records
        found: list[tuple[str, ...]] = []
        while len(found) % _PAGE == 0:
            page = ListNamespacesOp(suffix, limit=_PAGE, offset=len(found))
            (names,) = await reach(records.items([page]))
            if not names:
                break
            found += names
        depth = len(self._namespace) + 1
        own = [name[0].removeprefix("tenant-") for name in found if len(name) == depth + 1]
        alone = [None for name in found if len(name) == depth]
        return [Sessions(self._store, tenant, self._namespace) for tenant in [*alone, *own]]
