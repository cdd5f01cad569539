"""What calls do while their server is down: wait for a health check rather than hammer it."""

from __future__ import annotations

import asyncio
import threading
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from memagent_graph.errors import TransientModelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_FAILURES = 3
"""In a row, over all calls, before the server counts as down."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 5.0
"""Seconds between two health checks; the first doubles up to the other."""
_LOOK = 0.1
"""Seconds after which a waiting call looks whether another one's health check succeeded."""

_lock = threading.Lock()
"""One for all, held for microseconds: with a lock of its own an object could not be copied."""


class Circuit:
    """Opens after failures to reach a server, and closes when it answers a health check.

    While it is open, the calls that come wait, and one of them at a time makes the check, at
    growing intervals. They wait no longer than `patience` from the moment it opened, so that a
    server that is restarted costs a reading no attempts, and one that is gone for good is an
    error. A server that never answered is not waited for: its address may be wrong.

    Args:
        patience: seconds.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._answered = False
        self._failures = 0
        self._opened: float | None = None
        self._next_check = 0.0
        self._pause = _FIRST_PAUSE

    def succeeded(self) -> None:
        """The server answered, were it with an error."""
        with _lock:
            self._answered = True
            self._failures = 0
            self._opened = None

    def failed(self) -> None:
        """The server could not be reached, or the connection broke."""
        with _lock:
            self._failures += 1
            if self._opened is None and self._failures >= _FAILURES:
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
            left = opened + self._patience - monotonic() if self._answered else 0.0
            if left <= 0:
                seconds = monotonic() - opened
                message = (
                    f"The server cannot be reached, for {seconds:.0f} s now, and the call was not "
                    "made. Start it, or correct the base URL; it is asked again now and then."
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
