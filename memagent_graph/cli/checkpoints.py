"""Files of checkpoints."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from langgraph.checkpoint.sqlite import SqliteSaver


@contextmanager
def open_saver(file: Path) -> Iterator[SqliteSaver]:
    """Open the checkpoints of an SQLite file, which is created if it does not exist.

    Raises:
        StoreError: The file cannot be opened.
    """
    import sqlite3

    from langgraph.checkpoint.sqlite import SqliteSaver

    from memagent_graph.errors import StoreError
    from memagent_graph.memory.stores import wait_for_others

    with ExitStack() as stack:
        try:
            saver = stack.enter_context(SqliteSaver.from_conn_string(str(file)))
            wait_for_others(saver.conn, saver.setup)
        except sqlite3.Error as error:
            message = (
                f"The checkpoint file {file} cannot be used: {error}. Check the disk and the "
                "permissions of its folder, or name another file."
            )
            raise StoreError(message) from error
        yield saver
