from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from doubles import Broken, ChainReader, QuotingReader, chain, numbered
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from typing_extensions import TypedDict

from memagent_graph import MemAgentNode, ReadingConfig, create_memagent
from memagent_graph.errors import ConfigurationError, MemoryNotFoundError, StoreError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph import chunks
from memagent_graph.memory import circuit
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.items import GetThenPut
from memagent_graph.memory.runs import answers_of

SMALL = ReadingConfig(chunk_tokens=50, retry_interval=0.001)
TEXT = numbered(100)


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    if request.param == "memory":
        yield InMemoryStore()
        return
    with SqliteStore.from_conn_string(str(tmp_path / "store.sqlite")) as found:
        found.setup()
        yield found


def read(store, document=TEXT, question="What?", reader=None, config=SMALL, **asked):
    reader = reader or ChainReader()
    agent = create_memagent(reader, config=config, store=store)
    out = agent.invoke({"question": question, "document": document, **asked})
    return out, reader


def test_asking_again_costs_one_call_and_gives_the_same(store):
    first, reader = read(store)

    again, second = read(store)

    assert len(reader.spans) > 10
    assert (second.spans, second.answers) == ([], 1)
    assert again["answer"] == first["answer"]
    assert again["usage"]["document_tokens"] == first["usage"]["document_tokens"]
    assert again["evidence"] == first["evidence"]


async def test_an_async_run_reuses_what_a_sync_run_stored(store):
    read(store)
    reader = ChainReader()

    await create_memagent(reader, config=SMALL, store=store).ainvoke(
        {"question": "What?", "document": TEXT}
    )

    assert reader.spans == []


def test_of_a_document_that_grew_only_the_changed_tail_is_read(store):
    _, reader = read(store)
    grown = TEXT + numbered(5)

    out, second = read(store, grown)

    fresh, _ = read(InMemoryStore(), grown)
    assert len(second.spans) <= 3
    assert second.spans[0][0] >= reader.spans[-1][0]
    assert out["answer"] == fresh["answer"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"question": "Which?"},
        {"config": SMALL.model_copy(update={"chunk_tokens": 51})},
        {"config": SMALL.model_copy(update={"memory_tokens": 1000})},
        {"config": SMALL.model_copy(update={"reuse": False})},
        {"reader": QuotingReader()},
    ],
)
def test_another_question_budget_or_reader_resumes_nothing(other):
    store = InMemoryStore()
    read(store)
    alone, _ = read(InMemoryStore(), **other)

    out, _ = read(store, **other)

    assert out["usage"]["calls"] == alone["usage"]["calls"] > 10
    assert out["answer"] == alone["answer"]


class Sampling(BaseChatModel):
    """Never says the same twice; like most chat models it has no temperature of its own."""

    calls: int = 0

    @property
    def _llm_type(self):
        return "sampling"

    def _generate(self, messages, stop=None, run_manager=None, **options):
        self.calls += 1
        return ChatResult(generations=[ChatGeneration(message=AIMessage(f"Reply {self.calls}."))])


ASKED = {"question": "What?", "document": TEXT}


@pytest.mark.parametrize("twin", ["sync", "async"])
def test_memories_of_a_model_that_samples_are_reused(store, twin):
    model = Sampling()
    agent = create_memagent(model, config=SMALL, store=store)
    first = agent.invoke(ASKED)
    calls = model.calls

    again = agent.invoke(ASKED) if twin == "sync" else asyncio.run(agent.ainvoke(ASKED))

    assert calls > 10
    assert model.calls == calls + 1
    assert again["memory"] == first["memory"]
    assert again["answer"] != first["answer"]


@pytest.mark.slow
@pytest.mark.parametrize("reader", [Sampling, ChainReader])
def test_nothing_is_reused_where_that_is_off(store, reader):
    anew = SMALL.model_copy(update={"reuse": False})
    first = create_memagent(reader(), config=SMALL, store=store).invoke(ASKED)
    agent = create_memagent(reader(), config=anew, store=store)

    for _ in range(2):
        again = agent.invoke(ASKED)

        assert again["usage"]["calls"] == first["usage"]["calls"] > 10
        assert again["version"] != first["version"]


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [0, 1])
def test_a_memory_edited_over_a_warm_store_is_read_on_from(store, chunks):
    read(store)
    agent = create_memagent(
        ChainReader(),
        config=SMALL,
        store=InMemoryStore(),  # a cold one, so that it stops where it is told
        checkpointer=InMemorySaver(),
        interrupt_before=["overwrite_memory"],
    )
    thread = {"configurable": {"thread_id": "1"}}
    agent.invoke({"question": "What?", "document": TEXT}, thread)
    for _ in range(chunks):
        agent.invoke(None, thread)
    agent.update_state(thread, {"memory": "edited"})
    reader = ChainReader()
    going_on = create_memagent(reader, config=SMALL, store=store, checkpointer=agent.checkpointer)

    out = going_on.invoke(None, thread)

    expected = "edited"
    for start, end in reader.spans:
        expected = chain(expected, TEXT[start:end])
    assert out["memory"] == expected
    history = MemoryBank(store).history(out["version"])
    assert [version.text for version in history if version.edited] == ["edited"]
    assert history[0].text == expected


def test_another_question_is_answered_from_a_stored_memory_without_reading(store):
    first, _ = read(store)
    reader = ChainReader()
    agent = create_memagent(reader, config=SMALL, store=store)

    out = agent.invoke({"question": "And why?", "version": first["version"]})

    assert (out["answer"], reader.spans) == (first["memory"], [])
    assert out["coverage"] == 1.0
    with pytest.raises(MemoryNotFoundError, match="nobody"):
        agent.invoke({"question": "And why?", "version": "nobody"})


def test_a_named_memory_goes_on_with_todays_text(store):
    monday, _ = read(store, numbered(20), memory_name="diary")
    tuesday, reader = read(store, numbered(30), memory_name="diary")

    expected = monday["memory"]
    for start, end in reader.spans:
        expected = chain(expected, numbered(30)[start:end])
    bank = MemoryBank(store)
    assert tuesday["memory"] == expected
    assert bank.head("diary").id == tuesday["version"]
    assert bank.history("diary")[-1].step == 1


def test_a_name_is_given_to_what_was_read_before_without_it(store):
    first, _ = read(store)

    named, reader = read(store, memory_name="diary")

    assert reader.spans == []
    assert MemoryBank(store).head("diary").id == named["version"] == first["version"]


def test_a_memory_needs_a_store():
    agent = create_memagent(ChainReader())

    with pytest.raises(ConfigurationError, match="store"):
        agent.invoke({"question": "?", "version": "diary"})
    with pytest.raises(ConfigurationError, match="store"):
        agent.invoke({"question": "?", "document": "x", "memory_name": "diary"})


def test_a_node_uses_the_store_of_its_host():
    class Host(TypedDict, total=False):
        question: str
        document: str
        answer: str

    reader, store = ChainReader(), InMemoryStore()
    builder = StateGraph(Host)
    builder.add_node("read", MemAgentNode(reader, config=SMALL))
    builder.add_edge(START, "read")
    graph = builder.compile(store=store)

    graph.invoke({"question": "?", "document": TEXT})
    once = len(reader.spans)
    graph.invoke({"question": "?", "document": TEXT})

    assert len(reader.spans) == once > 10


async def test_a_text_that_is_known_is_cut_in_a_thread_beside_the_event_loop(monkeypatch):
    cut, threads, store = chunks.next_chunk, [], InMemoryStore()

    def noted(*args, **options):
        threads.append(threading.get_ident())
        return cut(*args, **options)

    agent = create_memagent(ChainReader(), config=SMALL, store=store)
    await agent.ainvoke({"question": "?", "document": TEXT})
    monkeypatch.setattr(chunks, "next_chunk", noted)
    await agent.ainvoke({"question": "?", "document": TEXT})

    assert len(threads) > 10
    assert threading.get_ident() not in threads


async def test_two_agents_that_read_the_same_at_once_end_with_one_chain():
    store = InMemoryStore()

    class Moody(ChainReader):
        """Two of these never write the same."""

        def __init__(self, mood):
            super().__init__(delay=0.001)
            self.mood = mood

        async def update(self, step, **options):
            moody = Memory(step.memory.text + self.mood)
            return await super().update(replace(step, memory=moody), **options)

    agents = [create_memagent(Moody(mood), config=SMALL, store=store) for mood in "ab"]
    asked = {"question": "?", "document": TEXT}

    outs = await asyncio.gather(*(agent.ainvoke(asked) for agent in agents))

    histories = [await MemoryBank(store).ahistory(out["version"]) for out in outs]
    assert outs[0]["version"] == outs[1]["version"]
    assert outs[0]["memory"] == outs[1]["memory"] == histories[0][0].text
    assert [v.id for v in histories[0]] == [v.id for v in histories[1]]


@pytest.mark.usefixtures("impatient")
def test_only_a_named_memory_needs_a_store_that_is_away_at_the_start():
    store = Broken()
    store.away = True

    with pytest.raises(StoreError, match="gone"):
        read(store, memory_name="diary")
    out, reader = read(store)

    assert out["answer"] == read(InMemoryStore())[0]["answer"]
    assert len(out["warnings"]) == 1
    assert f"{len(reader.spans)} memory versions could not be stored" in out["warnings"][0]


class Leaving(ChainReader):
    def __init__(self, store, away):
        super().__init__()
        self.store, self.away = store, away

    async def update(self, *arguments, **options):
        self.store.away = len(self.spans) in self.away
        return await super().update(*arguments, **options)


def test_versions_wait_for_a_store_that_comes_back():
    store = Broken()

    out, reader = read(store, reader=Leaving(store, range(3, 8)))

    assert out["warnings"] == []
    assert len(MemoryBank(store).history(out["version"])) == len(reader.spans)


def test_an_answer_comes_with_a_warning_when_the_store_stays_away_or_not_at_all_if_strict(
    monkeypatch,
):
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", "0.05")
    store, expected = Broken(), read(InMemoryStore())[0]["answer"]

    out, _ = read(store, reader=Leaving(store, range(3, 999)))

    assert out["answer"] == expected
    assert "could not be stored" in out["warnings"][0]
    store = Broken()
    with pytest.raises(StoreError, match="could not be stored"):
        read(
            store,
            reader=Leaving(store, range(3, 999)),
            config=SMALL.model_copy(update={"strict": True}),
        )


def kept(store, name=None):
    """The answer that is kept with a memory's newest version."""
    bank = MemoryBank(store)
    (version,) = [one for own, one in bank.list() if name in (None, own)]
    return asyncio.run(answers_of(bank.records, [version])).get(version.id)


@pytest.mark.parametrize("name", [None, "notes"])
def test_an_answer_is_kept_with_its_version_and_with_what_all_its_readings_cost(store, name):
    named = {} if name is None else {"memory_name": name}
    first, _ = read(store, **named)
    once = kept(store)

    again, _ = read(store, **named)

    twice = kept(store)
    assert once.text == twice.text == first["answer"]
    assert (once.usage.calls, once.usage.input_tokens) == tuple(
        first["usage"][field] for field in ("calls", "input_tokens")
    )
    assert (twice.times, twice.usage.calls) == (
        2,
        first["usage"]["calls"] + again["usage"]["calls"],
    )


def test_an_edited_memory_has_the_answer_of_before_and_a_forgotten_one_leaves_none(store):
    out, _ = read(store, memory_name="notes")
    bank = MemoryBank(store)
    bank.edit("notes", "By hand.")

    def texts():
        return [str(item.value) for item in store.search((), limit=1000)]

    assert kept(store, "notes").text == out["answer"]
    assert any(out["answer"] in text for text in texts())
    bank.forget("notes")
    assert not any(out["answer"] in text for text in texts())


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


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only while everything waits; the circuit of a store goes by them."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    monkeypatch.setenv("MEMAGENT_STORE_SECONDS", "1.5")
    made = circuit.StoreGuard
    by_the_loop = partial(made, lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(circuit, "StoreGuard", by_the_loop)
    return import_module("virtual_clock")


CALL, MOST = 0.5, 8.5
"""Seconds of a call, and trips that a reading waits for at most, at its beginning and end."""


@pytest.mark.parametrize("length", [100, 300])
@pytest.mark.parametrize("seconds", [0.03, 0.3])
def test_a_reading_does_not_wait_for_a_far_store_between_chunks(seconds, length, clock):
    store, reader = FarStore(seconds), ChainReader(CALL)
    agent = create_memagent(reader, config=SMALL, store=store)

    out, took = clock.run(agent.ainvoke({"question": "What?", "document": numbered(length)}))

    assert took - CALL * len(reader.spans) < MOST * seconds
    history = MemoryBank(store.near).history(out["version"])
    assert [version.step for version in history] == [*range(len(reader.spans), 0, -1)]
    assert out["warnings"] == history.gaps == []


def test_versions_that_wait_for_a_slow_store_are_written_in_order_in_one_trip(clock):
    store, reader = FarStore(1.0), ChainReader(0.1)
    agent = create_memagent(reader, config=SMALL, store=store)

    out, _ = clock.run(agent.ainvoke({"question": "What?", "document": TEXT}))

    history = MemoryBank(store.near).history(out["version"])
    assert [key for keys in store.written for key in keys] == [one.id for one in history[::-1]]
    assert len(history) == len(reader.spans)
    assert len(store.written) < len(reader.spans) / 4
    assert out["warnings"] == []


def test_a_store_that_is_too_slow_for_all_leaves_a_warning_that_counts_what_is_missing(clock):
    store, reader = FarStore(60.0), ChainReader(CALL)
    agent = create_memagent(reader, config=SMALL, store=store)

    out, _ = clock.run(agent.ainvoke({"question": "What?", "document": TEXT}))

    assert store.near.search(()) == []
    assert f"{len(reader.spans)} memory versions could not be stored" in out["warnings"][0]
