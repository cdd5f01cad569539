from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest
from doubles import ChainReader, numbered
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from memory_versions import make_version

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError, StoreError
from memagent_graph.memory import lookup
from memagent_graph.memory.bank import diff
from memagent_graph.memory.version import (
    MemoryVersion,
    child_id,
    edit_id,
    make_reading_key,
    root_id,
)

SMALL = ReadingConfig(chunk_tokens=50)
TEXT = numbered(40)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def bank(request, tmp_path):
    if request.param == "memory":
        yield MemoryBank(InMemoryStore())
    elif request.param == "redis":
        yield MemoryBank(request.getfixturevalue("redis_store"))
    else:
        with SqliteStore.from_conn_string(str(tmp_path / "store.sqlite")) as store:
            store.setup()
            yield MemoryBank(store)


def read(bank, question="What?", document=TEXT, **asked):
    agent = create_memagent(ChainReader(), config=SMALL, store=bank.store)
    return agent.invoke({"question": question, "document": document, **asked})


def test_history_is_the_whole_chain_newest_first(bank):
    out = read(bank)

    history = bank.history(out["version"])

    assert history[0].text == out["memory"]
    assert [version.step for version in history] == list(range(len(history), 0, -1))
    assert all(after.parent == before.id for after, before in itertools.pairwise(history))
    assert history[0].document.end == len(TEXT)
    assert history[-1].parent == history[-1].root


def test_a_name_leads_to_its_newest_version_wherever_it_led_when_it_was_last_seen(bank):
    read(bank, memory_name="ann")
    newest, before, *_ = bank.history("ann")

    for likely in (newest.id, before.id, "no version"):
        bank.records.note("ann", likely)
        assert bank.head("ann") == newest
        assert bank.records.led_to("ann") == newest.id
    bank.forget("ann")
    assert bank.head("ann") is None


async def test_a_name_forgotten_between_its_pointer_and_its_version_is_none(monkeypatch):
    bank, version_of = MemoryBank(store := InMemoryStore()), lookup._version
    agent = create_memagent(ChainReader(), config=SMALL, store=store)
    asked = {"question": "What?", "document": TEXT, "memory_name": "ann"}

    async def forget_first(records, name, pointer):
        await MemoryBank(store).aforget(name)
        return await version_of(records, name, pointer)

    monkeypatch.setattr(lookup, "_version", forget_first)

    for _ in range(2):
        await agent.ainvoke(asked)
        bank.records.note("ann", "another")
        assert await bank.ahead("ann") is None
    await agent.ainvoke(asked)
    with pytest.raises(MemoryNotFoundError, match="There is no memory 'ann'"):
        await bank.aget("ann")


def test_memories_are_listed_by_name_question_and_source(bank):
    first = read(bank, "What?", memory_name="ann")
    second = read(bank, "Which?")

    names = [name for name, _ in bank.list()]
    version = bank.get(second["version"])

    assert names == ["ann", make_reading_key(version.root, version.document.digest)]
    assert [name for name, _ in bank.list(question="Which?")] == [
        make_reading_key(version.root, version.document.digest)
    ]
    assert len(bank.list(source=version.document.digest)) == 2
    assert bank.list(source="another") == []
    assert bank.get("ann").id == first["version"]
    assert bank.get(make_reading_key(version.root, version.document.digest)).id == second["version"]


def test_a_branch_goes_its_own_way_and_takes_no_name_that_is_taken(bank):
    read(bank, memory_name="ann")

    bank.branch("ann", "bob")
    bank.edit("bob", "bob's")

    assert bank.get("bob").text == "bob's"
    assert bank.get("ann").text != "bob's"
    with pytest.raises(MemoryConflictError, match="taken"):
        bank.branch("ann", "bob")


def test_an_edit_follows_the_version_that_it_replaces(bank):
    out = read(bank, memory_name="ann")

    edited = bank.edit("ann", "By hand.\nIn two lines.")

    newest, before, *_ = bank.history("ann")
    assert newest == edited
    assert (before.id, before.edited, newest.edited) == (out["version"], False, True)
    assert "+ By hand." in list(diff(before, newest))


def test_heads_move_only_from_where_they_were_seen(bank):
    out = read(bank, memory_name="ann")
    older = bank.history("ann")[1].id

    assert not bank.move_head("ann", older, expected="somewhere else")
    assert not bank.move_head("ann", older, expected=None)
    assert bank.move_head("ann", older, expected=out["version"])
    assert bank.head("ann").id == older


def test_forgetting_spares_what_another_memory_shares(bank):
    read(bank, memory_name="ann")
    shared = bank.branch(bank.history("ann")[3].id, "bob")
    own = bank.history("ann")[0].id

    forgotten = bank.forget("ann")

    assert forgotten.versions == 3
    assert forgotten.shared == {"bob": len(bank.history("bob"))}
    assert bank.get("bob") == shared
    for gone in ("ann", own):
        with pytest.raises(MemoryNotFoundError):
            bank.get(gone)


def test_a_branch_keeps_all_that_led_to_it_when_the_other_memory_is_forgotten(bank):
    read(bank, memory_name="ann")
    history = bank.history("ann")
    bank.branch(history[3].id, "bob")

    bank.forget("ann")

    assert bank.history("bob") == history[3:]
    assert bank.history("bob").gaps == []
    assert bank.forget("bob") == (len(history) - 3, {})
    assert bank.list() == bank.check() == []


def test_what_a_deleted_name_shared_goes_with_the_last_memory_that_had_it(bank):
    read(bank, memory_name="ann")
    history = bank.history("ann")
    bank.branch(history[3].id, "bob")

    bank.delete("ann")
    forgotten = bank.forget("bob")

    assert forgotten == (len(history) - 3, {})
    assert {found.key for found in bank.check()} == {version.id for version in history[:3]}


def test_names_that_come_and_go_leave_no_trace_in_what_they_shared(bank):
    read(bank, memory_name="ann")
    records = bank.records
    place = (records.versions, bank.get("ann").id)
    before = bank.store.get(*place).value

    for number in range(3):
        bank.branch("ann", f"branch {number}")
        bank.delete(f"branch {number}")

    assert bank.store.get(*place).value == before


def test_what_nothing_leads_to_is_collected_after_a_time(bank):
    version = read(bank, memory_name="ann")["version"]
    bank.delete("ann")

    assert bank.collect() == 0
    assert bank.get(version)
    assert bank.collect(timedelta(0)) > 5
    with pytest.raises(MemoryNotFoundError):
        bank.get(version)
    with pytest.raises(MemoryNotFoundError, match="ann"):
        bank.delete("ann")


def test_memories_move_to_another_store_as_lines(bank):
    read(bank, memory_name="ann")
    reading = read(bank, "Which?")
    other = MemoryBank(InMemoryStore())

    count = other.import_(bank.export())

    assert count == len(bank.history("ann")) + len(bank.history(reading["version"]))
    assert other.history("ann") == bank.history("ann")
    for line in ("{", '{"name": "x"}', '{"version": {"id": 1}}'):
        with pytest.raises(StoreError):
            other.import_([line])


@pytest.mark.parametrize("kind", ["redis", "memory"])
async def test_a_memory_is_watched_as_it_grows(redis_store, kind):
    store = redis_store if kind == "redis" else InMemoryStore()
    bank = MemoryBank(store)
    agent = create_memagent(ChainReader(), config=SMALL, store=store)

    async def follow():
        seen = []
        async for version in bank.watch("ann", after="0"):
            seen.append(version)
            if version.document.end == len(TEXT):
                return seen
        return None

    watching = asyncio.create_task(follow())
    await agent.ainvoke({"question": "?", "document": TEXT, "memory_name": "ann"})

    assert await watching == list(reversed(await bank.ahistory("ann")))
    await redis_store.aclose()


async def test_a_watcher_sees_only_what_is_new():
    bank = MemoryBank(InMemoryStore())
    old, new = make_version("old"), make_version("new", 2)
    await bank.aappend(old, owner="ann")
    watching = asyncio.create_task(anext(bank.watch("ann")))
    await asyncio.sleep(0.1)

    await bank.aappend(new, owner="ann")
    await bank.aappend(make_version("other", 3), owner="bob")

    assert await watching == new


@given(st.lists(st.text(), min_size=3, max_size=3), st.lists(st.text(), min_size=3, max_size=3))
def test_ids_are_equal_just_when_all_that_led_to_them_is(one, other):
    for make in (child_id, edit_id):
        assert (make(*one) == make(*other)) == (one == other)
    assert (root_id(*one[:2]) == root_id(*other[:2])) == (one[:2] == other[:2])
    assert len({root_id("a", "b"), child_id("a", "b", ""), edit_id("a", "b", "")}) == 3


def test_a_record_of_a_later_release_is_read_and_one_of_something_else_is_not():
    version = make_version("t")

    assert MemoryVersion.from_record({**version.to_record(), "later": 1}) == version
    with pytest.raises(StoreError, match="altered, cut short or written by something else"):
        MemoryVersion.from_record({"text": "t"})
