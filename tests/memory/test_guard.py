import asyncio
import gc
import json
import logging
import sqlite3
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
from memagent_graph.memory.store import StoreGuard, guard_of

SOON = 0.02
LONG = 30


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


def at_once():
    raise OSError("no route")


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


async def cancel(call):
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize(("operation", "told"), [
    (failing(RedisConnectionError("refused")), ": ConnectionError: refused"),
    (failing(sqlite3.OperationalError("locked")), ": OperationalError: locked"),
    (failing(RuntimeError("loop")), ": RuntimeError: loop"),
    (failing(TimeoutError()), ": TimeoutError"),
    (failing(asyncio.CancelledError()), "cancelled the operation"),
    (failing(StoreError("Redis refused: OOM.")), "Redis refused: OOM."),
    (at_once, ": OSError: no route"), (never, r"did not answer within 0\.02 s"),
])  # fmt: skip
async def test_a_failure_opens_the_circuit_and_keeps_its_message(guard, operation, told):
    with pytest.raises(StoreError, match=f"{told}.?$"):
        await guard.call(operation, patience=SOON if operation is never else LONG)

    assert guard.away
    assert guard.failures == 1


@pytest.mark.parametrize("error", [
    MemoryNotFoundError("no such memory"), MemoryConflictError("moved on"),
    BadRecordError("cut short", key="k"), StoreRefusedError("out of memory"),
])  # fmt: skip
async def test_an_error_that_is_an_answer_closes_the_circuit(guard, clock, error):
    await fail(guard)
    clock.now += 1

    assert await fail(guard, error) is error
    assert guard.circuit == "closed"


@pytest.mark.parametrize(
    "error", [ConfigurationError("bad"), TypeError("bad"), json.JSONDecodeError("bad", "", 0)]
)
async def test_a_programming_error_passes_and_says_nothing_of_the_store(guard, clock, error):
    with pytest.raises(type(error)) as caught:
        await guard.call(failing(error), patience=LONG)
    assert caught.value is error
    assert guard.circuit == "closed"

    await fail(guard)
    clock.now += 1
    with pytest.raises(type(error)):
        await guard.call(failing(error), patience=LONG)
    assert (guard.circuit, guard.away) == ("half-open", False)


async def test_pauses_double_up_to_five_seconds_and_begin_anew_after_an_answer(guard, clock):
    for pause in (0.5, 1, 2, 4, *[5] * 1_500):  # days
        await fail(guard)
        for seconds, state in ((pause - 0.01, ("open", True)), (0.02, ("half-open", False))):
            clock.now += seconds
            assert (guard.circuit, guard.away) == state

    assert (await guard.call(answer, patience=LONG), guard.circuit) == ("answer", "closed")
    await fail(guard)
    clock.now += 0.51
    assert not guard.away


async def test_one_caller_at_a_time_tests_whether_the_store_is_back(guard, clock):
    await fail(guard)
    clock.now += 1
    there = asyncio.Event()
    test = await begin(guard, there.wait)

    assert (guard.away, guard.circuit) == (True, "half-open")
    clock.now += 100
    with pytest.raises(StoreError, match="unreachable"):
        await guard.call(answer, patience=LONG)

    there.set()
    await test
    assert guard.circuit == "closed"
    assert (await guard.call(answer, patience=LONG), guard.retries) == ("answer", 1)


async def test_an_operation_that_resists_cancellation_does_not_hold_up_the_caller(guard):
    release, cancelled, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    async def stubborn():
        try:
            await never()
        except asyncio.CancelledError:
            cancelled.set()
            await release.wait()
        finished.set()
        raise OSError("late")

    with pytest.raises(StoreError, match="did not answer"):
        await guard.call(stubborn, patience=SOON)

    await asyncio.wait_for(cancelled.wait(), LONG)
    gc.collect()  # nothing but the guard refers to it
    assert not finished.is_set()
    release.set()
    await asyncio.wait_for(finished.wait(), LONG)
    await asyncio.sleep(0)
    gc.collect()
    assert (reports, guard.failures) == ([], 1)


async def test_cancelling_the_caller_cancels_the_operation_and_counts_as_nothing(guard, clock):
    cancelled = asyncio.Event()

    async def operation():
        try:
            await never()
        finally:
            cancelled.set()

    await cancel(await begin(guard, operation))
    await asyncio.wait_for(cancelled.wait(), LONG)
    assert guard.circuit == "closed"

    await fail(guard)
    clock.now += 1
    await cancel(await begin(guard, never))  # it would have tested whether the store is back
    assert (guard.failures, guard.away) == (1, False)
    assert await guard.call(answer, patience=LONG) == "answer"


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
    caplog.set_level(logging.DEBUG, logger="memagent_graph.memory.store")
    for _ in range(2):
        for _ in range(3):
            await fail(guard)
            clock.now += 10
        for _ in range(2):
            await guard.call(answer, patience=LONG)

    told = [(record.levelno, record.getMessage()) for record in caplog.records]
    warnings = [text for level, text in told if level == logging.WARNING]
    debug = [text for level, text in told if level == logging.DEBUG]
    assert ["OSError: no route" in text for text in warnings] == [True, True]
    assert sum(text.startswith("store unreachable: ") for text in debug) == 6
    assert debug.count("store back") == 2


class Unhashable(InMemoryStore):
    __hash__ = None


class NoWeakReferences:
    __slots__ = ()


@pytest.mark.parametrize("steps", range(1, 5))
def test_an_event_loop_that_is_closed_within_a_call_says_nothing_of_the_store(guard, caplog, steps):
    loop = asyncio.new_event_loop()
    caller = loop.create_task(guard.call(never, patience=LONG))
    caller._log_destroy_pending = False  # as who begins it on a loop that may end
    for _ in range(steps):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()

    del caller, loop
    gc.collect()  # a coroutine that nobody awaits would warn now, which is an error here

    assert guard.circuit == "closed"
    assert not caplog.records


@pytest.mark.parametrize("kind", [InMemoryStore, Unhashable, NoWeakReferences])
def test_a_store_has_one_guard_which_goes_with_it(kind):
    store = kind()
    guard = weakref.ref(guard_of(store))

    assert guard_of(store) is guard()
    assert guard_of(kind()) is not guard()
    if kind is InMemoryStore:
        del store
        gc.collect()
        assert guard() is None
