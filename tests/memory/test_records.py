"""Forgetting forgets, and gaps are named and read beyond."""

from __future__ import annotations

import asyncio

import pytest
from doubles import ChainReader, QuotingReader, numbered
from typer.testing import CliRunner

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.cli.memory import app
from memagent_graph.conversation.memory import ConversationMemory
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.version import make_reading_key

SMALL = ReadingConfig(chunk_tokens=50)
TEXT = numbered(40)
WORDS = ("zyxquorin", "vlamtorpe", "brixelund", "qwonderak")


def agent(store, reader=None, config=SMALL):
    return create_memagent(reader or ChainReader(), config=config, store=store)


async def read(store, document=TEXT, reader=None, config=SMALL, question="What?", **asked):
    asked |= {"question": question, "document": document}
    return await agent(store, reader, config).ainvoke(asked)


def everything(client, prefix=""):
    """All that a server holds in keys that begin so, as one text."""
    found = []
    for key in client.scan_iter(match=f"{prefix}*", count=1000):
        if b"#receipt/" in key:
            continue  # it expires within a minute, and names the tenant alone
        found.append(key)
        match client.type(key):
            case b"string":
                found.append(client.get(key))
            case b"zset":
                found += client.zrange(key, 0, -1)
            case b"set":
                found += client.smembers(key)
            case b"stream":
                found += [repr(entry).encode() for entry in client.xrange(key)]
            case kind:
                raise AssertionError(kind)
    return b"\n".join(found).decode("utf-8", "replace")


@pytest.fixture
async def store(redis_server, prefix):
    async with RedisStore.from_url(redis_server.url, prefix=prefix) as found:
        yield found


def secret_document():
    lines = [f"The {WORDS[0]} of day {day} went to {WORDS[1]}.\n" for day in range(40)]
    return "".join(lines)


async def plant(store, tmp_path, name):
    """A memory whose words, question, source and evidence are made up, moved in every way."""
    file = tmp_path / f"{WORDS[2]}.txt"
    file.write_text(secret_document())
    asked = {"question": f"Where is {WORDS[3]}?", "document": file}
    if name is not None:
        asked["memory_name"] = name
    return await agent(store, QuotingReader()).ainvoke(asked)


async def test_a_forgotten_name_leaves_nothing(store, prefix, redis_client, tmp_path):
    bank = MemoryBank(store)
    await plant(store, tmp_path, "hollowick")
    await bank.aedit("hollowick", f"By hand: {WORDS[0]}")
    async with asyncio.TaskGroup() as group:  # two race for the head
        group.create_task(plant(store, tmp_path, "hollowick"))
        group.create_task(plant(store, tmp_path, "hollowick"))
    assert all(word in everything(redis_client, prefix) for word in (*WORDS, "hollowick"))

    async with asyncio.TaskGroup() as group:
        group.create_task(read(store, memory_name="other"))
        forgetting = group.create_task(bank.aforget("hollowick"))

    left = everything(redis_client, prefix)
    assert [word for word in (*WORDS, "hollowick") if word in left] == []
    assert forgetting.result().versions > 5
    assert forgetting.result().shared == {}
    assert (await bank.ahistory("other")).gaps == []


async def test_versions_that_a_branch_shares_stay_and_are_named(
    store, prefix, redis_client, tmp_path
):
    bank = MemoryBank(store)
    await plant(store, tmp_path, "hollowick")
    await bank.abranch("hollowick", "bob")
    shared = await bank.ahistory("bob")

    forgotten = await bank.aforget("hollowick")

    assert forgotten == (0, {"bob": len(shared)})
    assert "hollowick" not in everything(redis_client, prefix)
    assert await bank.ahistory("bob") == shared
    await bank.aforget("bob")
    left = everything(redis_client, prefix)
    assert [word for word in (*WORDS, "bob") if word in left] == []


async def test_a_forgotten_reading_without_a_name_leaves_nothing(
    store, prefix, redis_client, tmp_path
):
    bank = MemoryBank(store)
    out = await plant(store, tmp_path, None)
    version = await bank.aget(out["version"])
    key = make_reading_key(version.root, version.document.digest)
    second = (await read(store, TEXT, QuotingReader(), question=f"Where is {WORDS[3]}?"))["version"]
    other = make_reading_key(version.root, (await bank.aget(second)).document.digest)

    await bank.aforget(key)

    left = everything(redis_client, prefix)
    assert [word for word in (*WORDS[:3], key) if word in left] == []
    await bank.aforget(other)
    left = everything(redis_client, prefix)
    assert [word for word in (*WORDS, key, other, version.root) if word in left] == []


async def test_a_forgotten_person_leaves_nothing(store, prefix, redis_client):
    memory = ConversationMemory(QuotingReader(), store=store)
    for number in range(3):
        said = [{"role": "user", "content": f"{WORDS[0]} {number}", "id": f"{WORDS[1]}-{number}"}]
        await memory.asave(said, user="hollowick", thread=WORDS[2])
        await memory.asave(said, user="bob", thread="one")
    assert WORDS[2] in everything(redis_client, prefix)

    await memory.aforget("hollowick")

    left = everything(redis_client, prefix)
    assert [word for word in (WORDS[2], "hollowick") if word in left] == []
    assert WORDS[0] in await memory.aload("bob")
    await memory.aforget("bob")
    left = everything(redis_client, prefix)
    assert [word for word in (*WORDS, "bob") if word in left] == []


async def test_a_cleared_bank_leaves_nothing(store, prefix, redis_client, tmp_path):
    bank = MemoryBank(store, ("team", "memories"))
    reader = create_memagent(QuotingReader(), config=SMALL, store=store, namespace=bank.namespace)
    document = secret_document()
    for name in ("hollowick", None):
        asked = {"question": WORDS[3], "document": document}
        await reader.ainvoke(asked if name is None else {**asked, "memory_name": name})

    assert await bank.aclear() > 10

    assert everything(redis_client, prefix) == ""


@pytest.mark.slow
async def test_versions_that_are_gone_are_named_and_the_rest_is_found(store, redis_server, prefix):
    bank = MemoryBank(store)
    await read(store, numbered(950), memory_name="ann")
    whole = await bank.ahistory("ann")
    gone = [version.id for version in whole[20:-80]]
    assert len(gone) > 100
    for key in gone:
        await store.adelete(bank.records.versions, key)

    history = await bank.ahistory("ann")

    assert history.gaps == [gone[0]]
    assert [v.id for v in history] == [v.id for v in whole if v.id not in gone]
    assert {f.kind for f in await bank.acheck()} == {"gap"}
    assert (await bank.aforget("ann")).versions == len(whole) - len(gone)
    assert await store.asearch(bank.namespace) == []


def cli(monkeypatch, redis_server, prefix, *arguments):
    """What a command does, with a store of this test's own."""
    from memagent_graph.memory import stores

    monkeypatch.setattr(
        stores, "open_store", lambda where: RedisStore.from_url(redis_server.url, prefix=prefix)
    )
    monkeypatch.setenv("MEMAGENT_STORE", redis_server.url)
    return CliRunner().invoke(app, [*arguments])


def test_the_command_line_shows_a_gap(monkeypatch, redis_server, redis_store, prefix):
    bank = MemoryBank(redis_store)
    asyncio.run(read(redis_store, memory_name="ann"))
    gone = bank.history("ann")[2].id
    redis_store.delete(bank.records.versions, gone)

    told = cli(monkeypatch, redis_server, prefix, "history", "ann")

    assert told.exit_code == 0
    assert f"{gone}  is gone" in told.stdout
    assert "chunk 1," in told.stdout
