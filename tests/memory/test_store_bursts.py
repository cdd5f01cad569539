"""Many callers at once: they wait their turn, and the server sees no more than was agreed."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from servers.redis_server import RedisCluster, RedisPair, RedisServer

from memagent_graph import ConversationMemory, create_memagent
from memagent_graph.memory.redis import RedisStore

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


def put_by_coroutines(store, count):
    async def use():
        await asyncio.gather(*(store.aput((f"root{n}",), "k", {"n": n}) for n in range(count)))

    asyncio.run(use())


def put_by_threads(store, count):
    with ThreadPoolExecutor(200) as threads:
        list(threads.map(lambda n: store.put((f"root{n}",), "k", {"n": n}), range(count)))


@pytest.mark.slow
@pytest.mark.parametrize("put", [put_by_coroutines, put_by_threads])
def test_thousands_who_put_share_few_connections(own_redis_server, store, put):
    with most_clients(own_redis_server) as most:
        put(store, 2_000)

    found = store.search((), limit=5_000)
    assert sorted(item.value["n"] for item in found) == list(range(2_000))
    assert 0 < most() <= BOUND


@pytest.mark.slow
def test_hundreds_of_readings_and_conversations_share_few_connections(own_redis_server, store):
    agent, memory = create_memagent(store=store), ConversationMemory(store=store, window=2)
    kinds, numbers = (HumanMessage, AIMessage), range(100)
    said = [kind(f"I am number {n} who likes tea.") for n in range(3) for kind in kinds]

    def read(n):
        return agent.ainvoke({"question": f"Who is {n}?", "document": f"Number {n} is Ann."})

    async def use():
        outputs = await asyncio.gather(*map(read, numbers))
        turns = (memory.aobserve(said, user=f"user{n}", thread="t") for n in numbers)
        await asyncio.gather(*turns)
        assert await memory.aflush() == 0
        return outputs

    with most_clients(own_redis_server) as most:
        outputs = asyncio.run(use())

    assert not any(output.get("warnings") for output in outputs)
    assert len({output["version"] for output in outputs}) == 100
    labels = {label for labels in store.list_namespaces(limit=10_000) for label in labels}
    assert len([label for label in labels if label.startswith("user")]) == 100
    assert 0 < most() <= 2 * BOUND  # of the loop, and of threads


@pytest.fixture(scope="module", params=[RedisCluster, RedisPair], ids=["cluster", "sentinels"])
def deployed(request, tmp_path_factory):
    servers = request.param(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.kill()


@pytest.mark.slow
@pytest.mark.parametrize("put", [put_by_coroutines, put_by_threads])
def test_clusters_and_masters_see_few_connections_too(deployed, prefix, put):
    server = deployed.master if isinstance(deployed, RedisPair) else deployed.nodes[0]
    with server.client() as client:  # nodes, replicas and sentinels are clients as well
        idle = client.info("clients")["connected_clients"] - 1

    with (
        RedisStore.from_url(deployed.url, prefix=prefix, max_connections=BOUND) as store,
        most_clients(server) as most,
    ):
        put(store, 1_000)
        seen = most()

    # A cluster's client asks for the layout on a connection of its own.
    layout = 0 if isinstance(deployed, RedisPair) else 1
    assert idle < seen <= BOUND + idle + layout


def test_a_bound_can_stand_in_the_url(own_redis_server):
    url = f"{own_redis_server.url}?max_connections=3&socket_timeout=5"

    with RedisStore.from_url(url) as store, most_clients(own_redis_server) as most:
        put_by_coroutines(store, 300)

    assert 0 < most() <= 3
