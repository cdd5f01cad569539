import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.sync import in_thread, is_cancelled, to_thread, work_through

HANG = 100
"""Seconds after which a test waits no longer for what takes none."""


def wait_until_cancelled():
    until = time.monotonic() + HANG
    while not is_cancelled():
        assert time.monotonic() < until
        time.sleep(0.001)


class TestWorkThrough:
    @given(st.lists(st.tuples(st.integers(), st.booleans())), st.integers(1, 4))
    def test_results_are_in_order_and_work_is_done_where_it_may_be(self, given, at_once):
        works = [(lambda n=n: (n, threading.current_thread()), beside) for n, beside in given]

        done = work_through(works, at_once)

        assert [number for number, _ in done] == [number for number, _ in given]
        here = threading.current_thread()
        assert [thread is here for _, thread in done] == [not beside for _, beside in given]
        assert len({thread for _, thread in done} - {here}) <= at_once

    def test_where_one_raises_the_others_end_and_the_rest_does_not_begin(self):
        begun = []

        def fail():
            raise ValueError("odd")

        def go_on():
            begun.append(1)
            wait_until_cancelled()

        with pytest.raises(ValueError, match="odd"):
            work_through([(fail, False), *[(go_on, True)] * 9], 2)

        assert len(begun) <= 2
        assert not is_cancelled()

    async def test_who_cancels_the_whole_cancels_each(self):
        begun = threading.Semaphore(0)

        def go_on():
            begun.release()
            wait_until_cancelled()

        task = asyncio.create_task(to_thread(lambda: work_through([(go_on, True)] * 2, 2)))
        for _ in range(2):
            assert await asyncio.to_thread(begun.acquire, timeout=HANG)
        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task


async def test_work_that_raises_stop_iteration_keeps_nobody_waiting():
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(asyncio.wrap_future(in_thread(lambda: next(iter([])))), HANG)
