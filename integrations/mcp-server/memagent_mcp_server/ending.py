"""End a process that was asked to stop."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import NoReturn

_INTERRUPTED = 130
"""Exit code after an interrupt, as in a shell."""


def end() -> NoReturn:
    """End the process at once, even if threads are running: the store is consistent at any time."""
    with suppress(OSError):  # standard error may be closed
        os.write(2, b"memagent: stopped.\n")
    os._exit(_INTERRUPTED)


def end_within(seconds: float) -> None:
    """End the process after so many seconds, even if its loop, store or a file hangs."""
    late = threading.Timer(seconds, end)
    late.daemon = True
    late.start()
