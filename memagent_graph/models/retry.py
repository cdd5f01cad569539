"""Repeat model calls after transient errors."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from memagent_graph.errors import ModelError, TransientModelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from memagent_graph.config import ReadingConfig

T = TypeVar("T")

_LONGEST_PAUSE = 60.0
"""Longest pause in seconds, both for a server's Retry-After and for our own interval."""


async def repeat(call: Callable[[], Awaitable[T]], config: ReadingConfig) -> T:
    """Make a call, and repeat it after transient errors, with doubling intervals.

    A server's Retry-After is waited for in addition.

    Args:
        call: makes one attempt.
        config: gives `max_attempts` and `retry_interval`, in seconds.

    Raises:
        ModelError: The call failed for good, or `max_attempts` times.
    """
    attempt = 1
    while True:
        try:
            return await call()
        except TransientModelError as error:
            if attempt == config.max_attempts:
                times = f" after {attempt} attempts" if attempt > 1 else ""
                message = f"The model call failed{times}: {error}"
                raise ModelError(message) from error
            await obey(error)
        await asyncio.sleep(min(config.retry_interval * 2 ** (attempt - 1), _LONGEST_PAUSE))
        attempt += 1


async def obey(error: TransientModelError) -> None:
    """Wait for the server's Retry-After, at most a minute."""
    if error.retry_after:
        await asyncio.sleep(min(error.retry_after, _LONGEST_PAUSE))
