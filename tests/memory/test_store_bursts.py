"""Many callers at once: they wait their turn, and the server sees no more than was agreed."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.store.base import GetOp, PutOp, SearchOp
from servers.redis_server import RedisCluster, RedisPair, RedisServer

from memagent_graph import ConversationMemory, create_memagent
from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis import RedisStore

AT = ("tenant", "things")
BOUND = 10


@contextmanager
def most_clients(server: RedisServer):
    """The highest number of clients seen by the server, but for the one that asks."""
    seen, end = [0], threading.Event()

    def look():
        with server.client() as client:
            while not end.wait(0.005):
                seen.append(client.info("clients")["connected_clients"] - 1)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: max(seen)
    finally:
        end.set()
        thread.join()


@pytest.fixture
def store(own_redis_server):
    with RedisStore.from_url(own_redis_server.url, max_connections=BOUND) as store:
        yield store


@pytest.mark.slow
def test_thousands_of_coroutines_share_few_connections(own_redis_server, store):
    async def use():
        await asyncio.gather(*(store.aput(AT, f"{n}", {"n": n}) for n in range(5_000)))
        return await store.asearch(AT, limit=5_000)

    with most_clients(own_redis_server) as most:
        found = asyncio.run(use())

    assert sorted(item.value["n"] for item in found) == list(range(5_000))
    assert 0 < most() <= BOUND


def test_hundreds_of_threads_share_few_connections(own_redis_server, store):
    with most_clients(own_redis_server) as most, ThreadPoolExecutor(200) as threads:
        list(threads.map(lambda n: store.put(AT, f"{n}", {"n": n}), range(1_000)))

    assert len(store.search(AT, limit=2_000)) == 1_000
    assert 0 < most() <= BOUND


@pytest.mark.slow
def test_hundreds_of_readings_share_few_connections(own_redis_server, store):
    agent = create_memagent(store=store)

    async def use():
        asked = (
            {"question": f"Who is number {n}?", "document": f"Number {n} is Ann."}
            for n in range(200)
        )
        return await asyncio.gather(*(agent.ainvoke(one) for one in asked))

    with most_clients(own_redis_server) as most:
        outputs = asyncio.run(use())

    assert not any(output.get("warnings") for output in outputs)
    assert len({output["version"] for output in outputs}) == 200
    assert 0 < most() <= 2 * BOUND  # of the loop, and of threads


@pytest.mark.slow
def test_hundreds_of_conversations_share_few_connections(own_redis_server, store):
    memory = ConversationMemory(store=store, window=2)
    said = [
        kind(f"I am number {n} of those who like tea.")
        for n in range(3)
        for kind in (HumanMessage, AIMessage)
    ]

    async def use():
        await asyncio.gather(
            *(memory.aobserve(said, user=f"user{n}", thread="t") for n in range(200))
        )
        assert await memory.aflush() == 0

    with most_clients(own_redis_server) as most:
        asyncio.run(use())

    users = store.list_namespaces(limit=10_000)
    assert len({label for labels in users for label in labels if label.startswith("user")}) == 200
    assert 0 < most() <= 2 * BOUND


@pytest.mark.slow
def test_operations_of_all_kinds_run_at_once(store):
    """As LangGraph asks of its own stores in `test_large_batches_async`."""
    rounds = 100

    async def use():
        calls = []
        for n in range(rounds):
            at = ("test", f"{n}", "a")
            calls += [
                store.aput(("test", "foo"), f"key{n}", {"data": f"value{n}"}),
                store.aput(at, "key", {"n": n}),
                store.asearch(("test",), filter={"n": n}),
                store.alist_namespaces(prefix=("test",), max_depth=2),
                store.aget(("test", "foo"), f"key{n}"),
                store.adelete(("test", "gone"), f"key{n}"),
                store.abatch([GetOp(at, "key"), PutOp(at, "other", {"m": n}), SearchOp(at)]),
            ]
        return await asyncio.gather(*calls)

    results = asyncio.run(use())

    assert len(results) == 7 * rounds
    assert all(len(found) <= 1 for found in results[2::7])
    assert {namespace[0] for listed in results[3::7] for namespace in listed} <= {"test"}
    assert {item.value["data"] for item in results[4::7] if item} <= {
        f"value{n}" for n in range(rounds)
    }
    assert len(store.search(("test",), limit=1_000)) == 3 * rounds
    assert len(store.list_namespaces(prefix=("test",), limit=1_000)) == rounds + 1
    assert store.get(("test", "foo"), "key7").value == {"data": "value7"}


@pytest.fixture(scope="module", params=[RedisCluster, RedisPair], ids=["cluster", "sentinels"])
def deployed(request, tmp_path_factory):
    servers = request.param(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.kill()


@pytest.mark.slow
@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
def test_clusters_and_masters_see_few_connections_too(deployed, prefix, half):
    server = deployed.master if isinstance(deployed, RedisPair) else deployed.nodes[0]
    with server.client() as client:  # nodes, replicas and sentinels are clients as well
        idle = client.info("clients")["connected_clients"] - 1

    async def use():
        puts = (store.aput((f"root{n}",), "k", {"n": n}) for n in range(2_000))
        await asyncio.gather(*puts)

    with (
        RedisStore.from_url(deployed.url, prefix=prefix, max_connections=BOUND) as store,
        most_clients(server) as most,
    ):
        if half == "asynchronously":
            asyncio.run(use())
        else:
            with ThreadPoolExecutor(200) as threads:
                list(threads.map(lambda n: store.put((f"root{n}",), "k", {"n": n}), range(1_000)))
        seen = most()

    # A cluster's client asks for the layout on a connection of its own.
    layout = 0 if isinstance(deployed, RedisPair) else 1
    assert idle < seen <= BOUND + idle + layout


def test_a_bound_can_stand_in_the_url(own_redis_server):
    url = f"{own_redis_server.url}?max_connections=3&socket_timeout=5"

    async def use(store):
        await asyncio.gather(*(store.aput(AT, f"{n}", {}) for n in range(300)))

    with RedisStore.from_url(url) as store, most_clients(own_redis_server) as most:
        asyncio.run(use(store))

    assert 0 < most() <= 3


@pytest.mark.parametrize("bound", [0, -1])
def test_a_bound_that_lets_nothing_through_is_refused(bound):
    with pytest.raises(ConfigurationError, match="max_connections"):
        RedisStore.from_url("redis://localhost", max_connections=bound)
