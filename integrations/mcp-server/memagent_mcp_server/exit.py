"""End a process that was asked to stop."""

from __future__ import annotations

import os
from _thread import start_new_thread
from contextlib import suppress
from time import sleep
from typing import Any, NoReturn

_INTERRUPTED = 130
"""Exit code after an interrupt, as in a shell."""

UNENDED = "stopped, though a reading had not ended."
"""What is said of a stop that took longer than readings are given."""


def end(message: str = "stopped.", code: int = _INTERRUPTED) -> NoReturn:
    """End the process at once, even if threads are running: the store is consistent at any time."""
    with suppress(OSError):  # standard error may be closed
        os.write(2, f"memagent: {message}\n".encode())
    os._exit(code)


def end_within(seconds: float, *how: Any) -> None:
    """End the process after so many seconds, even if its loop, store or a file hangs.

    Args:
        seconds: time until then.
        how: the arguments of `end`.
    """

    def wait() -> None:
        sleep(seconds)
        end(*how)

    # `Thread.start` takes a lock that the main thread may hold where a signal interrupts it.
    start_new_thread(wait, ())
