"""Who gets the slots: callers share them, and a short reading does not wait for long ones."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers.redis_server import wait_until

from memagent_openai_server import Limits, turns
from memagent_openai_server.turns import FairTurns

SLOTS = 4
ANN, BEN = "the-key-of-ann-0123456789", "the-key-of-ben-0123456789"
LONG, SHORT = "What is long?", "What is short?"


class Calls:
    """Calls of readings that end when a test says so."""

    def __init__(self, slots: int) -> None:
        self.turns = FairTurns(slots)
        self.under_way: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}
        self._readings: list[asyncio.Task] = []

    async def read(self, name: str, calls: int = 1000) -> asyncio.Task:
        """Begin a reading; the first letter of its name is its caller's."""
        self._readings.append(asyncio.create_task(self._read(name, calls)))
        await settle()
        return self._readings[-1]

    async def _read(self, name: str, calls: int) -> None:
        seat = self.turns.seat(name[0])
        try:
            for _ in range(calls):
                async with seat:
                    self.under_way.append(name)
                    self._ends[name] = asyncio.Event()
                    await self._ends[name].wait()
                    self.under_way.remove(name)
                await asyncio.sleep(0)
        finally:
            seat.close()

    async def end(self, name: str) -> None:
        """End a call."""
        self._ends[name].set()
        await settle()

    async def stop(self) -> None:
        for reading in self._readings:
            reading.cancel()
        await asyncio.gather(*self._readings, return_exceptions=True)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def calls():
    started = []

    def start(slots: int) -> Calls:
        started.append(Calls(slots))
        return started[-1]

    yield start
    for each in started:
        await each.stop()


async def test_the_next_slot_is_for_who_has_none_and_stays_theirs(calls):
    calls = calls(SLOTS)
    for number in range(SLOTS + 2):
        await calls.read(f"a{number}")
    short = await calls.read("b", calls=3)
    assert "b" not in calls.under_way

    await calls.end("a0")
    for _ in range(3):
        assert "b" in calls.under_way
        await calls.end("b")

    assert short.done()
    assert len(calls.under_way) == SLOTS


async def test_slots_are_shared_equally_by_callers_and_not_by_readings(calls):
    calls = calls(SLOTS)
    for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2"):
        await calls.read(name)

    for _ in range(3):
        for name in list(calls.under_way):
            await calls.end(name)

    assert Counter(name[0] for name in calls.under_way) == {"a": 2, "b": 2}


async def test_with_one_slot_callers_alternate(calls):
    calls = calls(1)
    for name in ("a1", "a2", "a3", "b", "c"):
        await calls.read(name)

    seen = []
    for _ in range(9):
        seen += calls.under_way
        await calls.end(calls.under_way[0])

    assert [name[0] for name in seen] == ["a", "b", "c"] * 3
    assert len(set(seen)) == 5  # readings of one caller take turns too


async def test_a_reading_that_makes_no_call_for_a_while_loses_its_slot(calls, monkeypatch):
    monkeypatch.setattr(turns, "_PAUSE", 0.01)
    fair = FairTurns(2)
    first = fair.seat("a")
    async with first:
        await fair.take("b")
        waiting = asyncio.create_task(fair.take("b"))
        await settle()

    await asyncio.wait_for(waiting, 60)  # it was kept for the moment that the first one rested

    assert waiting.done()


PLANS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 5), st.integers(0, 30)), max_size=12
)
"""Of readings: whose, how many calls, and when it is cancelled."""


@given(plan=PLANS, slots=st.integers(1, 4))
def test_no_slot_is_lost_or_given_twice_when_any_are_cancelled(plan, slots):
    highest = under_way = 0

    async def read(fair: FairTurns, caller: str, calls: int) -> None:
        nonlocal highest, under_way
        seat = fair.seat(caller)
        try:
            for _ in range(calls):
                async with seat:
                    under_way += 1
                    highest = max(highest, under_way)
                    try:
                        await asyncio.sleep(0)
                    finally:
                        under_way -= 1
                await asyncio.sleep(0)
        finally:
            seat.close()

    async def run() -> None:
        fair = FairTurns(slots)
        readings = [
            (asyncio.create_task(read(fair, caller, calls)), cancelled)
            for caller, calls, cancelled in plan
        ]
        for tick in range(30):
            for reading, cancelled in readings:
                if cancelled == tick:
                    reading.cancel()
            await asyncio.sleep(0)
        tasks = [reading for reading, _ in readings]
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert fair._free == slots
        assert not fair._waiting
        assert not fair._held
        assert not fair._resting

    asyncio.run(run())
    assert highest <= slots


@pytest.mark.slow
def test_a_short_reading_waits_for_one_chunk_of_the_long_ones(
    serve, upstream, small, text, monkeypatch
):
    """Not one second is measured: the model answers the long readings when it is told to."""
    let, seen = threading.Semaphore(0), []
    arrived = threading.Semaphore(0)

    def reply(body):
        long = LONG in str(body["messages"])
        seen.append("long" if long else "short")
        arrived.release()
        if long:
            assert let.acquire(timeout=240)
        return "Nothing was found."

    upstream.reply = reply
    monkeypatch.setattr(turns, "_PAUSE", 600.0)  # however busy this machine is
    server = serve(
        "openai:small",
        base_url=upstream.base_url,
        config=small,
        keys={ANN: "ann", BEN: "ben"},
        limits=Limits(readings=SLOTS),
    )

    def ask(key, question, number=0):
        messages = [{"role": "user", "content": f"{number} {text(800)}\n\n{question}"}]
        headers = {"authorization": f"Bearer {key}"}
        return server.post(json={"model": "small", "messages": messages}, headers=headers)

    with ThreadPoolExecutor(10) as pool, ExitStack() as at_the_end:
        at_the_end.callback(let.release, 10_000)  # else a failure would wait for the pool
        long = [pool.submit(ask, ANN, LONG, number) for number in range(SLOTS + 1)]
        for _ in range(SLOTS):
            assert arrived.acquire(timeout=240)
        short = pool.submit(ask, BEN, SHORT)
        waiting = server.service._turns._waiting
        wait_until(lambda: {"ann", "ben"} <= waiting.keys(), "the short reading", seconds=240)
        let.release()  # one chunk of one long reading, and then none
        answer = short.result(240)
        before = list(seen)
        at_the_end.close()
        ends = [each.result(240) for each in long]

    assert answer.status_code == 200
    assert before[:SLOTS] == ["long"] * SLOTS
    assert before.count("short") > 3
    assert before.count("long") <= SLOTS + 1
    assert {end.status_code for end in ends} == {200}
