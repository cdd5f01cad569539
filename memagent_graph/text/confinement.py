"""Limits that the process converting documents sets on itself.

The kernel's limits hold where the parent's would come too late or not at all: for a document that
allocates gigabytes at once, or after the parent was killed. macOS ignores the limit on memory, and
Windows has none of these limits; there, only the parent's checks hold.
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
"""Prefixes of audit events that mean a connection or another process."""

_GRACE_SECONDS = 5
"""Seconds after the time limit: the parent ends the process earlier, and can say why."""

_GRACE_MEMORY = 1.25
"""Factor on the memory limit: the parent sees resident memory, the kernel reserved memory."""


def refuse_connections_processes_and_files() -> None:
    """Keep libraries from connecting, starting processes or writing files from now on.

    This stops what libraries do by themselves. Code that a document smuggled into the process could
    get around the first two limits.
    """
    sys.addaudithook(_refuse)
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # pipes are not files
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _refuse(event: str, _arguments: object) -> None:
    if event.startswith(_FORBIDDEN):
        message = f"{event}: converting a document needs no connection and no other process."
        raise PermissionError(message)


@contextmanager
def limits(seconds: float, memory: int) -> Iterator[None]:
    """End this process after `seconds`, and limit it to `memory` bytes, both with some grace."""
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
