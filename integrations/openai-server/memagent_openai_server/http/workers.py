"""Serve in several processes on one socket."""

from __future__ import annotations

import multiprocessing
import signal
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from memagent_openai_server.http.records import log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_AGAIN_AFTER = 1.0
"""Time after which a dead worker is replaced, in seconds."""


def supervise(
    serve: Callable[[socket.socket], None], workers: int, listening: socket.socket
) -> None:
    """Serve in several processes until SIGINT or SIGTERM; a dead one is replaced.

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
        for process in running.values():
            process.terminate()

    running: dict[int, multiprocessing.process.BaseProcess] = {}
    before = {sign: signal.signal(sign, stop) for sign in (signal.SIGINT, signal.SIGTERM)}

    def start() -> None:
        process = context.Process(target=serve, args=(listening,))
        process.start()
        running[process.sentinel] = process
        if stopping:  # meanwhile
            process.terminate()

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
