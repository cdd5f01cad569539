"""Run as a process of its own, to be killed: proposes what two threads say, and accepts it."""

import os
import signal
import sys

from integration.stored_child import FatalStore
from langchain_core.messages import HumanMessage

from memagent_graph import ConversationMemory
from memagent_graph.memory.stores import open_store, sqlite_file

SAID = {"monday": "I live in Husum.", "tuesday": "My sister breeds goats."}


def approve(store):
    """Let each thread be folded, and accept what waits; return the memory."""
    memory = ConversationMemory("extractive", store=store, approve=True)
    for thread, text in SAID.items():
        message = HumanMessage(text, id=thread, additional_kwargs={"told_at": "2026-03-05"})
        memory.save([message], user="ann", thread=thread)
    waiting = memory.proposals("ann")
    if waiting:
        memory.accept("ann", *waiting)
    return memory


def main(where: str, fatal: int) -> None:
    """Kill this process after a call of Redis, or before a statement of SQLite that commits."""
    if sqlite_file(where) is None:
        FatalStore.fatal = fatal
        with FatalStore.from_url(where) as store:
            approve(store)
    else:
        with open_store(where) as store:
            statements = iter(range(1, fatal))

            def count(statement: str) -> None:
                reads = statement.startswith(("SELECT", "BEGIN"))
                commits = statement == "COMMIT" or not (reads or store.conn.in_transaction)
                if commits and next(statements, None) is None:
                    os.kill(os.getpid(), signal.SIGKILL)

            store.conn.set_trace_callback(count)
            approve(store)
            store.conn.set_trace_callback(None)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
