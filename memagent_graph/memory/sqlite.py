"""Compare-and-put and announcements for LangGraph's SQLite stores, in their own database."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import orjson
from langgraph.store.base import GetOp, PutOp, validate_op_namespace
from langgraph.store.sqlite import SqliteStore

from memagent_graph.errors import StoreError
from memagent_graph.memory.atomic import Announcement, agrees, arrange

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence

    import aiosqlite
    from langgraph.store.base import Op
    from langgraph.store.sqlite import AsyncSqliteStore

    from memagent_graph.memory.atomic import Given, Value

    AnyStore: TypeAlias = SqliteStore | AsyncSqliteStore

T = TypeVar("T")
Namespace = tuple[str, ...]
Statement = tuple[str, tuple[object, ...]]
Rows = list[Any]
Steps = Generator[Statement, Rows, T]

_POLL_SECONDS = 0.25
_KEPT = 1_000  # announcements of a topic
_AT_ONCE = 100
_TAKEN = re.compile("duplicate column name|already exists")
"""What SQLite reports of a step that was taken before."""

_HAS_TABLE = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
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

    async def acommit(
        self, puts: Sequence[PutOp], *, given: Given, topic: str | None = None, news: int = 1
    ) -> bool:
        """See `AtomicStore`."""
        return await self._run(self._commit(puts, given, topic, news))

    async def watch(
        self, namespace: Namespace, topic: str, *, after: str = "$"
    ) -> AsyncIterator[Announcement]:
        """See `AtomicStore`. It polls four times a second; 1,000 announcements are kept."""
        prefix = _prefix(namespace)
        last = await self._run(_last(prefix, topic)) if after == "$" else int(after)
        while True:
            news = await self._run(_news(prefix, topic, last))
            for last, key in news:
                (item,) = await self.abatch([GetOp(namespace, key)])
                if item is not None:
                    yield Announcement(str(last), item)
            if not news:
                await asyncio.sleep(_POLL_SECONDS)

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """See `AtomicStore`."""
        if isinstance(self._store, SqliteStore):
            return await asyncio.to_thread(_batch, self._store, ops)
        return await _whole(_abatch(self._store, ops))

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """Return the places of all items in and below a namespace, which is not the empty one."""
        prefix = _prefix(namespace)
        below = f"{prefix}.", f"{prefix}/"  # a slash follows the dot
        rows = await self._perform(_rows(_BELOW, prefix, *below))
        return [(tuple(found.split(".")), key) for found, key in rows]

    async def aforget_topic(self, namespace: Namespace, topic: str) -> None:
        """See `AtomicStore`."""
        await self._run(_forget(_prefix(namespace), topic))

    def _commit(
        self, puts: Sequence[PutOp], given: Given, topic: str | None, news: int
    ) -> Steps[bool]:
        ops = arrange(puts, (namespace for namespace, _ in given), self._store.ttl_config)
        for (namespace, key), expected in given.items():
            current = yield from _read(namespace, key)
            stored = _as_stored(expected) if isinstance(expected, Mapping) else expected
            if not agrees(current, stored):
                return False
        yield from _write(ops)
        if topic is not None:
            for op in ops[: sum(put.value is not None for put in puts[:news])]:
                yield from _announce(op, topic)
        return True

    async def _run(self, steps: Steps[T]) -> T:
        return await self._perform(_transaction(steps))

    async def _perform(self, steps: Steps[T]) -> T:
        if isinstance(self._store, SqliteStore):
            return await asyncio.to_thread(_set_up_and_perform, self._store, steps)
        return await _whole(_aset_up_and_perform(self._store, steps))


def set_up(store: SqliteStore) -> None:
    """Create the tables of a store, or finish what a killed process left half created.

    LangGraph's own setup takes a step and records it afterwards, so a kill between the two leaves
    a file that it cannot open again. Here all steps are one transaction, and a step that was taken
    but not recorded is only recorded.

    Raises:
        sqlite3.Error: The setup fails.
    """
    if store.is_setup:
        return
    with store.lock:
        if _perform(store.conn, _lacks_steps(store)):
            _perform(store.conn, _transaction(_migrate(store)))
    store.setup()  # with nothing left to create, it only prepares the connection


async def _aset_up(store: AsyncSqliteStore) -> None:
    if store.is_setup:
        return
    async with store.lock:
        if await _aperform(store.conn, _lacks_steps(store)):
            await _aperform(store.conn, _transaction(_migrate(store)))
    await store.setup()


def _steps(store: AnyStore) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield each table that records steps, with the scripts of all its steps."""
    yield "store_migrations", store.MIGRATIONS
    if store.index_config:
        yield "vector_migrations", store.VECTOR_MIGRATIONS


def _lacks_steps(store: AnyStore) -> Steps[bool]:
    """Whether a step is not recorded; it takes no lock, so a file that cannot be written opens."""
    for table, scripts in _steps(store):
        if not (yield _HAS_TABLE, (table,)):
            return True
        if (yield from _steps_taken(table)) < len(scripts):
            return True
    return False


def _migrate(store: AnyStore) -> Steps[None]:
    for table, scripts in _steps(store):
        yield f"CREATE TABLE IF NOT EXISTS {table} (v INTEGER PRIMARY KEY)", ()
        taken = yield from _steps_taken(table)
        for number, script in enumerate(scripts[taken:], taken):
            for statement in _statements(script):
                try:
                    yield statement, ()
                except sqlite3.OperationalError as error:
                    if not _TAKEN.search(str(error)):
                        raise
            yield f"INSERT INTO {table} (v) VALUES (?)", (number,)  # noqa: S608 - our own names


def _steps_taken(table: str) -> Steps[int]:
    ((last,),) = yield f"SELECT MAX(v) FROM {table}", ()  # noqa: S608 - our own names
    return 0 if last is None else last + 1


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for part in re.split("(?<=;)", script):
        statement += part
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    yield statement


def _batch(store: SqliteStore, ops: Sequence[Op]) -> list[Any]:
    with _as_store_errors():
        set_up(store)
        return store.batch(ops)


async def _abatch(store: AsyncSqliteStore, ops: Sequence[Op]) -> list[Any]:
    with _as_store_errors():
        await _aset_up(store)
        return await store.abatch(ops)


def _set_up_and_perform(store: SqliteStore, steps: Steps[T]) -> T:
    with _as_store_errors():
        set_up(store)
        with store.lock:
            return _perform(store.conn, steps)


async def _aset_up_and_perform(store: AsyncSqliteStore, steps: Steps[T]) -> T:
    with _as_store_errors():
        await _aset_up(store)
        async with store.lock:
            return await _aperform(store.conn, steps)


def _transaction(steps: Steps[T]) -> Steps[T]:
    yield "BEGIN IMMEDIATE", ()
    try:
        result = yield from steps
        yield "COMMIT", ()
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors, SQLite has rolled back by itself
            yield "ROLLBACK", ()
        raise
    return result


def _perform(connection: sqlite3.Connection, steps: Steps[T]) -> T:
    """Execute statements and send back their rows; an error is thrown in where it arose."""
    advance: Callable[[], Statement] = partial(next, steps)
    while True:
        try:
            statement = advance()
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            advance = partial(steps.send, connection.execute(*statement).fetchall())
        except BaseException as error:  # noqa: BLE001 - the steps roll back, and raise it
            advance = partial(steps.throw, error)


async def _aperform(connection: aiosqlite.Connection, steps: Steps[T]) -> T:
    advance: Callable[[], Statement] = partial(next, steps)
    while True:
        try:
            statement = advance()
        except StopIteration as stop:
            result: T = stop.value
            return result
        try:
            rows = await connection.execute_fetchall(*statement)
            advance = partial(steps.send, list(rows))
        except BaseException as error:  # noqa: BLE001 - likewise
            advance = partial(steps.throw, error)


async def _whole(transaction: Coroutine[object, object, T]) -> T:
    """Shield a transaction, which would stay open if it were cancelled."""
    return await asyncio.shield(asyncio.create_task(transaction))


def _rows(query: str, *values: object) -> Steps[Rows]:
    return (yield query, values)


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
    if (yield _HAS_TABLE, ("memagent_news",)):
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


@contextmanager
def _as_store_errors() -> Iterator[None]:
    """Raise what SQLite and its connections report as errors of the store."""
    try:
        yield
    except sqlite3.Error as error:
        raise _refusal(error) from error
    except ValueError as error:
        if str(error) not in _CLOSED:
            raise
        raise StoreError(_IS_CLOSED) from error


_CLOSED = {
    "no active connection",
    "Connection closed",
    "Cannot operate on a closed database.",
}
"""What aiosqlite and sqlite3 report of a connection that was closed."""
_IS_CLOSED = (
    "The SQLite store is closed. Use it within its `with` or `async with` block, or open it again."
)


def _refusal(error: sqlite3.Error) -> StoreError:
    if str(error) in _CLOSED:
        return StoreError(_IS_CLOSED)
    cause: BaseException = error
    while isinstance(cause.__context__, sqlite3.Error):  # a failed write, and then a failed commit
        cause = cause.__context__
    return StoreError(
        f"The SQLite store refused: {str(cause).rstrip('.')}. Check that the disk has room, and "
        "that no other program has locked the file."
    )
