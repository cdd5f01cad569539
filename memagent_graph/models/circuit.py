"""What calls do while their server is down: wait for a health check rather than hammer it."""

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
"""Failures in a row, over all calls, before the server counts as down."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
"""Seconds between two health checks; the first doubles up to the other."""
_LOOK = 0.1
"""Seconds after which a waiting call looks whether another one's health check succeeded."""

_lock = threading.Lock()
"""One for all, held for microseconds: with a lock of its own an object could not be copied."""


class Circuit:
    """Opens after failures to reach a server, and closes when it answers a health check.

    A busy server that refuses one call in ten shows several failures in a row: refusals come
    before the replies to calls made with them, or, where a connection breaks, are noticed after
    these. So the circuit opens only when more calls failed in a row than are under way, and either
    half of all that ever were, or some that began after the last answer. When a server goes down,
    what is under way fails too.

    While it is open, the calls that come wait, and one of them at a time makes the check, at
    growing intervals. They wait no longer than `patience` from the moment it opened, so that a
    server that is restarted costs a reading no attempts, and one that is gone for good is an
    error. It does not open for a server that never answered, whose address may be wrong: there,
    a call that is made says more than one that is not.

    Args:
        patience: seconds.
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
        """Count a call as under way: to be left before its end is reported.

        What it gives is when the call began, for `failed`.
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
        """The server answered, perhaps with an error."""
        with _lock:
            self._answers += 1
            self._failures = self._fresh = 0
            self._opened = None

    def failed(self, begun: int) -> None:
        """The server could not be reached, or the connection broke, in a call that began then."""
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
        """Return when the circuit is closed.

        Args:
            is_healthy: asks the server.

        Raises:
            TransientModelError: The server is still down, and it was waited for long enough.
        """
        while (opened := self._opened) is not None:
            if self._may_check() and await self._check(is_healthy):
                return
            left = opened + self._patience - monotonic()
            if left <= 0:
                seconds = monotonic() - opened
                message = (
                    f"The server has not been reachable for {seconds:.0f} s, so the call was not "
                    "made. Start it, or correct the base URL; it is tried again every few seconds."
                )
                raise TransientModelError(message)
            await asyncio.sleep(min(_LOOK, left))

    def _may_check(self) -> bool:
        """Whether this call is the one to make the health check that is due."""
        with _lock:
            if monotonic() < self._next_check:
                return False
            self._next_check = inf
            return True

    async def _check(self, is_healthy: Callable[[], Awaitable[bool]]) -> bool:
        healthy = False
        try:
            healthy = await is_healthy()
        finally:  # also when it was cancelled: the next check is somebody else's
            if healthy:
                self.succeeded()
            else:
                with _lock:
                    self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                    self._next_check = monotonic() + self._pause
        return healthy
