"""Conditional writes, which a memory needs and `BaseStore` lacks, on any store of LangGraph.

`RedisStore` has its own. Here are those of LangGraph's SQLite stores, in their own database, and a
substitute for others.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from types import EllipsisType, MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import orjson
from langgraph.store.base import GetOp, Item, PutOp, SearchOp, validate_op_namespace
from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import MemoryConflictError, StoreError
from memagent_graph.memory.circuit import guard_of
from memagent_graph.seams import call_with_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from langgraph.store.base import BaseStore, Op, TTLConfig
    from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
    from typing_extensions import TypeIs

T = TypeVar("T")
Namespace = tuple[str, ...]
Value = dict[str, Any]
"""The value of an item in a LangGraph store."""
Given = Mapping[tuple[Namespace, str], Mapping[str, object] | EllipsisType | None]

NO_CONDITIONS: Given = MappingProxyType({})

MOST_LOST_RACES = 100
"""Lost races after which a writer gives up; pauses in between add up to 50 s on average."""
_LONGEST_PAUSE = 0.02


async def pause(lost: int) -> None:
    """Wait before the next try: a random time of up to 20 ms for each race lost."""
    await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE * lost))  # noqa: S311 - no secret


def race_error(what: str, name: str) -> MemoryConflictError:
    """Return the error of a writer that gives up."""
    message = f"{what} {name!r} changed {MOST_LOST_RACES} times meanwhile: try again."
    return MemoryConflictError(message)


@runtime_checkable
class AtomicStore(Protocol):
    """Atomic operations, which `RedisStore` has and `atomic` adds to other stores."""

    async def acommit(self, puts: Sequence[PutOp], *, given: Given) -> bool:
        """Carry out all puts in one atomic step, if items are as given; otherwise none.

        All namespaces must begin with the same label, which puts them on one node of a Redis
        cluster.

        Args:
            puts: the puts; a value of None deletes. The last put of an item counts. A `ttl` of None
                stands for the store's default.
            given: items, and the values that they must have: None for no item, `...` for any value.

        Returns:
            Whether it was done. If not, read the items again, and decide again.

        Raises:
            ValueError: The namespaces begin with different labels, or there are none.
            StoreError: The store cannot be reached, or refused.
        """
        ...

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """Carry out operations as `BaseStore.abatch` does.

        If the caller is cancelled meanwhile, the store remains usable.
        """
        ...

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """Return the places of all items in and below a namespace, which is not the empty one."""
        ...


def arrange(
    puts: Iterable[PutOp], beside: Iterable[Namespace], ttl: TTLConfig | None
) -> list[PutOp]:
    """Return the puts of one atomic step: the last one of each item, deletes last.

    A time to live of None stands for the default of `ttl`, in minutes. All namespaces, with those
    `beside` that the step touches, must begin with the same label.
    """
    default = (ttl or {}).get("default_ttl")
    last = {(op.namespace, op.key): op for op in puts}
    namespaces = {*beside, *(namespace for namespace, _ in last)}
    for namespace in namespaces:
        validate_op_namespace(PutOp(namespace, "", None))
    if len({namespace[:1] for namespace in namespaces}) != 1:
        message = (
            "The namespaces of one atomic step must begin with the same label, not "
            f"{sorted(namespaces)}. Put items that change together under one first label."
        )
        raise ValueError(message)
    ops = [op._replace(ttl=default) if op.ttl is None else op for op in last.values()]
    return sorted(ops, key=lambda op: op.value is None)


def agrees(
    value: Mapping[str, object] | None, expected: Mapping[str, object] | EllipsisType | None
) -> bool:
    """Whether an item's value (None if absent) is as `acommit` expects."""
    if value is None or expected is None:
        return value is expected
    return (
        isinstance(expected, EllipsisType) or value == expected or _plain(value) == _plain(expected)
    )


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


_PAGE = 2_000
"""Places listed in one step, at most."""


def atomic(store: BaseStore) -> AtomicStore:
    """Return the store itself if it is atomic, an adapter for a SQLite store, or a substitute.

    The substitute reads, and then writes. On an `InMemoryStore`, nothing is lost; on other stores,
    a write of another process in between can be lost, which a warning says.
    """
    if isinstance(store, AtomicStore):
        return store
    try:
        from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
    except ImportError:
        return GetThenPut(store)
    if isinstance(store, SqliteStore | AsyncSqliteStore):
        return AtomicSqlite(store)
    return GetThenPut(store)


class GetThenPut:
    """The substitute of `atomic`: a get, followed by a put."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._alone: AbstractContextManager[object] = nullcontext()
        if isinstance(store, InMemoryStore):
            self._alone = guard_of(store).alone
        else:
            message = (
                f"{type(store).__name__} has no compare-and-put: if two writers update the same "
                "named memory at once, one update can be lost. Use RedisStore or SQLite for "
                "several writers."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    async def acommit(self, puts: Sequence[PutOp], *, given: Given) -> bool:
        """See `AtomicStore`."""
        ops = arrange(puts, (namespace for namespace, _ in given), self._store.ttl_config)
        with self._alone:
            items = await self._batch([GetOp(*place) for place in given])
            values = [item.value if isinstance(item, Item) else None for item in items]
            if not all(map(agrees, values, given.values())):
                return False
            await self._batch(ops)
            return True

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """See `AtomicStore`."""
        try:
            return await self._store.abatch(ops)
        except NotImplementedError:  # some stores are only synchronous
            return await asyncio.to_thread(self._store.batch, ops)

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """See `AtomicStore`. Stores without conditional writes list places with their values."""
        # In memory, one page holds all: a second would miss what moved up as others were deleted.
        size = sys.maxsize if isinstance(self._store, InMemoryStore) else _PAGE
        places: list[tuple[Namespace, str]] = []
        for offset in count(0, size):
            search = SearchOp(namespace, None, size, offset, None, refresh_ttl=False)
            (found,) = await self._batch([search])
            below = ((tuple(item.namespace), item.key) for item in found)
            # Some stores compare prefixes as strings.
            places += (place for place in below if place[0][: len(namespace)] == namespace)
            if len(found) < size:
                break
        return places

    async def _batch(self, ops: Sequence[Op]) -> list[Any]:
        if isinstance(self._store, InMemoryStore):  # never waits, so the lock is held only briefly
            return self._store.batch(ops)
        return await self.abatch(ops)


_READ = "SELECT value FROM store WHERE prefix = ? AND key = ?"
_BELOW = "SELECT prefix, key FROM store WHERE prefix = ? OR (prefix > ? AND prefix < ?)"
_DELETE = "DELETE FROM store WHERE prefix = ? AND key = ?"
_WRITE = """
INSERT INTO store (prefix, key, value, created_at, updated_at, ttl_minutes, expires_at)
VALUES (?, ?, ?, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, ?,
        DATETIME(CURRENT_TIMESTAMP, '+' || ? || ' minutes'))
ON CONFLICT (prefix, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at,
    ttl_minutes = excluded.ttl_minutes, expires_at = excluded.expires_at
"""


class AtomicSqlite:
    """An `AtomicStore` on a SQLite store; every operation is one transaction.

    It is safe among threads and processes that share the file. Items written here are not indexed
    for vector search.

    Args:
        store: a store of LangGraph. The asynchronous one serves the loop that opened it, the
            synchronous one serves all.
    """

    def __init__(self, store: SqliteStore | AsyncSqliteStore) -> None:
        self._store = store

    async def acommit(self, puts: Sequence[PutOp], *, given: Given) -> bool:
        """See `AtomicStore`."""
        ops = arrange(puts, (namespace for namespace, _ in given), self._store.ttl_config)

        def commit(file: sqlite3.Connection) -> bool:
            for place, expected in given.items():
                found = file.execute(_READ, _row(*place)).fetchone()
                # As it would be read back: some values change by being stored.
                stored = expected if not isinstance(expected, Mapping) else _reread(expected)
                if not agrees(orjson.loads(found[0]) if found else None, stored):
                    return False
            for op in ops:
                row = _row(op.namespace, op.key)
                if op.value is None:
                    file.execute(_DELETE, row)
                else:
                    file.execute(_WRITE, (*row, orjson.dumps(dict(op.value)), op.ttl, op.ttl))
            return True

        return await self._call(partial(_transact, commit))

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """See `AtomicStore`."""
        store = self._store
        with _as_store_errors():
            if _is_synchronous(store):
                return await asyncio.to_thread(store.batch, ops)
            # A transaction would stay open if it were cancelled.
            return await asyncio.shield(store.abatch(ops))

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """See `AtomicStore`."""
        (prefix, _) = _row(namespace, "")
        below = prefix, f"{prefix}.", f"{prefix}/"  # a slash follows the dot
        rows = await self._call(lambda file: file.execute(_BELOW, below).fetchall())
        return [(tuple(found.split(".")), key) for found, key in rows]

    async def _call(self, act: Callable[[sqlite3.Connection], T]) -> T:
        store = self._store
        with _as_store_errors():
            if _is_synchronous(store):
                return await asyncio.to_thread(_set_up_and_call, store, act)
            await store.setup()
            async with store.lock:
                return await call_with_connection(store.conn, act)


def _is_synchronous(store: SqliteStore | AsyncSqliteStore) -> TypeIs[SqliteStore]:
    return isinstance(store.conn, sqlite3.Connection)


def _set_up_and_call(store: SqliteStore, act: Callable[[sqlite3.Connection], T]) -> T:
    store.setup()
    with store.lock:
        return act(store.conn)


def _transact(act: Callable[[sqlite3.Connection], T], file: sqlite3.Connection) -> T:
    file.execute("BEGIN IMMEDIATE")
    try:
        result = act(file)
        file.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors, SQLite has rolled back by itself
            file.execute("ROLLBACK")
        raise
    return result


def _row(namespace: Namespace, key: str) -> tuple[str, str]:
    validate_op_namespace(PutOp(namespace, "", None))
    return ".".join(namespace), key  # as these stores write a namespace


def _reread(value: Mapping[str, object]) -> dict[str, object]:
    stored: dict[str, object] = orjson.loads(orjson.dumps(dict(value)))
    return stored


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Raise what SQLite and its connections report as errors of the store."""
    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        if str(error) in _CLOSED:
            raise StoreError(_IS_CLOSED) from error
        if isinstance(error, ValueError):
            raise
        cause: BaseException = error
        while isinstance(cause.__context__, sqlite3.Error):  # a failed write, then a failed commit
            cause = cause.__context__
        message = (
            f"The SQLite store refused: {str(cause).rstrip('.')}. Check that the disk has room, "
            "and that no other program has locked the file."
        )
        raise StoreError(message) from error


_CLOSED = {"no active connection", "Connection closed", "Cannot operate on a closed database."}
"""What aiosqlite and sqlite3 report of a connection that was closed."""
_IS_CLOSED = (
    "The SQLite store is closed. Use it within its `with` or `async with` block, or open it again."
)
