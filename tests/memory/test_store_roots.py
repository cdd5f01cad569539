"""The set of all roots: whatever was lost, what is put is found, and no put fails by it."""

from __future__ import annotations

import atomically
import pytest
from langgraph.store.base import PutOp
from servers.tcp_proxy import TCPProxy

from memagent_graph.errors import StoreError
from memagent_graph.memory.redis import RedisStore, operations

AT = ("tenant", "things")


@pytest.fixture
def store(own_redis_server):
    with RedisStore.from_url(own_redis_server.url) as store:
        yield store


@pytest.fixture
def client(own_redis_server):
    with own_redis_server.client() as client:
        yield client


def test_what_is_put_after_the_server_lost_everything_is_found(store, client):
    store.put(AT, "k", {"n": 1})
    client.flushall()

    store.put(AT, "k", {"n": 2})

    assert [item.value for item in store.search(())] == [{"n": 2}]
    assert store.list_namespaces() == [AT]


def test_what_is_put_after_a_root_was_emptied_and_forgotten_is_found(own_redis_server, store):
    store.put(AT, "k", {"n": 1})
    with RedisStore.from_url(own_redis_server.url) as other:
        other.delete(AT, "k")
        assert other.list_namespaces() == []

    store.put(AT, "k", {"n": 2})

    assert [item.value for item in store.search(())] == [{"n": 2}]


def test_a_lost_reply_does_not_lose_a_root(own_redis_server, client):
    proxy = TCPProxy(own_redis_server.port)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}/0") as store:
        store.put(AT, "k", {"n": 1})
        client.flushdb()
        proxy.lose_next_reply = True

        store.put(AT, "k", {"n": 2})

        assert [item.value for item in store.search(())] == [{"n": 2}]
    proxy.close()


def test_a_batch_that_fails_in_part_does_not_lose_a_root(store, client):
    store.put(AT, "k", {})
    client.flushdb()
    client.lpush("memagent:{other}", "no index")
    with pytest.raises(StoreError, match="memagent:{other}"):
        store.batch([PutOp(AT, "k", {"n": 2}), PutOp(("other",), "k", {})])

    store.put(AT, "more", {})

    assert b"tenant" in client.smembers("memagent:roots")


def test_a_key_of_another_type_gives_way(store, client):
    client.lpush("memagent:roots", "no set")

    store.put(AT, "k", {"n": 1})
    atomically.put_if_absent(store, ("other",), "k", {"n": 2})

    assert [item.value["n"] for item in store.search(())] == [2, 1]


def test_namespaces_are_listed_of_more_roots_and_pages_than_are_asked_for_at_once(
    redis_store, monkeypatch
):
    monkeypatch.setattr(operations, "_NAMESPACES_AT_ONCE", 3)
    users = {(f"user-{number}", "memagent") for number in range(150)}
    labels = {("user-7", "memagent", f"label {number}") for number in range(10)}
    for namespace in users | labels:
        redis_store.put(namespace, "a", {})

    assert {*redis_store.list_namespaces(limit=1000)} == users | labels
    assert {
        *redis_store.list_namespaces(prefix=("*", "memagent"), max_depth=2, limit=1000)
    } == users
