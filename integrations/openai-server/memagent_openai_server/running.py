"""Run the application with uvicorn, until a signal."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from memagent_openai_server.door import HEADER_BYTES
from memagent_openai_server.records import log, log_to_stderr

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

    from fastapi import FastAPI

_GRACE = 30
"""Seconds that are left for what is passed on to the model's server."""
_BACKLOG = 2048
_HEADER_SECONDS = 30.0
"""Within which the headers of a request must have come."""


class Connection(H11Protocol):
    """Hangs up on whoever does not come to the end of a request's headers."""

    _hanging_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if they are not whole."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        else:
            self._wait_no_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._hanging_up is None:
            self._hanging_up = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()
            self._hanging_up = None


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
        http=Connection,
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
