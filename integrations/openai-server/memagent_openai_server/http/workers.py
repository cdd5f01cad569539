"""Serve in several processes on one socket."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import wait
from threading import Thread, Timer
from typing import TYPE_CHECKING, Any

from memagent_openai_server.http.records import log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

_AGAIN_AFTER = 1.0
"""Time after which a dead worker is replaced, in seconds."""
_PATIENCE = 45.0
"""Time after which a worker that was asked to end is killed, in seconds; longer than its own."""


def supervise(
    serve: Callable[[socket.socket], None], workers: int, listening: socket.socket
) -> None:
    """Serve in several processes until SIGINT or SIGTERM; a dead one is replaced.

    Workers end with this process, also if it is killed.

    Args:
        serve: serves on the socket in each process; must be picklable.
        workers: number of processes.
        listening: the socket.
    """
    context = multiprocessing.get_context("spawn")
    stopping = False

    def stop(*_: Any) -> None:
        nonlocal stopping
        stopping = True
        _end([*running.values()])

    running: dict[int, multiprocessing.process.BaseProcess] = {}
    before = {sign: signal.signal(sign, stop) for sign in (signal.SIGINT, signal.SIGTERM)}

    def start() -> None:
        process = context.Process(target=_work, args=(serve, listening))
        process.start()
        running[process.sentinel] = process
        if stopping:  # meanwhile
            _end([process])

    for _ in range(workers):
        start()
    while running:
        for sentinel in wait(list(running)):
            process = running.pop(sentinel)  # type: ignore[arg-type]
            if not stopping:
                log.warning("worker ended", extra={"fields": {"code": process.exitcode}})
                time.sleep(_AGAIN_AFTER)
                start()
    for sign, handler in before.items():
        signal.signal(sign, handler)


def _end(processes: Sequence[multiprocessing.process.BaseProcess]) -> None:
    """Ask processes to end; those that do not are killed."""

    def kill() -> None:
        for process in processes:
            process.kill()

    for process in processes:
        process.terminate()
    timer = Timer(_PATIENCE, kill)
    timer.daemon = True
    timer.start()


def _work(serve: Callable[[socket.socket], None], listening: socket.socket) -> None:
    """Serve until the process ends that began this one."""
    Thread(target=_end_with_parent, daemon=True).start()
    serve(listening)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None  # noqa: S101 - this is a worker
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)
