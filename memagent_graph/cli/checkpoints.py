"""Files of checkpoints."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from langgraph.checkpoint.sqlite import SqliteSaver


@contextmanager
def open_checkpoints(file: Path) -> Iterator[SqliteSaver]:
    """Open a file of checkpoints.

    Raises:
        StoreError: It cannot be used.
    """
    import sqlite3

    from langgraph.checkpoint.sqlite import SqliteSaver

    from memagent_graph.errors import StoreError

    try:
        with SqliteSaver.from_conn_string(str(file)) as opened:
            opened.setup()
            yield opened
    except sqlite3.Error as error:
        message = f"The checkpoint file {file} cannot be used: {error}"
        raise StoreError(message) from error
