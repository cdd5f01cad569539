"""How many calls may be under way at once, over all threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_lock = threading.Lock()
"""One for all, held for microseconds: with a lock of its own an object could not be copied."""


class Turns:
    """A semaphore that event loops share. Who came first goes first.

    A turn is handed to the one who waits for it, or taken back if that one was cancelled
    meanwhile: none is lost.

    Args:
        count: calls under way at most.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Future[None]] = deque()

    @asynccontextmanager
    async def turn(self, *, queues: bool = True) -> AsyncIterator[None]:
        """Wait for a turn, and give it back at the end.

        Args:
            queues: False goes ahead at once, for callers that hold up their event loop: the turns
                that they would wait for may belong to this very loop.
        """
        if not queues:
            yield
            return
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def _enter(self) -> None:
        with _lock:
            if self._free:
                self._free -= 1
                return
            place: Future[None] = Future()
            self._waiting.append(place)
        try:
            await asyncio.wrap_future(place)
        except BaseException:
            if not place.cancel():  # it was handed over before we could decline
                self._leave()
            raise

    def _leave(self) -> None:
        while True:
            with _lock:
                if not self._waiting:
                    self._free += 1
                    return
                place = self._waiting.popleft()
            if place.set_running_or_notify_cancel():
                place.set_result(None)
                return
