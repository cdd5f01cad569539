"""Sweeping what expired out of the indexes."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.store.base import PutOp

from memagent_graph.memory.redis import RedisStore


@pytest.fixture
def store(own_redis_server):
    with RedisStore.from_url(own_redis_server.url, ttl={"default_ttl": 10}) as store:
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
