"""The indexes of a store in Redis: they find each item, after losses too, and drop expired ones."""

import asyncio

import pytest
from langgraph.store.base import PutOp

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


def lose_everything(store, client, url):
    client.flushall()


def forget_the_root(store, client, url):
    with RedisStore.from_url(url) as other:
        other.delete(AT, "k")
        assert other.list_namespaces() == []


def have_another_type(store, client, url):
    client.flushall()
    client.lpush("memagent:roots", "no set")


@pytest.mark.parametrize("happens", [lose_everything, forget_the_root, have_another_type])
def test_what_is_put_is_found_whatever_became_of_the_set_of_roots(
    own_redis_server, store, client, happens
):
    store.put(AT, "k", {"n": 1})
    happens(store, client, own_redis_server.url)

    store.put(AT, "k", {"n": 2})

    assert [item.value for item in store.search(())] == [{"n": 2}]
    assert store.list_namespaces() == [AT]


def test_namespaces_are_listed_of_more_roots_and_pages_than_are_asked_for_at_once(
    redis_store, monkeypatch
):
    monkeypatch.setattr(operations, "_NAMESPACES_AT_ONCE", 3)
    users = {(f"user-{number}", "memagent") for number in range(150)}
    labels = {("user-7", "memagent", f"label {number}") for number in range(10)}
    redis_store.batch([PutOp(namespace, "a", {}) for namespace in users | labels])

    def listed(**asked):
        return {*redis_store.list_namespaces(**asked, limit=1000)}

    assert (listed(), listed(prefix=("*", "memagent"), max_depth=2)) == (users | labels, users)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_sweep_takes_all_that_expired_out_of_all_indexes(store, client, how):
    def indexed():
        return sum(client.zcard(key) for key in client.keys("memagent:{*}"))

    def sweep():
        return store.sweep_ttl() if how == "sync" else asyncio.run(store.asweep_ttl())

    store.put(("root1",), "stays", {})
    store.batch([PutOp((f"root{n % 10}",), f"{n}", {}, ttl=10) for n in range(12_000)])
    for expiry in client.keys("memagent:{*}#expiry"):  # as if they had expired
        members = client.zrange(expiry, 0, -1)
        client.zadd(expiry, dict.fromkeys(members, 1))
        client.delete(*(expiry.removesuffix(b"#expiry") + member for member in members))

    assert [indexed(), sweep(), indexed(), sweep()] == [12_001, 12_000, 1, 0]
    assert len(store.search(())) == 1
