import asyncio
from contextlib import nullcontext
from datetime import timedelta

import pytest
from fixed_readers import ChainReader, numbered
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore
from memory_versions import make_version
from typer.testing import CliRunner

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.cli.memory import app
from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError, StoreError
from memagent_graph.memory import stores
from memagent_graph.memory.bank import diff
from memagent_graph.memory.version import child_id, edit_id, make_reading_key, root_id

SMALL = ReadingConfig(chunk_tokens=50)
TEXT = numbered(40)


def read(bank, question="What?", document=TEXT, **asked):
    agent = create_memagent(ChainReader(), config=SMALL, store=bank.store)
    return agent.invoke({"question": question, "document": document, **asked})


@pytest.mark.slow
def test_versions_that_are_gone_are_named_and_the_rest_is_found(bank):
    read(bank, document=numbered(950), memory_name="ann")
    whole = [version.id for version in bank.history("ann")]
    gone = whole[20:-80]
    assert len(gone) > 100
    for key in gone:
        bank.store.delete(bank.versions, key)

    history = bank.history("ann")

    assert history.gaps == [gone[0]]
    assert [v.id for v in history] == [key for key in whole if key not in gone]
    assert {f.kind for f in bank.check()} == {"gap"}
    assert bank.forget("ann").versions == len(whole) - len(gone)
    assert bank.store.search(bank.namespace) == []


@pytest.mark.parametrize("store", ["in memory"], indirect=True)
def test_the_command_line_shows_a_gap(bank, monkeypatch):
    read(bank, memory_name="ann")
    gone = bank.history("ann")[2].id
    bank.store.delete(bank.versions, gone)
    monkeypatch.setattr(stores, "open_store", lambda where: nullcontext(bank.store))

    told = CliRunner().invoke(app, ["history", "ann"], env={"MEMAGENT_STORE": "redis://x"})

    assert told.exit_code == 0
    assert all(line in told.stdout for line in (f"{gone}  is gone", "chunk 1,"))


def test_a_name_leads_to_its_newest_version_wherever_it_led_when_it_was_last_seen(bank):
    read(bank, memory_name="ann")
    newest, before, *_ = bank.history("ann")

    for likely in (newest.id, before.id, "no version"):
        bank.note("ann", likely)
        assert (bank.head("ann"), bank.led_to("ann")) == (newest, newest.id)
    bank.forget("ann")
    assert bank.head("ann") is None


def test_memories_are_listed_by_name_and_readings_without_one_by_key(bank):
    first = read(bank, "What?", memory_name="ann")["version"]
    version = bank.get(read(bank, "Which?")["version"])
    key = make_reading_key(version.root, version.document.digest)

    assert [name for name, _ in bank.list()] == ["ann", key]
    assert (bank.get("ann").id, bank.get(key).id) == (first, version.id)


def test_a_branch_goes_its_own_way_and_takes_no_name_that_is_taken(bank):
    out = read(bank, memory_name="ann")

    bank.branch("ann", "bob")
    edited = bank.edit("bob", "By hand.\nIn two lines.")

    newest, before, *_ = bank.history("bob")
    assert newest == bank.get("bob") == edited
    assert bank.get("ann").id == before.id == out["version"]
    assert (before.edited, newest.edited) == (False, True)
    assert "+ By hand." in list(diff(before, newest))
    with pytest.raises(MemoryConflictError, match="taken"):
        bank.branch("ann", "bob")


def test_heads_move_only_from_where_they_were_seen(bank):
    out = read(bank, memory_name="ann")
    older = bank.history("ann")[1].id

    assert not bank.move_head("ann", older, expected="somewhere else")
    assert not bank.move_head("ann", older, expected=None)
    assert bank.move_head("ann", older, expected=out["version"])
    assert bank.head("ann").id == older


async def test_a_version_that_is_forgotten_while_a_name_moves_to_it_stays_away(
    async_store, monkeypatch
):
    bank, version = MemoryBank(async_store), make_version("Ann pays.")
    assert await bank.aadvance("ann", version, expected=None)
    values = bank.values

    async def forget_then(places, **options):
        found = await values(places, **options)
        monkeypatch.setattr(bank, "values", values)
        await bank.aforget("ann")
        return found

    monkeypatch.setattr(bank, "values", forget_then)

    assert not await bank.amove_head("bob", version.id, expected=None)
    assert await bank.places(bank.namespace) == []


def test_forgetting_spares_what_another_memory_shares(bank):
    read(bank, memory_name="ann")
    history = bank.history("ann")
    shared = bank.branch(history[3].id, "bob")

    forgotten = bank.forget("ann")

    assert (forgotten, bank.get("bob")) == ((3, {"bob": len(history) - 3}), shared)
    for gone in ("ann", history[0].id):
        with pytest.raises(MemoryNotFoundError):
            bank.get(gone)
    assert (bank.history("bob"), bank.history("bob").gaps) == (history[3:], [])
    assert bank.forget("bob") == (len(history) - 3, {})
    assert bank.list() == bank.check() == []


def test_names_that_come_and_go_leave_no_trace_in_what_they_shared(bank):
    read(bank, memory_name="ann")
    place = (bank.versions, bank.get("ann").id)
    before = bank.store.get(*place).value

    for name in "xyz":
        bank.branch("ann", name)
        bank.forget(name)

    assert bank.store.get(*place).value == before


def test_what_nothing_leads_to_is_collected_after_a_time(bank):
    version = read(bank, memory_name="ann")["version"]
    bank.store.delete(bank.heads, "ann")

    assert bank.collect() == 0
    assert bank.get(version)
    assert bank.collect(timedelta(0)) > 5
    with pytest.raises(MemoryNotFoundError):
        bank.get(version)


def test_memories_move_to_another_store_as_lines(bank):
    read(bank, memory_name="ann")
    names = "ann", read(bank, "Which?")["version"]
    other = MemoryBank(InMemoryStore())

    assert other.import_(bank.export()) == sum(len(bank.history(name)) for name in names)

    assert other.history("ann") == bank.history("ann")
    for line in ("{", '{"name": "x"}', '{"version": {"id": 1}}'):
        with pytest.raises(StoreError):
            other.import_([line])


@pytest.mark.parametrize("async_store", ["in memory", "redis"], indirect=True)
async def test_a_memory_is_watched_as_it_grows(async_store):
    bank = MemoryBank(async_store)
    agent = create_memagent(ChainReader(), config=SMALL, store=async_store)
    asked = {"question": "?", "document": TEXT, "memory_name": "ann"}

    async def follow(count, **after):
        async with asyncio.timeout(300):
            watching = bank.watch("ann", **after)
            return [await anext(watching) for _ in range(count)]

    await bank.aappend(old := make_version("old"), owner="ann")
    news = asyncio.create_task(follow(1))
    await asyncio.sleep(0.1)
    await bank.aappend(make_version("other", 3), owner="bob")
    await agent.ainvoke(asked)

    history = await bank.ahistory("ann")
    assert await news == [history[-1]]
    assert await follow(len(history) + 1, after="0") == [old, *reversed(history)]


@given(st.lists(st.text(), min_size=3, max_size=3), st.lists(st.text(), min_size=3, max_size=3))
def test_ids_are_equal_just_when_all_that_led_to_them_is(one, other):
    for make in (child_id, edit_id):
        assert (make(*one) == make(*other)) == (one == other)
    assert (root_id(*one[:2]) == root_id(*other[:2])) == (one[:2] == other[:2])
    assert len({root_id("a", "b"), child_id("a", "b", ""), edit_id("a", "b", "")}) == 3


def test_a_record_of_a_later_release_is_read_and_one_of_something_else_is_not():
    version = make_version("t")

    assert type(version).from_record({**version.to_record(), "later": 1}) == version
    with pytest.raises(StoreError, match="altered, cut short or written by something else"):
        type(version).from_record({"text": "t"})
