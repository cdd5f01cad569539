"""Agents that read the same document at the same time: one pays, the others follow."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from doubles import ChainReader, numbered
from gated_readings import Gated, Reading
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ModelError
from memagent_graph.memory import leases
from memagent_graph.memory.leases import Lease
from memagent_graph.memory.redis import RedisStore

TEXT = numbered(180)
ASKED = {"question": "?", "document": TEXT}
DELAY = 0.02
PATIENT = 300
"""Seconds in which a test's other party comes to where it is waited for."""


@pytest.fixture(scope="module")
def alone():
    """The answer of a reading without a store, and its chunks."""
    reader = ChainReader()
    return agent_of(reader).invoke(ASKED)["answer"], len(reader.spans)


@pytest.fixture
def store(redis):
    with RedisStore.from_url(redis.url) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "document.txt").write_text(TEXT)
    return tmp_path


class Plain(BaseStore):
    """A store without a compare-and-put."""

    def __init__(self):
        self._inner = InMemoryStore()

    def batch(self, ops):
        return self._inner.batch(ops)

    async def abatch(self, ops):
        return await self._inner.abatch(ops)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


class Together(ChainReader):
    """Its first chunk waits for the other's, so that neither finds what the other has stored."""

    def __init__(self, begin):
        super().__init__(0.001)
        self._begin = begin

    async def update(self, *args, **kwargs):
        if not self.spans:
            await self._begin.wait()
        return await super().update(*args, **kwargs)


class FailingReader(ChainReader):
    """Its model fails for good at the eleventh chunk."""

    async def update(self, *args, **kwargs):
        if len(self.spans) == 10:
            raise ModelError("The model is gone.")
        return await super().update(*args, **kwargs)


def agent_of(reader, store=None, **config):
    return create_memagent(reader, config=ReadingConfig(chunk_tokens=40, **config), store=store)


def spans(folder, log):
    file = folder / log
    return file.read_text().splitlines() if file.exists() else []


def wait_for_spans(process, folder, log, count):
    give_up = time.monotonic() + PATIENT
    while len(spans(folder, log)) < count:
        assert process.poll() is None, "it ended before it came so far"
        assert time.monotonic() < give_up
        time.sleep(0.005)


def result_of(process):
    return json.loads(process.communicate(timeout=2 * PATIENT)[0])


async def until(condition):
    async with asyncio.timeout(PATIENT):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "sqlite"])
@pytest.mark.parametrize("name", [(), ("shared",)], ids=["unnamed", "named"])
def test_two_processes_pay_for_one_reading(kind, name, request, start, folder, alone):
    where = str(folder / "store.sqlite")
    if kind == "redis":
        where = request.getfixturevalue("redis").url

    children = [start("shared_child.py", where, folder, log, DELAY, *name) for log in "ab"]
    first, second = map(result_of, children)

    answer, chunks = alone
    assert first["answer"] == second["answer"] == answer
    assert first["version"] == second["version"]
    assert len(spans(folder, "a")) + len(spans(folder, "b")) <= 1.05 * chunks
    assert first["usage"]["calls"] == len(spans(folder, "a")) + 1
    assert second["usage"]["calls"] == len(spans(folder, "b")) + 1
    assert first["warnings"] == second["warnings"] == []


@pytest.mark.slow
async def test_eight_agents_of_one_loop_pay_for_one_reading(store, alone):
    readers = [ChainReader(DELAY) for _ in range(8)]

    outs = await asyncio.gather(*(agent_of(reader, store).ainvoke(ASKED) for reader in readers))

    assert {out["answer"] for out in outs} == {alone[0]}
    assert sum(len(reader.spans) for reader in readers) <= 1.1 * alone[1]


@pytest.mark.slow
def test_eight_threads_pay_for_one_reading(store, alone):
    readers = [ChainReader(DELAY) for _ in range(8)]

    with ThreadPoolExecutor(8) as pool:
        outs = [*pool.map(lambda reader: agent_of(reader, store).invoke(ASKED), readers)]

    assert {out["answer"] for out in outs} == {alone[0]}
    assert sum(len(reader.spans) for reader in readers) <= 1.1 * alone[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_follower_takes_over_from_a_holder_that_is_gone(
    number, redis, store, start, folder, alone
):
    holder = start("shared_child.py", redis.url, folder, "a", DELAY)
    wait_for_spans(holder, folder, "a", 5)
    follower = start("shared_child.py", redis.url, folder, "b", DELAY)

    wait_for_spans(holder, folder, "a", 20)
    holder.send_signal(number)
    wait_for_spans(follower, folder, "b", 5)
    if number == signal.SIGSTOP:
        holder.send_signal(signal.SIGCONT)

    out = result_of(follower)
    answer, chunks = alone
    assert out["answer"] == answer
    if number == signal.SIGSTOP:
        again = result_of(holder)
        assert (again["answer"], again["version"]) == (answer, out["version"])
    # One chunk that was being read, and one more while a stopped holder finds that it was replaced.
    assert len(spans(folder, "a")) + len(spans(folder, "b")) <= chunks + 1 + (
        number == signal.SIGSTOP
    )
    assert MemoryBank(store).history(out["version"]).gaps == []


async def test_a_holder_that_was_stopped_between_two_chunks_finds_that_it_was_replaced(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(leases, "Lease", partial(Lease, clock=clock))
    monkeypatch.setattr(leases, "BEAT", PATIENT)
    store = InMemoryStore()
    first = Reading(store, Gated())
    await first.read(2)
    second = Reading(store, Gated())
    await until(lambda: second.reader.waits or clock.advance(1))

    await first.read(1)
    await second.read(2)
    await until(lambda: first.reader.waits or len(first.told("chunk")) == 4)

    assert not first.reader.waits
    outs = [await reading.end() for reading in (second, first)]
    assert outs[0]["version"] == outs[1]["version"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "config"),
    [
        (ChainReader, {"max_calls": 11}),
        (FailingReader, {}),
        (ChainReader, {"deadline": 2.0}),
    ],
    ids=["max_calls", "model error", "deadline"],
)
async def test_followers_go_on_where_a_holder_ends_early(reader, config, store, alone):
    first, second = reader(5 * DELAY), ChainReader(DELAY)
    holding = asyncio.ensure_future(agent_of(first, store, **config).ainvoke(ASKED))
    await until(lambda: len(first.spans) >= 2 or holding.done())

    following = asyncio.ensure_future(agent_of(second, store).ainvoke(ASKED))
    await asyncio.wait([holding, following])

    assert following.result()["answer"] == alone[0]
    assert len(first.spans) < alone[1]
    assert len(first.spans) + len(second.spans) <= alone[1] + 2
    assert (reader is FailingReader) == isinstance(holding.exception(), ModelError)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Plain has no compare-and-put")
@pytest.mark.parametrize("leases", [True, False], ids=["no compare-and-put", "lease=False"])
async def test_without_leases_each_agent_reads_on_its_own(leases, alone):
    store = Plain() if leases else InMemoryStore()
    begin = asyncio.Barrier(2)
    readers = [Together(begin), Together(begin)]

    agents = [agent_of(reader, store, lease=leases) for reader in readers]
    outs = await asyncio.gather(*(agent.ainvoke(ASKED) for agent in agents))

    assert [out["answer"] for out in outs] == [alone[0]] * 2
    assert all(len(reader.spans) == alone[1] for reader in readers)


async def test_a_followers_deadline_holds(store):
    first, second = ChainReader(PATIENT), ChainReader()
    holding = asyncio.ensure_future(agent_of(first, store).ainvoke(ASKED))
    await until(lambda: first.spans)

    async with asyncio.timeout(PATIENT / 2):
        out = await agent_of(second, store, deadline=0.3).ainvoke(ASKED)
    holding.cancel()
    await asyncio.wait([holding])

    assert out["stopped"] == "deadline"
    assert second.spans == []


@pytest.mark.slow
async def test_a_follower_streams_chunks_as_they_come_and_counts_its_own_calls(store, alone):
    first, second = ChainReader(5 * DELAY), ChainReader()
    holding = asyncio.ensure_future(agent_of(first, store).ainvoke(ASKED))
    await until(lambda: first.spans)

    seen, out = [], {}
    modes = ["custom", "values"]
    async for mode, part in agent_of(second, store).astream(ASKED, stream_mode=modes):
        if mode == "values":
            out = part
        elif part["event"] == "chunk":
            seen.append((part["chunk"], len(first.spans)))
    await holding

    numbers = [chunk for chunk, _ in seen]
    assert numbers == [*range(numbers[0], alone[1] + 1)]
    assert seen[len(seen) // 2][1] < alone[1], "it waited for the end of the other reading"
    assert out["usage"]["calls"] == len(second.spans) + 1
    assert len(first.spans) + len(second.spans) <= 1.05 * alone[1]


async def test_a_named_memory_gets_one_chain_from_two_readings(store, alone):
    readers = [ChainReader(0.01), ChainReader(0.01)]
    asked = {**ASKED, "memory_name": "shared"}

    outs = await asyncio.gather(*(agent_of(reader, store).ainvoke(asked) for reader in readers))

    history = await MemoryBank(store).ahistory("shared")
    assert [out["version"] for out in outs] == [history[0].id] * 2
    assert [version.step for version in history] == [*range(alone[1], 0, -1)]
    assert sum(len(reader.spans) for reader in readers) <= 1.05 * alone[1]
