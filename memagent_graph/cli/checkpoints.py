"""Files of checkpoints; where `memagent ask` keeps a run in one, and under which name."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.sqlite import SqliteSaver

    from memagent_graph.config import ReadingConfig
    from memagent_graph.graph.build import ReadingGraph
    from memagent_graph.readers.base import Reader


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


def thread_of(
    question: str,
    sources: list[str],
    reader: Reader,
    config: ReadingConfig,
    *others: str | None,
) -> RunnableConfig:
    """The same command is the same thread, and no other command is."""
    places = [name if name == "-" else str(Path(name).absolute()) for name in sources]
    who = [reader.identity.name, reader.identity.fingerprint]
    record = [question, places, *who, config.model_dump(), others]
    return {"configurable": {"thread_id": sha256(json.dumps(record).encode()).hexdigest()[:16]}}


def is_unfinished(agent: ReadingGraph, thread: RunnableConfig) -> bool:
    """Whether a thread has begun to read and has no answer."""
    state = agent.get_state(thread)
    return "progress" in state.values and state.values.get("answer") is None
