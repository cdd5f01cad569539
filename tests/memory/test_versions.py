import asyncio
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from fixed_readers import Broken, ChainReader, QuotingReader, chain, numbered
from gated_readings import until
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

import memagent_graph.memory.store as asked
from memagent_graph import ReadingConfig, create_memagent, store_metrics
from memagent_graph.errors import ConfigurationError, MemoryNotFoundError, StoreError
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.bank import MemoryBank, answers_of
from memagent_graph.memory.store import GetThenPut
from memagent_graph.testing import ScriptedChatModel

SMALL = ReadingConfig(chunk_tokens=50, retry_interval=0.001)
APART = SMALL.model_copy(update={"lease": False})
TEXT = numbered(100)


def agent_of(store, reader=None, config=SMALL, **options):
    reader = reader or ChainReader()
    return create_memagent(reader, config=config, store=store, **options), reader


def read(store, document=TEXT, question="What?", reader=None, config=SMALL, **asked):
    agent, reader = agent_of(store, reader, config)
    return agent.invoke({"question": question, "document": document, **asked}), reader


def read_on(memory, reader, text):
    for start, end in reader.spans:
        memory = chain(memory, text[start:end])
    return memory


ASKED = {"question": "What?", "document": TEXT}


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_asking_again_costs_one_call_and_gives_the_same(store, twin):
    first, reader = read(store)
    agent, second = agent_of(store)

    again = agent.invoke(ASKED) if twin == "sync" else asyncio.run(agent.ainvoke(ASKED))

    assert len(reader.spans) > 10
    assert (second.spans, second.answers) == ([], 1)
    assert again["usage"]["document_tokens"] == first["usage"]["document_tokens"]
    for same in ("answer", "memory", "evidence", "version"):
        assert again[same] == first[same]


def test_of_a_document_that_grew_only_the_changed_tail_is_read(store):
    _, reader = read(store)
    grown = TEXT + numbered(5)

    out, second = read(store, grown)

    assert len(second.spans) <= 3
    assert second.spans[0][0] >= reader.spans[-1][0]
    assert out["answer"] == read(InMemoryStore(), grown)[0]["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("other", [
    {"question": "Which?"}, {"config": SMALL.model_copy(update={"chunk_tokens": 51})},
    {"config": SMALL.model_copy(update={"memory_tokens": 1000})},
    {"config": SMALL.model_copy(update={"reuse": False})}, {"reader": QuotingReader()},
])  # fmt: skip
def test_another_question_budget_or_reader_resumes_nothing(other):
    read(store := InMemoryStore())
    alone, _ = read(InMemoryStore(), **other)

    out, _ = read(store, **other)

    assert out["usage"]["calls"] == alone["usage"]["calls"] > 10
    assert out["answer"] == alone["answer"]


def test_from_one_version_each_question_is_read_for_by_itself():
    store = InMemoryStore()
    read(store, numbered(20), memory_name="diary")
    MemoryBank(store).branch("diary", "other")

    _, first = read(store, question="Which?", memory_name="diary")
    _, second = read(store, question="Why?", memory_name="other")

    assert second.spans == first.spans != []


def test_notes_of_a_run_whose_question_was_changed_are_for_no_other_reading():
    store, thread = InMemoryStore(), {"configurable": {"thread_id": "1"}}
    agent, _ = agent_of(store, checkpointer=InMemorySaver())
    agent.invoke(ASKED, thread)
    begun = [state for state in agent.get_state_history(thread) if state.values.get("memory")]

    agent.invoke(None, agent.update_state(begun[-1].config, {"question": "Why?"}))
    _, reader = read(store, question="Why?")

    assert len(reader.spans) > 10


def test_memories_of_a_model_that_samples_are_reused():
    model = ScriptedChatModel(*(f"Reply {number}." for number in range(99)))
    agent, _ = agent_of(InMemoryStore(), model)

    first, calls = agent.invoke(ASKED), len(model.calls)
    again = agent.invoke(ASKED)

    assert calls > 10
    assert (len(model.calls), again["memory"]) == (calls + 1, first["memory"])
    assert again["answer"] != first["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [0, 1])
def test_a_memory_edited_over_a_warm_store_is_read_on_from(store, chunks):
    read(store)
    stops = {"checkpointer": InMemorySaver(), "interrupt_before": ["overwrite_memory"]}
    agent, _ = agent_of(InMemoryStore(), **stops)  # a cold one, so that it stops where it is told
    thread = {"configurable": {"thread_id": "1"}}
    agent.invoke(ASKED, thread)
    for _ in range(chunks):
        agent.invoke(None, thread)
    agent.update_state(thread, {"memory": "edited"})
    going_on, reader = agent_of(store, checkpointer=agent.checkpointer)

    out = going_on.invoke(None, thread)

    history = MemoryBank(store).history(out["version"])
    assert out["memory"] == history[0].text == read_on("edited", reader, TEXT)
    assert [version.text for version in history if version.edited] == ["edited"]


def test_another_question_is_answered_from_a_stored_memory_without_reading(store):
    first, _ = read(store)
    agent, reader = agent_of(store)

    out = agent.invoke({"question": "And why?", "version": first["version"]})

    told = out["answer"], reader.spans, out["coverage"]
    assert told == (first["memory"], [], 1.0)
    with pytest.raises(MemoryNotFoundError, match="nobody"):
        agent.invoke({"question": "And why?", "version": "nobody"})


def test_a_named_memory_goes_on_with_todays_text(store):
    monday, _ = read(store, numbered(20), memory_name="diary")
    tuesday, reader = read(store, numbered(30), memory_name="diary")

    history = MemoryBank(store).history("diary")
    assert tuesday["memory"] == read_on(monday["memory"], reader, numbered(30))
    assert (history[0].id, history[-1].step) == (tuesday["version"], 1)


def test_a_name_is_given_to_what_was_read_before_without_it(store):
    first, _ = read(store)

    named, reader = read(store, memory_name="diary")

    assert reader.spans == []
    assert MemoryBank(store).head("diary").id == named["version"] == first["version"]


def test_a_memory_needs_a_store():
    for given in ({"version": "diary"}, {"document": "x", "memory_name": "diary"}):
        with pytest.raises(ConfigurationError, match="store"):
            create_memagent(ChainReader()).invoke({"question": "?", **given})


async def test_a_reading_goes_on_from_a_memory_that_another_has_stored_in_place_of_its_own():
    store, waits, stored = InMemoryStore(), asyncio.Event(), asyncio.Event()

    class Late(ChainReader):
        async def update(self, step, **options):
            if len(self.spans) == 1:
                waits.set()
                await stored.wait()
                step = replace(step, memory=Memory(step.memory.text + "late"))
            return await super().update(step, **options)

    agent, reader = agent_of(store, Late(), APART)
    late = asyncio.create_task(agent.ainvoke(ASKED))
    await waits.wait()
    out = await agent_of(store, config=APART)[0].ainvoke(ASKED)
    stored.set()

    told = await late
    assert (told["memory"], told["version"]) == (out["memory"], out["version"])
    assert len(reader.spans) <= 4


@pytest.mark.usefixtures("impatient")
def test_only_a_named_memory_needs_a_store_that_is_away_at_the_start():
    store = Broken()
    store.away = True

    with pytest.raises(StoreError, match="gone"):
        read(store, memory_name="diary")
    out, reader = read(store)

    assert (out["answer"], len(out["warnings"])) == (read(InMemoryStore())[0]["answer"], 1)
    assert f"{len(reader.spans)} memory versions could not be stored" in out["warnings"][0]


class Leaving(ChainReader):
    def __init__(self, store, away):
        super().__init__()
        self.store, self.away = store, away

    async def update(self, *arguments, **options):
        self.store.away = len(self.spans) in self.away
        return await super().update(*arguments, **options)


@pytest.mark.parametrize("back", ["meanwhile", "at the end"])
def test_what_waits_is_not_stored_after_a_memory_that_another_has_stored_first(back):
    store, beside = Broken(), InMemoryStore()
    beside._data = store._data
    alone, chunks = read(InMemoryStore())

    class Overtaken(Leaving):
        async def update(self, step, **options):
            if len(self.spans) == 1:
                step = replace(step, memory=Memory(step.memory.text + "late"))
            elif len(self.spans) == 4:
                few = {**ASKED, "document": TEXT[: chunks.spans[2][1]]}
                await agent_of(beside, config=APART)[0].ainvoke(few)
            elif len(self.spans) == 6 and back == "meanwhile":
                await until(lambda: store_metrics(store).circuit == "closed")
            return await super().update(step, **options)

    out, reader = read(store, reader=Overtaken(store, range(1, 5)), config=APART)

    assert (out["memory"], out["warnings"]) == (alone["memory"], [])
    assert MemoryBank(store).get(out["version"]).text == out["memory"]
    assert len(reader.spans) > len(chunks.spans)


def test_an_answer_comes_with_a_warning_if_a_store_stays_away_or_not_at_all_if_strict(monkeypatch):
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", "0.05")
    store, expected = Broken(), read(InMemoryStore())[0]["answer"]

    out, _ = read(store, reader=Leaving(store, range(3, 999)))

    assert out["answer"] == expected
    assert "could not be stored" in out["warnings"][0]
    store, strict = Broken(), SMALL.model_copy(update={"strict": True})
    with pytest.raises(StoreError, match="could not be stored"):
        read(store, reader=Leaving(store, range(3, 999)), config=strict)


def kept(store, name=None):
    bank = MemoryBank(store)
    (version,) = [one for own, one in bank.list() if name in (None, own)]
    return asyncio.run(answers_of(bank, [version])).get(version.id)


@pytest.mark.parametrize("named", [{}, {"memory_name": "notes"}], ids=["unnamed", "named"])
def test_an_answer_is_kept_with_its_version_and_with_what_all_its_readings_cost(store, named):
    first, _ = read(store, **named)
    once = kept(store)

    again, _ = read(store, **named)

    twice, usage = kept(store), first["usage"]
    assert once.text == twice.text == first["answer"]
    counted = once.usage.calls, once.usage.input_tokens
    assert counted == (usage["calls"], usage["input_tokens"])
    assert (twice.times, twice.usage.calls) == (2, usage["calls"] + again["usage"]["calls"])


def test_an_edited_memory_has_the_answer_of_before_and_a_forgotten_one_leaves_none(store):
    out, _ = read(store, memory_name="notes")
    bank = MemoryBank(store)
    bank.edit("notes", "By hand.")

    def texts():
        return repr([item.value for item in store.search((), limit=1000)])

    assert kept(store, "notes").text == out["answer"]
    assert out["answer"] in texts()
    bank.forget("notes")
    assert out["answer"] not in texts()


class FarStore(InMemoryStore):
    """Takes a while for each round trip.

    Args:
        seconds: of a round trip.

    Attributes:
        trips: number of round trips.
        written: ids of the versions of each trip that were put unless they were there.
    """

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.trips, self.written = 0, []
        self.near = InMemoryStore()
        self.near._data = self._data

    async def travel(self):
        self.trips += 1
        await asyncio.sleep(self.seconds)

    async def abatch(self, ops):
        await self.travel()
        return self.near.batch(ops)

    async def acommit(self, puts, *, given, **options):
        await self.travel()
        new = [put.key for put in puts if "versions" in put.namespace and not given.get(put[:2], 1)]
        self.written += [new] if new else []
        return await GetThenPut(self.near).acommit(puts, given=given, **options)

    async def aplaces(self, namespace):
        return await GetThenPut(self.near).aplaces(namespace)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only while everything waits; the circuit of a store goes by them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", "1.5")
    made = asked.StoreGuard
    by_the_loop = partial(made, lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(asked, "StoreGuard", by_the_loop)
    return import_module("virtual_clock")


CALL, MOST = 0.5, 4.5
"""Seconds of a call, and trips that a reading waits for at most, at its beginning and end."""


@pytest.mark.parametrize("length", [100, 300])
@pytest.mark.parametrize("seconds", [0.03, 0.3])
def test_a_reading_does_not_wait_for_a_far_store_between_chunks(seconds, length, clock):
    store = FarStore(seconds)
    agent, reader = agent_of(store, ChainReader(CALL))

    out, took = clock.run(agent.ainvoke({"question": "What?", "document": numbered(length)}))

    assert took - CALL * len(reader.spans) < MOST * seconds
    history = MemoryBank(store.near).history(out["version"])
    assert [version.step for version in history] == [*range(len(reader.spans), 0, -1)]
    assert out["warnings"] == history.gaps == []


def test_versions_that_wait_for_a_slow_store_are_written_in_order_in_one_trip(clock):
    store = FarStore(1.0)
    agent, reader = agent_of(store, ChainReader(0.1))

    out, _ = clock.run(agent.ainvoke(ASKED))

    history = MemoryBank(store.near).history(out["version"])
    assert [key for keys in store.written for key in keys] == [one.id for one in history[::-1]]
    assert len(history) == len(reader.spans)
    assert len(store.written) < len(reader.spans) / 4
    assert out["warnings"] == []


def test_a_store_that_is_too_slow_for_all_leaves_a_warning_that_counts_what_is_missing(clock):
    store = FarStore(60.0)
    agent, reader = agent_of(store, ChainReader(CALL))

    out, _ = clock.run(agent.ainvoke(ASKED))

    assert store.near.search(()) == []
    assert f"{len(reader.spans)} memory versions could not be stored" in out["warnings"][0]
