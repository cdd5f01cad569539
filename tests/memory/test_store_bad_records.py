"""What is damaged, or written by something else, costs only itself and is named."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp

from memagent_graph.errors import BadRecordError

AT = ("tenant", "things")

STRINGS = {
    "cut short": b'1700000000000000 1700000000000000 0 json\n{"secret": ',
    "no header": b"secret",
    "empty": b"",
    "of another program": b'this is the "secret" message\n{}',
    "of another serializer": b'1 1 0 aes\n"secret"',
    "a list": b'1 1 0 json\n["secret"]',
    "nested without end": b"1 1 0 json\n" + b'{"a":' * 100_000,
    "out of time": b"9" * 60 + b" 1 0 json\n{}",
    "not UTF-8": b'1 1 0 json\n{"a": "\xff"}',
}


@pytest.fixture
def item(prefix):
    return f"{prefix}:{{tenant}}/things//bad"


@pytest.fixture(params=[*STRINGS, "list", "set", "hash", "zset"])
def bad(request, redis_client, redis_store, item):
    """Spoils one item between two good ones."""
    redis_store.batch([PutOp(AT, key, {"n": key}) for key in ("another", "bad", "good")])
    redis_client.delete(item)
    match request.param:
        case "list":
            redis_client.lpush(item, "secret")
        case "set":
            redis_client.sadd(item, "secret")
        case "hash":
            redis_client.hset(item, "secret", "secret")
        case "zset":
            redis_client.zadd(item, {"secret": 1})
        case string:
            redis_client.set(item, STRINGS[string])


READS = {
    "get": lambda store: store.get(AT, "bad"),
    "get without refresh": lambda store: store.get(AT, "bad", refresh_ttl=False),
    "aget": lambda store: asyncio.run(store.aget(AT, "bad")),
    "search": lambda store: store.search(AT),
    "search of everything": lambda store: store.search(()),
    "search with a filter": lambda store: store.search(AT, filter={"n": "good"}),
    "batch": lambda store: store.batch([SearchOp(AT), GetOp(AT, "bad")]),
}


@pytest.mark.slow
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_bad_record_is_named_by_every_read_that_meets_it(redis_store, bad, read):
    with pytest.raises(BadRecordError, match=r"\('tenant', 'things'\), 'bad'") as raised:
        read(redis_store)

    assert raised.value.key == "bad"
    assert '"secret"' not in str(raised.value)


def test_a_bad_record_costs_only_itself(redis_store, bad):
    good = redis_store.batch([GetOp(AT, "good"), GetOp(AT, "another")])

    assert [item.value["n"] for item in good] == ["good", "another"]
    assert redis_store.search(AT, limit=1)[0].key == "another"
    assert redis_store.search(AT, offset=2)[0].key == "good"
    assert redis_store.list_namespaces() == [AT]


def test_a_bad_record_can_be_deleted(redis_store, bad, redis_client, item):
    redis_store.delete(AT, "bad")

    assert not redis_client.exists(item)
    assert [found.key for found in redis_store.search(AT)] == ["another", "good"]


def test_an_evicted_item_is_no_bad_record(redis_store, redis_client, item):
    redis_store.put(AT, "bad", {})
    redis_client.delete(item)

    assert redis_store.get(AT, "bad") is None
    assert redis_store.search(AT) == []


@pytest.mark.parametrize("kind", [kind for kind in STRINGS if kind != "out of time"])
def test_a_bad_string_can_be_overwritten(redis_store, redis_client, item, kind):
    redis_client.set(item, STRINGS[kind])

    redis_store.put(AT, "bad", {"n": 1})

    assert redis_store.get(AT, "bad").value == {"n": 1}
