"""Wait for a coroutine from synchronous code, on one event loop that the process shares.

A loop of its own for each call would not do: HTTP clients keep their connections on the loop
that opened them. Nor would the caller's thread: in a notebook it already runs a loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class _LoopThread:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="memagent-loop", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            with suppress(KeyboardInterrupt, SystemExit):  # whoever waits for the task gets it
                self.loop.run_forever()


_shared: _LoopThread | None = None
_lock = threading.Lock()


def _loop_thread() -> _LoopThread:
    global _shared  # noqa: PLW0603 - one loop a process is the point
    with _lock:
        if _shared is None or _shared.pid != os.getpid():  # threads do not survive a fork
            _shared = _LoopThread()
        return _shared


def wait_for(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` to its end and return its result; context variables are handed over.

    An interrupt of the waiting thread (Ctrl-C) cancels the coroutine.
    """
    shared = _loop_thread()
    if threading.current_thread() is shared.thread:
        # Something on the shared loop calls back into synchronous code: waiting here for
        # this very loop would never end.
        return _wait_elsewhere(coroutine)
    future = asyncio.run_coroutine_threadsafe(coroutine, shared.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _wait_elsewhere(coroutine: Coroutine[Any, Any, T]) -> T:
    from concurrent.futures import ThreadPoolExecutor
    from contextvars import copy_context

    with ThreadPoolExecutor(1) as executor:
        return executor.submit(copy_context().run, asyncio.run, coroutine).result()
