"""A reading that waits while somebody holds its memory, and continues from their edit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from doubles import ChainReader, chain
from gated_readings import (
    PATIENT,
    SMALL,
    TEXT,
    Gated,
    Reading,
    alone,
    hold_after,
    pause,
    reading_of,
)
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore
from servers.redis_server import RedisServer

from memagent_graph import MemoryBank, create_memagent
from memagent_graph.errors import ConfigurationError, MemoryConflictError
from memagent_graph.memory import sharing
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.sharing import note_reading


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.sqlite")) as opened:
            await opened.setup()
            yield opened
    else:
        server = request.getfixturevalue("redis_server")
        async with RedisStore.from_url(server.url, prefix=uuid4().hex) as opened:
            yield opened


@pytest.fixture
def bank(store):
    return MemoryBank(store)


async def until_nobody_reads(bank):
    async with asyncio.timeout(PATIENT):
        while await bank.aunder_way():  # noqa: ASYNC110 - the list has no event
            await asyncio.sleep(0.01)


async def test_a_held_reading_goes_on_from_the_edit(store, bank):
    reading = Reading(store, Gated())
    hold, fold = await hold_after(reading, bank, 3)
    read = len(reading.reader.memories)

    edit = await bank.aedit(fold.version, "By hand.", hold=hold)
    assert await bank.arelease(fold.memory, hold=hold)
    out = await reading.end()

    assert reading.reader.memories[read] == "By hand."
    expected = "By hand."
    for start, end in reading.reader.spans[read:]:
        expected = chain(expected, TEXT[start:end])
    assert out["answer"] == expected
    history = await bank.ahistory(out["version"])
    assert [version.id for version in history if version.edited] == [edit.id]
    assert history.gaps == []


async def test_a_held_reading_asks_its_model_nothing_and_says_that_it_waits(store, bank):
    reading = Reading(store, Gated())
    hold, fold = await hold_after(reading, bank, 2)
    reading.reader.read_all()
    read = len(reading.reader.memories)

    for _ in range(20):
        hold = await bank.arenew(hold)
        await asyncio.sleep(0.01)

    assert len(reading.reader.memories) == read == fold.step
    (event,) = reading.told("held")
    assert (event["by"], event["since"], event["memory"]) == ("ann", hold.since, fold.memory)
    assert event["version"] == fold.version
    assert reading.told("released") == []

    await bank.arelease(fold.memory)
    await reading.end()

    (event,) = reading.told("released")
    assert (event["edited"], event["version"]) == (False, fold.version)
    assert reading.out["answer"] == alone()


async def test_the_second_of_two_editors_is_told(store, bank):
    reading = Reading(store, Gated())
    hold, fold = await hold_after(reading, bank, 2)

    results = await asyncio.gather(
        *(bank.aedit(fold.version, f"By {who}.", hold=hold) for who in ("ann", "bob")),
        return_exceptions=True,
    )

    (kept,) = [one for one in results if not isinstance(one, Exception)]
    (error,) = [one for one in results if isinstance(one, Exception)]
    assert isinstance(error, MemoryConflictError)
    (fold,) = await bank.aunder_way(fold.memory)
    assert fold.version == kept.id
    await bank.aedit(kept.id, "By both.", hold=hold)
    read = len(reading.reader.memories)
    await bank.arelease(fold.memory)
    await reading.end()
    assert reading.reader.memories[read] == "By both."


async def test_an_edit_of_what_a_reading_still_reads_on_from_is_refused(store, bank):
    reading = Reading(store, Gated())
    await reading.read(2)
    (fold,) = await bank.aunder_way()
    hold = await bank.ahold(fold.memory, "ann")

    with pytest.raises(MemoryConflictError, match="not paused"):
        await bank.aedit(fold.version, "Too early.", hold=hold)
    after = await pause(reading, bank, fold.memory)
    with pytest.raises(MemoryConflictError, match="not paused"):
        await bank.aedit(fold.version, "Too late.", hold=hold)
    await bank.aedit(after.version, "By hand.", hold=hold)
    await bank.arelease(fold.memory)
    out = await reading.end()

    assert after.step > fold.step
    history = await bank.ahistory(out["version"])
    assert [version.text for version in history if version.edited] == ["By hand."]


async def test_a_reading_that_was_killed_elsewhere_does_not_refuse_edits_for_ever(
    store, bank, monkeypatch
):
    reading = Reading(store, Gated())
    hold, fold = await hold_after(reading, bank, 2)
    await reading.stop()
    await until_nobody_reads(bank)
    killed = replace(fold, holder="elsewhere:1:0a", lease="", held=False)
    await bank.records.items([note_reading(bank.records, killed)])

    with pytest.raises(MemoryConflictError, match="not paused"):
        await bank.aedit(fold.version, "Too early: it may live.", hold=hold)
    monkeypatch.setattr(sharing, "SILENT", timedelta(0))
    await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease(fold.memory)
    again = Reading(store, Gated())
    await again.read(1)

    assert again.reader.memories == ["By hand."]
    await again.end()


async def test_what_is_no_longer_held_is_not_edited(store, bank):
    reading = Reading(store, Gated())
    hold, fold = await hold_after(reading, bank, 2)
    await bank.arelease(fold.memory)
    await bank.ahold(fold.memory, "bob")

    with pytest.raises(MemoryConflictError, match="no longer held"):
        await bank.aedit(fold.version, "Too late.", hold=hold)
    with pytest.raises(MemoryConflictError, match="no longer held"):
        await bank.arenew(hold)
    assert not await bank.arelease(fold.memory, hold=hold)

    await bank.arelease(fold.memory)
    await reading.end()
    assert reading.out["answer"] == alone()


async def test_one_holds_at_a_time_and_the_other_is_told_who(bank):
    first = await bank.ahold("diary", "ann")

    with pytest.raises(MemoryConflictError, match=r"held by ann since .*: wait"):
        await bank.ahold("diary", "bob")

    assert await bank.aheld("diary") == first
    assert await bank.arelease("diary")
    assert await bank.aheld("diary") is None
    assert not await bank.arelease("diary")
    assert (await bank.ahold("diary", "bob")).by == "bob"
    with pytest.raises(ConfigurationError):
        await bank.ahold("other", "bob", seconds=0)


async def test_a_hold_that_nobody_renews_lapses(store, bank):
    reading = Reading(store, Gated())
    await reading.read(2)
    hold = await bank.ahold(reading_of(await bank.aunder_way()), "ann", seconds=0.1)

    out = await reading.end()

    (held,), (released,) = reading.told("held"), reading.told("released")
    assert held["version"] == released["version"]
    assert out["answer"] == alone()
    assert await bank.aheld(hold.memory) is None
    with pytest.raises(MemoryConflictError, match="no longer held"):
        await bank.aedit(held["version"], "Too late.", hold=hold)


async def test_asking_again_goes_on_with_what_a_person_made_of_it(store, bank):
    reading = Reading(store, Gated())
    hold, fold = await hold_after(reading, bank, 2)
    await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease(fold.memory)
    out = await reading.end()

    reader = ChainReader()
    agent = create_memagent(reader, config=SMALL, store=store)
    again = await agent.ainvoke({"question": "?", "document": TEXT})

    assert reader.spans == []
    assert (again["answer"], again["version"]) == (out["answer"], out["version"])
    assert again["usage"]["document_tokens"] == out["usage"]["document_tokens"]


async def test_forgetting_takes_a_reading_that_was_broken_off_out_of_the_list(store, bank):
    for forget in (bank.aforget, bank.aforget_source):
        reading = Reading(store, Gated(), memory_name="diary")
        await reading.read(2)
        (fold,) = await bank.aunder_way("diary")
        lost = [item async for item in bank.records.scan(bank.records.all_under_way)]
        reading.task.cancel()
        await asyncio.wait([reading.task])
        await bank.records.items(
            [bank.records.put(tuple(item.namespace), item.key, item.value) for item in lost]
        )

        await forget("diary" if forget == bank.aforget else fold.source)

        assert [item async for item in bank.records.scan(bank.records.all_under_way)] == []
