"""Writes that lose nothing, and news: what a memory needs and `BaseStore` does not have."""

from __future__ import annotations

import asyncio
import random
import threading
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from langgraph.store.base import BaseStore, Item

Namespace = tuple[str, ...]

MOST_LOST_RACES = 50
"""To other writers, until one gives up."""
_LONGEST_PAUSE = 0.02


async def pause(lost: int) -> None:
    """Let other writers by, up to 20 ms for each race that was lost to them."""
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE * lost))  # noqa: S311 - no secret


class Announcement(NamedTuple):
    """Something new.

    Attributes:
        id: what `watch` takes as `after` to go on from here.
        item: the item, as it is when read.
    """

    id: str
    item: Item


@runtime_checkable
class AtomicStore(Protocol):
    """Three operations that `RedisStore` has, and that `atomic` gives to other stores."""

    def put_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, topic: str | None = None
    ) -> dict[str, Any]:
        """Put an item unless there is one.

        Args:
            namespace: where.
            key: its key.
            value: the value to put.
            topic: tell those who `watch` this topic of the namespace, if it was put.

        Returns:
            The value that is there now: `value`, or that of whoever came first.

        Raises:
            StoreError: The store cannot be reached, or refused.
        """
        ...

    async def aput_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, topic: str | None = None
    ) -> dict[str, Any]:
        """As `put_if_absent`."""
        ...

    def compare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """Put an item if nobody changed it since it was read.

        Args:
            namespace: where.
            key: its key.
            value: the new value; None deletes.
            expected: the value last read; None if there was no item.

        Returns:
            Whether it was put. If not, read again and decide anew.

        Raises:
            StoreError: The store cannot be reached, or refused.
        """
        ...

    async def acompare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """As `compare_and_put`."""
        ...

    def watch(
        self, namespace: Namespace, topic: str, *, after: str = "$"
    ) -> AsyncIterator[Announcement]:
        """Follow what `put_if_absent` announces under `topic`, without end.

        Args:
            namespace: where the items are.
            topic: as given to `put_if_absent`.
            after: an announcement's id; "0" for all that the store still knows of; "$" for
                those made after the first step of the iteration.

        Raises:
            StoreError: The store cannot be reached, or cannot be watched.
        """
        ...


def atomic(store: BaseStore) -> AtomicStore:
    """The store itself if it can, LangGraph's SQLite stores with what they lack, or a substitute.

    The substitute reads and then writes: within one process nothing is lost on an
    `InMemoryStore`; on others, a write between the two is, which is said once in a warning.
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
    """The substitute: see `atomic`.

    Args:
        store: where the items are.
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._lock = _locks.setdefault(store, threading.Lock())
        if not isinstance(store, InMemoryStore):
            message = (
                f"{type(store).__name__} has no compare-and-put: when two writers move the same "
                "named memory at once, one update can be lost. Use RedisStore or SQLite if "
                "several write."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    def put_if_absent(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any],
        *,
        topic: str | None = None,
    ) -> dict[str, Any]:
        """See `AtomicStore`."""
        with self._lock:
            item = self._store.get(namespace, key)
            if item is not None:
                return item.value
            self._store.put(namespace, key, dict(value))
            return dict(value)

    async def aput_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, topic: str | None = None
    ) -> dict[str, Any]:
        """As `put_if_absent`."""
        if isinstance(self._store, InMemoryStore):  # whose calls never wait
            return self.put_if_absent(namespace, key, value, topic=topic)
        item = await self._store.aget(namespace, key)
        if item is not None:
            return item.value
        await self._store.aput(namespace, key, dict(value))
        return dict(value)

    def compare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """See `AtomicStore`."""
        with self._lock:
            if not _is(self._store.get(namespace, key), expected):
                return False
            self._store.batch([PutOp(namespace, key, value)])
            return True

    async def acompare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """As `compare_and_put`."""
        if isinstance(self._store, InMemoryStore):
            return self.compare_and_put(namespace, key, value, expected=expected)
        if not _is(await self._store.aget(namespace, key), expected):
            return False
        await self._store.abatch([PutOp(namespace, key, value)])
        return True

    async def watch(
        self,
        namespace: Namespace,
        topic: str,
        *,
        after: str = "$",
    ) -> AsyncIterator[Announcement]:
        """Not possible.

        Raises:
            StoreError: Always.
        """
        message = f"{type(self._store).__name__} cannot be watched. Use RedisStore or SQLite."
        raise StoreError(message)
        yield  # what makes this an iterator, as the others are


_locks: WeakKeyDictionary[BaseStore, threading.Lock] = WeakKeyDictionary()


def _is(item: Item | None, expected: Mapping[str, Any] | None) -> bool:
    return item is None if expected is None else item is not None and item.value == expected
