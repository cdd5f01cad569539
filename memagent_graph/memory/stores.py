"""Open a store from a Redis URL, an SQLite file or the environment."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from memagent_graph.errors import StoreError, install_hint
from memagent_graph.memory.circuit import store_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langgraph.store.base import BaseStore
    from langgraph.store.sqlite import SqliteStore

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
