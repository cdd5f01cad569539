from __future__ import annotations

import asyncio
import gc
import json
import logging
import sqlite3
import threading
import time
import weakref

import pytest
from langgraph.store.memory import InMemoryStore
from redis.exceptions import ConnectionError as RedisConnectionError

from memagent_graph.errors import (
    BadRecordError,
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
    StoreRefusedError,
)
from memagent_graph.memory import circuit
from memagent_graph.memory.circuit import StoreGuard, StoreMetrics, guard_of, store_metrics

SOON = 0.02
LONG = 30


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def guard(clock):
    return StoreGuard(clock)


def failing(error):
    async def operation():
        raise error

    return operation


async def answer():
    return "answer"


async def never():
    await asyncio.Event().wait()


async def fail(guard, error=None):
    with pytest.raises(StoreError) as caught:
        await guard.call(failing(error or OSError("no route")), patience=LONG)
    return caught.value


async def begin(guard, operation):
    """A call that has begun its operation and waits in it."""
    task = asyncio.create_task(guard.call(operation, patience=LONG))
    await asyncio.sleep(0.01)
    assert not task.done()
    return task


async def test_a_store_that_answers_is_passed_through(guard):
    assert await guard.call(answer, patience=LONG) == "answer"
    assert not guard.away
    assert guard.circuit == "closed"


@pytest.mark.parametrize(
    "error",
    [
        OSError("no route"),
        TimeoutError("slow"),
        RedisConnectionError("refused"),
        sqlite3.OperationalError("database is locked"),
        RuntimeError("loop"),
    ],
)
async def test_a_foreign_error_opens_the_circuit_and_keeps_its_message(guard, error):
    raised = await fail(guard, error)

    assert str(raised) == f"The memory store failed: {type(error).__name__}: {error}"
    assert raised.__cause__ is error
    assert guard.away
    assert guard.failures == 1


async def test_an_error_without_a_message_is_named(guard):
    assert str(await fail(guard, TimeoutError())) == "The memory store failed: TimeoutError"


async def test_a_store_error_opens_the_circuit_and_is_raised_as_it_is(guard):
    error = StoreError("Redis refused: OOM.")

    assert await fail(guard, error) is error
    assert guard.away


@pytest.mark.parametrize(
    "error",
    [
        MemoryNotFoundError("no such memory"),
        MemoryConflictError("moved on"),
        BadRecordError("cut short", key="k"),
        StoreRefusedError("out of memory"),
    ],
)
async def test_an_error_that_is_an_answer_closes_the_circuit(guard, clock, error):
    await fail(guard)
    clock.now += 1

    assert await fail(guard, error) is error
    assert guard.circuit == "closed"


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        TypeError("bad"),
        ConfigurationError("bad"),
        json.JSONDecodeError("bad", "", 0),
    ],
)
async def test_a_programming_error_passes_through_and_says_nothing_of_the_store(
    guard, clock, error
):
    with pytest.raises(type(error)) as caught:
        await guard.call(failing(error), patience=LONG)
    assert caught.value is error
    assert guard.circuit == "closed"

    await fail(guard)
    clock.now += 1
    with pytest.raises(type(error)):
        await guard.call(failing(error), patience=LONG)
    assert guard.circuit == "half-open"
    assert not guard.away


async def test_an_operation_that_fails_before_it_awaits_is_a_failure_too(guard):
    def operation():
        raise OSError("no route")

    with pytest.raises(StoreError, match="no route"):
        await guard.call(operation, patience=LONG)
    assert guard.away


async def test_an_open_circuit_refuses_at_once_and_says_why(guard):
    await fail(guard, StoreError("Redis refused: OOM."))
    begun = []

    async def operation():
        begun.append(1)

    with pytest.raises(StoreError, match=r"The memory store is unreachable \(Redis refused: OOM\)"):
        await guard.call(operation, patience=LONG)
    assert not begun


async def test_pauses_double_up_to_five_seconds_and_begin_anew_after_an_answer(guard, clock):
    for pause in (0.5, 1, 2, 4, 5, 5):
        await fail(guard)
        clock.now += pause - 0.01
        assert guard.away
        assert guard.circuit == "open"
        clock.now += 0.02
        assert not guard.away
        assert guard.circuit == "half-open"

    await guard.call(answer, patience=LONG)
    assert guard.circuit == "closed"
    await fail(guard)
    clock.now += 0.51
    assert not guard.away


async def test_a_store_may_stay_away_for_days(guard, clock):
    for _ in range(1500):
        await fail(guard)
        clock.now += 5.01
    assert guard.failures == 1500
    assert await guard.call(answer, patience=LONG) == "answer"


async def test_one_caller_at_a_time_tests_whether_the_store_is_back(guard, clock):
    await fail(guard)
    clock.now += 1
    there = asyncio.Event()
    test = await begin(guard, there.wait)

    assert guard.away
    assert guard.circuit == "half-open"
    clock.now += 100
    with pytest.raises(StoreError, match="unreachable"):
        await guard.call(answer, patience=LONG)

    there.set()
    await test
    assert guard.circuit == "closed"
    assert await guard.call(answer, patience=LONG) == "answer"
    assert guard.retries == 1


async def test_a_store_that_takes_too_long_is_away(guard):
    with pytest.raises(StoreError, match=r"did not answer within 0\.02 s"):
        await guard.call(never, patience=SOON)
    assert guard.away


async def test_an_operation_that_resists_cancellation_does_not_hold_up_the_caller(guard):
    release, cancelled, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await release.wait()
        finished.set()

    begun = time.monotonic()
    with pytest.raises(StoreError, match="did not answer"):
        await guard.call(stubborn, patience=SOON)
    assert time.monotonic() - begun < LONG / 2

    await asyncio.wait_for(cancelled.wait(), LONG)
    gc.collect()  # nothing but the guard refers to it
    assert not finished.is_set()
    release.set()
    await asyncio.wait_for(finished.wait(), LONG)
    await asyncio.sleep(0)
    assert not circuit._abandoned
    assert guard.failures == 1


async def test_an_abandoned_operation_that_fails_later_is_not_reported_as_unseen(guard):
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    async def fails_late():
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("late")

    with pytest.raises(StoreError, match="did not answer"):
        await guard.call(fails_late, patience=SOON)
    await asyncio.sleep(SOON)
    gc.collect()

    assert not reports
    assert not circuit._abandoned


async def test_cancelling_the_caller_cancels_the_operation_and_counts_as_nothing(guard):
    cancelled = asyncio.Event()

    async def operation():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    call = await begin(guard, operation)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    await asyncio.wait_for(cancelled.wait(), LONG)
    assert guard.circuit == "closed"


async def test_cancelling_the_test_lets_the_next_caller_test(guard, clock):
    await fail(guard)
    clock.now += 1
    test = await begin(guard, never)
    test.cancel()
    with pytest.raises(asyncio.CancelledError):
        await test

    assert guard.failures == 1
    assert not guard.away
    assert await guard.call(answer, patience=LONG) == "answer"


async def test_a_store_that_cancels_its_own_operation_has_failed(guard):
    with pytest.raises(StoreError, match="cancelled the operation"):
        await guard.call(failing(asyncio.CancelledError()), patience=LONG)
    assert guard.away


async def test_calls_that_fail_together_count_once(guard, clock):
    down = asyncio.Event()

    async def operation():
        await down.wait()
        raise OSError("no route")

    calls = [await begin(guard, operation) for _ in range(5)]
    down.set()
    errors = await asyncio.gather(*calls, return_exceptions=True)

    assert all(isinstance(error, StoreError) for error in errors)
    assert guard.failures == 1
    clock.now += 0.51
    assert not guard.away


async def test_a_call_from_before_the_outage_does_not_open_the_circuit_after_it(guard, clock):
    down = asyncio.Event()

    async def operation():
        await down.wait()
        raise OSError("no route")

    old = await begin(guard, operation)
    await fail(guard)
    clock.now += 1
    await guard.call(answer, patience=LONG)
    down.set()

    with pytest.raises(StoreError, match="no route"):
        await old
    assert guard.circuit == "closed"


async def test_an_outage_is_one_warning(guard, clock, caplog):
    caplog.set_level(logging.DEBUG, logger="memagent_graph.memory.circuit")
    for _ in range(2):
        for _ in range(3):
            await fail(guard)
            clock.now += 10
        await guard.call(answer, patience=LONG)
        await guard.call(answer, patience=LONG)

    of_level = {logging.WARNING: [], logging.DEBUG: []}
    for record in caplog.records:
        of_level[record.levelno].append(record.getMessage())
    assert len(of_level[logging.WARNING]) == 2
    assert "OSError: no route" in of_level[logging.WARNING][0]
    assert (
        sum(message.startswith("store unreachable: ") for message in of_level[logging.DEBUG]) == 6
    )
    assert of_level[logging.DEBUG].count("store back") == 2


def test_threads_with_event_loops_of_their_own_share_a_guard(guard, clock):
    asyncio.run(fail(guard))
    clock.now += 1
    barrier, release = threading.Barrier(8), threading.Event()
    outcomes = []

    async def operation():
        await asyncio.to_thread(release.wait, LONG)

    async def attempt():
        try:
            await guard.call(operation, patience=LONG)
        except StoreError:
            outcomes.append("refused")
            if len(outcomes) == 7:
                release.set()
        else:
            outcomes.append("answered")

    def work():
        barrier.wait()
        asyncio.run(attempt())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes == ["refused"] * 7 + ["answered"]
    assert guard.circuit == "closed"


def test_a_store_has_one_guard_which_goes_with_it():
    store = InMemoryStore()
    guard = weakref.ref(guard_of(store))

    assert guard_of(store) is guard()
    assert guard_of(InMemoryStore()) is not guard()
    del store
    gc.collect()
    assert guard() is None


class Unhashable(InMemoryStore):
    __hash__ = None


class Repeating(InMemoryStore):
    retries = 3


class NoWeakReferences:
    __slots__ = ()


@pytest.mark.parametrize("kind", [Unhashable, NoWeakReferences])
def test_a_store_that_cannot_be_a_weak_key_has_one_guard_too(kind):
    store, other = kind(), kind()

    assert guard_of(store) is guard_of(store)
    assert guard_of(store) is not guard_of(other)


async def test_metrics_are_the_counts_of_the_guard_and_of_the_store():
    assert store_metrics(InMemoryStore()) == StoreMetrics(0, 0, 0, "closed")
    store = Repeating()
    guard_of(store).retries = 1
    guard_of(store).count(pending=2, lost_races=4)
    guard_of(store).count(pending=-1)
    await fail(guard_of(store))

    assert store_metrics(store) == StoreMetrics(4, 1, 4, "open")
