"""Run the application with uvicorn, until a signal."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import uvicorn

from memagent_openai_server.door import HEADER_BYTES
from memagent_openai_server.records import log, log_to_stderr

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI

_GRACE = 30
"""Seconds that are left for what is passed on to the model's server."""
_BACKLOG = 2048


class Server(uvicorn.Server):
    """Ends all readings when it is told to stop: each goes on, when asked again, where it was."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On the first signal, end readings and let the rest finish; on the second, end all."""
        app: FastAPI = self.config.app  # type: ignore[assignment]
        app.state.service.stopping.set()
        super().handle_exit(sig, frame)


def server(app: FastAPI, *, host: str, port: int) -> Server:
    """A server of the application; `run()` it.

    Args:
        app: from `create_app`.
        host: address to listen on.
        port: 0 takes a free one.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http="h11",  # which gives up headers without end
        h11_max_incomplete_event_size=HEADER_BYTES,
        ws="none",
        backlog=_BACKLOG,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    return Server(config)


def run(app: FastAPI, *, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    log_to_stderr()
    fields = {"url": f"http://{host}:{port}/v1", "model": app.state.service.name}
    log.info("starting", extra={"fields": fields})
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has stopped
        server(app, host=host, port=port).run()
    log.info("stopped")
