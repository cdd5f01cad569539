"""Readings that are held where an edit could be lost: named, in segments, or broken off."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace
from unittest.mock import ANY

import pytest
from doubles import Broken, ChainReader, chain
from gated_readings import (
    PATIENT,
    SMALL,
    TEXT,
    Gated,
    Reading,
    alone,
    hold_after,
    pause,
    pause_all,
    paused,
    reading_of,
    until,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.base import GetOp, PutOp
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, create_memagent
from memagent_graph.graph import hold as holds
from memagent_graph.graph import versions
from memagent_graph.memory.items import GetThenPut

SEGMENTED = SMALL.model_copy(update={"segments": 2})


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def bank(store):
    return MemoryBank(store)


def calls(config=SMALL):
    """How many chunks an undisturbed reading reads."""
    reader = ChainReader()
    create_memagent(reader, config=config).invoke({"question": "?", "document": TEXT})
    return len(reader.spans)


def hand_made(history):
    return [version.text for version in history if version.edited]


async def test_an_edit_of_a_named_memory_during_a_reading_is_in_its_history_at_the_end(store, bank):
    reading = Reading(store, Gated(), memory_name="diary")
    hold, fold = await hold_after(reading, bank, 3, "diary")

    await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease("diary")
    out = await reading.end()

    history = await bank.ahistory("diary")
    assert history[0].id == out["version"]
    assert history[0].text == out["answer"]
    assert hand_made(history) == ["By hand."]
    assert history.gaps == []
    assert len(reading.reader.spans) == calls()


async def test_an_edit_of_the_head_that_a_reading_waits_at_moves_the_head_with_it(store, bank):
    agent = create_memagent(ChainReader(), config=SMALL, store=store)
    await agent.ainvoke({"question": "?", "document": "An older page.", "memory_name": "diary"})
    hold = await bank.ahold("diary", "ann")
    reading = Reading(store, Gated(), memory_name="diary")
    fold = await pause(reading, bank, "diary")
    assert fold.version == (await bank.ahead("diary")).id

    edit = await bank.aedit(fold.version, "By hand.", hold=hold)
    assert (await bank.ahead("diary")).id == edit.id
    await bank.arelease("diary")
    out = await reading.end()

    assert reading.reader.memories[0] == "By hand."
    assert len(reading.reader.spans) == calls()
    history = await bank.ahistory("diary")
    assert history[0].id == out["version"]
    assert hand_made(history) == ["By hand."]


async def test_a_reading_does_not_overwrite_what_was_made_of_the_name_without_a_hold(store, bank):
    agent = create_memagent(ChainReader(), config=SMALL, store=store)
    await agent.ainvoke({"question": "?", "document": "An older page.", "memory_name": "diary"})
    reading = Reading(store, Gated(), memory_name="diary")
    await hold_after(reading, bank, 3, "diary")

    await bank.aedit("diary", "By hand.")
    await bank.arelease("diary")
    out = await reading.end()

    history = await bank.ahistory("diary")
    assert history[0].id == out["version"]
    assert hand_made(history) == ["By hand."]


async def test_an_edit_before_the_answer_is_what_a_named_memory_answers_from_and_ends_with(
    store, bank
):
    reading = Reading(store, Gated(), memory_name="diary")
    hold, fold = await hold_after(reading, bank, calls() - 1, "diary")
    assert fold.position == fold.length

    await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease("diary")
    out = await reading.end()

    assert out["answer"] == "By hand."
    assert (await bank.ahead("diary")).text == "By hand."
    assert await bank.aunder_way() == []


async def test_a_hold_holds_all_segments_and_an_edit_of_one_reaches_the_merge(store, bank):
    reading = Reading(store, Gated(), SEGMENTED)
    await reading.read(4)
    memory = reading_of(await bank.aunder_way())
    hold = await bank.ahold(memory, "ann")
    folds = await pause_all(reading, bank, memory, 2)
    read = len(reading.reader.spans)

    await bank.aedit(folds[1].version, "By hand.", hold=hold)
    await bank.arelease(memory)
    out = await reading.end()

    first, border = folds[0], folds[0].length
    memories = {"first": (await bank.aget(first.version)).text, "second": "By hand."}
    for start, end in reading.reader.spans[read:]:
        one = "first" if start < border else "second"
        memories[one] = chain(memories[one], TEXT[start:end])
    assert out["answer"] == chain("merge", memories["first"] + memories["second"])
    assert len(reading.reader.spans) == calls(SEGMENTED)
    assert hand_made(await bank.ahistory(out["version"])) == ["By hand."]
    assert await bank.aunder_way() == []


async def test_an_edit_before_the_merge_is_merged(store, bank):
    reading = Reading(store, Gated(), SEGMENTED)
    await reading.read(calls(SEGMENTED) - 1)
    memory = reading_of(await bank.aunder_way())
    hold = await bank.ahold(memory, "ann")
    first, second = await pause_all(reading, bank, memory, 2)
    assert [first.position, second.position] == [first.length, second.length]
    assert reading.reader.merges == []

    await bank.aedit(first.version, "By hand.", hold=hold)
    await bank.arelease(memory)
    out = await reading.end()

    other = (await bank.aget(second.version)).text
    assert out["answer"] == chain("merge", "By hand." + other)
    assert await bank.aunder_way() == []


class Merging(Gated):
    """Merges when it may, and says that it is about to."""

    def __init__(self):
        super().__init__()
        self.merging, self.may_merge = asyncio.Event(), asyncio.Event()

    async def merge(self, *arguments, **options):
        self.merging.set()
        await self.may_merge.wait()
        return await super().merge(*arguments, **options)


async def test_a_merged_memory_is_edited_before_the_answer(store, bank):
    reading = Reading(store, Merging(), SEGMENTED)
    reading.reader.read_all()
    await asyncio.wait_for(reading.reader.merging.wait(), PATIENT)
    memory = reading_of(await bank.aunder_way())
    hold = await bank.ahold(memory, "ann")
    reading.reader.may_merge.set()
    await until(lambda: reading.told("held"))
    (event,) = reading.told("held")

    await bank.aedit(event["version"], "By hand.", hold=hold)
    await bank.arelease(memory)
    out = await reading.end()

    assert out["answer"] == "By hand."
    assert [item async for item in bank.records.scan(bank.records.all_under_way)] == []


class Asking(Gated):
    """Asks for another round."""

    async def merge(self, question, query, memories, *, config=None):
        merged = await super().merge(question, query, memories, config=config)
        return replace(merged, done=False, query="What else?")


async def test_an_edit_in_the_second_round_is_merged_in_it(store, bank):
    config = SEGMENTED.model_copy(update={"rounds": 2})
    reading = Reading(store, Asking(), config)
    await reading.read(calls(SEGMENTED) + 2)
    memory = reading_of(await bank.aunder_way())
    hold = await bank.ahold(memory, "ann")
    first, second = await pause_all(reading, bank, memory, 2)
    assert first.round == second.round == 2
    read = len(reading.reader.spans)

    await bank.aedit(first.version, "By hand.", hold=hold)
    await bank.arelease(memory)
    out = await reading.end()

    border = first.length
    memories = ["By hand.", (await bank.aget(second.version)).text]
    for start, end in reading.reader.spans[read:]:
        memories[start >= border] = chain(memories[start >= border], TEXT[start:end])
    assert out["answer"] == chain("merge", "".join(memories))
    assert "By hand." in hand_made(await bank.ahistory(out["version"]))
    assert await bank.aunder_way() == []


async def test_the_deadline_holds_while_a_memory_is_held_and_the_edit_is_answered_from(
    store, bank, monkeypatch
):
    left = [1e6]
    seconds_left = "memagent_graph.graph.reading.Reading.seconds_left"
    monkeypatch.setattr(seconds_left, lambda _self, _run: left[0])
    config = SMALL.model_copy(update={"deadline": 1e6})
    reading = Reading(store, Gated(), config)
    hold, fold = await hold_after(reading, bank, 2, seconds=1e6)
    await bank.aedit(fold.version, "By hand.", hold=hold)

    left[0] = 0.0
    await asyncio.wait_for(reading.task, PATIENT)
    out = reading.out

    assert out["stopped"] == "deadline"
    assert out["answer"] == "By hand."
    assert len(reading.reader.spans) == fold.step
    assert await bank.aheld(fold.memory) is not None
    assert await bank.aunder_way() == []


async def test_a_held_reading_that_is_cancelled_leaves_no_task_and_nothing_in_the_list(store, bank):
    before = asyncio.all_tasks()
    reading = Reading(store, Gated())
    _, fold = await hold_after(reading, bank, 2)

    await reading.stop()
    left = asyncio.all_tasks() - before
    if left:
        await asyncio.wait(left, timeout=PATIENT)

    assert asyncio.all_tasks() == before
    assert [item async for item in bank.records.scan(bank.records.all_under_way)] == []
    assert (await bank.aheld(fold.memory)).by == "ann"


class Away(Broken):
    """Fails while it is away. `behind` is the same for those who still reach it."""

    def __init__(self):
        super().__init__()
        self.behind = InMemoryStore()
        self._data = self.behind._data


@pytest.fixture
def away(monkeypatch):
    monkeypatch.setattr(holds, "LAPSE", 0.05)
    return Away()


async def test_a_reading_whose_store_goes_away_while_it_is_held_goes_on_and_says_what_it_missed(
    away,
):
    bank, behind = MemoryBank(away), MemoryBank(away.behind)
    reading = Reading(away, Gated())
    hold, fold = await hold_after(reading, bank, 2, seconds=1e6)
    away.away = True

    edit = await behind.aedit(fold.version, "By hand.", hold=hold)
    await behind.arelease(fold.memory)
    await until(lambda: reading.told("released"))
    away.away = False
    await until(lambda: not bank.records.guard.away)
    await bank.aheld(fold.memory)  # the store is known to be back
    out = await reading.end()

    assert reading.told("released")[0]["edited"] is False
    assert out["answer"] == alone()
    (warning,) = out["warnings"]
    assert edit.id in warning


async def test_a_store_that_is_away_at_the_first_look_does_not_end_a_hold(away):
    bank, told = MemoryBank(away, patience=lambda: PATIENT), []
    hold = await bank.ahold("diary", "ann")
    waiting = holds.Holding(bank.records, "diary", lambda: None)
    waiting.see(asdict(hold))

    note = bank.records.put(bank.records.under_way("diary"), "1", {})
    away.away = True
    waited = await asyncio.wait_for(waiting.wait(note, told.append), PATIENT)

    assert (waited, told) == (True, [hold])


async def test_a_reading_that_was_broken_off_while_held_goes_on_from_the_edit_when_resumed(
    store, bank
):
    saver = InMemorySaver()
    reading = Reading(store, Gated(), saver=saver)
    hold, fold = await hold_after(reading, bank, 3)
    await reading.stop()

    await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease(fold.memory)
    resumed = Reading(store, Gated(), saver=saver, resume=True)
    out = await resumed.end()

    assert resumed.reader.memories[0] == "By hand."
    assert len(resumed.reader.spans) == calls() - fold.step
    assert hand_made(await bank.ahistory(out["version"])) == ["By hand."]


@pytest.mark.parametrize("config", [SMALL, SEGMENTED], ids=["whole", "segments"])
async def test_a_reading_that_was_broken_off_with_nothing_left_to_read_answers_from_the_edit(
    store, bank, config
):
    saver, folds = InMemorySaver(), config.segments
    reading = Reading(store, Gated(), config, saver=saver)
    await reading.read(calls(config) - 1)
    memory = reading_of(await bank.aunder_way())
    hold = await bank.ahold(memory, "ann")
    held = await pause_all(reading, bank, memory, folds)
    assert all(fold.position == fold.length for fold in held)
    await reading.stop()

    for fold in held:
        await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease(memory)
    out = await Reading(store, Gated(), config, saver=saver, resume=True).end()

    merged = chain("merge", "By hand." * folds)
    assert out["answer"] == ("By hand." if folds == 1 else merged)
    assert [item async for item in bank.records.scan(bank.records.all_under_way)] == []


class Watched(InMemoryStore):
    """Another way to a store, which can be slow, and counts looks at who holds a memory."""

    def __init__(self, store):
        super().__init__()
        self._data = store._data
        self.looks = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def abatch(self, ops):
        ops = [*ops]
        await self.answers.wait()
        found = await super().abatch(ops)
        self.looks += any(isinstance(op, GetOp) and "holds" in op.namespace for op in ops)
        return found


async def two_readings(store, others=None):
    """One that leads, and one that follows it; neither has read anything."""
    first = Reading(store, Gated())
    await until(lambda: first.reader.waits)
    second = Reading(others or store, Gated())
    await until(lambda: "progress" in second.out)
    return first, second


async def follow(second, step):
    """Wait until the second has taken over what the first has read."""
    await until(lambda: second.out["progress"]["step"] == step)


async def test_two_readings_of_the_same_go_on_from_the_edit_of_where_the_first_waits(store, bank):
    seen = Watched(store)
    first, second = await two_readings(store, seen)
    await first.read(1)
    await follow(second, 1)
    seen.answers.clear()
    await first.read(1)
    await until(lambda: first.reader.waits)  # in its third chunk
    memory = reading_of(await bank.aunder_way())
    hold = await bank.ahold(memory, "ann")
    seen.answers.set()
    await follow(second, 2)
    looks = seen.looks
    await until(lambda: seen.looks > looks + 5)  # the second knows it, and the first reads on yet
    assert not any(fold.held for fold in await bank.aunder_way(memory))
    fold = await pause(first, bank, memory)
    assert fold.step == 3
    await follow(second, 3)

    await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease(memory)
    second.reader.read_all()
    outs = [await first.end(), await second.end()]

    assert outs[0]["answer"] == outs[1]["answer"]
    assert outs[0]["version"] == outs[1]["version"]
    spans = first.reader.spans + second.reader.spans
    assert len(spans) == calls()
    assert hand_made(await bank.ahistory(outs[0]["version"])) == ["By hand."]


async def test_a_follower_waits_where_a_held_reading_was_cancelled(store, bank):
    first, second = await two_readings(store)
    hold, fold = await hold_after(first, bank, 2)
    await follow(second, fold.step)
    await first.stop()

    after = await pause(second, bank, fold.memory)
    assert (after.version, after.step) == (fold.version, fold.step)
    await bank.aedit(after.version, "By hand.", hold=hold)
    await bank.arelease(fold.memory)
    out = await second.end()

    assert second.reader.memories[0] == "By hand."
    assert len(second.reader.spans) == calls() - fold.step
    assert hand_made(await bank.ahistory(out["version"])) == ["By hand."]


async def test_a_follower_that_is_cancelled_leaves_the_reading_that_it_follows_in_the_list(
    store, bank
):
    first, second = await two_readings(store)
    hold, fold = await hold_after(first, bank, 2)
    await follow(second, fold.step)

    await second.stop()

    assert await bank.aunder_way(fold.memory) == [replace(fold, seen=ANY)]
    await bank.arelease(fold.memory, hold=hold)
    assert (await first.end())["answer"] == alone()


class Between(InMemoryStore):
    """Another way to a store, on which something else happens first once, before a kind of call."""

    def __init__(self, store):
        super().__init__()
        self._data = store._data
        self.before = self.happens = None

    async def abatch(self, ops):
        ops = [*ops]
        await self.let_happen(ops)
        return await super().abatch(ops)

    async def let_happen(self, ops):
        if self.before and any(self.before(op) for op in ops):
            self.before = None
            await self.happens()


@pytest.fixture
def between(store, monkeypatch):
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", str(PATIENT))
    commit = GetThenPut.acommit

    async def acommit(self, puts, **given):
        if isinstance(self._store, Between):
            await self._store.let_happen(puts)
        return await commit(self, puts, **given)

    monkeypatch.setattr(GetThenPut, "acommit", acommit)
    return Between(store)


def lists(op):
    return isinstance(op, PutOp) and "underway" in op.namespace


def leases(op):
    return isinstance(op, GetOp) and "leases" in op.namespace


def looks_while_it_waits(op):
    return isinstance(op, GetOp) and "underway" in op.namespace


async def test_an_edit_of_where_a_reading_begins_is_seen_though_it_was_not_listed_yet(
    store, bank, between
):
    _, fold = await hold_after(broken_off := Reading(store, Gated()), bank, 2)
    await broken_off.stop()
    await bank.arelease(fold.memory)

    async def edit():
        hold = await bank.ahold(fold.memory, "ann")
        await bank.aedit(fold.version, "By hand.", hold=hold)
        await bank.arelease(fold.memory)

    between.before, between.happens = lists, edit
    again = Reading(between, Gated())
    out = await again.end()

    assert again.reader.memories[0] == "By hand."
    assert len(again.reader.spans) == calls() - fold.step
    assert hand_made(await bank.ahistory(out["version"])) == ["By hand."]


async def test_a_reading_begins_where_a_name_was_moved_back_to_and_not_at_the_edit_of_it(
    store, bank
):
    agent = create_memagent(ChainReader(), config=SMALL, store=store)
    await agent.ainvoke({"question": "?", "document": "An older page.", "memory_name": "diary"})
    before = await bank.ahead("diary")
    hold = await bank.ahold("diary", "ann")
    edit = await bank.aedit(before.id, "By hand.", hold=hold)
    await bank.arelease("diary")
    assert await bank.amove_head("diary", before.id, expected=edit.id)

    reading = Reading(store, Gated(), memory_name="diary")
    await reading.end()

    assert reading.reader.memories[0] == before.text


async def test_an_edit_by_who_holds_a_reading_again_before_it_goes_on_is_seen(store, bank, between):
    reading = Reading(between, Gated())
    _, fold = await hold_after(reading, bank, 2)

    async def edit():
        hold = await bank.ahold(fold.memory, "bob")
        await bank.aedit(fold.version, "By hand.", hold=hold)

    between.before, between.happens = lists, edit
    await bank.arelease(fold.memory)
    await until(lambda: len(reading.told("held")) == 2)
    await bank.arelease(fold.memory)
    await reading.end()

    assert [event["by"] for event in reading.told("held")] == ["ann", "bob"]
    assert [event["edited"] for event in reading.told("released")] == [True, False]
    assert reading.reader.memories[fold.step] == "By hand."


async def test_a_follower_that_looks_only_after_its_leader_was_let_go_answers_from_the_edit_too(
    store, bank, between
):
    first, second = await two_readings(store, between)
    await first.read(calls() - 1)
    await follow(second, calls() - 1)
    memory = reading_of(await bank.aunder_way())
    hold = await bank.ahold(memory, "ann")

    async def edit():
        (fold,) = await paused(bank, memory)
        await bank.aedit(fold.version, "By hand.", hold=hold)
        await bank.arelease(memory)

    between.before, between.happens = looks_while_it_waits, edit
    outs = [await first.end(), await second.end()]

    assert [out["answer"] for out in outs] == ["By hand.", "By hand."]
    assert [out["warnings"] for out in outs] == [[], []]


async def test_an_edit_of_what_a_follower_has_passed_while_nobody_is_listed_is_said(
    store, bank, between
):
    first, second = await two_readings(store, between)
    await first.read(1)
    (older,) = await bank.aunder_way()
    await first.read(1)
    await follow(second, 2)
    edits = []

    async def edit():
        await first.stop()
        async with asyncio.timeout(PATIENT):
            while await bank.aunder_way():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)
        hold = await bank.ahold(older.memory, "ann")
        edits.append(await bank.aedit(older.version, "By hand.", hold=hold))
        await bank.arelease(older.memory)

    between.before, between.happens = leases, edit
    out = await second.end()

    (warning,) = out["warnings"]
    assert edits[0].id in warning
    again = await Reading(store, Gated()).end()
    assert hand_made(await bank.ahistory(again["version"])) == ["By hand."]


async def test_an_edit_that_goes_when_another_reading_moves_the_name_first_is_said(store, bank):
    reading = Reading(store, Gated(), memory_name="diary")
    hold, fold = await hold_after(reading, bank, 2, "diary")
    edit = await bank.aedit(fold.version, "By hand.", hold=hold)
    await bank.arelease("diary")
    other = create_memagent(ChainReader(), config=SMALL, store=store)
    await other.ainvoke({"question": "?", "document": "Another page.", "memory_name": "diary"})

    out = await reading.end()

    assert hand_made(await bank.ahistory("diary")) == []
    (warning,) = out["warnings"]
    assert edit.id in warning


async def test_a_reading_that_is_cancelled_takes_no_other_out_of_the_list(store, bank):
    first = Reading(store, Gated(), memory_name="diary")
    await first.read(1)
    second = Reading(store, Gated(), memory_name="diary", document=TEXT[:-1])
    await second.read(1)

    await first.stop()
    await until(lambda: not versions._ending)

    (fold,) = await bank.aunder_way("diary")
    assert fold.length == len(TEXT) - 1
    await second.end()
    assert await bank.aunder_way() == []


async def test_two_documents_that_are_read_at_once_into_one_name_are_both_listed(store, bank):
    documents = [TEXT, TEXT[1:]]
    readings = [Reading(store, Gated(), memory_name="diary", document=one) for one in documents]
    for reading in readings:
        await reading.read(2)
    folds = await bank.aunder_way("diary")
    assert [fold.length for fold in folds] == [len(one) for one in documents]

    hold = await bank.ahold("diary", "ann")
    for reading in readings:
        await until(lambda reading=reading: reading.reader.waits)
        reading.reader.may.release()
    first, second = await paused(bank, "diary", folds=2)
    await bank.aedit(first.version, "By hand.", hold=hold)
    await bank.aedit(second.version, "For the other.", hold=hold)
    await bank.arelease("diary")
    await asyncio.gather(*(reading.end() for reading in readings))

    assert [reading.reader.memories[3] for reading in readings] == ["By hand.", "For the other."]
    assert await bank.aunder_way() == []


async def test_readings_that_share_no_work_are_listed_apart(store, bank):
    apart = SMALL.model_copy(update={"lease": False})
    readings = [Reading(store, Gated(), apart) for _ in range(2)]
    # Both read chunk 1 themselves: one that looked later would take what the other has stored.
    await until(lambda: all(reading.reader.waits for reading in readings))
    for reading, chunks in zip(readings, (1, 3), strict=True):
        await reading.read(chunks)
    assert sorted(fold.step for fold in await bank.aunder_way()) == [1, 3]

    await readings[0].stop()
    await until(lambda: not versions._ending)

    (fold,) = await bank.aunder_way()
    assert fold.step == 3
    await readings[1].end()
    assert await bank.aunder_way() == []


async def test_a_reading_that_waits_lists_itself_again(store, bank):
    reading = Reading(store, Gated())
    _, fold = await hold_after(reading, bank, 2)
    (listed,) = [item async for item in bank.records.scan(bank.records.all_under_way)]

    await store.aput(listed.namespace, listed.key, {**listed.value, "held": False})
    (again,) = await paused(bank, fold.memory)
    await store.adelete(listed.namespace, listed.key)

    assert await paused(bank, fold.memory) == [replace(again, seen=ANY)]
    await bank.arelease(fold.memory)
    await reading.end()
