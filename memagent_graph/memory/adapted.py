"""Adapt any LangGraph store to `AtomicStore`, as far as possible."""

from __future__ import annotations

import asyncio
import threading
import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from langgraph.store.base import GetOp, Item, PutOp
from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import StoreError
from memagent_graph.memory.atomic import AtomicStore, Present, agrees, arrange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from langgraph.store.base import BaseStore, Op, Result

    from memagent_graph.memory.atomic import Announcement, Given, Namespace


def atomic(store: BaseStore) -> AtomicStore:
    """Return the store itself if it is atomic, an adapter for a SQLite store, or a substitute.

    The substitute reads, and then writes. On an `InMemoryStore`, nothing is lost; on other stores,
    a write of another process in between can be lost, which a warning says.
    """
    if isinstance(store, AtomicStore):
        return store
    try:
        from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

        from memagent_graph.memory.sqlite import AtomicSqlite
    except ImportError:
        return GetThenPut(store)
    if isinstance(store, SqliteStore | AsyncSqliteStore):
        return AtomicSqlite(store)
    return GetThenPut(store)


class GetThenPut:
    """The substitute of `atomic`: a get, followed by a put.

    Args:
        store: the store.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._alone: AbstractContextManager[object] = nullcontext()
        if isinstance(store, InMemoryStore):
            self._alone = _locks.setdefault(store, threading.Lock())
        else:
            message = (
                f"{type(store).__name__} has no compare-and-put: if two writers update the same "
                "named memory at once, one update can be lost. Use RedisStore or SQLite for "
                "several writers."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    async def aput_if_absent(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, object],
        *,
        topic: str | None = None,
        also: Sequence[PutOp] = (),
        beside: tuple[Namespace, str] | None = None,
        ttl: float | None = None,
    ) -> Present:
        """See `AtomicStore`."""
        put = arrange([PutOp(namespace, key, value, ttl=ttl)], (), self._store.ttl_config)
        rest = arrange(also, [namespace], self._store.ttl_config)
        gets = [
            GetOp(namespace, key),
            *([] if beside is None else [GetOp(*beside, refresh_ttl=False)]),
        ]
        with self._alone:
            item, *other = await self._batch(gets)
            if ops := put + rest if item is None else rest:
                await self._batch(ops)
            found = [None if one is None else one.value for one in other]
            return Present(dict(value) if item is None else item.value, *found)

    async def acommit(
        self, puts: Sequence[PutOp], *, given: Given, topic: str | None = None
    ) -> bool:
        """See `AtomicStore`."""
        ops = arrange(puts, (namespace for namespace, _ in given), self._store.ttl_config)
        with self._alone:
            if not _agree(await self._batch([GetOp(*place) for place in given]), given):
                return False
            await self._batch(ops)
            return True

    async def watch(
        self,
        namespace: Namespace,
        topic: str,
        *,
        after: str = "$",
    ) -> AsyncIterator[Announcement]:
        """Refuse: the store has no announcements.

        Raises:
            StoreError: Always.
        """
        message = f"{type(self._store).__name__} cannot be watched. Use RedisStore or SQLite."
        raise StoreError(message)
        yield  # makes this an iterator, as in other stores

    async def aforget_topic(self, namespace: Namespace, topic: str) -> None:
        """Do nothing: there are no announcements."""

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """See `AtomicStore`."""
        try:
            return await self._store.abatch(ops)
        except NotImplementedError:  # some stores are only synchronous
            return await asyncio.to_thread(self._store.batch, ops)

    async def _batch(self, ops: Sequence[Op]) -> list[Any]:
        if isinstance(self._store, InMemoryStore):  # never waits, so the lock is held only briefly
            return self._store.batch(ops)
        return await self.abatch(ops)


_locks: WeakKeyDictionary[BaseStore, threading.Lock] = WeakKeyDictionary()


def _agree(items: Sequence[Result], given: Given) -> bool:
    values = [item.value if isinstance(item, Item) else None for item in items]
    return all(map(agrees, values, given.values()))
