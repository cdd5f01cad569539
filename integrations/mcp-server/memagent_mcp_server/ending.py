"""The end of a process that was told to stop."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import NoReturn

_INTERRUPTED = 130
"""Exit code, as of a shell's command after an interrupt."""


def end() -> NoReturn:
    """End the process, whatever its threads do: what is in the store can be left at any time."""
    with suppress(OSError):  # nobody may be left to tell
        os.write(2, b"memagent: stopped.\n")
    os._exit(_INTERRUPTED)


def end_within(seconds: float) -> None:
    """End the process then, even if its loop, its store or a file that it opens hangs."""
    late = threading.Timer(seconds, end)
    late.daemon = True
    late.start()
