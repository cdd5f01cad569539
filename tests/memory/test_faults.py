"""A write that fails at any moment, or whose reply is lost, leaves every name with its memory."""

import asyncio
from contextlib import suppress

import pytest
from fixed_readers import ChainReader, chain, numbered
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore
from memory_versions import make_version
from servers.redis_server import RedisServer

import memagent_graph.memory.store as asked
from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.errors import MemAgentError, StoreError
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.store import GetThenPut

SMALL = ReadingConfig(chunk_tokens=50)
TEXT = numbered(30)
OTHER = numbered(12)
TOLD_AT = {"told_at": "2026-03-05T09:30"}  # a memory of what is said now changes with the minute
TALK = [HumanMessage(f"I am {n}.", id=str(n), additional_kwargs=TOLD_AT) for n in range(4)]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """Stores that fail are retried at once: no test waits for a pause."""
    monkeypatch.setattr(asked, "AWAY", asked.Pauses(0.0, 0.0))


class Faults:
    """Decides which write fails: number `at`, before it is carried out or afterwards."""

    def __init__(self):
        self.at, self.after, self.seen = -1, False, 0

    async def around(self, write):
        mine, self.seen = self.seen == self.at, self.seen + 1
        if mine and not self.after:
            raise StoreError("injected: not carried out")
        result = await write()
        if mine:
            raise StoreError("injected: the reply was lost")
        return result


def failing(base):
    """A store class whose writes go through `Faults`."""

    class Failing(base):
        @property
        def faults(self):
            return self.__dict__.setdefault("_faults", Faults())

        async def abatch(self, ops):
            ops = [*ops]
            if any(hasattr(op, "value") for op in ops):
                return await self.faults.around(lambda: super(Failing, self).abatch(ops))
            return await super().abatch(ops)

        async def acommit(self, *args, **kwargs):
            parent = super().acommit
            return await self.faults.around(lambda: parent(*args, **kwargs))

    return Failing


class Substitute(InMemoryStore):
    """LangGraph's store with the atomic operations of the library's substitute."""

    def __init__(self):
        super().__init__()
        self.plain = InMemoryStore()  # the same items, written without faults
        self.plain._data = self._data

    async def acommit(self, *args, **kwargs):
        return await GetThenPut(self.plain).acommit(*args, **kwargs)

    async def aplaces(self, namespace):
        return await GetThenPut(self.plain).aplaces(namespace)


FailingMemory, FailingRedis = failing(Substitute), failing(RedisStore)


async def read(store, document=TEXT, **asked):
    agent = create_memagent(ChainReader(), config=SMALL, store=store)
    return await agent.ainvoke({"question": "What?", "document": document, **asked})


async def memories_are_whole(bank, documents):
    """Every name leads to a memory whose text is what its history, read again, comes to."""
    found = await bank.alist()
    assert not {"dangling", "bad"} & {finding.kind for finding in await bank.acheck()}
    pointers = [*await bank.keys(bank.heads), *await bank.keys(bank.readings)]
    assert sorted(name for name, _ in found) == sorted(pointers)
    for name, head in found:
        history = await bank.ahistory(name)
        assert history[0] == head == await bank.aget(name)
        assert history.gaps == [] or not documents  # of talks, one version is kept
        memory = ""
        for version in reversed(history):
            text = documents.get(version.document.digest)
            if version.edited:
                memory = version.text
            elif text is not None:
                memory = chain(memory, text[slice(*version.span)])
            assert version.text == memory or text is None


DOCUMENTS: dict[str, str] = {}


async def known_documents():
    if not DOCUMENTS:
        store = InMemoryStore()
        for text in (TEXT, OTHER):
            out = await read(store, text)
            DOCUMENTS[(await MemoryBank(store).aget(out["version"])).document.digest] = text
    return DOCUMENTS


async def named(store):
    return (await read(store, memory_name="ann"))["memory"]


async def unnamed(store):
    return (await read(store))["memory"]


async def edit(store):
    return (await MemoryBank(store).aedit("old", "By hand.")).text


async def branch(store):
    bank = MemoryBank(store)
    if "new" not in [name for name, _ in await bank.alist()]:
        await bank.abranch("old", "new")
    return (await bank.aget("new")).text


async def import_lines(store):
    source = InMemoryStore()
    await read(source, memory_name="imported")
    bank = MemoryBank(store)
    await bank.aimport(await MemoryBank(source).aexport())
    return (await bank.aget("imported")).text


async def turn(store):
    memory = ConversationMemory(ChainReader(), store=store, keep_versions=1)
    await memory.asave(TALK[:2], user="ann", thread="one")
    await memory.asave(TALK, user="ann", thread="one")
    return await memory.aload("ann")


ACTS = [named, unnamed, edit, branch, import_lines, turn]


@pytest.fixture(params=["substitute", "redis"])
async def new_store(request, redis_server, prefix):
    opened = []

    def open_store(place):
        if request.param == "substitute":
            return FailingMemory()
        opened.append(FailingRedis.from_url(redis_server.url, prefix=f"{prefix}{place}"))
        return opened[-1]

    yield open_store
    for store in opened:
        await store.aclose()


async def heads_after(act, store):
    """Carry out `act` with the fault that `store` has in mind; say whether it was met."""
    faults = store.faults
    with suppress(MemAgentError):
        await act(store)
    met = faults.seen > faults.at
    faults.at = -1
    await memories_are_whole(MemoryBank(store), await known_documents())
    if act is turn:
        personal = ConversationMemory(ChainReader(), store=store).people.of("ann", None).bank
        await memories_are_whole(MemoryBank(store, personal.namespace), {})
    return met


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["not carried out", "reply lost"])
@pytest.mark.parametrize("act", ACTS)
async def test_whichever_write_fails_names_lead_to_whole_memories(new_store, act, after):
    healthy = new_store("healthy")
    await read(healthy, OTHER, memory_name="old")
    right = await act(healthy)
    if act in (named, unnamed):
        assert right == (await read(InMemoryStore()))["memory"]
    for count in range(100):
        store = new_store(count)
        await read(store, OTHER, memory_name="old")
        store.faults.at, store.faults.after, store.faults.seen = count, after, 0
        met = await heads_after(act, store)
        again = await act(store)
        if act is named and again != right:  # it was read once more, onto what was stored
            fresh = InMemoryStore()
            assert again == [await named(fresh) for _ in range(2)][1]
        else:
            assert again == right
        if not met:
            break

    assert not met
    assert count > 0


@pytest.fixture(scope="module")
def small_server(tmp_path_factory):
    options = ("--maxmemory", "8mb", "--maxmemory-policy", "noeviction", "--appendonly", "no")
    server = RedisServer(tmp_path_factory.mktemp("small"), *options)
    yield server
    server.kill()


@pytest.mark.slow
@pytest.mark.parametrize("room", [0, 2, 5, 10, 20, 40], ids=lambda room: f"{room} kB")
async def test_a_server_that_runs_full_keeps_heads_whole(small_server, prefix, room, monkeypatch):
    with small_server.client() as client:
        client.flushall()
        async with RedisStore.from_url(small_server.url, prefix=prefix) as store:
            await read(store, OTHER, memory_name="old")
            used = int(client.info("memory")["used_memory"])
            client.config_set("maxmemory", used + 300_000)
            for size in (50_000, 1_000):
                fill(client, size, leave=room * 1_000)
            with suppress(StoreError), monkeypatch.context() as impatient:
                impatient.delenv("MEMAGENT_STORE_SECONDS")  # else it may be tried for a minute
                async with RedisStore.from_url(small_server.url, prefix=prefix) as hurried:
                    await read(hurried, memory_name="ann")
            await memories_are_whole(MemoryBank(store), await known_documents())

            client.config_set("maxmemory", 100_000_000)
            again = await read(store, memory_name="bob")

            assert again["memory"] == (await read(InMemoryStore()))["memory"]
            assert again["warnings"] == []
            await memories_are_whole(MemoryBank(store), await known_documents())


def fill(client, size, leave):
    for number in range(10_000):
        info = client.info("memory")
        if info["maxmemory"] - info["used_memory"] < leave + size:
            return
        client.set(f"ballast-{size}-{number}", b"x" * size)


@pytest.fixture
async def two_stores(redis_server, prefix):
    async with (
        RedisStore.from_url(redis_server.url, prefix=prefix) as one,
        RedisStore.from_url(redis_server.url, prefix=prefix) as other,
    ):
        yield one, other


async def write_chain(bank, name, length):
    version = None
    for step in range(1, length + 1):
        version = make_version(f"{name} {step}", step, before=version, question=name)
        await bank.aappend(version, owner=name)
    assert await bank.amove_head(name, version.id, expected=None)
    return version


async def look_and_forget(bank, name, trips):
    for _ in range(trips):
        await bank.store.aget(("elsewhere",), "nothing")
    return await bank.aforget(name)


@pytest.mark.slow
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
async def test_a_branch_that_races_with_forgetting_has_all_or_is_refused(two_stores, long):
    one, other = map(MemoryBank, two_stores)
    for number in range(8 if long else 100):
        a, b = f"a{number}", f"b{number}"
        await write_chain(one, a, 150 if long else 2 + number % 5)
        history = await one.ahistory(a)
        history = history[len(history) // 3 if long else 0 :]

        racing = look_and_forget(one, a, number % 16), other.abranch(history[0].id, b)
        forgotten, branched = await asyncio.gather(*racing, return_exceptions=True)

        assert not isinstance(forgotten, BaseException)
        names = [name for name, _ in await one.alist()]
        assert isinstance(branched, StoreError) != (b in names)
        if b in names:
            found = await one.ahistory(b)
            assert (found, found.gaps) == (history, [])
            await one.aforget(b)
        assert await one.acheck() == []


@pytest.mark.slow
async def test_a_name_forgotten_while_it_is_read_never_leads_to_nothing(two_stores):
    one, other = map(MemoryBank, two_stores)
    for number in range(10):
        name = f"a{number}"
        await read(one.store, OTHER, memory_name=name)

        reading = read(other.store, TEXT, memory_name=name)
        await asyncio.gather(look_and_forget(one, name, number * 4), reading)

        assert not {"dangling", "bad"} & {finding.kind for finding in await one.acheck()}
        for found, head in await one.alist():
            assert (await one.ahistory(found))[0] == head
