import asyncio
import sqlite3
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from functools import partial

import atomically
import pytest
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
from servers.tcp_proxy import TCPProxy
from servers.warm_python import COMMAND_LINE, PIPE, warm_python

from memagent_graph.cli.memory import open_saver
from memagent_graph.errors import StoreError
from memagent_graph.memory.items import Records
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.stores import atomic, open_store

AT = ("tenant", "heads")


class Elsewhere(BaseStore):
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
def commit(store):
    return partial(atomically.commit, store)


def values(store):
    return {(item.namespace, item.key): item.value for item in store.search(("tenant",))}


@pytest.mark.parametrize(("there", "expected", "put", "left"), [
    pytest.param(None, None, {"v": 1}, {"v": 1}, id="absent as expected"),
    pytest.param(None, {"v": 1}, {"v": 2}, None, id="absent"),
    pytest.param({"v": 1}, None, {"v": 2}, {"v": 1}, id="there"),
    pytest.param({"v": 1}, {"v": 1}, {"v": 2}, {"v": 2}, id="as expected"),
    pytest.param({"v": 1}, {"v": 2}, {"v": 3}, {"v": 1}, id="another"),
    pytest.param({"v": 1}, {"v": 2}, None, {"v": 1}, id="another is not deleted"),
    pytest.param({"v": 1}, {"v": 1}, None, None, id="deleted"),
    pytest.param({}, None, {"v": 1}, {}, id="empty is not absent"),
    pytest.param({}, {}, {"v": 1}, {"v": 1}, id="empty"),
])  # fmt: skip
def test_an_item_is_replaced_just_when_its_value_is_as_expected(store, there, expected, put, left):
    if there is not None:
        store.put(AT, "head", there)

    done = atomically.compare_and_put(store, AT, "head", put, expected=expected)

    assert done == (there == expected)
    assert values(store) == ({} if left is None else {(AT, "head"): left})
    assert left is None or store.list_namespaces() == [AT]


COUNTER = """
import sys
from langgraph.store.base import PutOp
from langgraph.store.sqlite import SqliteStore
from memagent_graph.memory.stores import atomic
from memagent_graph.memory.redis import RedisStore
from memagent_graph.sync import wait_for

def count(store):
    one, at = atomic(store), (("tenant", "heads"), "head")
    input()
    for _ in range(25):
        done = False
        while not done:
            item = store.get(*at)
            put = PutOp(*at, {"n": item.value["n"] + 1 if item else 1})
            done = wait_for(one.acommit([put], given={at: item and item.value}))

where, prefix = sys.argv[1:]
is_redis = where.startswith("redis")
with (RedisStore.from_url(where, prefix=prefix) if is_redis
      else SqliteStore.from_conn_string(where)) as store:
    count(store)
"""


@pytest.mark.slow
@pytest.mark.parametrize("store", ["redis", "sqlite"], indirect=True)
def test_processes_that_count_together_lose_nothing(store, redis_server, prefix, tmp_path):
    where = redis_server.url
    if isinstance(store, SqliteStore):
        store.setup()
        where = str(tmp_path / "store.db")
    command = [sys.executable, "-c", COUNTER, where, prefix]
    processes = [warm_python(*COMMAND_LINE).start(command, stdin=PIPE) for _ in range(4)]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.close()

    assert [process.wait() for process in processes] == [0] * 4
    assert values(store) == {(AT, "head"): {"n": 100}}


OTHER = ("tenant", "others")


def test_puts_and_deletes_are_carried_out_together_when_all_is_as_given(store, commit):
    store.put(AT, "old", {"v": 1})
    store.put(OTHER, "any", {"v": 2})
    given = {(AT, "old"): {"v": 1}, (AT, "new"): None, (OTHER, "any"): ...}
    puts = [PutOp(AT, "old", None), PutOp(AT, "new", {"v": 3}), PutOp(OTHER, "more", {"v": 4})]

    assert commit([*puts, PutOp(OTHER, "never there", None)], given)
    found = {(AT, "new"): {"v": 3}, (OTHER, "any"): {"v": 2}, (OTHER, "more"): {"v": 4}}
    assert values(store) == found
    assert commit([], {(AT, "new"): {"v": 3}})
    assert not commit([], {(AT, "new"): None})
    assert values(store) == found


@pytest.mark.parametrize("wrong", [
    {(AT, "there"): None}, {(AT, "there"): {"v": 2}}, {(OTHER, "absent"): {"v": 1}},
    {(OTHER, "absent"): {}}, {(OTHER, "absent"): ...},
])  # fmt: skip
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
    assert [key for _, key in values(store) if key in "cd"] == ["c"]


def test_the_last_put_of_an_item_counts(store, commit):
    assert commit([PutOp(AT, "a", {"v": 1}), PutOp(AT, "a", {"v": 2})], {})
    assert commit([PutOp(AT, "b", None), PutOp(AT, "b", {"v": 3})], {})
    assert values(store) == {(AT, "a"): {"v": 2}, (AT, "b"): {"v": 3}}


def test_namespaces_that_begin_differently_are_refused(store, commit):
    own, elsewhere = PutOp(AT, "a", {}), PutOp(("another tenant",), "k", {})

    for puts, given in (([own, elsewhere], {}), ([elsewhere], {(AT, "a"): None}), ([], {})):
        with pytest.raises(ValueError, match="same label"):
            commit(puts, given)
    assert store.search(()) == []


async def count_twice(store):
    one, places = atomic(store), [(AT, "n"), (OTHER, "n")]
    for _ in range(20):
        done = False
        while not done:
            found = [await one.abatch([GetOp(*place)]) for place in places]
            given = {
                place: item and item.value for place, [item] in zip(places, found, strict=True)
            }
            n = given[places[0]]["n"] + 1 if given[places[0]] else 1
            done = await one.acommit([PutOp(*place, {"n": n}) for place in places], given=given)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["redis", "sqlite", "memory"], indirect=True)
@pytest.mark.parametrize("of", ["threads", "tasks"])
def test_those_who_commit_two_items_together_lose_nothing(store, of):
    async def gather(count):
        await asyncio.gather(*(count_twice(store) for _ in range(count)))

    if of == "tasks":
        asyncio.run(gather(8))
    else:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda _: asyncio.run(gather(1)), range(8)))

    assert values(store) == {(AT, "n"): {"n": 160}, (OTHER, "n"): {"n": 160}}


@pytest.fixture
def proxied(redis_server, prefix):
    proxy = TCPProxy(redis_server.port)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}", prefix=prefix) as store:
        yield store, proxy
    proxy.close()


def test_a_commit_whose_reply_was_lost_is_carried_out_once_and_reported_done(proxied):
    store, proxy = proxied
    atomically.commit(store, [PutOp(AT, "a", {"n": 1})], given={(AT, "a"): None})
    proxy.lose_next_reply = True

    puts = [PutOp(AT, "a", {"n": 2}), PutOp(OTHER, "b", {})]
    done = atomically.commit(store, puts, given={(AT, "a"): {"n": 1}, (OTHER, "b"): None})

    assert (done, proxy.lose_next_reply) == (True, False)
    assert values(store) == {(AT, "a"): {"n": 2}, (OTHER, "b"): {}}


def test_a_commit_compares_bytes_in_one_round_trip_and_values_in_two(proxied):
    store, proxy = proxied
    atomically.commit(store, [PutOp(AT, f"{n}", {"a": 1, "b": 2}) for n in range(5)], given={})

    def trips(value):
        before = proxy.trips
        given = {(AT, f"{n}"): value for n in range(5)}
        assert atomically.commit(store, [PutOp(AT, "new", {})], given=given)
        return proxy.trips - before

    assert (trips({"a": 1, "b": 2}), trips({"b": 2, "a": 1})) == (1, 2)


@pytest.mark.parametrize("deletes_first", [True, False])
def test_of_a_commit_without_memory_left_nothing_is_there(own_redis_server, deletes_first):
    with own_redis_server.client() as client, RedisStore.from_url(own_redis_server.url) as store:
        for key in ("old", "older", "there"):
            store.put(AT, key, {"v": 1})
        store.batch([PutOp(("filler",), f"{n}", {"text": "x" * 10_000}) for n in range(500)])
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 2**20)
        before = values(store)
        puts = [PutOp(AT, "new", {"v": 2}), PutOp(OTHER, "more", {"v": 2})]
        delete = PutOp(AT, "old", None)
        puts = [delete, *puts] if deletes_first else [*puts, delete]

        for write in (
            lambda: atomically.commit(store, puts, given={(AT, "old"): {"v": 1}}),
            lambda: store.put(AT, "there", {"v": 2}),
        ):
            with pytest.raises(StoreError, match="maxmemory"):
                write()

            assert values(store) == before
        assert [key for key in client.keys("*") if b"#" in key] == []
        assert atomically.compare_and_put(store, AT, "older", None, expected={"v": 1})

        client.config_set("maxmemory", 0)
        assert atomically.commit(store, puts, given={(AT, "old"): {"v": 1}})
        assert not {(AT, "old"), (AT, "older")} & {*values(store)}


def test_an_item_whose_key_has_another_type_is_absent_and_is_overwritten(
    redis_store, redis_client, prefix
):
    put = partial(redis_store.put, AT, "k", {"v": 1})
    compare = partial(atomically.compare_and_put, redis_store, AT, "k", {"v": 1}, expected=None)
    for write in (put, compare):
        redis_store.delete(AT, "k")
        redis_client.rpush(f"{prefix}:{{tenant}}/heads//k", "a list")
        assert not atomically.commit(redis_store, [PutOp(AT, "k", {})], given={(AT, "k"): ...})

        write()

        assert values(redis_store) == {(AT, "k"): {"v": 1}}


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
def test_times_to_live_are_those_of_the_puts_or_the_default(
    kind, redis_server, redis_client, prefix, tmp_path
):
    def minutes(key):
        if kind == "redis":
            return round(redis_client.ttl(f"{prefix}:{{tenant}}/heads//{key}") / 60)
        ((ttl,),) = store.conn.execute("SELECT ttl_minutes FROM store WHERE key = ?", (key,))
        return ttl

    opened = {
        "redis": partial(RedisStore.from_url, redis_server.url, prefix=prefix),
        "sqlite": partial(SqliteStore.from_conn_string, str(tmp_path / "s.db")),
    }
    with opened[kind](ttl={"default_ttl": 10}) as store:
        atomically.commit(store, [PutOp(AT, "a", {}, ttl=20), PutOp(AT, "b", {})], given={})

        assert [minutes(key) for key in "ab"] == [20, 10]


# Which stores


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


def test_a_locked_sqlite_file_is_a_store_error(tmp_path):
    opened = partial(SqliteStore.from_conn_string, str(tmp_path / "store.db"))
    with opened() as store, opened() as other:
        store.setup()
        other.setup()
        store.conn.execute("PRAGMA busy_timeout = 0")
        other.conn.execute("BEGIN EXCLUSIVE")

        with pytest.raises(StoreError, match="locked"):
            atomically.compare_and_put(store, AT, "head", {}, expected=None)

        other.conn.execute("COMMIT")
        assert atomically.compare_and_put(store, AT, "head", {}, expected=None)


@pytest.mark.parametrize("step", range(len(SqliteStore.MIGRATIONS)))
def test_a_setup_that_is_broken_off_at_any_step_leaves_no_file_that_cannot_be_opened(
    tmp_path, monkeypatch, step
):
    file, steps = str(tmp_path / "store.db"), SqliteStore.MIGRATIONS
    with monkeypatch.context() as broken:
        broken.setattr(SqliteStore, "MIGRATIONS", [*steps[:step], f"{steps[step]}; broken off"])
        with pytest.raises(StoreError, match="cannot be used"):
            open_store(file).__enter__()

    with open_store(file) as store:
        store.put(AT, "one", {"n": 1})
        assert values(store) == {(AT, "one"): {"n": 1}}


def test_a_store_in_memory_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with open_store(":memory:") as store:
        store.put(AT, "one", {"n": 1})
        assert values(store) == {(AT, "one"): {"n": 1}}

    assert not [*tmp_path.iterdir()]


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


@pytest.mark.slow
def test_eight_processes_that_open_a_new_file_at_once_all_use_it(tmp_path):
    python = warm_python(*COMMAND_LINE)
    files = [str(tmp_path / f"{name} {n}.db") for name in ("store", "saver") for n in range(8)]

    done = python.run([sys.executable, "-c", TOGETHER, *files])

    assert (done.stderr, done.returncode) == ("", 0)


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
    owned = "CREATE TABLE owned (id INTEGER REFERENCES owner DEFERRABLE INITIALLY DEFERRED)"
    fails = "TRIGGER fails AFTER INSERT ON store BEGIN INSERT INTO owned VALUES (1); END"
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        store.setup()
        owner = "CREATE TABLE owner (id INTEGER PRIMARY KEY)"
        for statement in ("PRAGMA foreign_keys = ON", owner, owned, f"CREATE {fails}"):
            store.conn.execute(statement)
        with pytest.raises(StoreError, match="FOREIGN KEY constraint failed"):
            atomically.compare_and_put(store, AT, "head", {}, expected=None)

        store.conn.execute("DROP TRIGGER fails")
        assert atomically.compare_and_put(store, AT, "head", {}, expected=None)


def test_a_file_that_cannot_be_written_is_opened_and_read(tmp_path):
    file = tmp_path / "store.db"
    with open_store(str(file)) as store:
        store.put(AT, "one", {"n": 1})

    only_read = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, check_same_thread=False)
    with closing(only_read) as connection:
        (item,) = asyncio.run(atomic(SqliteStore(connection)).abatch([GetOp(AT, "one")]))

    assert item.value == {"n": 1}


@pytest.mark.parametrize("error", [
    OSError(2, "No such file", "/no/such/file"), sqlite3.OperationalError("mine"), KeyError("k"),
])  # fmt: skip
def test_what_fails_while_a_store_is_open_is_not_blamed_on_it(tmp_path, error):
    async def fail():
        raise error

    files = (str(tmp_path / f"{name}.db") for name in ("outer", "inner"))
    with pytest.raises(type(error)) as raised, open_store(next(files)), open_store(next(files)):
        asyncio.run(fail())

    assert raised.value is error


def test_a_store_that_cannot_be_opened_says_what_to_check(tmp_path):
    (tmp_path / "file").touch()

    with pytest.raises(StoreError, match="cannot be used: .* Check the disk"):
        open_store(str(tmp_path / "file" / "store.db")).__enter__()
