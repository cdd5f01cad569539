"""The parent's side of a process that converts documents: asks it, watches it and ends it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from asyncio import CancelledError
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic
from typing import IO, cast

from memagent_graph.config import from_environment
from memagent_graph.sync import in_thread, is_cancelled
from memagent_graph.text.conversion import PAGE_BYTES, Converted, Limit, Reply, Request

LOOK_SECONDS = 0.02
"""Interval of checks on a process's memory, and on whether the caller still waits, in seconds."""

_START_SECONDS = 120.0
"""Time in which a process must have started, in seconds."""

_LONGEST_LINE = 1 << 16
"""Longest header line of a reply, in bytes."""

_ENVIRONMENT = (
    "DYLD_LIBRARY_PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "PYTHONHOME",
    "PYTHONUTF8",
    "SYSTEMROOT",
)
"""Variables that Python may need to start. All others, keys and tokens included, are not passed."""

_MB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits on converting one document.

    Attributes:
        seconds: wall-clock time, in seconds.
        memory_mb: memory of the process, in MiB; its libraries alone take about 200.
        output_mb: text in UTF-8, in MiB.
    """

    seconds: float = 120
    memory_mb: float = 1024
    output_mb: float = 64

    @classmethod
    def from_environment(cls) -> Limits:
        """Return the limits of the environment, or else the defaults.

        Raises:
            ConfigurationError: `MEMAGENT_CONVERSION_SECONDS`, `_MEMORY_MB` or `_OUTPUT_MB` is not a
                number above 0.
        """
        found = {
            name: from_environment(f"MEMAGENT_CONVERSION_{name.upper()}", default)
            for name, default in asdict(cls()).items()
        }
        return cls(**found)


class Converter:
    """A process that converts one document after the other.

    Attributes:
        documents: number of documents that it was asked to convert.
    """

    def __init__(self) -> None:
        import psutil

        self.documents = 0
        # Without `-P`, a module in the current folder could take the place of any other.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "memagent_graph.text.conversion"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(),
        )
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._replies = cast("IO[bytes]", self._process.stdout)
        self._seen = psutil.Process(self._process.pid)

    def convert(self, path: Path, limits: Limits) -> tuple[Reply, Converted]:
        """Convert a file. A process that exceeds a limit is ended.

        Raises:
            CancelledError: The caller no longer waits for the text.
        """
        if not self.documents:
            hello, _ = self._hear(replace(limits, seconds=_START_SECONDS))
            if hello.failed:
                return hello, Converted()
        self.documents += 1
        memory, output = int(limits.memory_mb * _MB), int(limits.output_mb * _MB)
        request = Request(str(path), limits.seconds, memory, output)
        with suppress(OSError):  # if it has ended, `_hear` notices
            self._requests.write(json.dumps(asdict(request)).encode() + b"\n")
            self._requests.flush()
        return self._hear(limits)

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def memory_mb(self) -> float:
        """Resident memory of the process, in MiB."""
        import psutil

        try:
            return self._seen.memory_info().rss / _MB
        except psutil.Error:  # it has ended
            return 0

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._close()

    def disown(self) -> None:
        """After a fork, leave the process to the parent."""
        self._process.returncode = 0  # there is nothing to wait for
        self._close()

    def _close(self) -> None:
        for pipe in (self._requests, self._replies):
            with suppress(OSError):  # unwritten requests no longer matter
                pipe.close()

    def _hear(self, limits: Limits) -> tuple[Reply, Converted]:
        heard = in_thread(lambda: self._receive(int(limits.output_mb * _MB)))
        until = monotonic() + limits.seconds
        exceeded: Limit | None = None
        while exceeded is None and not wait([heard], LOOK_SECONDS).done:
            if is_cancelled():
                raise CancelledError
            if monotonic() > until:
                exceeded = "time"
            elif self.memory_mb > limits.memory_mb:
                exceeded = "memory"
        if exceeded is None:
            with suppress(EOFError, ValueError, TypeError):  # cut off, or not a reply
                return heard.result()
        self.end()
        if exceeded is not None:
            return Reply(limit=exceeded), Converted()
        status = self._process.returncode
        if status == -signal.SIGINT:  # Ctrl-C reaches it too, unlike the threads of a graph
            raise CancelledError
        return Reply(error=f"its process ended with status {status}"), Converted()

    def _receive(self, most: int) -> tuple[Reply, Converted]:
        line = self._replies.readline(_LONGEST_LINE)
        if not line:
            raise EOFError
        reply = Reply(**json.loads(line))
        size = reply.size + reply.pages * PAGE_BYTES
        content = self._replies.read(min(size, most)) if size else b""
        if len(content) < size:
            raise EOFError
        return reply, Converted.decode(content[: reply.size], content[reply.size :])


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    places = [str(Path(place).absolute()) for place in sys.path if place]
    package = str(Path(__file__).parents[2])
    if package not in places:  # the package was imported from the current folder
        places.insert(0, package)
    return {**kept, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
