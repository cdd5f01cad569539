from __future__ import annotations

import asyncio
import sqlite3
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import partial

import aiosqlite
import atomically
import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
from servers.tcp_proxy import TCPProxy
from servers.warm_python import COMMAND_LINE, PIPE, warm_python

from memagent_graph.cli.memory import open_saver
from memagent_graph.errors import StoreError
from memagent_graph.memory.atomic import AtomicStore
from memagent_graph.memory.items import Records, atomic
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.stores import open_store

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


@pytest.fixture
def swap(store):
    """A compare-and-put of one item."""
    return partial(atomically.compare_and_put, store, AT, "head")


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

    assert atomically.put_if_absent(one, AT, "v1", {"text": "first"}) == {"text": "first"}
    assert atomically.put_if_absent(one, AT, "v1", {"text": "second"}) == {"text": "first"}
    assert store.get(AT, "v1").value == {"text": "first"}


@pytest.mark.slow
@pytest.mark.parametrize("store", ["redis", "sqlite", "memory"], indirect=True)
def test_threads_that_count_together_lose_nothing(store):
    async def count():
        one = atomic(store)
        for _ in range(20):
            done = False
            while not done:
                item = store.get(AT, "head")
                now = item.value["n"] if item else 0
                expected = {"n": now} if item else None
                put = PutOp(AT, "head", {"n": now + 1})
                done = await one.acommit([put], given={(AT, "head"): expected})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: asyncio.run(count()), range(8)))

    assert value_of(store) == {"n": 160}


COUNTER = """
import sys
from contextlib import closing
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore
from memagent_graph.memory.items import atomic
from memagent_graph.memory.redis import RedisStore
from memagent_graph.sync import wait_for

def count(store, guarded):
    one = atomic(store)
    input()
    for _ in range(25):
        done = False
        while not done:
            item = store.get(("tenant", "heads"), "head")
            now = item.value["n"] if item else 0
            if guarded:
                put = PutOp(("tenant", "heads"), "head", {"n": now + 1})
                given = {(("tenant", "heads"), "head"): {"n": now} if item else None}
                done = wait_for(one.acommit([put], given=given))
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
    processes = [warm_python(*COMMAND_LINE).start(command, stdin=PIPE) for _ in range(8)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.close()
    assert [process.wait() for process in processes] == [0] * 8


@pytest.mark.slow
def test_processes_that_count_together_in_redis_lose_nothing(redis_server, redis_store, prefix):
    count_in_processes(redis_server.url, prefix, guarded=True)

    assert value_of(redis_store) == {"n": 200}


@pytest.mark.slow
def test_processes_that_count_together_in_sqlite_lose_nothing(tmp_path):
    file = str(tmp_path / "store.db")
    with SqliteStore.from_conn_string(file) as store:
        store.setup()

        count_in_processes(file, "", guarded=True)

        assert value_of(store) == {"n": 200}


@pytest.mark.slow
def test_processes_that_get_and_then_put_lose_counts(redis_server, redis_store, prefix):
    """So that the tests above are known to be able to fail."""
    count_in_processes(redis_server.url, prefix, guarded=False)

    assert value_of(redis_store)["n"] < 200


def test_a_swap_whose_reply_was_lost_is_carried_out_once_and_reported_done(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", prefix=prefix) as store:
        atomically.compare_and_put(store, AT, "head", {"n": 1}, expected=None)
        proxy.lose_next_reply = True

        done = atomically.compare_and_put(store, AT, "head", {"n": 2}, expected={"n": 1})

        assert done
        assert not proxy.lose_next_reply
        assert value_of(store) == {"n": 2}
    proxy.close()


# Several items in one step


@pytest.fixture
def commit(store):
    return partial(atomically.commit, store)


@pytest.fixture
def claim(store):
    return partial(atomically.put_if_absent, store, AT)


def values(store):
    return {(item.namespace, item.key): item.value for item in store.search(("tenant",))}


OTHER = ("tenant", "others")


def test_puts_and_deletes_are_carried_out_together_when_all_is_as_given(store, commit):
    store.put(AT, "old", {"v": 1})
    store.put(OTHER, "any", {"v": 2})
    given = {(AT, "old"): {"v": 1}, (AT, "new"): None, (OTHER, "any"): ...}
    puts = [
        PutOp(AT, "old", None),
        PutOp(AT, "new", {"v": 3}),
        PutOp(OTHER, "more", {"v": 4}),
        PutOp(OTHER, "never there", None),
    ]

    assert commit(puts, given)
    assert values(store) == {
        (AT, "new"): {"v": 3},
        (OTHER, "any"): {"v": 2},
        (OTHER, "more"): {"v": 4},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {(AT, "there"): None},
        {(AT, "there"): {"v": 2}},
        {(OTHER, "absent"): {"v": 1}},
        {(OTHER, "absent"): {}},
        {(OTHER, "absent"): ...},
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_nothing_is_written_when_one_item_is_not_as_given(store, commit, wrong, first):
    store.put(AT, "there", {"v": 1})
    store.put(AT, "fine", {"v": 1})
    right = {(AT, "fine"): {"v": 1}}
    puts = [PutOp(AT, "there", None), PutOp(AT, "fine", {"v": 9}), PutOp(OTHER, "new", {})]

    assert not commit(puts, {**wrong, **right} if first else {**right, **wrong})
    assert values(store) == {(AT, "there"): {"v": 1}, (AT, "fine"): {"v": 1}}


def test_what_is_given_is_compared_by_value(store, commit):
    store.put(AT, "a", {"x": [1, {"y": [2]}], "z": 1})
    store.put(AT, "b", {"x": (1, 2)})
    given = {(AT, "a"): {"z": 1, "x": (1, {"y": (2,)})}, (AT, "b"): {"x": [1, 2]}}

    assert commit([PutOp(AT, "c", {})], given)
    assert not commit([PutOp(AT, "d", {})], {**given, (AT, "b"): {"x": [2, 1]}})
    assert (AT, "c") in values(store)
    assert (AT, "d") not in values(store)


def test_puts_can_depend_on_nothing_or_be_none(store, commit):
    assert commit([PutOp(AT, "a", {"v": 1})], {})
    assert commit([], {(AT, "a"): {"v": 1}})
    assert not commit([], {(AT, "a"): None})
    assert values(store) == {(AT, "a"): {"v": 1}}


def test_the_last_put_of_an_item_counts(store, commit):
    assert commit([PutOp(AT, "a", {"v": 1}), PutOp(AT, "a", {"v": 2})], {})
    assert commit([PutOp(AT, "b", None), PutOp(AT, "b", {"v": 3})], {})
    assert values(store) == {(AT, "a"): {"v": 2}, (AT, "b"): {"v": 3}}


def test_namespaces_that_begin_differently_are_refused(store, commit, claim):
    elsewhere = PutOp(("another tenant",), "k", {})

    with pytest.raises(ValueError, match="same label"):
        commit([PutOp(AT, "a", {}), elsewhere], {})
    with pytest.raises(ValueError, match="same label"):
        commit([elsewhere], {(AT, "a"): None})
    with pytest.raises(ValueError, match="same label"):
        commit([], {})
    with pytest.raises(ValueError, match="same label"):
        claim("a", {}, also=[elsewhere])
    assert store.search(()) == []


def test_items_committed_are_found_by_a_search_of_everything(store, commit, claim):
    commit([PutOp(AT, "a", {})], {})
    claim("b", {}, also=[PutOp(OTHER, "c", {})])

    assert {(item.namespace, item.key) for item in store.search(())} == {
        (AT, "a"),
        (AT, "b"),
        (OTHER, "c"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("store", ["redis", "sqlite", "memory"], indirect=True)
def test_threads_that_commit_two_items_together_lose_nothing(store):
    async def count():
        one = atomic(store)
        for _ in range(20):
            done = False
            while not done:
                items = {(at, "n"): store.get(at, "n") for at in (AT, OTHER)}
                given = {place: item and item.value for place, item in items.items()}
                n = given[AT, "n"]["n"] + 1 if given[AT, "n"] else 1
                done = await one.acommit([PutOp(*place, {"n": n}) for place in given], given=given)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: asyncio.run(count()), range(8)))

    assert values(store) == {(AT, "n"): {"n": 160}, (OTHER, "n"): {"n": 160}}


@pytest.mark.parametrize("store", ["redis", "memory"], indirect=True)
def test_tasks_that_commit_two_items_together_lose_nothing(store):
    one = atomic(store)

    async def count():
        for _ in range(10):
            done = False
            while not done:
                items = {(at, "n"): await store.aget(at, "n") for at in (AT, OTHER)}
                given = {place: item and item.value for place, item in items.items()}
                n = given[AT, "n"]["n"] + 1 if given[AT, "n"] else 1
                done = await one.acommit([PutOp(*place, {"n": n}) for place in given], given=given)

    async def race():
        await asyncio.gather(*(count() for _ in range(8)))

    asyncio.run(race())

    assert values(store) == {(AT, "n"): {"n": 80}, (OTHER, "n"): {"n": 80}}


def test_a_commit_whose_reply_was_lost_is_carried_out_once_and_reported_done(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", prefix=prefix) as store:
        atomically.commit(store, [PutOp(AT, "a", {"n": 1})], given={(AT, "a"): None})
        proxy.lose_next_reply = True

        puts = [PutOp(AT, "a", {"n": 2}), PutOp(OTHER, "b", {})]
        done = atomically.commit(store, puts, given={(AT, "a"): {"n": 1}, (OTHER, "b"): None})

        assert done
        assert not proxy.lose_next_reply
        assert values(store) == {(AT, "a"): {"n": 2}, (OTHER, "b"): {}}
    proxy.close()


def test_a_commit_compares_bytes_in_one_round_trip_and_values_in_two(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", prefix=prefix) as store:
        atomically.commit(store, [PutOp(AT, f"{n}", {"a": 1, "b": 2}) for n in range(5)], given={})

        def trips(value):
            before = proxy.trips
            given = {(AT, f"{n}"): value for n in range(5)}
            assert atomically.commit(store, [PutOp(AT, "new", {})], given=given)
            return proxy.trips - before

        assert trips({"a": 1, "b": 2}) == 1
        assert trips({"b": 2, "a": 1}) == 2
    proxy.close()


@pytest.mark.parametrize("deletes_first", [True, False])
def test_of_a_commit_without_memory_left_nothing_is_there(own_redis_server, deletes_first):
    with own_redis_server.client() as client, RedisStore.from_url(own_redis_server.url) as store:
        store.put(AT, "old", {"v": 1})
        store.put(AT, "there", {"v": 1})
        store.batch([PutOp(("filler",), f"{n}", {"text": "x" * 10_000}) for n in range(500)])
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 2**20)
        before = values(store)
        puts = [PutOp(AT, "new", {"v": 2}), PutOp(OTHER, "more", {"v": 2})]
        delete = PutOp(AT, "old", None)
        puts = [delete, *puts] if deletes_first else [*puts, delete]

        with pytest.raises(StoreError, match="maxmemory"):
            atomically.commit(store, puts, given={(AT, "old"): {"v": 1}})
        with pytest.raises(StoreError, match="maxmemory"):
            atomically.put_if_absent(store, AT, "new", {}, also=puts)

        assert values(store) == before
        assert [key for key in client.keys("*") if b"#" in key] == []

        client.config_set("maxmemory", 0)
        assert atomically.commit(store, puts, given={(AT, "old"): {"v": 1}})
        assert (AT, "old") not in values(store)


def test_deletes_are_committed_without_memory_left(own_redis_server):
    with own_redis_server.client() as client, RedisStore.from_url(own_redis_server.url) as store:
        store.put(AT, "old", {"v": 1})
        client.config_set("maxmemory", 1)

        assert atomically.commit(store, [PutOp(AT, "old", None)], given={(AT, "old"): {"v": 1}})
        assert values(store) == {}


def test_an_item_whose_key_has_another_type_is_absent_and_is_overwritten(
    redis_store, redis_client, prefix
):
    writes = [
        lambda: redis_store.put(AT, "k", {"v": 1}),
        lambda: atomically.put_if_absent(redis_store, AT, "k", {"v": 1}),
        lambda: atomically.commit(redis_store, [PutOp(AT, "k", {"v": 1})], given={(AT, "k"): None}),
        lambda: atomically.compare_and_put(redis_store, AT, "k", {"v": 1}, expected=None),
    ]
    for write in writes:
        redis_store.delete(AT, "k")
        redis_client.rpush(f"{prefix}:{{tenant}}/heads//k", "a list")
        assert not atomically.commit(redis_store, [PutOp(AT, "k", {})], given={(AT, "k"): ...})

        write()

        assert redis_store.get(AT, "k").value == {"v": 1}
        assert values(redis_store) == {(AT, "k"): {"v": 1}}


def test_times_to_live_are_those_of_the_puts_or_the_default(redis_server, redis_client, prefix):
    def minutes(key):
        return redis_client.ttl(f"{prefix}:{{tenant}}/heads//{key}") / 60

    url, default = redis_server.url, {"default_ttl": 10}
    with RedisStore.from_url(url, prefix=prefix, ttl=default) as store:
        atomically.commit(store, [PutOp(AT, "a", {}, ttl=20), PutOp(AT, "b", {})], given={})
        atomically.put_if_absent(
            store, AT, "c", {}, ttl=20, also=[PutOp(AT, "d", {}), PutOp(AT, "e", {}, ttl=30)]
        )
        atomically.put_if_absent(store, AT, "f", {}, ttl=40)

    assert [round(minutes(key)) for key in "abcdef"] == [20, 10, 20, 10, 30, 40]


def test_times_to_live_reach_sqlite(tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "s.db"), ttl={"default_ttl": 10}) as store:
        one = atomic(store)
        atomically.commit(one, [PutOp(AT, "a", {}, ttl=20), PutOp(AT, "b", {})], given={})
        atomically.put_if_absent(one, AT, "c", {}, ttl=30, also=[PutOp(AT, "d", {})])

        rows = store.conn.execute("SELECT key, ttl_minutes FROM store ORDER BY key").fetchall()

    assert [tuple(row) for row in rows] == [("a", 20), ("b", 10), ("c", 30), ("d", 10)]


# Which stores


def test_a_redis_store_is_atomic_itself(redis_store):
    assert isinstance(redis_store, AtomicStore)
    assert atomic(redis_store) is redis_store


def test_an_asynchronous_sqlite_store_gets_the_same(tmp_path):
    async def use():
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
            one = atomic(store)
            head = (AT, "head")
            assert await one.acommit([PutOp(*head, {"n": 1})], given={head: None})
            assert not await one.acommit([PutOp(*head, {"n": 2})], given={head: None})
            assert await one.acommit([PutOp(AT, "v", {"n": 1})], given={})
            assert await one.acommit([PutOp(*head, {"n": 3})], given={head: {"n": 1}})
            assert (await store.aget(AT, "head")).value == {"n": 3}
            assert (await store.aget(AT, "v")).value == {"n": 1}

    asyncio.run(use())


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT"])
@pytest.mark.parametrize("patience", [None, lambda: 10.0])
async def test_a_cancelled_call_leaves_no_transaction_open(
    tmp_path, monkeypatch, statement, patience
):
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        records = Records(store, AT, patience=patience)
        one = PutOp(AT, "one", {"n": 1})
        await records.items([one])
        execute = store.conn.execute

        def cancelled_meanwhile(sql, *parameters):
            if sql.startswith(statement):
                call.cancel()
            return execute(sql, *parameters)

        call = asyncio.create_task(records.items([GetOp(AT, "one"), one._replace(key="two")]))
        with monkeypatch.context() as patch, pytest.raises(asyncio.CancelledError):
            patch.setattr(store.conn, "execute", cancelled_meanwhile)
            await call

        kept = await records.values([(AT, "one"), (AT, "two")])
        assert kept == [{"n": 1}] * 2


def test_a_store_without_comparison_is_warned_about():
    with pytest.warns(RuntimeWarning, match="Elsewhere has no compare-and-put"):
        atomic(Elsewhere())


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
            atomically.compare_and_put(store, AT, "head", {}, expected=None)

        other.conn.execute("COMMIT")
        assert atomically.compare_and_put(store, AT, "head", {}, expected=None)


class Overtaken(sqlite3.Connection):
    """A connection whose setup is overtaken by another process, after it has looked how far."""

    def execute(self, sql, *parameters):
        if sql == "BEGIN IMMEDIATE":
            file = super().execute("PRAGMA database_list").fetchone()[2]
            with SqliteStore.from_conn_string(file) as other:
                other.setup()
        return super().execute(sql, *parameters)


def test_two_processes_make_the_tables_of_one_file_at_once(tmp_path):
    file = str(tmp_path / "store.db")
    overtaken = sqlite3.connect(
        file, factory=Overtaken, isolation_level=None, check_same_thread=False
    )
    with closing(overtaken):
        assert atomically.compare_and_put(
            SqliteStore(overtaken), AT, "head", {"n": 1}, expected=None
        )


def test_two_loops_make_the_tables_of_one_file_at_once(tmp_path):
    file = str(tmp_path / "store.db")

    async def use():
        connecting = aiosqlite.connect(file, factory=Overtaken, isolation_level=None)
        async with connecting as overtaken:
            store = atomic(AsyncSqliteStore(overtaken))
            return await store.acommit([PutOp(AT, "head", {"n": 1})], given={(AT, "head"): None})

    assert asyncio.run(use())


def test_opening_a_file_that_another_process_just_makes(tmp_path):
    def opened(_):
        with open_store(str(tmp_path / "store.db")) as store:
            store.put(AT, "one", {})
            return store.get(AT, "one").key

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(opened, range(8))) == ["one"] * 8


class Killed(BaseException):
    """The process ends; each of its statements so far is in the file."""


def killed_after(statements):
    """A connection that a kill ends after so many statements."""

    class Connection(sqlite3.Connection):
        left = statements

        def execute(self, sql, *parameters):
            if not self.left:
                raise Killed
            self.left -= 1
            return super().execute(sql, *parameters)

        def executescript(self, script):
            for statement in filter(str.strip, script.split(";")):
                self.execute(statement)

        def enable_load_extension(self, _):
            """Do nothing: not every build of Python can, and no step needs the extension."""

    return Connection


def set_up_partly(file, statements, index):
    """Set a file up as LangGraph does, up to a kill; return whether the kill came too late."""
    connecting = sqlite3.connect(file, factory=killed_after(statements), isolation_level=None)
    with closing(connecting) as connection:
        try:
            SqliteStore(connection, index=index).setup()
        except Killed:
            return False
    return True


def schema(file):
    with closing(sqlite3.connect(file)) as connection:
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql > '' ORDER BY name")
        steps = connection.execute("SELECT v FROM store_migrations ORDER BY v")
        return ["".join(sql.split()) for (sql,) in made], [*steps]


def use(file, index):
    class Connection(sqlite3.Connection):
        def enable_load_extension(self, _):
            """Likewise."""

    connecting = sqlite3.connect(
        file, factory=Connection, isolation_level=None, check_same_thread=False
    )
    with closing(connecting) as connection:
        store = SqliteStore(connection, index=index)
        return atomically.compare_and_put(store, AT, "head", {"n": 1}, expected=None)


def use_in_a_loop(file, index):
    async def run():
        async with AsyncSqliteStore.from_conn_string(file, index=index) as store:
            store.conn.enable_load_extension = store.conn.load_extension = skip
            return await atomic(store).abatch([PutOp(AT, "head", {"n": 1})]) == [None]

    async def skip(_):
        """Likewise."""

    return asyncio.run(run())


@pytest.mark.parametrize("index", [None, {"dims": 2, "embed": lambda texts: [[0, 1]] * len(texts)}])
@pytest.mark.parametrize("use", [use, use_in_a_loop])
def test_a_setup_that_was_killed_after_any_statement_is_finished_by_the_next_opener(
    tmp_path, monkeypatch, use, index
):
    monkeypatch.setattr("sqlite_vec.load", lambda _: None)
    assert set_up_partly(tmp_path / "whole.db", 1_000, index)
    for statements in range(1_000):
        file = tmp_path / f"{statements}.db"
        is_whole = set_up_partly(file, statements, index)

        assert use(str(file), index)

        assert schema(file) == schema(tmp_path / "whole.db")
        if is_whole:
            break
    assert statements > len(SqliteStore.MIGRATIONS)


TOGETHER = """
import os, sys, traceback
from pathlib import Path
from memagent_graph.memory.stores import open_store
from memagent_graph.cli.memory import open_saver
import langgraph.checkpoint.sqlite, langgraph.store.sqlite  # once, and not in every child

def use(file):
    if "saver" in file:
        with open_saver(Path(file)) as saver:
            assert list(saver.list(None)) == []
    else:
        with open_store(file) as store:
            store.conn.execute("PRAGMA busy_timeout = 30000")  # a put would wait five seconds
            store.put(("a",), str(os.getpid()), {})
            assert store.get(("a",), str(os.getpid()))

failed = 0
for file in sys.argv[1:]:
    wait, ready = os.pipe()
    children = []
    for _ in range(8):
        children.append(os.fork())
        if children[-1] == 0:
            os.close(ready)
            os.read(wait, 1)  # ends when the parent closes its end: all begin at once
            try:
                use(file)
            except BaseException:
                print(file, traceback.format_exc(), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
    os.close(ready)
    failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
sys.exit(min(failed, 9))
"""


def set_up_saver_partly(file, statements):
    """Set up the file of a checkpointer, up to a kill; return whether the kill came too late."""
    with closing(sqlite3.connect(file, factory=killed_after(statements))) as connection:
        try:
            SqliteSaver(connection).setup()
        except Killed:
            return False
    return True


def half_made(folder):
    """A file for each statement after which its setup can be killed, of stores and checkpoints."""
    for set_up, name in [
        (partial(set_up_partly, index=None), "store"),
        (set_up_saver_partly, "saver"),
    ]:
        for statements in range(1_000):
            file = folder / f"{name} {statements}.db"
            is_whole = set_up(file, statements)
            yield str(file)
            if is_whole:
                break
        assert statements > 3


@pytest.mark.slow
def test_eight_processes_finish_at_once_what_was_killed_after_any_statement(tmp_path):
    python = warm_python(*COMMAND_LINE)
    done = python.run([sys.executable, "-c", TOGETHER, *half_made(tmp_path)])

    assert done.stderr == ""
    assert done.returncode == 0


@pytest.mark.slow
def test_a_file_that_another_process_holds_for_seconds_is_waited_for(tmp_path):
    """Such as one whose first commit waits for a busy disk."""
    files = [tmp_path / "store.db", tmp_path / "saver.db"]
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        held = [stack.enter_context(closing(sqlite3.connect(file))) for file in files]
        for connection in held:
            connection.execute("BEGIN EXCLUSIVE")
        opening = [
            pool.submit(lambda: stack.enter_context(open_store(str(files[0])))),
            pool.submit(lambda: stack.enter_context(open_saver(files[1]))),
        ]
        assert wait(opening, timeout=6).done == set()

        for connection in held:
            connection.commit()

        assert [each.result() is not None for each in opening] == [True, True]


def test_a_failed_commit_leaves_no_transaction_open(tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        store.conn.execute("PRAGMA foreign_keys = ON")
        store.conn.execute("CREATE TABLE owner (id INTEGER PRIMARY KEY)")
        store.conn.execute(
            "CREATE TABLE owned (id INTEGER REFERENCES owner DEFERRABLE INITIALLY DEFERRED)"
        )
        store.conn.execute(
            "CREATE TRIGGER fails AFTER INSERT ON store BEGIN INSERT INTO owned VALUES (1); END"
        )
        with pytest.raises(StoreError, match="FOREIGN KEY constraint failed"):
            atomically.compare_and_put(store, AT, "head", {}, expected=None)

        store.conn.execute("DROP TRIGGER fails")
        assert atomically.compare_and_put(store, AT, "head", {}, expected=None)


def test_a_file_that_cannot_be_written_is_opened_and_read(tmp_path):
    file = tmp_path / "store.db"
    with open_store(str(file)) as store:
        store.put(AT, "one", {"n": 1})

    with closing(
        sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, check_same_thread=False)
    ) as connection:
        (item,) = asyncio.run(atomic(SqliteStore(connection)).abatch([GetOp(AT, "one")]))

    assert item.value == {"n": 1}


@pytest.mark.parametrize(
    "error",
    [OSError(2, "No such file", "/no/such/file"), sqlite3.OperationalError("mine"), KeyError("k")],
)
def test_what_fails_while_a_store_is_open_is_not_blamed_on_it(tmp_path, error):
    async def fail():
        raise error

    with (
        pytest.raises(type(error)) as raised,
        open_store(str(tmp_path / "outer.db")),
        open_store(str(tmp_path / "inner.db")),
    ):
        asyncio.run(fail())

    assert raised.value is error


def test_a_store_that_cannot_be_opened_says_what_to_check(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="cannot be used: .* Check the disk"):
        open_store(str(tmp_path / "file" / "store.db")).__enter__()
