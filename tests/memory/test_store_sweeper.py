"""Sweeping what expired out of the indexes, as LangGraph's stores do."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis.asyncio
from langgraph.store.base import PutOp
from servers.redis_server import wait_until

from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.redis.store import Sweeper

OFTEN = 0.0005  # minutes


@pytest.fixture
def store(own_redis_server):
    ttl = {"default_ttl": 10, "sweep_interval_minutes": OFTEN}
    with RedisStore.from_url(own_redis_server.url, ttl=ttl) as store:
        yield store


@pytest.fixture
def client(own_redis_server):
    with own_redis_server.client() as client:
        yield client


def fill(store, client, count=30):
    """Leaves the indexes as they are when items under 10 roots have expired and one has not."""
    store.put(("root1",), "stays", {}, ttl=None)
    store.batch([PutOp((f"root{n % 10}",), f"{n}", {}, ttl=10) for n in range(count)])
    for expiry in client.keys("memagent:{*}#expiry"):
        members = client.zrange(expiry, 0, -1)
        client.zadd(expiry, dict.fromkeys(members, 1))
        client.delete(*(expiry.removesuffix(b"#expiry") + member for member in members))


def indexed(client):
    keys = client.keys("memagent:{*}")
    return sum(client.zcard(key) for key in keys)


def test_a_sweep_takes_what_expired_out_of_all_indexes(store, client):
    fill(store, client)
    assert indexed(client) == 31

    assert store.sweep_ttl() == 30

    assert indexed(client) == 1
    assert store.sweep_ttl() == 0
    assert len(store.search(())) == 1


@pytest.mark.slow
def test_a_sweep_has_no_limit(store, client):
    fill(store, client, count=12_000)

    assert asyncio.run(store.asweep_ttl()) == 12_000


def test_a_thread_sweeps_until_it_is_stopped(store, client):
    fill(store, client)

    done = store.start_ttl_sweeper()
    assert store.start_ttl_sweeper() is done

    wait_until(lambda: indexed(client) == 1, "a sweep")
    assert not done.done()
    assert store.stop_ttl_sweeper(10)
    assert done.result(10) is None
    assert store.stop_ttl_sweeper()


def test_cancelling_the_future_stops_the_thread(store):
    store.start_ttl_sweeper(60).cancel()

    store._sweeper._thread.join()


def test_closing_the_store_stops_the_thread(store):
    done = store.start_ttl_sweeper(60)
    store.close()

    assert done.result(10) is None


def test_a_task_sweeps_until_it_is_stopped(own_redis_server, client):
    async def use():
        async with redis.asyncio.Redis.from_url(own_redis_server.url) as given:
            async with RedisStore(given, ttl={"default_ttl": 10}) as store:
                task = await store.astart_ttl_sweeper(OFTEN)
                assert await store.astart_ttl_sweeper(OFTEN) is task
                await asyncio.to_thread(wait_until, lambda: indexed(client) == 1, "a sweep")
                assert await store.astop_ttl_sweeper(10)
                assert task.done()

    with RedisStore.from_url(own_redis_server.url) as store:
        fill(store, client)
    asyncio.run(use())


def test_a_task_stops_even_if_a_client_takes_its_cancellation_for_a_lost_connection():
    async def use():
        sweeping = asyncio.Event()

        async def sweep():
            try:
                sweeping.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise redis.ConnectionError("lost") from None

        sweeper = Sweeper(lambda: 0, sweep)
        task = sweeper.astart(0)
        await sweeping.wait()
        assert await sweeper.astop(2)
        assert task.done()
        assert sweeper.astart(OFTEN) is not task
        assert await sweeper.astop(10)

    asyncio.run(use())


def test_without_times_to_live_nothing_is_started(own_redis_server):
    with RedisStore.from_url(own_redis_server.url) as store:
        assert store.start_ttl_sweeper().done()
        assert store._sweeper._thread is None
        assert store.stop_ttl_sweeper()


def test_a_sweep_that_fails_is_logged_and_tried_again(store, client, caplog):
    caplog.set_level(logging.ERROR, "memagent_graph.memory.redis")
    client.lpush("memagent:roots", "no set")
    store.start_ttl_sweeper()
    wait_until(lambda: "TTL sweeper failed" in caplog.text, "a sweep that fails")
    client.delete("memagent:roots")

    fill(store, client)

    wait_until(lambda: indexed(client) == 1, "a sweep")
