"""Names and values that try to be more than that, and tenants that must not meet."""

import asyncio
import json

import atomically
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, PutOp, SearchOp

from memagent_graph.errors import BadRecordError
from memagent_graph.memory.redis import RedisStore

EVIL = [
    "a:b::c", "{tenant-b}", "}{", "tenant-b}/x//y", "line\r\nFLUSHALL\r\n", "*3\r\n$3\r\nSET\r\n",
    "*", "[a-z]*?", "\\", "'; return redis['call']('FLUSHALL') --", "${7*7}", "__proto__",
    "constructor", "..", "%2e%2e%2f", "\x01\x7f", "\u202e\u0000\ufeff", "\ud800", "roots",
    "#expiry", "#stream//x", "\U0001f409" * 300,
]  # fmt: skip
TEXT = st.sampled_from(EVIL) | st.text(st.characters(), max_size=8)
LABEL = TEXT.map(lambda text: text.replace(".", "").replace("\0", "") or "x")
VALUE = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
AGAIN = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@AGAIN
@given(st.lists(LABEL, min_size=1, max_size=3).map(tuple), TEXT, VALUE)
def test_anything_is_stored_and_found_again_exactly(redis_store, namespace, key, value):
    if namespace[0] == "langgraph":
        return
    redis_store.put(namespace, key, value)

    assert redis_store.get(namespace, key).value == value
    found = redis_store.search(namespace, limit=10_000)
    same = [item.value for item in found if (item.namespace, item.key) == (namespace, key)]
    assert same == [value]
    assert namespace in redis_store.list_namespaces(prefix=namespace, limit=10_000)
    assert atomically.compare_and_put(redis_store, namespace, key, None, expected=value)
    assert redis_store.get(namespace, key) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", EVIL)
def test_no_key_of_another_tenant_is_read_or_touched(redis_server, redis_client, prefix, name):
    label = name.replace(".", "").replace("\0", "") or "x"
    value = {"__proto__": {"x": name}, name: name}
    with (
        RedisStore.from_url(redis_server.url, prefix=f"{prefix}-b") as other,
        RedisStore.from_url(redis_server.url, prefix=f"{prefix}-a") as store,
    ):
        other.batch([PutOp((label, "x"), name, {"of": "b"}), PutOp(("x", label), "k", {"of": "b"})])
        before = dump(redis_client, f"{prefix}-b")

        with redis_client.monitor() as monitor:
            use(store, label, name, value)
            redis_client.echo("the end")
            commands = []
            for command in monitor.listen():
                if command["command"].startswith("ECHO"):
                    break
                commands.append(command["command"])

        assert commands
        assert not any(f"{prefix}-b" in command for command in commands)
        assert dump(redis_client, f"{prefix}-b") == before
        assert other.get((label, "x"), name).value == {"of": "b"}


def use(store, label, name, value):
    store.put((label, "x"), name, value, ttl=10)
    assert store.get((label, "x"), name).value == value
    assert [item.value for item in store.search((label,))] == [value]
    assert len(store.search((), filter={name: name})) == 1
    assert store.list_namespaces(suffix=("x",)) == [(label, "x")]
    assert atomically.compare_and_put(store, (label,), name, value, expected=None)
    assert atomically.compare_and_put(store, (label,), name, {"n": 1}, expected=value)
    store.delete((label, "x"), name)
    assert [item.value for item in store.search(())] == [{"n": 1}]


def dump(client, prefix):
    keys = sorted(key for key in client.keys("*") if key.startswith(prefix.encode()))
    return [(key, client.dump(key), client.pttl(key) < 0) for key in keys]


def test_tenants_that_share_a_prefix_meet_only_where_their_namespaces_do(redis_store):
    for namespace in (("tenant",), ("tenant2",), ("tenant/", "x")):
        redis_store.put(namespace, "k", {"of": namespace[0]})

    assert [item.value["of"] for item in redis_store.search(("tenant",))] == ["tenant"]
    assert redis_store.list_namespaces(prefix=("tenant",)) == [("tenant",)]


def test_a_stored_value_is_never_more_than_json(redis_store, redis_client, prefix):
    """A writer to Redis cannot make a reader build objects."""
    item, value = f"{prefix}:{{a}}//k", {"lc": 2, "type": "constructor"}

    redis_client.set(item, b"1 1 0 pickle\n\x80\x04cos\nsystem\n.")
    with pytest.raises(BadRecordError):
        redis_store.get(("a",), "k")
    redis_client.set(item, b"1 1 0 json\n" + json.dumps(value).encode())
    assert redis_store.get(("a",), "k").value == value


STRINGS = {
    "empty": b"1 1 0 ", "no JSON": b"1 1 0 json\nnot json",
    "cut short": b'1700000000000000 1700000000000000 0 json\n{"secret": ', "no header": b"secret",
    "of another program": b'this is the "secret" message\n{}',
    "of another serializer": b'1 1 0 aes\n"secret"', "a list of JSON": b'1 1 0 json\n["secret"]',
    "nested without end": b"1 1 0 json\n" + b'{"a":' * 100_000,
    "out of time": b"9" * 60 + b" 1 0 json\n{}", "not UTF-8": b'1 1 0 json\n{"a": "\xff"}',
}  # fmt: skip
TYPES = {
    "list": lambda client, key: client.lpush(key, "secret"),
    "hash": lambda client, key: client.hset(key, "secret", "secret"),
}
AT = ("tenant", "things")
READS = [
    lambda store: store.get(AT, "bad"), lambda store: store.get(AT, "bad", refresh_ttl=False),
    lambda store: asyncio.run(store.aget(AT, "bad")), lambda store: store.search(AT),
    lambda store: store.search(()), lambda store: store.search(AT, filter={"n": "good"}),
    lambda store: store.batch([SearchOp(AT), GetOp(AT, "bad")]),
]  # fmt: skip


@pytest.mark.parametrize("kind", [*STRINGS, *TYPES])
def test_a_bad_record_costs_only_itself_and_is_named_by_every_read_that_meets_it(
    redis_store, redis_client, prefix, kind
):
    item = f"{prefix}:{{tenant}}/things//bad"
    redis_store.batch([PutOp(AT, key, {"n": key}) for key in ("another", "bad", "good")])
    redis_client.delete(item)
    assert redis_store.get(AT, "bad") is None  # what was evicted is no bad record
    TYPES[kind](redis_client, item) if kind in TYPES else redis_client.set(item, STRINGS[kind])

    for read in READS:
        with pytest.raises(BadRecordError, match=r"\('tenant', 'things'\), 'bad'") as raised:
            read(redis_store)
        assert raised.value.key == "bad"
        assert '"secret"' not in str(raised.value)

    good = redis_store.batch([GetOp(AT, "good"), GetOp(AT, "another")])
    assert [item.value["n"] for item in good] == ["good", "another"]
    assert redis_store.search(AT, limit=1)[0].key == "another"
    assert redis_store.search(AT, offset=2)[0].key == "good"
    assert redis_store.list_namespaces() == [AT]
    if kind in STRINGS and kind != "out of time":
        redis_store.put(AT, "bad", {"n": 1})
        assert redis_store.get(AT, "bad").value == {"n": 1}
    redis_store.delete(AT, "bad")
    assert not redis_client.exists(item)
    assert [found.key for found in redis_store.search(AT)] == ["another", "good"]
