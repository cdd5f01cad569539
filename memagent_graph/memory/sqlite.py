"""Compare-and-put for LangGraph's SQLite stores, in their own database."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import orjson
from langgraph.store.base import PutOp, validate_op_namespace
from langgraph.store.sqlite import SqliteStore

from memagent_graph.errors import StoreError
from memagent_graph.memory.atomic import Namespace, agrees, arrange
from memagent_graph.seams import call_with_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from langgraph.store.base import Op
    from langgraph.store.sqlite import AsyncSqliteStore

    from memagent_graph.memory.atomic import Given

    AnyStore: TypeAlias = SqliteStore | AsyncSqliteStore

T = TypeVar("T")

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


class AtomicSqlite:
    """An `AtomicStore` on a SQLite store; every operation is one transaction.

    It is safe among threads and processes that share the file. Items written here are not indexed
    for vector search.

    Args:
        store: a store of LangGraph. The asynchronous one serves the loop that opened it, the
            synchronous one serves all.
    """

    def __init__(self, store: AnyStore) -> None:
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
            if isinstance(store, SqliteStore):
                return await asyncio.to_thread(_batch, store, ops)
            await _aset_up(store)
            # A transaction would stay open if it were cancelled.
            return await asyncio.shield(store.abatch(ops))

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """Return the places of all items in and below a namespace, which is not the empty one."""
        (prefix, _) = _row(namespace, "")
        below = prefix, f"{prefix}.", f"{prefix}/"  # a slash follows the dot
        rows = await self._call(lambda file: file.execute(_BELOW, below).fetchall())
        return [(tuple(found.split(".")), key) for found, key in rows]

    async def _call(self, act: Callable[[sqlite3.Connection], T]) -> T:
        store = self._store
        with _as_store_errors():
            if isinstance(store, SqliteStore):
                return await asyncio.to_thread(_set_up_and_call, store, act)
            await _aset_up(store)
            async with store.lock:
                return await call_with_connection(store.conn, act)


def set_up(store: SqliteStore) -> None:
    """Create the tables of a store, or finish what a killed process left half created.

    LangGraph's own setup takes a step and records it afterwards, so a kill between the two leaves
    a file that it cannot open again. Here all steps are one transaction, and a step that was taken
    but not recorded is only recorded.
    """
    if store.is_setup:
        return
    with store.lock:
        _migrate(store, store.conn)
    store.setup()  # with nothing left to create, it only prepares the connection


async def _aset_up(store: AsyncSqliteStore) -> None:
    if store.is_setup:
        return
    async with store.lock:
        await call_with_connection(store.conn, partial(_migrate, store))
    await store.setup()


def _set_up_and_call(store: SqliteStore, act: Callable[[sqlite3.Connection], T]) -> T:
    set_up(store)
    with store.lock:
        return act(store.conn)


def _batch(store: SqliteStore, ops: Sequence[Op]) -> list[Any]:
    set_up(store)
    return store.batch(ops)


def _migrate(store: AnyStore, file: sqlite3.Connection) -> None:
    steps: dict[str, Sequence[str]] = {"store_migrations": store.MIGRATIONS}
    if store.index_config:
        steps["vector_migrations"] = store.VECTOR_MIGRATIONS
    # Asked without a lock, so that a file that cannot be written opens.
    if any(_steps_taken(file, table) < len(scripts) for table, scripts in steps.items()):
        _transact(partial(_take_steps, steps), file)


def _take_steps(steps: Mapping[str, Sequence[str]], file: sqlite3.Connection) -> None:
    for table, scripts in steps.items():
        file.execute(f"CREATE TABLE IF NOT EXISTS {table} (v INTEGER PRIMARY KEY)")
        for number in range(_steps_taken(file, table), len(scripts)):
            for statement in _statements(scripts[number]):
                try:
                    file.execute(statement)
                except sqlite3.OperationalError as error:
                    if not _TAKEN.search(str(error)):
                        raise
            file.execute(f"INSERT INTO {table} (v) VALUES (?)", (number,))  # noqa: S608 - our own names


def _steps_taken(file: sqlite3.Connection, table: str) -> int:
    if file.execute(_HAS_TABLE, (table,)).fetchone() is None:
        return 0
    (last,) = file.execute(f"SELECT MAX(v) FROM {table}").fetchone()  # noqa: S608 - our own names
    return 0 if last is None else int(last) + 1


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for part in re.split("(?<=;)", script):
        statement += part
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    yield statement


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
