"""Compare-and-put and a feed of news for LangGraph's SQLite stores, in their own database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from langgraph.store.base import PutOp, validate_op_namespace
from langgraph.store.sqlite import SqliteStore

from memagent_graph.errors import StoreError
from memagent_graph.memory.atomic import Announcement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from langgraph.store.base import Item
    from langgraph.store.sqlite import AsyncSqliteStore

T = TypeVar("T")
Namespace = tuple[str, ...]
Statement = tuple[str, tuple[Any, ...]]
Steps = Generator[Statement, list[Any], T]

_POLL_SECONDS = 0.25
_KEPT = 1_000  # announcements of a topic
_AT_ONCE = 100

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
DELETE FROM memagent_news WHERE prefix = ?1 AND topic = ?2 AND id <= (
    SELECT id FROM memagent_news WHERE prefix = ?1 AND topic = ?2
    ORDER BY id DESC LIMIT 1 OFFSET ?3
)
"""
_LAST_NEWS = "SELECT MAX(id) FROM memagent_news WHERE prefix = ? AND topic = ?"
_NEWS = """
SELECT id, key FROM memagent_news WHERE prefix = ? AND topic = ? AND id > ? ORDER BY id LIMIT ?
"""


class AtomicSqlite:
    """An `AtomicStore` beside a SQLite store; every operation is one transaction.

    Safe among threads and processes that share the file. Items written here are not indexed for
    search by meaning.

    Args:
        store: one of LangGraph's. The asynchronous one serves asynchronous calls of its loop, and
            synchronous ones of other threads; the other serves both.
    """

    def __init__(self, store: SqliteStore | AsyncSqliteStore) -> None:
        self._store = store

    def put_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, topic: str | None = None
    ) -> dict[str, Any]:
        """See `AtomicStore`."""
        return self._run(self._put_if_absent(namespace, key, value, topic))

    async def aput_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, topic: str | None = None
    ) -> dict[str, Any]:
        """As `put_if_absent`."""
        return await self._arun(self._put_if_absent(namespace, key, value, topic))

    def compare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """See `AtomicStore`."""
        return self._run(self._compare_and_put(namespace, key, value, expected))

    async def acompare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """As `compare_and_put`."""
        return await self._arun(self._compare_and_put(namespace, key, value, expected))

    async def watch(
        self, namespace: Namespace, topic: str, *, after: str = "$"
    ) -> AsyncIterator[Announcement]:
        """See `AtomicStore`. Looks four times a second; the last 1,000 announcements are kept."""
        prefix = _prefix(namespace)
        last = await self._arun(_last(prefix, topic)) if after == "$" else int(after)
        while True:
            news = await self._arun(_news(prefix, topic, last))
            for last, key in news:
                item = await self._get(namespace, key)
                if item is not None:
                    yield Announcement(str(last), item)
            if not news:
                await asyncio.sleep(_POLL_SECONDS)

    def _put_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], topic: str | None
    ) -> Steps[dict[str, Any]]:
        prefix = _prefix(namespace)
        found = yield _READ, (prefix, key)
        if found:
            stored: dict[str, Any] = orjson.loads(found[0][0])
            return stored
        yield from self._write(prefix, key, value)
        if topic is not None:
            yield _CREATE_NEWS, ()
            yield _INDEX_NEWS, ()
            yield _ANNOUNCE, (prefix, topic, key)
            yield _CUT_NEWS, (prefix, topic, _KEPT)
        return _as_stored(value)

    def _compare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        expected: Mapping[str, Any] | None,
    ) -> Steps[bool]:
        prefix = _prefix(namespace)
        found = yield _READ, (prefix, key)
        current = orjson.loads(found[0][0]) if found else None
        if current != (None if expected is None else _as_stored(expected)):
            return False
        yield from self._write(prefix, key, value)
        return True

    def _write(self, prefix: str, key: str, value: Mapping[str, Any] | None) -> Steps[None]:
        if value is None:
            yield _DELETE, (prefix, key)
        else:
            ttl = (self._store.ttl_config or {}).get("default_ttl")
            yield _WRITE, (prefix, key, orjson.dumps(dict(value)), ttl, ttl)

    async def _get(self, namespace: Namespace, key: str) -> Item | None:
        if isinstance(self._store, SqliteStore):
            return await asyncio.to_thread(self._store.get, namespace, key)
        return await self._store.aget(namespace, key)

    def _run(self, steps: Steps[T]) -> T:
        if isinstance(self._store, SqliteStore):
            return _transact(self._store, steps)
        return asyncio.run_coroutine_threadsafe(self._arun(steps), self._store.loop).result()

    async def _arun(self, steps: Steps[T]) -> T:
        if isinstance(self._store, SqliteStore):
            return await asyncio.to_thread(_transact, self._store, steps)
        return await _atransact(self._store, steps)


def _transact(store: SqliteStore, steps: Steps[T]) -> T:
    store.setup()
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
            raise _refused(error) from error


async def _atransact(store: AsyncSqliteStore, steps: Steps[T]) -> T:
    await store.setup()
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
            raise _refused(error) from error


def _last(prefix: str, topic: str) -> Steps[int]:
    yield _CREATE_NEWS, ()
    ((newest,),) = yield _LAST_NEWS, (prefix, topic)
    return newest or 0


def _news(prefix: str, topic: str, after: int) -> Steps[list[Any]]:
    yield _CREATE_NEWS, ()
    return (yield _NEWS, (prefix, topic, after, _AT_ONCE))


def _prefix(namespace: Namespace) -> str:
    validate_op_namespace(PutOp(namespace, "", None))
    return ".".join(namespace)  # how these stores write a namespace


def _as_stored(value: Mapping[str, Any]) -> dict[str, Any]:
    stored: dict[str, Any] = orjson.loads(orjson.dumps(dict(value)))
    return stored


def _refused(error: sqlite3.Error) -> StoreError:
    return StoreError(f"The SQLite store refused: {error}. Is another program holding the file?")
