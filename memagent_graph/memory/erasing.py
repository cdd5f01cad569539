"""Erase what a store still has of deleted items: free pages, logs, empty namespaces."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

from langgraph.store.memory import InMemoryStore

from memagent_graph.seams import drop_empty_namespaces

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
        elif _is_aiosqlite(connection) and isinstance(lock, asyncio.Lock):
            async with lock:
                await connection.commit()
                rows = [await connection.execute_fetchall(words) for words in _STATEMENTS]
            _check([*rows[-1]])
    except sqlite3.Error as error:
        return (
            f"The SQLite file could not be rewritten ({error}), so its free pages and its log "
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
        raise sqlite3.OperationalError("another program is reading its log")


def _is_aiosqlite(connection: object) -> bool:
    return type(connection).__module__.partition(".")[0] == "aiosqlite"
