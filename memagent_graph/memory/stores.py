"""The stores that a user names, Redis or an SQLite file: open, write with conditions, erase."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from langgraph.store.base import BaseStore, PutOp, validate_op_namespace
from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import ConfigurationError, StoreError, install_hint
from memagent_graph.memory.store import AtomicStore, GetThenPut, agrees, arrange, store_seconds
from memagent_graph.seams import call_with_connection, drop_empty_namespaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from langgraph.store.base import Op, Result
    from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
    from typing_extensions import TypeIs

    from memagent_graph.memory.store import Given, Namespace

T = TypeVar("T")

NO_STORE = "none"
_NO_FILE = ":memory:"
"""Name of a database of SQLite that is in memory."""
_LONGEST_BUSY = 3600.0  # seconds


@contextmanager
def open_store(where: str | None = None) -> Iterator[BaseStore | None]:
    """Open a store, and close it at the end; errors in between are raised unchanged.

    Args:
        where: a Redis URL ("redis://", "rediss://", "unix://", ...), the path of an SQLite file,
            or "none". None takes `MEMAGENT_STORE`, or else an SQLite file in the user's data
            folder.

    Raises:
        ConfigurationError: The URL is not one of Redis.
        StoreError: The store cannot be opened or closed.
        MissingDependencyError: The package for SQLite is not installed.
    """
    where = _place(where)
    file = sqlite_file(where)
    if file is not None:
        with _sqlite(file) as store:
            yield store
    elif where == NO_STORE:
        yield None
    else:
        from memagent_graph.memory.redis import RedisStore

        with RedisStore.from_url(where) as store:
            yield store


def sqlite_file(where: str | None = None) -> Path | None:
    """Return the SQLite file that `open_store` opens; None for Redis and for no store."""
    where = _place(where)
    return None if where == NO_STORE or "://" in where else Path(where)


def _place(where: str | None) -> str:
    return where or os.environ.get("MEMAGENT_STORE") or str(default_file())


def default_file() -> Path:
    """Return the SQLite file of this user's memories."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "memagent" / "memories.sqlite"


@contextmanager
def _sqlite(file: Path) -> Iterator[BaseStore]:
    with install_hint('To keep memories in SQLite: pip install "memagent-graph[cli]"'):
        from langgraph.store.sqlite import SqliteStore
    with ExitStack() as stack:
        with _blame(file):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # memories are private
            if str(file) != _NO_FILE and not file.exists():
                _create(file, SqliteStore)
            store = stack.enter_context(SqliteStore.from_conn_string(str(file)))
            wait_for_others(store.conn, store.setup)
        try:
            yield store
        finally:
            with _blame(file), store.lock:  # an interrupted reading may still write in another
                store.conn.close()  # thread; closing the file meanwhile would crash the process


def _create(file: Path, kind: type[SqliteStore]) -> None:
    """Create a file with all its tables, or none: LangGraph cannot open one that has some."""
    with TemporaryDirectory(dir=file.parent, prefix=f".{file.name}-") as folder:
        whole = Path(folder) / file.name
        with kind.from_conn_string(str(whole)) as store:
            store.setup()
        with suppress(OSError):  # another process was faster, or the file system has no links
            os.link(whole, file)


def wait_for_others(file: sqlite3.Connection, set_up: Callable[[], None]) -> None:
    """Set a file up while other processes hold it, within `store_seconds`, which it then has too.

    SQLite itself does not wait where two turn on its write-ahead log at once.
    """
    seconds = store_seconds()
    file.execute(f"PRAGMA busy_timeout = {1000 * min(seconds, _LONGEST_BUSY):.0f}")
    end = time.monotonic() + seconds
    while True:
        try:
            return set_up()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
        time.sleep(0.02)


@contextmanager
def _blame(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        message = (
            f"The store {file} cannot be used: {error}. Check the disk and the permissions of its "
            "folder, or name another file or a Redis URL in MEMAGENT_STORE."
        )
        raise StoreError(message) from error


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
                stored = expected
                if isinstance(expected, Mapping):  # as it would be read back: some values change
                    stored = orjson.loads(orjson.dumps(dict(expected)))
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


_STATEMENTS = ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")
"""The first rewrites the database, the second writes it to the file and empties the log. The first
column of the checkpoint's row says whether another connection prevented that.
"""


async def erase(holder: object) -> str:
    """Overwrite what a store or checkpointer of LangGraph still has of deleted items.

    SQLite files are rewritten, which takes time and disk space in proportion to their size.

    Args:
        holder: the store or checkpointer.

    Returns:
        Where deleted text may still be, and what to do about it; "" if nowhere.
    """
    if isinstance(holder, InMemoryStore):
        drop_empty_namespaces(holder)
    connection: Any = getattr(holder, "conn", None)
    lock: Any = getattr(holder, "lock", None)
    try:
        if isinstance(connection, sqlite3.Connection) and lock is not None:
            await asyncio.to_thread(_erase, connection, lock)
        elif isinstance(lock, asyncio.Lock) and type(connection).__module__.startswith("aiosqlite"):
            async with lock:
                await call_with_connection(connection, _erase)
    except sqlite3.Error as error:
        return (
            f"The SQLite file could not be rewritten ({error}), so its free pages and its log "
            "may still hold what was deleted. Stop the other programs that use the file, and run "
            f'sqlite3 FILE "{"; ".join(_STATEMENTS)}".'
        )
    return ""


def _erase(file: sqlite3.Connection, lock: AbstractContextManager[object] | None = None) -> None:
    with lock or nullcontext():
        file.commit()
        *_, row = [file.execute(words).fetchone() for words in _STATEMENTS]
    if row and row[0]:
        raise sqlite3.OperationalError("another program is reading its log")


def refuse_writes() -> ConfigurationError:
    """Return the error for a write to a memory that is attached read-only."""
    message = (
        "This memory is attached read-only (read_only=True): its own agent writes it. Use a "
        "ConversationMemory with another namespace to remember something here."
    )
    return ConfigurationError(message)


class ReadOnlyStore(BaseStore):
    """A store that reads from another one and refuses every write."""

    def __init__(self, store: BaseStore) -> None:
        self.store = store
        self.ttl_config = store.ttl_config
        self.supports_ttl = store.supports_ttl
        self._atomic = atomic(store)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Read items; a write raises `ConfigurationError`."""
        return self.store.batch(_reads(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Any]:
        """Do what `batch` does."""
        return await self._atomic.abatch(_reads(ops))

    async def _refuse(self, *_: object, **__: object) -> Any:
        raise refuse_writes()

    acommit = _refuse

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """Return the places of the items in and below a namespace."""
        return await self._atomic.aplaces(namespace)


def _reads(ops: Iterable[Op]) -> list[Op]:
    found = [*ops]
    if any(isinstance(op, PutOp) for op in found):
        raise refuse_writes()
    return found
