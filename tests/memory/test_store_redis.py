"""What is particular to Redis: round trips, indexes, expiry, connections, errors."""

from __future__ import annotations

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
from redis.backoff import NoBackoff
from servers.redis_server import RedisServer, free_port, wait_until
from servers.tcp_proxy import TCPProxy

from memagent_graph import ConversationMemory
from memagent_graph.errors import ConfigurationError, StoreError, StoreRefusedError
from memagent_graph.memory.redis import RedisStore, operations

AT = ("tenant", "things")
TEN_MINUTES = 600_000


@pytest.fixture
def proxied(redis_server, prefix):
    """A store whose round trips are counted."""
    proxy = TCPProxy(redis_server.port)
    store = RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}/0", prefix=prefix)
    store.get(AT, "warm up")
    store.put(AT, "warm up", {})
    atomically.put_if_absent(store, AT, "warm up", {})
    atomically.compare_and_put(store, AT, "warm up", {}, expected={})
    store.search(AT)  # by now the server has seen the scripts

    def trips(operation):
        before = proxy.trips
        operation()
        return proxy.trips - before

    yield store, trips
    store.close()
    proxy.close()


def members(client, prefix, root="tenant"):
    return client.zrange(f"{prefix}:{{{root}}}", 0, -1)


# Round trips


def test_a_batch_of_gets_and_puts_is_one_round_trip(proxied):
    store, trips = proxied
    puts = [PutOp((f"root{n}",), "k", {"n": n}) for n in range(50)]
    gets = [GetOp(AT, f"{n}") for n in range(50)]

    assert trips(lambda: store.batch([*puts, *gets])) == 1


def test_many_gets_are_few_commands_and_each_finds_its_item(redis_store, redis_client, prefix):
    keys = [f"k{number}" for number in range(1_234)]
    redis_store.batch([PutOp((f"tenant{len(key)}",), key, {"key": key}) for key in keys[1:]])
    redis_client.config_resetstat()

    found = redis_store.batch([GetOp((f"tenant{len(key)}",), key) for key in keys])

    assert [item and item.value["key"] for item in found] == [None, *keys[1:]]
    assert redis_client.info("commandstats")["cmdstat_eval"]["calls"] < len(keys) / 50


def test_versions_that_are_put_together_are_one_round_trip(proxied):
    store, trips = proxied
    puts = [PutOp(AT, f"v{n}", {"n": n}) for n in range(3)]
    puts.append(PutOp(("tenant", "others"), "k", {}))
    given = {(put.namespace, put.key): None for put in puts}

    assert trips(lambda: atomically.commit(store, puts, given)) == 1


def test_a_script_is_sent_in_full_to_a_server_that_was_not_asked_before(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    redis_server.client().script_flush()
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}/0", prefix=prefix) as store:
        store.get(AT, "connects", refresh_ttl=False)
        before = proxy.trips
        store.put(AT, "a", {})
        store.put(AT, "b", {})

    assert proxy.trips - before == 2
    proxy.close()


def test_a_compare_and_put_is_one_round_trip(proxied):
    store, trips = proxied

    assert trips(lambda: atomically.compare_and_put(store, AT, "h", {"v": 1}, expected=None)) == 1
    assert (
        trips(lambda: atomically.compare_and_put(store, AT, "h", {"v": 2}, expected={"v": 1})) == 1
    )


def test_a_search_by_prefix_takes_two_round_trips_however_much_there_is(proxied):
    store, trips = proxied
    store.batch([PutOp(("tenant", f"{n}"), "k", {}) for n in range(900)])

    assert trips(lambda: store.search(("tenant", "7"))) == 2
    assert trips(lambda: store.search(("tenant",), limit=20, offset=800)) == 2


def test_a_search_looks_at_nothing_outside_its_prefix(redis_store, redis_client):
    redis_store.batch([PutOp(("tenant", f"{n}"), "k", {}) for n in range(500)])

    with redis_client.monitor() as monitor:
        redis_store.search(("tenant", "7"))
        redis_client.ping()
        seen = []
        for command in monitor.listen():
            if command["command"] == "PING":
                break
            seen.append(command["command"])

    read = [command for command in seen if command.startswith("MGET")]
    assert len(read) == 1
    assert read[0].count("tenant") == 1
    assert not any(command.startswith(("KEYS", "SCAN", "SMEMBERS")) for command in seen)


# Expiry


def test_a_read_lets_the_time_to_live_begin_again(redis_store, redis_client, prefix):
    item = f"{prefix}:{{tenant}}/things//k"
    reads = [
        lambda: redis_store.get(AT, "k"),
        lambda: redis_store.search(("tenant",)),
        lambda: asyncio.run(redis_store.aget(AT, "k")),
    ]
    redis_store.put(AT, "k", {}, ttl=10)

    for read in reads:
        redis_client.pexpire(item, TEN_MINUTES // 2)
        read()
        assert redis_client.pttl(item) > TEN_MINUTES * 0.9


def test_a_read_that_is_told_not_to_leaves_the_time_to_live(redis_store, redis_client, prefix):
    item = f"{prefix}:{{tenant}}/things//k"
    redis_store.put(AT, "k", {}, ttl=10)
    redis_client.pexpire(item, TEN_MINUTES // 2)

    redis_store.get(AT, "k", refresh_ttl=False)
    redis_store.search(AT, refresh_ttl=False)

    assert redis_client.pttl(item) <= TEN_MINUTES // 2


def test_the_configuration_gives_the_time_to_live_and_whether_reads_renew_it(
    redis_server, redis_client, prefix
):
    item = f"{prefix}:{{tenant}}/things//k"
    ttl = {"default_ttl": 10, "refresh_on_read": False}
    with RedisStore.from_url(redis_server.url, prefix=prefix, ttl=ttl) as store:
        for write in (
            lambda: store.put(AT, "k", {}),
            lambda: atomically.compare_and_put(store, AT, "k", {}, expected=None),
            lambda: atomically.put_if_absent(store, AT, "k", {}),
        ):
            store.delete(AT, "k")
            write()
            assert redis_client.pttl(item) > TEN_MINUTES * 0.9

        redis_client.pexpire(item, TEN_MINUTES // 2)
        store.get(AT, "k")
        assert redis_client.pttl(item) <= TEN_MINUTES // 2

        store.put(AT, "k", {}, ttl=None)
        assert redis_client.pttl(item) == -1


def test_expired_items_leave_the_index_when_others_are_written(redis_store, redis_client, prefix):
    for n in range(10):
        redis_store.put(AT, f"{n}", {}, ttl=0.0001)
    wait_until(lambda: not redis_client.exists(f"{prefix}:{{tenant}}/things//9"), "expiry")

    redis_store.put(AT, "new", {}, ttl=10)

    assert members(redis_client, prefix) == [b"/things//new"]
    assert redis_client.zcard(f"{prefix}:{{tenant}}#expiry") == 1


def test_expired_items_leave_the_index_when_it_is_searched_or_listed(
    redis_store, redis_client, prefix
):
    redis_store.batch([PutOp(AT, f"{n}", {}, ttl=0.001) for n in range(2500)])
    wait_until(lambda: not redis_client.exists(f"{prefix}:{{tenant}}/things//2499"), "expiry")

    assert redis_store.search(("tenant",)) == []
    assert redis_store.list_namespaces() == []

    assert members(redis_client, prefix) == []
    assert redis_client.smembers(f"{prefix}:roots") == set()


def test_an_item_that_the_server_evicted_is_not_found_and_leaves_the_index(
    redis_store, redis_client, prefix
):
    redis_store.put(AT, "evicted", {})
    redis_store.put(AT, "stays", {})
    redis_client.delete(f"{prefix}:{{tenant}}/things//evicted")

    found = redis_store.search(AT, limit=1)

    assert [item.key for item in found] == ["stays"]
    assert members(redis_client, prefix) == [b"/things//stays"]


def test_nothing_is_left_of_what_was_deleted(redis_store, redis_client, prefix):
    redis_store.put(AT, "k", {}, ttl=10)
    redis_store.put(("other",), "k", {})
    redis_store.delete(AT, "k")
    redis_store.delete(("other",), "k")

    redis_store.list_namespaces()

    assert redis_client.keys(f"{prefix}*") == []


def test_a_root_is_found_again_after_it_was_empty(redis_store):
    redis_store.put(AT, "k", {})
    redis_store.delete(AT, "k")
    redis_store.list_namespaces()
    redis_store.put(AT, "k", {})

    assert redis_store.list_namespaces() == [AT]


# Vectors


SAID = {
    "a": {"text": "Edda breeds goats in Husum.", "tags": ["farm"]},
    "b": {"text": "The train to Kiel is late.", "tags": ["travel"]},
    "c": {"text": "Goats eat anything; our goats ate a hat.", "tags": ["farm"]},
    "d": {"text": "王先生住在柏林。", "tags": []},
    "e": {"number": 4},
}


def ask(store, half, namespace, **options):
    if half == "synchronously":
        return store.search(namespace, **options)
    return asyncio.run(store.asearch(namespace, **options))


@pytest.fixture(params=["synchronously", "asynchronously"])
def half(request):
    return request.param


def test_a_query_finds_items_by_their_words(redis_store, half):
    for key, value in SAID.items():
        redis_store.put(AT, key, value, index=["text"])
    redis_store.put(("other",), "f", {"text": "Goats, too."})

    found = ask(redis_store, half, AT, query="Which goat ate a hat?")

    assert [item.key for item in found] == ["c", "a"]
    assert found[0].score > found[1].score > 0
    assert found[0].value == SAID["c"]
    assert [i.key for i in ask(redis_store, half, AT, query="柏林")] == ["d"]
    assert [i.key for i in ask(redis_store, half, AT, query="goats", limit=1, offset=1)] == ["a"]
    assert ask(redis_store, half, AT, query="goats", filter={"tags": ["travel"]}) == []
    assert ask(redis_store, half, AT, query="submarine") == []
    assert {i.key for i in ask(redis_store, half, (), query="goats")} == {"a", "c", "f"}


def test_a_query_refuses_too_many_items(redis_store, half, monkeypatch):
    monkeypatch.setattr(operations, "MOST_COMPARED", 3)
    for key, value in SAID.items():
        redis_store.put(AT, key, value)

    with pytest.raises(ConfigurationError, match="3 items at most"):
        ask(redis_store, half, AT, query="goats")

    assert len(ask(redis_store, half, AT, query="goats", filter={"tags": ["farm"]})) == 2


TOPICS = ("goat", "train", "berlin")


def embed(texts):
    """A vector for each text: how often it names each topic, however it is written."""
    named = [
        text.casefold().replace("柏林", "berlin").replace("railway", "train") for text in texts
    ]
    return [[float(text.count(topic)) + 0.01 for topic in TOPICS] for text in named]


@pytest.fixture(params=["plain", "encrypted"])
def embedding_store(request, redis_server, prefix):
    serializer = None
    if request.param == "encrypted":
        pytest.importorskip("Crypto")
        serializer = EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")
    index = {"dims": 3, "embed": embed, "fields": ["text"]}
    url = redis_server.url
    with RedisStore.from_url(url, prefix=prefix, index=index, serializer=serializer) as store:
        yield store


def test_a_query_finds_items_by_their_embeddings(embedding_store, half):
    for key, value in SAID.items():
        embedding_store.put(AT, key, value)
    embedding_store.put(AT, "f", {"text": "A railway."}, index=False)

    found = ask(embedding_store, half, AT, query="Railway delays")

    assert found[0].key == "b"
    assert found[0].score == pytest.approx(1, abs=1e-2)
    assert {item.key: item.score for item in found[-2:]} == {"e": None, "f": None}
    assert ask(embedding_store, half, AT, query="Berlin", limit=1)[0].key == "d"
    assert all(item.value == SAID[item.key] for item in found if item.key != "f")
    assert embedding_store.get(AT, "b").value == SAID["b"]
    assert embedding_store.search(AT, filter={"text": SAID["b"]["text"]})[0].key == "b"


def test_embeddings_go_with_their_item(embedding_store, redis_client, prefix):
    embedding_store.put(AT, "a", {"text": "Goats."})
    embedding_store.put(AT, "a", {"text": "A train."})
    assert embedding_store.search(AT, query="goat")[0].score < 0.2
    assert asyncio.run(
        embedding_store.acommit(
            [PutOp(AT, "a", {"text": "Two."})], given={(AT, "a"): {"text": "A train."}}
        )
    )
    assert embedding_store.search(AT, query="goat")[0].score is None
    embedding_store.delete(AT, "a")
    embedding_store.list_namespaces()

    left = redis_client.keys(f"{prefix}*")
    assert [key for key in left if b"#receipt/" not in key] == []  # which are gone in a minute


def test_a_store_without_embeddings_reads_items_that_have_some(
    embedding_store, redis_server, prefix
):
    embedding_store.put(AT, "a", SAID["a"])
    serializer = embedding_store._codec._serializer

    with RedisStore.from_url(redis_server.url, prefix=prefix, serializer=serializer) as plain:
        assert plain.get(AT, "a").value == SAID["a"]
        assert plain.search(AT, query="goats")[0].value == SAID["a"]


def test_memories_are_not_embedded(redis_server, prefix):
    given = []

    def count(texts):
        given.extend(texts)
        return embed(texts)

    index = {"dims": 3, "embed": count}
    with RedisStore.from_url(redis_server.url, prefix=prefix, index=index) as store:
        ConversationMemory("extractive", store=store).save(
            [("human", "I breed goats.")], user="ann", thread="t"
        )

    assert given == []


@pytest.mark.parametrize("query", [None, ""])
@pytest.mark.parametrize("index", [None, False])
def test_what_needs_none_is_not(redis_store, query, index):
    redis_store.put(AT, "k", {}, index=index)

    assert len(redis_store.search(AT, query=query)) == 1


# Connections


def test_the_scripts_are_sent_again_when_the_server_forgot_them(redis_store, redis_client):
    redis_store.put(AT, "k", {"n": 1})
    redis_client.script_flush()

    results = redis_store.batch([PutOp(AT, "k", {"n": 2}), GetOp(AT, "k")])

    assert results[1].value == {"n": 1}
    assert redis_store.get(AT, "k").value == {"n": 2}


def test_a_restart_of_the_server_goes_unnoticed(own_redis_server):
    with RedisStore.from_url(own_redis_server.url) as store:
        store.put(AT, "before", {"n": 1})

        own_redis_server.restart()

        assert store.get(AT, "before").value == {"n": 1}
        store.put(AT, "after", {"n": 2})
        own_redis_server.restart()
        assert atomically.compare_and_put(store, AT, "after", {"n": 3}, expected={"n": 2})


def test_a_call_waits_for_a_server_that_is_coming_back(own_redis_server):
    with RedisStore.from_url(own_redis_server.url) as store:
        store.put(AT, "k", {"n": 1})
        own_redis_server.kill()
        back = threading.Timer(0.2, own_redis_server.start)
        back.start()

        assert store.get(AT, "k").value == {"n": 1}
        back.join()


@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
def test_a_server_that_is_away_is_one_clear_error_without_the_password(half):
    port = free_port()
    store = RedisStore.from_url(f"redis://user:hunter2@127.0.0.1:{port}/0")

    with pytest.raises(StoreError, match=f"127.0.0.1:{port}/0 cannot be reached") as raised:
        if half == "synchronously":
            store.get(AT, "k")
        else:
            asyncio.run(store.aget(AT, "k"))

    assert "hunter2" not in repr((raised.value, raised.value.__cause__, store))


@pytest.mark.parametrize("url", ["redis+cluster://{}", "redis+sentinel://{}/main"])
@pytest.mark.slow
def test_clusters_and_sentinels_that_are_away_are_the_same_error(url):
    store = RedisStore.from_url(url.format(f"user:hunter2@127.0.0.1:{free_port()}"))

    with pytest.raises(StoreError, match="cannot be reached|refused") as raised:
        store.get(AT, "k")

    assert "hunter2" not in str(raised.value)
    assert "<" not in str(raised.value)  # as of objects of the client
    store.close()


def test_a_wrong_password_is_said_to_be_one(own_redis_server):
    with own_redis_server.client() as client:
        client.config_set("requirepass", "right")
    with RedisStore.from_url(f"redis://:wr0ng@127.0.0.1:{own_redis_server.port}") as store:
        with pytest.raises(StoreError, match="user name or password") as raised:
            store.get(AT, "k")
    assert "wr0ng" not in str(raised.value)


def test_a_server_without_memory_left_refuses_and_says_why(own_redis_server):
    with own_redis_server.client() as client, RedisStore.from_url(own_redis_server.url) as store:
        store.put(AT, "k", {"n": 1})
        client.config_set("maxmemory", 1)

        with pytest.raises(StoreError, match="maxmemory"):
            store.put(AT, "k", {"n": 2})

        assert store.get(AT, "k", refresh_ttl=False).value == {"n": 1}


@pytest.mark.parametrize(
    "url",
    ["redis://:hun/ter2@localhost", "redis://localhost:hunter2", "redis+cluster://a:hunter2,b"],
)
def test_a_url_that_cannot_be_read_is_refused_without_quoting_it(url):
    with pytest.raises(ConfigurationError, match="percent-encoded") as raised:
        RedisStore.from_url(url)

    assert "ter2" not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
def test_a_server_that_goes_away_is_reported_soon(own_redis_server, monkeypatch, half):
    """After some repeats, that is, which do not multiply."""
    monkeypatch.setattr("memagent_graph.memory.redis.connection._BACKOFF", NoBackoff())

    with RedisStore.from_url(own_redis_server.url) as store:

        async def use():
            await store.aput(AT, "k", {})
            own_redis_server.kill()
            if half == "asynchronously":
                await store.aget(AT, "k")
            else:
                store.get(AT, "k")

        with pytest.raises(StoreError, match="cannot be reached"):
            asyncio.run(use())

    assert store.retries == 5


@pytest.mark.parametrize(
    "url", ["http://localhost", "localhost:6379", "redis+sentinel://localhost:26379"]
)
def test_a_url_that_is_not_redis_is_refused_at_once(url):
    with pytest.raises(ConfigurationError, match="redis"):
        RedisStore.from_url(url)


def test_valkey_is_another_name_of_the_scheme(redis_server, prefix):
    url = redis_server.url.replace("redis://", "valkey://")
    with RedisStore.from_url(url, prefix=prefix) as store:
        store.put(AT, "k", {"n": 1})
        assert store.get(AT, "k").value == {"n": 1}


def test_a_lone_replica_refuses_at_once_and_says_why(own_redis_server):
    with own_redis_server.client() as client, RedisStore.from_url(own_redis_server.url) as store:
        client.replicaof("127.0.0.1", "1")

        with pytest.raises(StoreRefusedError, match="read only replica"):
            store.put(AT, "k", {"n": 1})

    assert store.retries == 0


ADDRESSES = [
    "redis://localhost/0",
    "rediss://localhost/0",
    "unix:///tmp/none",
    "redis+cluster://a,b",
    "rediss+cluster://a,b",
    "redis+sentinel://a,b/main",
    "rediss+sentinel://a,b/main/0",
]


@pytest.mark.parametrize("url", ADDRESSES)
def test_a_misspelled_option_is_named_at_once(url):
    with pytest.raises(ConfigurationError, match="'sokcet_timeout'.*'socket_timeout'") as raised:
        RedisStore.from_url(f"{url}?db=0&sokcet_timeout=hunter2")

    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("url", ADDRESSES)
def test_options_of_redis_py_are_known(url):
    options = "socket_timeout=3&health_check_interval=30&protocol=2&username=u&max_connections=7"

    RedisStore.from_url(f"{url}?{options}&client_name=me")


def test_options_of_tls_and_sentinels_are_known():
    RedisStore.from_url("rediss+cluster://a?ssl_ca_certs=ca.pem&ssl_check_hostname=no")
    RedisStore.from_url("redis+sentinel://a/main?sentinel_username=u&sentinel_password=p")
    with pytest.raises(ConfigurationError, match="'ssl_ca_certs'"):
        RedisStore.from_url("redis://localhost?ssl_ca_certs=ca.pem")


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


@pytest.mark.parametrize("client", [object(), "redis://localhost"], ids=["object", "url"])
def test_what_is_no_client_is_refused(client):
    with pytest.raises(ConfigurationError, match="from_url"):
        RedisStore(client)


def test_a_client_that_decodes_is_refused(redis_server):
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        with pytest.raises(ConfigurationError, match="decode_responses"):
            RedisStore(client)


@pytest.mark.slow
def test_each_event_loop_has_its_own_connection_and_closes_it(redis_server, redis_client, prefix):
    store = RedisStore.from_url(redis_server.url, prefix=prefix)
    before = len(redis_client.client_list())

    for n in range(3):
        asyncio.run(store.aput(AT, f"{n}", {}))

    wait_until(lambda: len(redis_client.client_list()) == before, "connections to close")
    assert len(store.search(AT)) == 3
    store.close()
    gc.collect()  # a connection that was left open would warn now, which is an error here


def test_closing_reaches_loops_of_other_threads(redis_server, redis_client, prefix):
    store = RedisStore.from_url(redis_server.url, prefix=prefix)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    before = len(redis_client.client_list())
    asyncio.run_coroutine_threadsafe(store.aput(AT, "k", {}), loop).result()

    store.close()

    wait_until(lambda: len(redis_client.client_list()) == before, "connections to close")
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_closed_store_opens_again_when_used(redis_store):
    redis_store.put(AT, "k", {})
    redis_store.close()

    assert redis_store.get(AT, "k") is not None


def test_coroutines_of_one_loop_share_a_store(redis_server, prefix):
    async def use():
        async with RedisStore.from_url(redis_server.url, prefix=prefix) as store:
            await asyncio.gather(*(store.aput(AT, f"{n}", {"n": n}) for n in range(50)))
            found = await asyncio.gather(*(store.aget(AT, f"{n}") for n in range(50)))
            return [item.value["n"] for item in found]

    assert asyncio.run(use()) == list(range(50))


def test_a_cancelled_call_does_not_mix_up_the_next(redis_store):
    async def use():
        await redis_store.aput(AT, "a", {"n": 1})
        await redis_store.aput(AT, "b", {"n": 2})
        for _ in range(20):
            call = asyncio.ensure_future(redis_store.aget(AT, "a"))
            await asyncio.sleep(0)
            call.cancel()
            assert (await redis_store.aget(AT, "b")).value == {"n": 2}

    asyncio.run(use())


def test_a_unix_socket_serves_too(tmp_path, prefix):
    path = tmp_path / "s"
    server = RedisServer(tmp_path, "--unixsocket", str(path))
    with RedisStore.from_url(f"unix://{path}?db=0", prefix=prefix) as store:
        store.put(AT, "k", {"n": 1})
        assert asyncio.run(store.aget(AT, "k")).value == {"n": 1}
    server.kill()


def test_importing_the_package_does_not_import_redis():
    code = "import sys, memagent_graph; sys.exit('redis' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_times_and_uuids_are_stored_as_text_like_in_the_stores_of_langgraph(redis_server, prefix):
    with RedisStore.from_url(redis_server.url, prefix=prefix) as store:
        store.put(AT, "k", {"at": datetime(2026, 3, 5, tzinfo=UTC), "ids": [UUID(int=5)]})

        assert store.get(AT, "k").value == {
            "at": "2026-03-05T00:00:00+00:00",
            "ids": ["00000000-0000-0000-0000-000000000005"],
        }


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {"b": [1, {2}]}}, "A value of type set cannot be stored (value['a']['b'][1])"),
        ({"a": 1, "b": b"x"}, "A value of type bytes cannot be stored (value['b'])"),
        ({"a": {(1, 2): 3}}, "The key (1, 2) of a value cannot be stored (value['a'])"),
    ],
)
def test_a_value_that_cannot_be_stored_is_named_by_its_key(redis_server, prefix, value, place):
    with (
        RedisStore.from_url(redis_server.url, prefix=prefix) as store,
        pytest.raises(TypeError, match=re.escape(place)),
    ):
        store.put(AT, "k", value)
