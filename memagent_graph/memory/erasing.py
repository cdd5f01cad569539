"""What a store still has of deleted items beside its items: free pages, logs, empty namespaces."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

from langgraph.store.memory import InMemoryStore

from memagent_graph.seams import drop_empty_namespaces

_STATEMENTS = ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")
"""The first writes all that is there anew; the second does so with the file, and empties its log.

The checkpoint says in the first column of its row whether somebody kept it from that.
"""


async def erase(holder: object) -> str:
    """Overwrite what a store or a checkpointer of LangGraph keeps of what was deleted in it.

    SQLite files are written anew, which takes room on the disk and time, as long as they are.

    Args:
        holder: the store or checkpointer.

    Returns:
        Where deleted text may still be, and what to do about it; empty if nowhere.
    """
    if isinstance(holder, InMemoryStore):
        drop_empty_namespaces(holder)
    connection: Any = getattr(holder, "conn", None)
    lock: Any = getattr(holder, "lock", None)
    try:
        if isinstance(connection, sqlite3.Connection) and lock is not None:
            await asyncio.to_thread(_erase, connection, lock)
        elif _is_aiosqlite(connection) and isinstance(lock, asyncio.Lock):
            async with lock:
                await connection.commit()
                rows = [await connection.execute_fetchall(words) for words in _STATEMENTS]
            _check([*rows[-1]])
    except sqlite3.Error as error:
        return (
            f"The SQLite file could not be written anew ({error}), so its free pages and its log "
            "may still hold what was deleted. Stop the other programs that use the file, and run "
            f'sqlite3 FILE "{"; ".join(_STATEMENTS)}".'
        )
    return ""


def _erase(connection: sqlite3.Connection, lock: Any) -> None:
    with lock:
        connection.commit()
        rows = [connection.execute(words).fetchall() for words in _STATEMENTS]
    _check(rows[-1])


def _check(rows: list[Any]) -> None:
    if rows and rows[0][0]:
        raise sqlite3.OperationalError("another program reads its log")


def _is_aiosqlite(connection: object) -> bool:
    return type(connection).__module__.partition(".")[0] == "aiosqlite"
