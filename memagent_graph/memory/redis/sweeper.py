"""Remove expired items from the indexes, once or every few minutes."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from memagent_graph.memory.redis import scripts
from memagent_graph.memory.redis.roots import list_roots
from memagent_graph.memory.redis.steps import Command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from memagent_graph.memory.redis.keys import Names
    from memagent_graph.memory.redis.steps import Steps

logger = logging.getLogger(__name__)


def sweep(names: Names) -> Steps[int]:
    """Remove expired items from all indexes.

    Returns:
        The number of items removed.
    """
    total = 0
    for root in (yield from list_roots(names)):
        index = names.index(root)
        swept = scripts.SWEPT_BY_READS
        while swept == scripts.SWEPT_BY_READS:
            (swept,) = yield [Command(scripts.SWEEP, (index, names.expiry(root)))]
            total += swept
    return total


class Sweeper:
    """A thread or task that sweeps every few minutes until it is stopped.

    Args:
        sweep: sweeps once.
        asweep: the same, for a task.
    """

    def __init__(self, sweep: Callable[[], int], asweep: Callable[[], Awaitable[int]]) -> None:
        self._sweep = sweep
        self._asweep = asweep
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._done: Future[None] = Future()
        self._task: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    def start(self, minutes: float) -> Future[None]:
        """Start the thread, if it does not run yet; the future is done when it has stopped."""
        if self._thread is not None and self._thread.is_alive():
            return self._done
        self._stopping, self._done = threading.Event(), Future()
        arguments = (minutes, self._stopping, self._done)
        self._thread = threading.Thread(
            target=self._run, args=arguments, daemon=True, name="ttl-sweeper"
        )
        stopping = self._stopping
        self._done.add_done_callback(lambda _: stopping.set())
        self._thread.start()
        return self._done

    def stop(self, seconds: float | None = None) -> bool:
        """Stop the thread, and return whether it ended within `seconds`."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def astart(self, minutes: float) -> asyncio.Task[None]:
        """Start a task of this loop, if it does not run yet."""
        if self._task is None or self._task.done():
            self._leaving = asyncio.Event()
            sweeping = self._arun(minutes, self._leaving)
            self._task = asyncio.create_task(sweeping, name="ttl_sweeper")
        return self._task

    async def astop(self, seconds: float | None = None) -> bool:
        """Stop the task, and return whether it ended within `seconds`."""
        if self._task is None:
            return True
        self._leaving.set()  # a client may take a cancellation for a lost connection
        self._task.cancel()
        await asyncio.wait([self._task], timeout=seconds)
        return self._task.done()

    def _run(self, minutes: float, stopping: threading.Event, done: Future[None]) -> None:
        while not stopping.wait(60 * minutes):
            try:
                logger.debug("The TTL sweeper swept %d items.", self._sweep())
            except Exception:
                logger.exception("The TTL sweeper failed, and will try again.")
        if not done.cancelled():
            done.set_result(None)

    async def _arun(self, minutes: float, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            await asyncio.sleep(60 * minutes)
            try:
                logger.debug("The TTL sweeper swept %d items.", await self._asweep())
            except Exception:
                logger.exception("The TTL sweeper failed, and will try again.")
