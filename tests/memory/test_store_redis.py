"""What is particular to Redis: round trips, indexes, expiry, connections, errors."""

import asyncio
import gc
import re
import subprocess
import sys
import threading
from datetime import UTC, datetime
from uuid import UUID

import atomically
import pytest
import redis
import redis.asyncio
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.base import GetOp, PutOp
from servers.redis_server import RedisServer, free_port, wait_until
from servers.tcp_proxy import TCPProxy

from memagent_graph import ConversationMemory
from memagent_graph.errors import ConfigurationError, StoreError, StoreRefusedError
from memagent_graph.memory.redis import RedisStore, operations
from memagent_graph.memory.store import Pauses

AT = ("tenant", "things")
TEN_MINUTES = 600_000


def item_of(prefix, key="k"):
    return f"{prefix}:{{tenant}}/things//{key}"


def members(client, prefix, root="tenant"):
    return client.zrange(f"{prefix}:{{{root}}}", 0, -1)


@pytest.fixture
def proxied(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    store = RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}/0", prefix=prefix)
    store.put(AT, "warm up", {})
    store.get(AT, "warm up")
    atomically.compare_and_put(store, AT, "warm up", {}, expected={})
    store.search(AT)

    def trips(operation):
        before = proxy.trips
        operation()
        return proxy.trips - before

    yield store, trips
    store.close()
    proxy.close()


@pytest.fixture(params=["synchronously", "asynchronously"])
def call(request):
    def call(store, name, *arguments, **options):
        if request.param == "synchronously":
            return getattr(store, name)(*arguments, **options)
        return asyncio.run(getattr(store, f"a{name}")(*arguments, **options))

    return call


# Round trips


def test_a_batch_of_gets_and_puts_and_a_commit_are_one_round_trip_each(proxied):
    store, trips = proxied
    puts = [PutOp((f"root{n}",), "k", {"n": n}) for n in range(50)]
    gets = [GetOp(AT, f"{n}") for n in range(50)]
    given = [PutOp(AT, f"v{n}", {"n": n}) for n in range(3)]
    absent = {(put.namespace, put.key): None for put in given}

    assert trips(lambda: store.batch([*puts, *gets])) == 1
    assert trips(lambda: atomically.commit(store, given, absent)) == 1


def test_a_search_by_prefix_takes_two_round_trips_however_much_there_is(proxied):
    store, trips = proxied
    store.batch([PutOp(("tenant", f"{n}"), "k", {}) for n in range(900)])

    assert trips(lambda: store.search(("tenant", "7"))) == 2
    assert trips(lambda: store.search(("tenant",), limit=20, offset=800)) == 2


# Expiry


def test_a_read_lets_the_time_to_live_begin_again_unless_told_otherwise(
    redis_store, redis_client, prefix
):
    item = item_of(prefix)
    redis_store.put(AT, "k", {}, ttl=10)

    for refresh in (True, False):
        for read in (
            lambda: redis_store.get(AT, "k", refresh_ttl=refresh),  # noqa: B023
            lambda: redis_store.search(("tenant",), refresh_ttl=refresh),  # noqa: B023
            lambda: asyncio.run(redis_store.aget(AT, "k", refresh_ttl=refresh)),  # noqa: B023
        ):
            redis_client.pexpire(item, TEN_MINUTES // 2)
            read()
            assert (redis_client.pttl(item) > TEN_MINUTES * 0.9) == refresh


def test_expired_items_leave_the_index_when_others_are_written(redis_store, redis_client, prefix):
    for n in range(10):
        redis_store.put(AT, f"{n}", {}, ttl=0.0001)
    wait_until(lambda: not redis_client.exists(item_of(prefix, "9")), "expiry")

    redis_store.put(AT, "new", {}, ttl=10)

    assert members(redis_client, prefix) == [b"/things//new"]
    assert redis_client.zcard(f"{prefix}:{{tenant}}#expiry") == 1


def test_expired_items_leave_an_index_that_is_searched_or_listed(redis_store, redis_client, prefix):
    redis_store.batch([PutOp(AT, f"{n}", {}, ttl=0.001) for n in range(2500)])
    wait_until(lambda: not redis_client.exists(item_of(prefix, "2499")), "expiry")

    assert redis_store.search(("tenant",)) == redis_store.list_namespaces() == []

    indexed = members(redis_client, prefix), redis_client.smembers(f"{prefix}:roots")
    assert indexed == ([], set())


def test_an_item_that_the_server_evicted_is_not_found_and_leaves_the_index(
    redis_store, redis_client, prefix
):
    for key in ("evicted", "stays"):
        redis_store.put(AT, key, {})
    redis_client.delete(item_of(prefix, "evicted"))

    assert [item.key for item in redis_store.search(AT, limit=1)] == ["stays"]
    assert members(redis_client, prefix) == [b"/things//stays"]


# Vectors


SAID = {
    "a": {"text": "Edda breeds goats in Husum.", "tags": ["farm"]},
    "b": {"text": "The train to Kiel is late.", "tags": ["travel"]},
    "c": {"text": "Goats eat anything; our goats ate a hat.", "tags": ["farm"]},
    "d": {"text": "王先生住在柏林。", "tags": []},
    "e": {"number": 4},
}


def test_a_query_finds_items_by_their_words(redis_store, call):
    for key, value in SAID.items():
        redis_store.put(AT, key, value, index=["text"])
    redis_store.put(("other",), "f", {"text": "Goats, too."})

    def keys(query, namespace=AT, **options):
        found = call(redis_store, "search", namespace, query=query, **options)
        return [item.key for item in found]

    first, second = call(redis_store, "search", AT, query="Which goat ate a hat?")

    assert (first.key, second.key, first.value) == ("c", "a", SAID["c"])
    assert first.score > second.score > 0
    assert (keys("柏林"), keys("goats", limit=1, offset=1)) == (["d"], ["a"])
    assert keys("goats", filter={"tags": ["travel"]}) == keys("submarine") == []
    assert {*keys("goats", ())} == {"a", "c", "f"}
    assert len(keys("")) == len(keys(None)) == len(SAID)


def test_a_query_refuses_too_many_items(redis_store, call, monkeypatch):
    monkeypatch.setattr(operations, "MOST_COMPARED", 3)
    for key, value in SAID.items():
        redis_store.put(AT, key, value)

    with pytest.raises(ConfigurationError, match="3 items at most"):
        call(redis_store, "search", AT, query="goats")

    assert len(call(redis_store, "search", AT, query="goats", filter={"tags": ["farm"]})) == 2


TOPICS = ("goat", "train", "berlin")


def embed(texts):
    """A vector for each text: how often it names each topic, however it is written."""
    named = (one.casefold().replace("柏林", "berlin").replace("railway", "train") for one in texts)
    return [[float(text.count(topic)) + 0.01 for topic in TOPICS] for text in named]


@pytest.fixture(params=["plain", "encrypted"])
def serializer(request):
    if request.param == "encrypted":
        pytest.importorskip("Crypto")
        return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    return None


@pytest.fixture
def embedding_store(redis_server, prefix, serializer):
    index = {"dims": 3, "embed": embed, "fields": ["text"]}
    options = {"prefix": prefix, "index": index, "serializer": serializer}
    with RedisStore.from_url(redis_server.url, **options) as store:
        yield store


def test_a_query_finds_items_by_their_embeddings(
    embedding_store, call, redis_server, prefix, serializer
):
    for key, value in SAID.items():
        embedding_store.put(AT, key, value)
    embedding_store.put(AT, "f", {"text": "A railway."}, index=False)

    found = call(embedding_store, "search", AT, query="Railway delays")

    assert (found[0].key, found[0].score) == ("b", pytest.approx(1, abs=1e-2))
    assert {item.key: item.score for item in found[-2:]} == {"e": None, "f": None}
    assert call(embedding_store, "search", AT, query="Berlin", limit=1)[0].key == "d"
    assert {item.key: item.value for item in found if item.key != "f"} == SAID
    assert embedding_store.search(AT, filter={"text": SAID["b"]["text"]})[0].key == "b"
    with RedisStore.from_url(redis_server.url, prefix=prefix, serializer=serializer) as plain:
        assert plain.get(AT, "b").value == embedding_store.get(AT, "b").value == SAID["b"]
        assert plain.search(AT, query="train")[0].value == SAID["b"]


def test_embeddings_go_with_their_item(embedding_store, redis_content):
    train, two = {"text": "A train."}, {"text": "Two."}
    embedding_store.put(AT, "a", {"text": "Goats."})
    embedding_store.put(AT, "a", train)
    assert embedding_store.search(AT, query="goat")[0].score < 0.2
    assert atomically.compare_and_put(embedding_store, AT, "a", two, expected=train)
    assert embedding_store.search(AT, query="goat")[0].score is None
    embedding_store.delete(AT, "a")
    embedding_store.list_namespaces()

    assert redis_content() == ""


def test_memories_are_not_embedded(redis_server, prefix):
    given = []
    index = {"dims": 3, "embed": lambda texts: given.extend(texts) or embed(texts)}
    with RedisStore.from_url(redis_server.url, prefix=prefix, index=index) as store:
        memory = ConversationMemory("extractive", store=store)
        memory.save("I breed goats.", user="ann", thread="t")

    assert given == []


# Connections


def test_a_restart_of_the_server_goes_unnoticed(own_redis_server):
    with RedisStore.from_url(own_redis_server.url) as store:
        store.put(AT, "before", {"n": 1})

        own_redis_server.restart()

        store.put(AT, "after", {"n": 2})
        own_redis_server.kill()
        back = threading.Timer(0.2, own_redis_server.start)
        back.start()
        assert store.get(AT, "before").value == {"n": 1}
        back.join()
        assert atomically.compare_and_put(store, AT, "after", {"n": 3}, expected={"n": 2})


@pytest.mark.parametrize("url", ["redis://{}/0", "redis+cluster://{}", "redis+sentinel://{}/main"])
def test_a_server_that_is_away_is_one_clear_error_without_the_password(url, call, monkeypatch):
    monkeypatch.setattr("memagent_graph.memory.redis.connection.FAILING", Pauses(0, 0))
    address = f"127.0.0.1:{free_port()}"
    store = RedisStore.from_url(url.format(f"user:hunter2@{address}"))

    with pytest.raises(StoreError, match=f"{address}.* (cannot be reached|refused)") as raised:
        call(store, "get", AT, "k")

    assert "hunter2" not in repr((raised.value, raised.value.__cause__, store))
    assert "<" not in str(raised.value)  # as of objects of the client
    store.close()


def test_a_wrong_password_is_said_to_be_one(own_redis_server):
    with own_redis_server.client() as client:
        client.config_set("requirepass", "right")
    with RedisStore.from_url(f"redis://:wr0ng@127.0.0.1:{own_redis_server.port}") as store:
        with pytest.raises(StoreRefusedError, match="user name or password") as raised:
            store.get(AT, "k")
    assert store.retries == 0
    assert "wr0ng" not in str(raised.value)


@pytest.mark.parametrize("url", [
    "redis://:hun/ter2@localhost", "redis://localhost:hunter2", "redis+cluster://a:hunter2,b",
])  # fmt: skip
def test_a_url_that_cannot_be_read_is_refused_without_quoting_it(url):
    with pytest.raises(ConfigurationError, match="percent-encoded") as raised:
        RedisStore.from_url(url)

    assert "ter2" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
def test_a_server_that_goes_away_is_reported_soon(own_redis_server, monkeypatch, half):
    """After some repeats, that is, which do not multiply."""
    monkeypatch.setattr("memagent_graph.memory.redis.connection.FAILING", Pauses(0, 0))

    with RedisStore.from_url(own_redis_server.url) as store:

        async def use():
            await store.aput(AT, "k", {})
            own_redis_server.kill()
            await store.aget(AT, "k") if half == "asynchronously" else store.get(AT, "k")

        with pytest.raises(StoreError, match="cannot be reached"):
            asyncio.run(use())

    assert store.retries == 5


@pytest.mark.parametrize(
    ("client", "options", "named"),
    [
        ("http://localhost", {}, "redis"),
        ("localhost:6379", {}, "redis"),
        ("redis+sentinel://localhost:26379", {}, "redis"),
        ("redis://localhost?ssl_ca_certs=ca.pem", {}, "'ssl_ca_certs'"),
        ("redis://localhost", {"max_connections": 0}, "max_connections"),
        (object(), {}, "from_url"),
        (redis.Redis(decode_responses=True), {}, "decode_responses"),
    ],
    ids=["http", "no scheme", "no service", "no TLS", "no connection", "object", "decodes"],
)
def test_an_address_or_client_that_cannot_serve_is_refused_at_once(client, options, named):
    make = RedisStore.from_url if isinstance(client, str) else RedisStore
    with pytest.raises(ConfigurationError, match=named):
        make(client, **options)


def test_a_lone_replica_refuses_at_once_and_says_why(own_redis_server):
    with own_redis_server.client() as client, RedisStore.from_url(own_redis_server.url) as store:
        client.replicaof("127.0.0.1", "1")

        with pytest.raises(StoreRefusedError, match="read only replica"):
            store.put(AT, "k", {"n": 1})

    assert store.retries == 0


ADDRESSES = [
    "redis://localhost/0", "rediss://localhost/0", "unix:///tmp/none", "redis+cluster://a,b",
    "rediss+cluster://a,b", "redis+sentinel://a,b/main", "rediss+sentinel://a,b/main/0",
]  # fmt: skip


@pytest.mark.parametrize("url", ADDRESSES)
def test_options_of_redis_py_are_known_and_misspelled_ones_named_at_once(url):
    own = {
        "rediss+cluster": "ssl_ca_certs=ca.pem&ssl_check_hostname=no",
        "redis+sentinel": "sentinel_username=u&sentinel_password=p",
    }
    options = "socket_timeout=3&health_check_interval=30&protocol=2&username=u&max_connections=7"
    RedisStore.from_url(f"{url}?{options}&client_name=me&{own.get(url.partition(':')[0], '')}")

    with pytest.raises(ConfigurationError, match="'sokcet_timeout'.*'socket_timeout'") as raised:
        RedisStore.from_url(f"{url}?db=0&sokcet_timeout=hunter2")

    assert "hunter2" not in str(raised.value)


def test_a_client_or_pool_may_be_given_and_stays_open(redis_server, prefix):
    pool = redis.ConnectionPool.from_url(redis_server.url)
    client = redis.Redis(connection_pool=pool)

    for given in (client, pool):
        with RedisStore(given, prefix=prefix) as store:
            store.put(AT, "k", {"n": 1})
            assert asyncio.run(store.aget(AT, "k")).value == {"n": 1}

    assert client.ping()
    pool.disconnect()


def test_an_asynchronous_client_may_be_given(redis_server, prefix):
    async def use():
        async with redis.asyncio.Redis.from_url(redis_server.url) as client:
            for given in (client, client.connection_pool):
                store = RedisStore(given, prefix=prefix)
                await store.aput(AT, "k", {"n": 1})
                assert (await store.aget(AT, "k")).value == {"n": 1}
                with pytest.raises(StoreError, match="asynchronous client"):
                    store.get(AT, "k")

    asyncio.run(use())


@pytest.mark.slow
def test_each_event_loop_has_its_own_connection_and_closes_it(redis_server, redis_client, prefix):
    store = RedisStore.from_url(redis_server.url, prefix=prefix)
    before = len(redis_client.client_list())

    for n in range(3):
        asyncio.run(store.aput(AT, f"{n}", {}))

    wait_until(lambda: len(redis_client.client_list()) == before, "connections to close")
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(store.aput(AT, "k", {}), loop).result()
    store.close()
    wait_until(lambda: len(redis_client.client_list()) == before, "connections to close")
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert len(store.search(AT)) == 4  # it opens again when it is used
    store.close()
    gc.collect()  # a connection that was left open would warn now, which is an error here


def test_a_cancelled_call_does_not_mix_up_the_next(redis_store):
    async def use():
        await asyncio.gather(*(redis_store.aput(AT, f"{n}", {"n": n}) for n in range(50)))
        for n in range(20):
            call = asyncio.ensure_future(redis_store.aget(AT, "0"))
            await asyncio.sleep(0)
            call.cancel()
            assert (await redis_store.aget(AT, f"{n}")).value == {"n": n}

    asyncio.run(use())


def test_a_unix_socket_serves_too_and_valkey_is_another_name_of_the_scheme(tmp_path):
    path = tmp_path / "s"
    server = RedisServer(tmp_path, "--unixsocket", str(path))
    with RedisStore.from_url(f"unix://{path}?db=0") as store:
        store.put(AT, "k", {"n": 1})
        assert asyncio.run(store.aget(AT, "k")).value == {"n": 1}
    with RedisStore.from_url(server.url.replace("redis://", "valkey://")) as store:
        assert store.get(AT, "k").value == {"n": 1}
    server.kill()


def test_importing_the_package_does_not_import_redis():
    code = "import sys, memagent_graph; sys.exit('redis' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("value", "said"), [
    ({"a": {"b": [1, {2}]}}, "A value cannot be stored: it has a set. Convert it"),
    ({"a": {(1, 2): 3}}, "cannot be stored: keys must be str"),
    ("a text", "A value must be a mapping, not str."),
])  # fmt: skip
def test_times_and_uuids_are_stored_as_text_and_other_types_refused(redis_store, value, said):
    redis_store.put(AT, "k", {"at": datetime(2026, 3, 5, tzinfo=UTC), "ids": [UUID(int=5)]})

    with pytest.raises(TypeError, match=re.escape(said)):
        redis_store.put(AT, "k", value)

    texts = {"at": "2026-03-05T00:00:00+00:00", "ids": ["00000000-0000-0000-0000-000000000005"]}
    assert redis_store.get(AT, "k").value == texts
