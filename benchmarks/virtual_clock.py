"""An event loop whose time passes only while everything waits: hours of sleep in no time.

When nothing is left to do, its clock jumps to the next timer. Work in threads takes no time on
this clock, and the clock does not jump before it is done.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from selectors import DefaultSelector, SelectorKey
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")


class VirtualClock(asyncio.SelectorEventLoop):
    """The loop; `time()` begins at 0.

    Attributes:
        patience: real seconds that a jump waits for calls of threads that other threads started.
    """

    def __init__(self) -> None:
        self._now, self._at_work, self._served = 0.0, 0, 0
        self.patience = 0.0
        super().__init__(_Jumping(self))

    def time(self) -> float:
        return self._now

    def run_in_executor(
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        self._at_work += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._done)
        return future

    @contextmanager
    def serve_thread(self) -> Iterator[None]:
        """Count a thread as waiting for the block, which runs here, and not as at work."""
        self._served += 1
        try:
            yield
        finally:
            self._served -= 1

    def jump(self, seconds: float) -> bool:
        """Move the clock on, if no thread is at work."""
        if self._at_work > self._served:
            return False
        self._now += seconds
        return True

    def _done(self, _future: asyncio.Future[Any]) -> None:
        self._at_work -= 1


class _Jumping(DefaultSelector):
    """Jumps where another selector waits for the next timer."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        # What is ready now goes first; a thread that ends wakes the loop.
        return super().select(self._clock.patience) or (
            [] if self._clock.jump(timeout) else super().select(None)
        )


def run(work: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run a coroutine on a clock of its own: its result, and the seconds that passed there."""
    with asyncio.Runner(loop_factory=VirtualClock) as runner:
        found = runner.run(work)
        return found, runner.get_loop().time()
