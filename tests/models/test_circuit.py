from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import pairwise
from types import SimpleNamespace

import pytest

from memagent_graph.errors import TransientModelError
from memagent_graph.models import server
from memagent_graph.models.server import Circuit


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


class Checks:
    """A health check that succeeds from the given time on."""

    def __init__(self, clock: Clock, up_at: float) -> None:
        self.clock = clock
        self.up_at = up_at
        self.times: list[float] = []
        self.under_way = self.most = 0

    async def __call__(self) -> bool:
        self.times.append(round(self.clock.now, 1))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return self.clock.now >= self.up_at


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(server, "monotonic", clock)
    monkeypatch.setattr(server, "asyncio", SimpleNamespace(sleep=clock.sleep))
    return clock


def fail(line, times=1):
    for _ in range(times):
        with line.under_way() as begun:
            pass
        line.record_failure(begun)


def opened(patience=600.0):
    found = Circuit(patience)
    found.record_success()
    fail(found, 3)
    return found


async def test_calls_go_through_until_the_third_failure_in_a_row(clock):
    line, checks = Circuit(600), Checks(clock, up_at=0)
    fail(line, 2)
    line.record_success()
    fail(line, 2)
    await line.passage(checks)
    assert checks.times == []

    fail(line)
    await line.passage(checks)

    assert len(checks.times) == 1


async def test_health_checks_are_made_at_growing_intervals_until_one_succeeds(clock):
    line, checks = opened(), Checks(clock, up_at=130.0)

    await line.passage(checks)
    await line.passage(checks)  # closed again: no check, no wait

    pauses = [after - before for before, after in pairwise([100.0, *checks.times])]
    assert pauses[:5] == pytest.approx([0.5, 1.0, 2.0, 4.0, 5.0], abs=0.15)
    assert max(pauses) < 5.2
    assert checks.times[-1] == pytest.approx(clock.now, abs=0.1)


async def test_of_all_calls_that_wait_one_at_a_time_makes_the_check_and_all_go_on(clock):
    line, checks = opened(), Checks(clock, up_at=130.0)

    await asyncio.gather(*(line.passage(checks) for _ in range(64)))

    assert checks.most == 1
    assert len(checks.times) < 12


async def test_a_call_that_is_cancelled_within_its_check_leaves_the_next_check_to_others(clock):
    line, checks = opened(), Checks(clock, up_at=105.0)

    checking = asyncio.Event()

    async def never():
        checking.set()
        await asyncio.Event().wait()

    hanging = asyncio.create_task(line.passage(never))
    await checking.wait()
    hanging.cancel()
    await line.passage(checks)

    assert checks.times


async def test_a_server_is_waited_for_from_the_moment_it_was_missed_and_then_no_longer(clock):
    line, checks = opened(patience=60.0), Checks(clock, up_at=1e9)

    with pytest.raises(TransientModelError, match="for 60 s, so"):
        await line.passage(checks)
    gave_up = clock.now
    with pytest.raises(TransientModelError, match="base URL"):
        await line.passage(checks)

    assert clock.now == gave_up
    clock.now = checks.up_at
    await line.passage(checks)  # back after all


async def test_calls_under_way_speak_for_a_server_until_more_calls_failed_in_a_row(clock):
    line, checks = Circuit(600), Checks(clock, up_at=0)
    line.record_success()

    with ExitStack() as under_way:
        for _ in range(5):
            under_way.enter_context(line.under_way())
        for _ in range(5):
            fail(line)
            await line.passage(checks)
        assert checks.times == []

        fail(line)
        await line.passage(checks)

    assert len(checks.times) == 1


async def test_a_server_whose_calls_all_break_at_once_is_down(clock):
    line, checks = Circuit(600), Checks(clock, up_at=0)
    line.record_success()

    calls = [ExitStack() for _ in range(64)]
    begun = [call.enter_context(line.under_way()) for call in calls]
    for call, then in zip(calls, begun, strict=True):
        call.close()
        line.record_failure(then)
    await line.passage(checks)

    assert len(checks.times) == 1


async def test_a_server_that_goes_down_among_answers_is_down_before_any_call_is_repeated(clock):
    line, checks = Circuit(600), Checks(clock, up_at=0)
    line.record_success()

    calls = [ExitStack() for _ in range(16)]
    begun = [call.enter_context(line.under_way()) for call in calls]
    calls[0].close()
    line.record_success()
    begun[0] = calls[0].enter_context(line.under_way())
    for call, then in zip(calls, begun, strict=True):
        call.close()
        line.record_failure(then)
    await line.passage(checks)

    assert len(checks.times) == 1


async def test_what_breaks_after_others_that_began_with_it_were_answered_says_nothing(clock):
    line, checks = Circuit(600), Checks(clock, up_at=1e9)

    for _ in range(3):
        calls = [ExitStack() for _ in range(32)]
        begun = [call.enter_context(line.under_way()) for call in calls]
        for number, (call, then) in enumerate(zip(calls, begun, strict=True)):
            call.close()
            if number < 28:
                line.record_success()
            else:
                line.record_failure(then)
    await line.passage(checks)

    assert (clock.now, checks.times) == (100.0, [])


async def test_calls_to_a_server_that_never_answered_are_made_and_wait_for_nothing(clock):
    line, checks = Circuit(600), Checks(clock, up_at=1e9)
    fail(line, 64)

    await line.passage(checks)

    assert (clock.now, checks.times) == (100.0, [])
