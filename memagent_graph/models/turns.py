"""Limit the calls under way at once, over all threads and event loops."""

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
"""One lock for all, held for microseconds: objects with a lock of their own cannot be copied."""


class Turns:
    """A first-in, first-out semaphore that event loops share.

    A turn is handed to the first waiting call, or to the next one if that was cancelled
    meanwhile, so that none is lost.

    Args:
        count: most calls under way at once.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[Future[None]] = deque()

    @asynccontextmanager
    async def turn(self, *, queues: bool = True) -> AsyncIterator[None]:
        """Wait for a turn, and return it at the end.

        Args:
            queues: False does not wait. It is for callers that block their event loop, since the
                turns that they would wait for may be held by calls of that loop.
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
            if not place.cancel():  # the turn was handed over already
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
