"""A small pool of processes that convert documents, each kept a while for the next one."""

from __future__ import annotations

import atexit
import os
import threading
from asyncio import CancelledError
from typing import TYPE_CHECKING

from memagent_graph.sync import is_cancelled
from memagent_graph.text.converter import LOOK_SECONDS, Converter, Limits

if TYPE_CHECKING:
    from pathlib import Path

    from memagent_graph.text.conversion import Converted, Reply

AT_ONCE = min(4, os.cpu_count() or 1)
"""Documents converted at the same time; others wait."""

_KEPT_SECONDS = 10.0
"""Time for which an idle process is kept, in seconds; starting one takes about a second."""

_KEPT_DOCUMENTS = 100
"""Documents after which a process is replaced."""

_KEPT_SHARE = 0.5
"""Share of the memory limit above which a process is not kept after a document."""


class Converters:
    """A pool of converting processes, at most `AT_ONCE` working at once."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._idle: dict[Converter, threading.Timer] = {}

    def convert(self, path: Path, limits: Limits) -> tuple[Reply, Converted]:
        """Convert a file in one of the processes.

        Raises:
            CancelledError: The caller no longer waits for the text.
        """
        while not self._turns.acquire(timeout=LOOK_SECONDS):
            if is_cancelled():
                raise CancelledError
        try:
            converter = self._take() or Converter()
            try:
                reply, converted = converter.convert(path, limits)
            except BaseException:
                converter.end()
                raise
            if self._is_good(converter, reply, limits):
                self._keep(converter)
            else:
                converter.end()
            return reply, converted
        finally:
            self._turns.release()

    def end(self) -> None:
        """End the idle processes."""
        while converter := self._take():
            converter.end()

    def disown(self) -> None:
        """After a fork, leave the processes to the parent."""
        for converter in self._idle:
            converter.disown()

    def _is_good(self, converter: Converter, reply: Reply, limits: Limits) -> bool:
        return (
            converter.alive
            and reply.limit is None
            and not reply.missing
            and converter.documents < _KEPT_DOCUMENTS
            and converter.memory_mb < limits.memory_mb * _KEPT_SHARE
        )

    def _take(self) -> Converter | None:
        with self._lock:
            while self._idle:
                converter, expiry = self._idle.popitem()
                expiry.cancel()
                if converter.alive:
                    return converter
                converter.end()
        return None

    def _keep(self, converter: Converter) -> None:
        expiry = threading.Timer(_KEPT_SECONDS, self._expire, [converter])
        expiry.daemon = True
        with self._lock:
            self._idle[converter] = expiry
        expiry.start()

    def _expire(self, converter: Converter) -> None:
        with self._lock:
            expired = self._idle.pop(converter, None)
        if expired is not None:
            converter.end()


shared = Converters()
"""The pool of this process."""


def _begin_anew() -> None:
    global shared
    inherited, shared = shared, Converters()
    inherited.disown()


@atexit.register
def _end() -> None:
    shared.end()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
