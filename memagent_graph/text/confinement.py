"""What the process that converts documents denies itself.

Limits of the kernel hold where its parent's would come too late, or no longer come: a document
that asks for gigabytes at once, a parent that was killed. macOS keeps no limit on memory, and
Windows has none of these; there the parent's looks are all that holds.
"""

from __future__ import annotations

import math
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if sys.platform != "win32":
    import resource

if TYPE_CHECKING:
    from collections.abc import Iterator

_FORBIDDEN = (
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
    "socket.",
    "subprocess.Popen",
    "webbrowser.open",
)
"""Audit events, by their beginnings, that stand for a connection or another process."""

_GRACE_SECONDS = 5
"""After the limit on time; the parent ends the process before and can say why."""

_GRACE_MEMORY = 1.25
"""Times the limit on memory: the parent sees what is resident, the kernel what is reserved."""


def refuse_connections_processes_and_files() -> None:
    """Let no library of this process connect, start a process or write a file from here on.

    It holds for what libraries do by themselves. Code that a document smuggled into the process
    could get around the first two.
    """
    sys.addaudithook(_refuse)
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # pipes are not files
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _refuse(event: str, _arguments: object) -> None:
    if event.startswith(_FORBIDDEN):
        message = f"{event}: a document is converted without connections or other processes."
        raise PermissionError(message)


@contextmanager
def limits(seconds: float, memory: int) -> Iterator[None]:
    """End this process after `seconds`, and refuse it more than `memory` bytes, with some grace."""
    if sys.platform == "win32":
        yield
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(memory * _GRACE_MEMORY)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    with suppress(OSError, ValueError):  # macOS
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    signal.alarm(math.ceil(seconds) + _GRACE_SECONDS)
    yield
    signal.alarm(0)
