"""Agents that read the same document at the same time: one pays, the others follow."""

import asyncio
import json
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from fixed_readers import ChainReader, Watched, numbered
from gated_readings import PATIENT, Gated, Reading, until
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ModelError
from memagent_graph.graph import versions
from memagent_graph.memory import lease
from memagent_graph.memory.lease import Lease
from memagent_graph.memory.redis import RedisStore

TEXT = numbered(180)
ASKED = {"question": "?", "document": TEXT}
DELAY = 0.02


@pytest.fixture(scope="module")
def alone():
    """The answer of a reading without a store, and its chunks."""
    reader = ChainReader()
    return agent_of(reader).invoke(ASKED)["answer"], len(reader.spans)


@pytest.fixture
def store(redis):
    with RedisStore.from_url(redis.url) as opened:
        yield opened


def agent_of(reader, store=None, **config):
    return create_memagent(reader, config=ReadingConfig(chunk_tokens=40, **config), store=store)


def spans(folder, log):
    file = folder / log
    return file.read_text().splitlines() if file.exists() else []


def read(start, where, folder, log, **asked):
    options = json.dumps({"delay": DELAY, **asked})
    return start("shared_child.py", where, folder, log, options)


def result_of(process):
    return json.loads(process.communicate(timeout=2 * PATIENT)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "shared"])
def test_two_processes_pay_for_one_reading(where, name, start, folder, alone):
    children = [read(start, where, folder, log, memory_name=name) for log in "ab"]
    first, second = map(result_of, children)

    answer, chunks = alone
    assert first["answer"] == second["answer"] == answer
    assert first["version"] == second["version"]
    assert len(spans(folder, "a")) + len(spans(folder, "b")) <= 1.05 * chunks
    assert first["usage"]["calls"] == len(spans(folder, "a")) + 1
    assert second["usage"]["calls"] == len(spans(folder, "b")) + 1
    assert first["warnings"] == second["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("of", ["one loop", "threads"])
def test_eight_agents_pay_for_one_reading(store, alone, of):
    readers = [ChainReader(DELAY) for _ in range(8)]

    async def gather():
        return await asyncio.gather(*(agent_of(one, store).ainvoke(ASKED) for one in readers))

    if of == "one loop":
        outs = asyncio.run(gather())
    else:
        with ThreadPoolExecutor(8) as pool:
            outs = [*pool.map(lambda reader: agent_of(reader, store).invoke(ASKED), readers)]

    assert {out["answer"] for out in outs} == {alone[0]}
    assert sum(len(reader.spans) for reader in readers) <= 1.1 * alone[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_follower_takes_over_from_a_lost_holder(number, redis, store, start, folder, alone):
    holder = read(start, redis.url, folder, "a")
    holder.wait_for_lines(folder / "a", 5)
    follower = read(start, redis.url, folder, "b")

    holder.wait_for_lines(folder / "a", 20)
    holder.send_signal(number)
    follower.wait_for_lines(folder / "b", 5)
    if number == signal.SIGSTOP:
        holder.send_signal(signal.SIGCONT)

    out = result_of(follower)
    answer, chunks = alone
    assert out["answer"] == answer
    if number == signal.SIGSTOP:
        again = result_of(holder)
        assert (again["answer"], again["version"]) == (answer, out["version"])
    # One chunk that was being read, and one more: that of the version that was being written, or
    # while a stopped holder finds that it was replaced.
    assert len(spans(folder, "a")) + len(spans(folder, "b")) <= chunks + 2
    assert MemoryBank(store).history(out["version"]).gaps == []


async def test_a_holder_that_was_stopped_between_two_chunks_finds_that_it_was_replaced(monkeypatch):
    seconds = []  # that have passed
    monkeypatch.setattr(versions, "Lease", partial(Lease, clock=lambda: 100.0 + len(seconds)))
    monkeypatch.setattr(lease, "BEAT", PATIENT)
    store = InMemoryStore()
    first = Reading(store, Gated())
    await first.read(2)
    second = Reading(store, Gated())
    await until(lambda: second.reader.waits or seconds.append(1))

    await first.read(1)
    await second.read(2)
    await until(lambda: first.reader.waits or len(first.told("chunk")) == 4)

    assert not first.reader.waits
    outs = [await reading.end() for reading in (second, first)]
    assert outs[0]["version"] == outs[1]["version"]


def failing(delay):
    """A reader whose model fails for good at the eleventh chunk."""
    gone = ModelError("The model is gone.")
    reader = Watched(lambda _: gone if len(reader.spans) == 10 else None, delay=delay)
    return reader


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reader", "config"),
    [(ChainReader, {"max_calls": 11}), (failing, {}), (ChainReader, {"deadline": 2.0})],
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
    assert (reader is failing) == isinstance(holding.exception(), ModelError)


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
