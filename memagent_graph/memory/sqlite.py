"""Compare-and-put and announcements for LangGraph's SQLite stores, in their own database."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from langgraph.store.base import PutOp, validate_op_namespace
from langgraph.store.sqlite import SqliteStore

from memagent_graph.errors import StoreError
from memagent_graph.memory.atomic import Announcement, Present, agrees, arrange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence

    from langgraph.store.base import Item, Op
    from langgraph.store.sqlite import AsyncSqliteStore

    from memagent_graph.memory.atomic import Given, Value

T = TypeVar("T")
Namespace = tuple[str, ...]
Statement = tuple[str, tuple[object, ...]]
Rows = list[Any]
Steps = Generator[Statement, Rows, T]

_POLL_SECONDS = 0.25
_KEPT = 1_000  # announcements of a topic
_AT_ONCE = 100
_SETUPS = 100
_SETUP_WAIT = 0.03

_READ = "SELECT value FROM store WHERE prefix = ? AND key = ?"
_DELETE = "DELETE FROM store WHERE prefix = ? AND key = ?"
_WRITE = """
INSERT INTO store (prefix, key, value, created_at, updated_at, ttl_minutes, expires_at)
VALUES (?, ?, ?, CURRENT_TIMESTAMP, CURRENT_TIMESTAMP, ?,
        DATETIME(CURRENT_TIMESTAMP, '+' || ? || ' minutes'))
ON CONFLICT (prefix, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at,
    ttl_minutes = excluded.ttl_minutes, expires_at = excluded.expires_at
"""
_CREATE_NEWS = """
CREATE TABLE IF NOT EXISTS memagent_news (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    prefix TEXT NOT NULL, topic TEXT NOT NULL, key TEXT NOT NULL
)
"""
_INDEX_NEWS = "CREATE INDEX IF NOT EXISTS memagent_news_topic ON memagent_news (prefix, topic, id)"
_ANNOUNCE = "INSERT INTO memagent_news (prefix, topic, key) VALUES (?, ?, ?)"
_CUT_NEWS = """
DELETE FROM memagent_news WHERE prefix = ? AND topic = ? AND id <= (
    SELECT id FROM memagent_news WHERE prefix = ? AND topic = ?
    ORDER BY id DESC LIMIT 1 OFFSET ?
)
"""
_HAS_NEWS = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'memagent_news'"
_FORGET_NEWS = "DELETE FROM memagent_news WHERE prefix = ? AND topic = ?"
_LAST_NEWS = "SELECT MAX(id) FROM memagent_news WHERE prefix = ? AND topic = ?"
_NEWS = """
SELECT id, key FROM memagent_news WHERE prefix = ? AND topic = ? AND id > ? ORDER BY id LIMIT ?
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
        put = PutOp(namespace, key, value, ttl=ttl)
        return await self._run(self._put_if_absent(put, also, beside, topic))

    async def acommit(
        self, puts: Sequence[PutOp], *, given: Given, topic: str | None = None
    ) -> bool:
        """See `AtomicStore`."""
        return await self._run(self._commit(puts, given, topic))

    async def watch(
        self, namespace: Namespace, topic: str, *, after: str = "$"
    ) -> AsyncIterator[Announcement]:
        """See `AtomicStore`. It polls four times a second; 1,000 announcements are kept."""
        prefix = _prefix(namespace)
        last = await self._run(_last(prefix, topic)) if after == "$" else int(after)
        while True:
            news = await self._run(_news(prefix, topic, last))
            for last, key in news:
                item = await self._get(namespace, key)
                if item is not None:
                    yield Announcement(str(last), item)
            if not news:
                await asyncio.sleep(_POLL_SECONDS)

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """See `AtomicStore`."""
        if isinstance(self._store, SqliteStore):
            return await asyncio.to_thread(self._store.batch, ops)
        return await _whole(self._store.abatch(ops))

    async def aforget_topic(self, namespace: Namespace, topic: str) -> None:
        """See `AtomicStore`."""
        await self._run(_forget(_prefix(namespace), topic))

    def _put_if_absent(
        self,
        put: PutOp,
        also: Sequence[PutOp],
        beside: tuple[Namespace, str] | None,
        topic: str | None,
    ) -> Steps[Present]:
        (op,) = arrange([put], (), self._store.ttl_config)
        rest = arrange(also, [put.namespace], self._store.ttl_config)
        current = yield from _read(op.namespace, op.key)
        if current is None:
            yield from _write([op])
            if topic is not None:
                yield from _announce(op, topic)
        yield from _write(rest)
        other = None if beside is None else (yield from _read(*beside))
        return Present(_as_stored(op.value or {}) if current is None else current, other)

    def _commit(self, puts: Sequence[PutOp], given: Given, topic: str | None) -> Steps[bool]:
        ops = arrange(puts, (namespace for namespace, _ in given), self._store.ttl_config)
        for (namespace, key), expected in given.items():
            current = yield from _read(namespace, key)
            stored = _as_stored(expected) if isinstance(expected, Mapping) else expected
            if not agrees(current, stored):
                return False
        yield from _write(ops)
        if topic is not None and puts:
            yield from _announce(puts[0], topic)
        return True

    async def _get(self, namespace: Namespace, key: str) -> Item | None:
        if isinstance(self._store, SqliteStore):
            return await asyncio.to_thread(self._store.get, namespace, key)
        return await self._store.aget(namespace, key)

    async def _run(self, steps: Steps[T]) -> T:
        if isinstance(self._store, SqliteStore):
            return await asyncio.to_thread(_transact, self._store, steps)
        return await _whole(_atransact(self._store, steps))


def set_up(store: SqliteStore) -> None:
    """Create the tables of a store, even while other processes create them in the same file.

    LangGraph's stores create them in several steps without a lock, so a second process can find a
    step half done and fail. The setup is then repeated.

    Raises:
        sqlite3.Error: The setup fails for another reason.
    """
    for attempt in range(_SETUPS):
        try:
            return store.setup()
        except sqlite3.Error as error:
            if attempt == _SETUPS - 1 or not _other_sets_up(error):
                raise
            time.sleep(_SETUP_WAIT)
    return None


async def _aset_up(store: AsyncSqliteStore) -> None:
    for attempt in range(_SETUPS):
        try:
            return await store.setup()
        except sqlite3.Error as error:
            if attempt == _SETUPS - 1 or not _other_sets_up(error):
                raise
            await asyncio.sleep(_SETUP_WAIT)
    return None


def _other_sets_up(error: sqlite3.Error) -> bool:
    return isinstance(error, sqlite3.IntegrityError) or "duplicate column" in str(error)


def _transact(store: SqliteStore, steps: Steps[T]) -> T:
    try:
        set_up(store)
    except sqlite3.Error as error:
        raise _refusal(error) from error
    with store.lock:
        try:
            store.conn.execute("BEGIN IMMEDIATE")
            try:
                statement = next(steps)
                while True:
                    statement = steps.send(store.conn.execute(*statement).fetchall())
            except StopIteration as stop:
                store.conn.execute("COMMIT")
                result: T = stop.value
                return result
            except BaseException:
                store.conn.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _refusal(error) from error


async def _whole(transaction: Coroutine[object, object, T]) -> T:
    """Shield a transaction, which would stay open if it were cancelled."""
    return await asyncio.shield(asyncio.create_task(transaction))


async def _atransact(store: AsyncSqliteStore, steps: Steps[T]) -> T:
    try:
        await _aset_up(store)
    except sqlite3.Error as error:
        raise _refusal(error) from error
    async with store.lock:
        try:
            await store.conn.execute("BEGIN IMMEDIATE")
            try:
                statement = next(steps)
                while True:
                    rows = await store.conn.execute_fetchall(*statement)
                    statement = steps.send(list(rows))
            except StopIteration as stop:
                await store.conn.execute("COMMIT")
                result: T = stop.value
                return result
            except BaseException:
                await store.conn.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise _refusal(error) from error


def _read(namespace: Namespace, key: str) -> Steps[Value | None]:
    found = yield _READ, (_prefix(namespace), key)
    return orjson.loads(found[0][0]) if found else None


def _write(ops: Iterable[PutOp]) -> Steps[None]:
    for op in ops:
        place = (_prefix(op.namespace), op.key)
        if op.value is None:
            yield _DELETE, place
        else:
            yield _WRITE, (*place, orjson.dumps(dict(op.value)), op.ttl, op.ttl)


def _announce(op: PutOp, topic: str) -> Steps[None]:
    prefix = _prefix(op.namespace)
    yield _CREATE_NEWS, ()
    yield _INDEX_NEWS, ()
    yield _ANNOUNCE, (prefix, topic, op.key)
    yield _CUT_NEWS, (prefix, topic, prefix, topic, _KEPT)


def _forget(prefix: str, topic: str) -> Steps[None]:
    if (yield _HAS_NEWS, ()):
        yield _FORGET_NEWS, (prefix, topic)


def _last(prefix: str, topic: str) -> Steps[int]:
    yield _CREATE_NEWS, ()
    ((newest,),) = yield _LAST_NEWS, (prefix, topic)
    return newest or 0


def _news(prefix: str, topic: str, after: int) -> Steps[Rows]:
    yield _CREATE_NEWS, ()
    return (yield _NEWS, (prefix, topic, after, _AT_ONCE))


def _prefix(namespace: Namespace) -> str:
    validate_op_namespace(PutOp(namespace, "", None))
    return ".".join(namespace)  # as these stores write a namespace


def _as_stored(value: Mapping[str, object]) -> Value:
    stored: Value = orjson.loads(orjson.dumps(dict(value)))
    return stored


def _refusal(error: sqlite3.Error) -> StoreError:
    return StoreError(
        f"The SQLite store refused: {error}. Check that no other program has locked the file."
    )
