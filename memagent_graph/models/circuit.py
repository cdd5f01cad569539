"""A circuit breaker: while a server is down, calls wait for a health check."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from memagent_graph.errors import TransientModelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_FAILURES = 3
"""Consecutive failures, over all calls, before the server counts as down."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
"""Time between two health checks, in seconds: it doubles from the first value to the second."""
_LOOK = 0.1
"""Interval at which a waiting call looks for another call's successful check, in seconds."""

_lock = threading.Lock()
"""One lock for all, held for microseconds: objects with a lock of their own cannot be copied."""


class Circuit:
    """Opens after failures to reach a server, and closes when the server passes a health check.

    A busy server that refuses one call in ten can show several failures in a row, because refusals
    arrive before the replies to calls of the same time. So the circuit opens only if more calls
    failed in a row than are under way, and either at least half of the most that were ever under
    way at once, or at least three of them began after the last answer.

    While it is open, new calls wait, and one at a time makes the health check, at growing
    intervals. They wait for at most `patience` from the moment it opened: a server that restarts
    costs a reading no attempts, and one that is gone raises an error. It never opens for a server
    that never answered: its address may be wrong, and the error of a real call says more.

    Args:
        patience: longest wait, in seconds.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._answers = 0
        self._failures = self._fresh = 0
        self._under_way = self._most = 0
        self._opened: float | None = None
        self._next_check = 0.0
        self._pause = _FIRST_PAUSE

    @contextmanager
    def under_way(self) -> Iterator[int]:
        """Count a call as under way. Leave the context before reporting how the call ended.

        It yields a mark of when the call began, for `failed`.
        """
        with _lock:
            self._under_way += 1
            self._most = max(self._most, self._under_way)
            begun = self._answers
        try:
            yield begun
        finally:
            with _lock:
                self._under_way -= 1

    def succeeded(self) -> None:
        """Note that the server answered, even if with an error."""
        with _lock:
            self._answers += 1
            self._failures = self._fresh = 0
            self._opened = None

    def failed(self, begun: int) -> None:
        """Note that the server could not be reached, or the connection broke.

        Args:
            begun: the mark that `under_way` yielded for this call.
        """
        with _lock:
            self._failures += 1
            self._fresh += begun == self._answers
            enough = self._fresh >= _FAILURES or self._failures >= max(_FAILURES, self._most / 2)
            many = enough and self._failures > self._under_way
            if many and self._answers and self._opened is None:
                self._opened = monotonic()
                self._pause = _FIRST_PAUSE
                self._next_check = self._opened + self._pause

    async def passage(self, is_healthy: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the circuit is closed.

        Args:
            is_healthy: makes the health check.

        Raises:
            TransientModelError: The server is still down after `patience` seconds.
        """
        while (opened := self._opened) is not None:
            if self._may_check() and await self._check(is_healthy):
                return
            left = opened + self._patience - monotonic()
            if left <= 0:
                seconds = monotonic() - opened
                message = (
                    f"The server has not been reachable for {seconds:.0f} s, so the call was not "
                    "made. Start the server, or correct the base URL."
                )
                raise TransientModelError(message)
            await asyncio.sleep(min(_LOOK, left))

    def _may_check(self) -> bool:
        """Whether a health check is due, and this call has to make it."""
        with _lock:
            if monotonic() < self._next_check:
                return False
            self._next_check = inf
            return True

    async def _check(self, is_healthy: Callable[[], Awaitable[bool]]) -> bool:
        healthy = False
        try:
            healthy = await is_healthy()
        finally:  # if it was cancelled, too: another call makes the next check
            if healthy:
                self.succeeded()
            else:
                with _lock:
                    self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                    self._next_check = monotonic() + self._pause
        return healthy
