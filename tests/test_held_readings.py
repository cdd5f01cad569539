"""Readings that are held where an edit could be lost: named, in segments, or broken off."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, replace

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
    reading_of,
    until,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, create_memagent
from memagent_graph.graph import holding

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
    monkeypatch.setattr(holding, "LAPSE", 0.05)
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
    waiting = holding.Holding(bank.records, "diary", lambda: None)
    waiting.saw(asdict(hold))

    async def tell(found):
        told.append(found)

    away.away = True
    waited = await asyncio.wait_for(waiting.wait(tell), PATIENT)

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
