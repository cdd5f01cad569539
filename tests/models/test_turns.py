from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.models.server import Turns


class Busy:
    """Counts how many are at work, over all threads."""

    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self._lock = threading.Lock()

    async def work(self, turns: Turns) -> None:
        async with turns.turn():
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
            await asyncio.sleep(0.0005)
            with self._lock:
                self.now -= 1
                self.done += 1


def test_event_loops_of_several_threads_share_the_turns_and_all_get_theirs():
    turns, busy = Turns(3), Busy()

    async def many():
        await asyncio.gather(*(busy.work(turns) for _ in range(50)))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: asyncio.run(many()), range(4)))

    assert (busy.most, busy.done) == (3, 200)


@given(count=st.integers(1, 3), cancelled=st.lists(st.booleans(), min_size=1, max_size=12))
def test_cancelled_calls_keep_no_turn_and_hold_up_nobody(count, cancelled):
    async def run():
        turns, busy = Turns(count), Busy()
        tasks = [asyncio.create_task(busy.work(turns)) for _ in cancelled]
        await asyncio.sleep(0)  # those in front have their turns, and the others wait
        for task, cancel in zip(tasks, cancelled, strict=True):
            if cancel:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return turns, busy.done

    turns, done = asyncio.run(run())

    assert done == cancelled.count(False)
    assert (turns._free, len(turns._waiting)) == (count, 0)


async def test_a_turn_that_is_handed_over_as_its_taker_is_cancelled_goes_to_the_next():
    turns = Turns(1)
    order = []

    async def take(name):
        async with turns.turn():
            order.append(name)

    async with turns.turn():
        first, second = (asyncio.create_task(take(name)) for name in ("first", "second"))
        await asyncio.sleep(0)
    first.cancel()  # the turn is its own already, and it does not know yet
    await second

    assert order == ["second"]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_turns_come_in_the_order_in_which_they_were_asked_for():
    turns, order = Turns(2), []

    async def take(number):
        async with turns.turn():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*map(take, range(20)))

    assert order == list(range(20))


async def test_who_holds_up_a_loop_goes_ahead():
    turns = Turns(1)

    async with turns.turn(), turns.turn(queues=False):
        assert turns._free == 0
    assert turns._free == 1
