from __future__ import annotations

import asyncio
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from subprocess import PIPE, Popen

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
from servers.tcp_proxy import TCPProxy

from memagent_graph.errors import StoreError
from memagent_graph.memory.atomic import AtomicStore, atomic
from memagent_graph.memory.redis import RedisStore

AT = ("tenant", "heads")


class Elsewhere(BaseStore):
    """A store of another make."""

    def __init__(self):
        self._inner = InMemoryStore()

    def batch(self, ops):
        return self._inner.batch(ops)

    async def abatch(self, ops):
        return await self._inner.abatch(ops)


@pytest.fixture(params=["redis", "sqlite", "memory", "elsewhere"])
def store(request, tmp_path):
    if request.param == "redis":
        yield request.getfixturevalue("redis_store")
    elif request.param == "sqlite":
        with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
            yield store
    elif request.param == "memory":
        yield InMemoryStore()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield Elsewhere()


@pytest.fixture(params=["redis", "sqlite"])
def watched(request, tmp_path):
    if request.param == "redis":
        yield request.getfixturevalue("redis_store")
    else:
        with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
            yield store


@pytest.fixture(params=["synchronously", "asynchronously"])
def swap(request, store):
    """`compare_and_put` on one item, through either half."""
    one = atomic(store)

    def call(value, *, expected):
        if request.param == "synchronously":
            return one.compare_and_put(AT, "head", value, expected=expected)
        return asyncio.run(one.acompare_and_put(AT, "head", value, expected=expected))

    return call


def value_of(store):
    item = store.get(AT, "head")
    return item and item.value


def test_what_is_absent_is_put_when_absence_was_expected(store, swap):
    assert swap({"v": 1}, expected=None)
    assert value_of(store) == {"v": 1}


def test_what_is_there_is_not_replaced_when_absence_was_expected(store, swap):
    store.put(AT, "head", {"v": 1})

    assert not swap({"v": 2}, expected=None)
    assert value_of(store) == {"v": 1}


def test_what_is_as_expected_is_replaced(store, swap):
    store.put(AT, "head", {"v": 1})

    assert swap({"v": 2}, expected={"v": 1})
    assert value_of(store) == {"v": 2}


def test_what_is_not_as_expected_stays(store, swap):
    store.put(AT, "head", {"v": 1})

    assert not swap({"v": 3}, expected={"v": 2})
    assert value_of(store) == {"v": 1}


def test_nothing_is_put_where_a_value_was_expected(store, swap):
    assert not swap({"v": 2}, expected={"v": 1})
    assert value_of(store) is None


def test_none_deletes_what_is_as_expected(store, swap):
    store.put(AT, "head", {"v": 1})

    assert not swap(None, expected={"v": 2})
    assert swap(None, expected={"v": 1})
    assert value_of(store) is None
    assert store.search(AT) == []


def test_the_order_of_fields_makes_no_other_value(store, swap):
    store.put(AT, "head", {"a": 1, "b": {"x": 1, "y": 2}})

    assert swap({"v": 2}, expected={"b": {"y": 2, "x": 1}, "a": 1})


def test_an_empty_value_is_not_an_absent_one(store, swap):
    store.put(AT, "head", {})

    assert not swap({"v": 1}, expected=None)
    assert swap({"v": 1}, expected={})


def test_an_item_put_by_comparison_is_found_by_search(store, swap):
    swap({"v": 1}, expected=None)

    assert [item.value for item in store.search(("tenant",))] == [{"v": 1}]
    assert [item.value for item in store.search(())] == [{"v": 1}]
    assert store.list_namespaces() == [AT]


def test_the_first_of_two_puts_stays_and_the_second_learns_its_value(store):
    one = atomic(store)

    assert one.put_if_absent(AT, "v1", {"text": "first"}) == {"text": "first"}
    assert one.put_if_absent(AT, "v1", {"text": "second"}) == {"text": "first"}
    second = asyncio.run(one.aput_if_absent(AT, "v1", {"text": "third"}))
    assert second == {"text": "first"}
    assert asyncio.run(one.aput_if_absent(AT, "v2", {"text": "x"})) == {"text": "x"}
    assert store.get(AT, "v1").value == {"text": "first"}


@pytest.mark.parametrize("store", ["redis", "sqlite", "memory"], indirect=True)
def test_threads_that_count_together_lose_nothing(store):
    def count(_):
        one = atomic(store)
        for _ in range(20):
            done = False
            while not done:
                item = store.get(AT, "head")
                now = item.value["n"] if item else 0
                expected = {"n": now} if item else None
                done = one.compare_and_put(AT, "head", {"n": now + 1}, expected=expected)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(count, range(8)))

    assert value_of(store) == {"n": 160}


COUNTER = """
import sys
from contextlib import closing
from langgraph.store.sqlite import SqliteStore
from memagent_graph.memory.atomic import atomic
from memagent_graph.memory.redis import RedisStore

def count(store, guarded):
    one = atomic(store)
    input()
    for _ in range(25):
        done = False
        while not done:
            item = store.get(("tenant", "heads"), "head")
            now = item.value["n"] if item else 0
            if guarded:
                expected = {"n": now} if item else None
                done = one.compare_and_put(
                    ("tenant", "heads"), "head", {"n": now + 1}, expected=expected)
            else:
                store.put(("tenant", "heads"), "head", {"n": now + 1})
                done = True

where, prefix, guarded = sys.argv[1:]
if where.startswith("redis"):
    with RedisStore.from_url(where, prefix=prefix) as store:
        count(store, guarded == "yes")
else:
    with SqliteStore.from_conn_string(where) as store:
        count(store, guarded == "yes")
"""


def count_in_processes(where, prefix, *, guarded):
    command = [sys.executable, "-c", COUNTER, where, prefix, "yes" if guarded else "no"]
    processes = [Popen(command, stdin=PIPE) for _ in range(8)]
    for process in processes:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in processes:
        process.stdin.close()
        assert process.wait() == 0


def test_processes_that_count_together_in_redis_lose_nothing(redis_server, redis_store, prefix):
    count_in_processes(redis_server.url, prefix, guarded=True)

    assert value_of(redis_store) == {"n": 200}


def test_processes_that_count_together_in_sqlite_lose_nothing(tmp_path):
    file = str(tmp_path / "store.db")
    with SqliteStore.from_conn_string(file) as store:
        store.setup()

        count_in_processes(file, "", guarded=True)

        assert value_of(store) == {"n": 200}


def test_processes_that_get_and_then_put_lose_counts(redis_server, redis_store, prefix):
    """So that the tests above are known to be able to fail."""
    count_in_processes(redis_server.url, prefix, guarded=False)

    assert value_of(redis_store)["n"] < 200


def test_a_swap_whose_reply_was_lost_is_carried_out_once_and_reported_done(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", prefix=prefix) as store:
        store.compare_and_put(AT, "head", {"n": 1}, expected=None)
        proxy.lose_next_reply = True

        done = store.compare_and_put(AT, "head", {"n": 2}, expected={"n": 1})

        assert done
        assert not proxy.lose_next_reply
        assert value_of(store) == {"n": 2}
    proxy.close()


def test_a_put_whose_reply_was_lost_is_announced_once(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", prefix=prefix) as store:
        store.put_if_absent(AT, "v0", {})
        proxy.lose_next_reply = True

        store.put_if_absent(AT, "v1", {"n": 1}, topic="m")
        store.put_if_absent(AT, "v2", {"n": 2}, topic="m")

        assert asyncio.run(take(store, 2)) == ["v1", "v2"]
    proxy.close()


# Watching


async def take(store, number, after="0", topic="m"):
    keys = []
    async for news in atomic(store).watch(AT, topic, after=after):
        keys.append(news.item.key)
        if len(keys) == number:
            return keys
    raise AssertionError


def test_announcements_are_seen_in_order_with_their_values(watched):
    one = atomic(watched)
    for n in range(3):
        one.put_if_absent(AT, f"v{n}", {"n": n}, topic="m")

    async def watch():
        return [news async for news in first(one.watch(AT, "m", after="0"), 3)]

    news = asyncio.run(watch())

    assert [(one.item.key, one.item.value) for one in news] == [
        ("v0", {"n": 0}),
        ("v1", {"n": 1}),
        ("v2", {"n": 2}),
    ]
    assert asyncio.run(take(watched, 1, after=news[1].id)) == ["v2"]


async def first(iterator, number):
    async for one in iterator:
        yield one
        number -= 1
        if not number:
            return


def test_a_watcher_sees_what_is_announced_after_it_began(watched):
    one = atomic(watched)
    one.put_if_absent(AT, "before", {}, topic="m")

    async def watch():
        waiting = asyncio.ensure_future(anext(one.watch(AT, "m")))
        seen = []
        n = 0
        while not seen:  # the watcher begins at some time during this
            await one.aput_if_absent(AT, f"after{n}", {}, topic="m")
            n += 1
            await asyncio.sleep(0.05)
            seen = [waiting.result().item.key] if waiting.done() else []
        return seen[0]

    assert asyncio.run(watch()).startswith("after")


def test_only_first_puts_of_the_same_topic_and_namespace_are_announced(watched):
    one = atomic(watched)
    one.put_if_absent(AT, "silent", {})
    one.put_if_absent(AT, "other topic", {}, topic="n")
    one.put_if_absent(("tenant",), "other namespace", {}, topic="m")
    one.put_if_absent(AT, "seen", {"n": 1}, topic="m")
    one.put_if_absent(AT, "seen", {"n": 2}, topic="m")
    one.put_if_absent(AT, "last", {}, topic="m")

    assert asyncio.run(take(watched, 2)) == ["seen", "last"]


def test_an_announced_item_that_was_deleted_is_passed_over(watched):
    one = atomic(watched)
    one.put_if_absent(AT, "gone", {}, topic="m")
    one.put_if_absent(AT, "stays", {}, topic="m")
    watched.delete(AT, "gone")

    assert asyncio.run(take(watched, 1)) == ["stays"]


def test_old_announcements_are_forgotten(watched):
    one = atomic(watched)
    for n in range(1200):
        one.put_if_absent(AT, f"v{n}", {}, topic="m")

    async def oldest():
        return await anext(one.watch(AT, "m", after="0"))

    assert int(asyncio.run(oldest()).item.key[1:]) > 0


def test_news_reach_another_process(redis_server, redis_store, prefix):
    code = (
        "import sys\n"
        "from memagent_graph.memory.redis import RedisStore\n"
        "with RedisStore.from_url(sys.argv[1], prefix=sys.argv[2]) as store:\n"
        "    store.put_if_absent(('tenant', 'heads'), 'new', {'n': 1}, topic='m')\n"
    )

    async def watch():
        watching = asyncio.ensure_future(take(redis_store, 1))
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, redis_server.url, prefix
        )
        assert await writer.wait() == 0
        return await watching

    assert asyncio.run(watch()) == ["new"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_watcher_understands_both_protocols(redis_server, redis_store, prefix, protocol):
    redis_store.put_if_absent(AT, "v", {}, topic="m")
    url = f"{redis_server.url}?protocol={protocol}"

    with RedisStore.from_url(url, prefix=prefix) as store:
        assert asyncio.run(take(store, 1)) == ["v"]


# Which stores


def test_a_redis_store_is_atomic_itself(redis_store):
    assert isinstance(redis_store, AtomicStore)
    assert atomic(redis_store) is redis_store


def test_an_asynchronous_sqlite_store_gets_the_same(tmp_path):
    async def use():
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
            one = atomic(store)
            assert await one.acompare_and_put(AT, "head", {"n": 1}, expected=None)
            assert not await one.acompare_and_put(AT, "head", {"n": 2}, expected=None)
            assert await one.aput_if_absent(AT, "v", {"n": 1}, topic="m") == {"n": 1}
            swap = asyncio.to_thread(one.compare_and_put, AT, "head", {"n": 3}, expected={"n": 1})
            assert await swap
            assert (await store.aget(AT, "head")).value == {"n": 3}
            assert await take(store, 1) == ["v"]

    asyncio.run(use())


def test_a_store_without_comparison_is_warned_about():
    with pytest.warns(RuntimeWarning, match="Elsewhere has no compare-and-put"):
        atomic(Elsewhere())


def test_a_store_that_cannot_be_watched_says_so():
    with pytest.raises(StoreError, match="Use RedisStore or SQLite"):
        asyncio.run(take(InMemoryStore(), 1))


def test_a_locked_sqlite_file_is_a_store_error(tmp_path):
    file = str(tmp_path / "store.db")
    with (
        SqliteStore.from_conn_string(file) as store,
        SqliteStore.from_conn_string(file) as other,
    ):
        store.setup()
        other.setup()
        store.conn.execute("PRAGMA busy_timeout = 0")
        other.conn.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StoreError, match="locked"):
            atomic(store).compare_and_put(AT, "head", {}, expected=None)

        other.conn.execute("COMMIT")
        assert atomic(store).compare_and_put(AT, "head", {}, expected=None)
