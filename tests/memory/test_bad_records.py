"""A record that cannot be read costs only itself, wherever it is; and old versions go."""

import json
from contextlib import AsyncExitStack
from inspect import isawaitable

import pytest
from fixed_readers import ChainReader, numbered
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
from typer.testing import CliRunner

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.cli.memory import app
from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.errors import BadRecordError, MemoryNotFoundError, NewerRecordError, StoreError
from memagent_graph.memory import stores
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.version import make_reading_key

SMALL = ReadingConfig(chunk_tokens=50)
TEXT = numbered(40)
OTHER = f"Of Bob: {numbered(20)}"


async def read(store, document=TEXT, config=SMALL, reader=None, **asked):
    agent = create_memagent(reader or ChainReader(), config=config, store=store)
    return await agent.ainvoke({"question": "What?", "document": document, **asked})


@pytest.fixture
def store(async_redis_store):
    return async_redis_store


def reshape(change):
    """Spoil the value of a record whose header stays."""

    def spoil(client, key, other):
        head, body = client.get(key).split(b"\n", 1)
        client.set(key, head + b"\n" + json.dumps(change(json.loads(body))).encode())

    return spoil


def a_list(client, key, other):
    client.delete(key)
    client.lpush(key, "something")


SPOILS = {
    "cut short": lambda client, key, other: client.set(key, client.get(key)[:-9]),
    "no JSON": lambda client, key, other: client.set(key, b"something"),
    "a list": a_list,
    "altered": reshape(lambda value: {**value, "content": {**value.get("content", {}), "step": 0}}),
    "another's": lambda client, key, other: client.set(key, client.get(other)),
}
UNREADABLE = pytest.mark.parametrize("kind", ["cut short", "no JSON", "a list"])


class Place:
    def __init__(self, prefix, bank, client):
        self.prefix, self.bank, self.client = prefix, bank, client

    def key(self, namespace, key):
        labels = "".join(f"/{label}" for label in namespace[1:])
        return f"{self.prefix}:{{{namespace[0]}}}{labels}//{key}"

    def spoil(self, kind, namespace, key, other=None):
        name = self.key(namespace, key)
        assert self.client.exists(name)
        SPOILS[kind](self.client, name, other and self.key(namespace, other))


@pytest.fixture
def place(prefix, store, redis_client):
    return Place(prefix, MemoryBank(store), redis_client)


@pytest.fixture
def check(monkeypatch, redis_server, prefix):
    monkeypatch.setattr(
        stores, "open_store", lambda where: RedisStore.from_url(redis_server.url, prefix=prefix)
    )
    monkeypatch.setenv("MEMAGENT_STORE", redis_server.url)
    return lambda *arguments: CliRunner().invoke(app, ["check", *arguments])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILS)
@pytest.mark.parametrize("which", ["middle", "last"])
async def test_a_bad_version_is_found_and_costs_no_answer(store, place, kind, which):
    bank = place.bank
    right = await read(store)
    ids = [version.id for version in await bank.ahistory(right["version"])]
    place.spoil(kind, bank.versions, ids[3 if which == "middle" else 0], ids[5])

    found = await bank.acheck()
    again = await read(store)

    assert [f.kind for f in found if f.kind == "bad"] == ["bad"]
    assert (again["memory"], again["warnings"]) == (right["memory"], [])
    if which == "last":  # it was read again
        assert [version.id for version in await bank.ahistory(right["version"])] == ids
    else:
        await bank.acheck(repair=True)
    assert [f.kind for f in await bank.acheck()] == ["gap"] * (which == "middle")


async def test_what_a_newer_release_wrote_is_refused_by_name_and_left_as_it_is(store, place):
    bank = place.bank
    named = await read(store, memory_name="ann")
    right = await read(store)
    key = place.key(bank.versions, right["version"])
    reshape(lambda value: {**value, "schema": 99})(place.client, key, None)
    written = place.client.get(key)

    with pytest.raises(NewerRecordError, match="'ann'.*newer release.*upgrade"):
        await read(store, numbered(9), memory_name="ann")
    again = await read(store)
    found = await bank.acheck(repair=True)

    assert named["version"] == right["version"]
    assert (again["memory"], again["warnings"]) == (right["memory"], [])
    assert [(f.kind, f.key) for f in found] == [("bad", right["version"])]
    assert place.client.get(key).split(b"\n", 1)[1] == written.split(b"\n", 1)[1]


@pytest.mark.slow
@UNREADABLE
@pytest.mark.parametrize("which", ["readings", "members", "underway", "threads"])
async def test_a_bad_item_beside_the_versions_is_a_miss(store, place, kind, which):
    bank = place.bank
    right = await read(store)
    version = await bank.aget(right["version"])
    name = make_reading_key(version.root, version.document.digest)
    threads, lease = (*bank.namespace, "threads"), f"-{version.root}-{version.document.digest}"
    await store.aput(threads, "one", {"messages": []})
    await store.aput(bank.leases, lease, {"beat": 0})
    places = {
        "readings": (bank.readings, name),
        "members": (bank.members(name), version.id),
        "underway": (bank.leases, lease),
        "threads": (threads, "one"),
    }
    place.spoil(kind, *places[which])

    found = await bank.acheck()
    grown = await read(store, TEXT + numbered(9))
    again = await read(store)

    assert "bad" in {f.kind for f in found}
    assert again["memory"] == right["memory"]
    assert again["warnings"] == grown["warnings"] == []
    await bank.acheck(repair=True)
    assert not {f.kind for f in await bank.acheck()} & {"dangling", "bad"}
    assert (await read(store))["memory"] == right["memory"]
    assert (await bank.aforget(name)).versions + len(await bank.alist()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*SPOILS, "head cut short", "head a list", "head another type"])
async def test_a_named_memory_that_is_bad_says_so_and_spares_the_others(store, place, kind, check):
    bank = place.bank
    await read(store, memory_name="ann")
    await read(store, numbered(20), memory_name="bob")
    ids = [version.id for version in await bank.ahistory("ann")]
    if kind == "head another type":
        await store.aput(bank.heads, "ann", {"version": ["no", "id"]})
    elif kind.startswith("head "):
        place.spoil(kind.removeprefix("head "), bank.heads, "ann")
    else:
        place.spoil(kind, bank.versions, ids[0], ids[4])

    with pytest.raises(BadRecordError, match=r"'ann'.*memagent memory check --repair"):
        await read(store, numbered(9), memory_name="ann")

    assert [name for name, _ in await bank.alist()] == ["bob"]
    assert (await bank.ahistory("bob")).gaps == []
    assert any('"bob"' in line for line in await bank.aexport())
    assert await bank.acollect() == 0
    assert [check(*more).exit_code for more in ((), ("--repair",))] == [1, 0]
    told = check()
    assert (told.exit_code, "0 to mend" in told.stderr) == (0, True)
    expected = ids if kind.startswith("head") else ids[1:]
    assert [version.id for version in await bank.ahistory("ann")] == expected
    assert (await read(store, numbered(9), memory_name="ann"))["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPOILS)
@pytest.mark.parametrize("where", ["head", "version"])
async def test_a_bad_memory_can_be_forgotten(store, place, kind, where):
    bank = place.bank
    await read(store, memory_name="ann")
    await read(store, OTHER, memory_name="bob")
    history = await bank.ahistory("bob")
    ids = [version.id for version in await bank.ahistory("ann")]
    head, newest = (bank.heads, "ann", "bob"), (bank.versions, ids[0], ids[4])
    place.spoil(kind, *(head if where == "head" else newest))

    await bank.aforget("ann")

    assert not any(place.client.exists(place.key(bank.versions, key)) for key in ids)
    assert (await bank.ahistory("bob"), await bank.acheck()) == (history, [])
    with pytest.raises(MemoryNotFoundError):
        await bank.aforget("ann")


@UNREADABLE
async def test_a_bad_mark_folds_nothing_twice(store, prefix, redis_client, kind):
    memory = ConversationMemory(ChainReader(), store=store)
    talk = [{"role": "user", "content": f"I am {n}.", "id": str(n)} for n in range(4)]
    await memory.asave(talk, user="ann", thread="one")
    right = await memory.aload("ann")
    bank = memory.people.of("ann", None).bank
    threads = (*bank.namespace, "threads")
    Place(prefix, bank, redis_client).spoil(kind, threads, "one")

    await memory.asave(talk, user="ann", thread="one")
    assert (await memory.aload("ann"), [f.kind for f in await bank.acheck()]) == (right, ["bad"])
    await memory.asave([*talk, ("user", "More.")], user="ann", thread="one")
    assert await memory.aload("ann") != right
    assert await bank.acheck() == []


@pytest.mark.parametrize("keep", [1, 3])
async def test_versions_that_are_not_kept_go_and_asking_again_costs_one_call(keep):
    store, config = InMemoryStore(), SMALL.model_copy(update={"keep_versions": keep})
    out = await read(store, config=config)
    bank = MemoryBank(store)

    again = await read(store, config=config)
    named = await read(store, numbered(20), config=config, memory_name="ann")

    assert (again["usage"]["calls"], again["memory"]) == (1, out["memory"])
    assert len(await bank.ahistory(out["version"])) == len(await bank.ahistory("ann")) == keep
    assert (await bank.aget("ann")).id == named["version"]
    assert len(await store.asearch(bank.versions, limit=100)) == 2 * keep


async def test_how_readings_into_a_name_ended_goes_with_their_versions():
    store, config = InMemoryStore(), SMALL.model_copy(update={"keep_versions": 2})
    for day in range(5):
        document = numbered(20).replace("1", str(day))
        await read(store, document, config=config, memory_name="ann")
    bank = MemoryBank(store)

    assert len(await bank.ahistory("ann")) == 2
    assert len(await store.asearch(bank.runs, limit=100)) <= 2


@pytest.mark.parametrize(("keep", "left"), [({}, 10), ({"keep_versions": None}, 30)])
async def test_a_talk_keeps_its_newest_versions_and_folds_nothing_twice(keep, left):
    memory = ConversationMemory(ChainReader(), store=InMemoryStore(), **keep)
    turns = [[{"role": "user", "content": f"I am {n}.", "id": str(n)}] for n in range(30)]
    for turn in turns:
        await memory.asave(turn, user="ann", thread="one")
    right = await memory.aload("ann")
    bank = memory.people.of("ann", None).bank

    await memory.asave(turns[-1], user="ann", thread="one")

    assert (await memory.aload("ann"), len(await bank.ahistory("memory"))) == (right, left)
    assert len(await bank.store.asearch(bank.versions, limit=100)) == left


async def test_a_time_to_live_is_on_all_that_is_written(store, prefix, redis_client):
    class Looking(ChainReader):
        async def update(self, *args, **kwargs):
            leases = redis_client.scan_iter(f"{prefix}*/underway//*")
            times.extend(map(redis_client.ttl, leases))
            return await super().update(*args, **kwargs)

    times, seven = [], SMALL.model_copy(update={"ttl": 7.0})
    await read(store, config=seven, memory_name="ann")
    await read(store, config=seven, reader=Looking(), question="While it is read?")
    memory = ConversationMemory(ChainReader(), store=store, ttl=7.0)
    await memory.asave([("user", "I am Ann.")], user="ann", thread="one")

    items = items_of(redis_client, prefix)

    assert times
    assert len(items) > 20
    assert all(0 < ttl <= 420 for ttl in [*times, *map(redis_client.ttl, items)])


def items_of(client, prefix):
    keys = [key for key in client.scan_iter(f"{prefix}*") if b"#" not in key]
    return [key for key in keys if client.type(key) == b"string"]


async def test_reads_extend_nothing_where_the_store_says_so(redis_server, prefix, redis_client):
    ttl = {"default_ttl": 5, "refresh_on_read": False}
    async with RedisStore.from_url(redis_server.url, prefix=prefix, ttl=ttl) as store:
        bank = MemoryBank(store)
        out = await read(store, memory_name="ann")
        await read(store)
        items = items_of(redis_client, prefix)
        for key in items:
            redis_client.expire(key, 100)

        await bank.alist()
        await bank.ahistory("ann")
        await bank.aget(out["version"])
        await bank.acheck()
        await bank.aexport()
        async for version in bank.watch("ann", after="0"):
            if version.document.end == len(TEXT):
                break

        assert len(items) > 20
        assert max(redis_client.ttl(key) for key in items) <= 100


@pytest.fixture(params=[SqliteStore, AsyncSqliteStore])
async def opened(request, tmp_path):
    opening = request.param.from_conn_string(str(tmp_path / "memories.sqlite"))
    async with AsyncExitStack() as stack:
        if request.param is SqliteStore:
            yield stack.enter_context(opening), stack.aclose
        else:
            yield await stack.enter_async_context(opening), stack.aclose


async def test_a_closed_store_is_reported_as_one(opened):
    store, close = opened
    bank = MemoryBank(store)
    await read(store, memory_name="x")
    await close()

    for asked in (bank.aget("x"), bank.alist(), bank.aforget("x")):
        with pytest.raises(StoreError, match="store is closed") as raised:
            await asked
        assert not isinstance(raised.value, BadRecordError)


async def test_a_scan_of_sqlite_names_what_is_unreadable_and_yields_the_rest(opened):
    store, _ = opened
    records = MemoryBank(store)
    await records.items([records.put(("a", "b"), key, {}) for key in "12345"])
    done = store.conn.execute("UPDATE store SET value = '{' WHERE key = '3'")
    if isawaitable(done):
        await done

    found = [item async for item in records.scan(("a", "b"))]

    assert [item.key for item in found] == [*"12345"]
    assert [item.key for item in found if isinstance(item, BadRecordError)] == ["3"]
