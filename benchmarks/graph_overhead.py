"""Processor time of the graph for a chunk, against an empty LangGraph loop; checkpoint sizes.

Then the same with 16 segments that are read at once, and with one for nearly each chunk.

The reader returns at once and the chunks are small, so that what is timed is the state machine.

    python benchmarks/graph_overhead.py
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.evidence.places import Evidence, Memory
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Step, Update

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNKS = 700
ROUNDS = 7
MEMORY = "The lighthouse keeper wrote down what he saw. " * 80


class InstantReader(Reader):
    """Returns the same memory each time."""

    identity = Identity("instant", "instant")

    async def update(self, step: Step, **_: Any) -> Update:
        """Return at once."""
        return Update(Memory("memory"))

    async def merge(self, question: str, query: str, memories: Any, **_: Any) -> Merge:
        """Return at once."""
        return Merge(Memory("memory"))

    async def respond(self, question: str, memory: Memory, **_: Any) -> Answer:
        """Return at once."""
        return Answer("answer", "answer")


class TalkativeReader(InstantReader):
    """Fills the memory's budget anew at each chunk, with evidence."""

    async def update(self, step: Step, **_: Any) -> Update:
        """Return a memory of full size that differs from the last."""
        start = step.chunk.start
        text = f"{start:>9}"
        evidence = (Evidence(text, "long.txt", 1, start, start + 9),) * 10
        return Update(Memory(text + MEMORY, evidence))


class Loop(TypedDict):
    step: int


def empty_loop(*, edge_in_thread: bool = False) -> Any:
    """A loop of two nodes; asynchronous code follows its edge on the event loop, as in a reading.

    Args:
        edge_in_thread: whether the edge is a plain function, which LangGraph calls in a thread.
    """

    def one(_: Loop) -> dict[str, int]:
        return {}

    def two(state: Loop) -> dict[str, int]:
        return {"step": state["step"] + 1}

    async def aone(state: Loop) -> dict[str, int]:
        return one(state)

    async def atwo(state: Loop) -> dict[str, int]:
        return two(state)

    def choose(state: Loop) -> str:
        return "one" if state["step"] < CHUNKS else END

    async def achoose(state: Loop) -> str:
        return choose(state)

    from langgraph._internal._runnable import RunnableCallable

    edge = choose if edge_in_thread else RunnableCallable(choose, achoose, trace=False)
    builder = StateGraph(Loop)
    builder.add_node("one", RunnableCallable(one, aone))
    builder.add_node("two", RunnableCallable(two, atwo))
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    builder.add_conditional_edges("two", edge, ["one", END])
    return builder.compile()


def document(chunks: int) -> str:
    return "".join(f"Line {number:>6} of it.\n" for number in range(chunks * 3))


def milliseconds(run: Callable[[], Any]) -> float:
    started = time.process_time()
    run()
    return 1000 * (time.process_time() - started)


def overhead() -> None:
    agent = create_memagent(InstantReader(), config=ReadingConfig(chunk_tokens=20))
    asked = {"question": "?", "document": document(CHUNKS)}
    chunks = agent.invoke(asked)["usage"]["calls"] - 1
    loop, limit = empty_loop(), {"recursion_limit": 10_000}
    threaded = empty_loop(edge_in_thread=True)
    modes: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "sync": (lambda: agent.invoke(asked), lambda: loop.invoke({"step": 0}, limit)),
        "async": (
            lambda: asyncio.run(agent.ainvoke(asked)),
            lambda: asyncio.run(loop.ainvoke({"step": 0}, limit)),
        ),
        "async, its edge in a thread": (
            lambda: asyncio.run(agent.ainvoke(asked)),
            lambda: asyncio.run(threaded.ainvoke({"step": 0}, limit)),
        ),
    }
    for mode, (ours, theirs) in modes.items():
        pairs = [
            (milliseconds(ours) / chunks, milliseconds(theirs) / CHUNKS) for _ in range(ROUNDS)
        ]
        reading, empty = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{mode:<27} {reading:.3f} ms a chunk, an empty loop {empty:.3f} ms: {ratio:.2f} x")


def segments() -> None:
    asked = {"question": "?", "document": document(CHUNKS)}
    for most in (16, 1024):
        config = ReadingConfig(chunk_tokens=20, segments=most)
        agent = create_memagent(InstantReader(), config=config)
        events = [*agent.stream(asked, stream_mode="custom")]
        chunks = [event["fold"] for event in events if event["event"] == "chunk"]
        modes: dict[str, Callable[[], Any]] = {
            "sync": partial(agent.invoke, asked),
            "async": lambda agent=agent: asyncio.run(agent.ainvoke(asked)),
        }
        for mode, run in modes.items():
            took = statistics.median(milliseconds(run) for _ in range(ROUNDS))
            folds = len({*chunks})
            print(
                f"{mode:<6} {folds:>4} folds: {took / len(chunks):.3f} ms a chunk, "
                f"{took / folds:.3f} ms a fold"
            )


def checkpoint_bytes(reader: Reader) -> tuple[list[int], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "long.txt"
        text.write_text(document(CHUNKS + 60))
        with SqliteSaver.from_conn_string(f"{folder}/checkpoints.sqlite") as saver:
            agent = create_memagent(
                reader, config=ReadingConfig(chunk_tokens=20), checkpointer=saver
            )
            thread = {"configurable": {"thread_id": "1"}}
            started = time.process_time()
            out = agent.invoke({"question": "What is seen?", "document": text}, thread)
            seconds = time.process_time() - started
            rows = saver.conn.execute(
                """SELECT length(checkpoint) + length(metadata) + coalesce((
                       SELECT sum(length(value)) FROM writes w
                       WHERE w.checkpoint_id = c.checkpoint_id), 0)
                   FROM checkpoints c ORDER BY checkpoint_id"""
            ).fetchall()
    sizes = [size for (size,) in rows]
    out["milliseconds"] = 1000 * seconds / (out["usage"]["calls"] - 1)
    return [sum(pair) for pair in zip(sizes[3::2], sizes[4::2], strict=False)], out


def checkpoints() -> None:
    for reader in (InstantReader(), TalkativeReader()):
        sizes, out = checkpoint_bytes(reader)
        memory, evidence = len(out["memory"].encode()), len(json.dumps(out["evidence"]))
        limit = 4608 + 2 * (len("What is seen?") + evidence) + 3 * memory
        print(
            f"SqliteSaver, memory {memory} and evidence {evidence} bytes: "
            f"{sizes[10]} bytes at chunk 10, {sizes[700]} at chunk 700, limit {limit}; "
            f"{out['milliseconds']:.2f} ms a chunk"
        )


if __name__ == "__main__":
    overhead()
    segments()
    checkpoints()
