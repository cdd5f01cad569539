"""Run the application with uvicorn until a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import uvicorn

from memagent_http.server import config, serve, url_of
from memagent_openai_server.http.records import log, log_to_stderr

if TYPE_CHECKING:
    import socket
    from types import FrameType

    from fastapi import FastAPI

_GRACE = 30
"""Time for requests that are passed on to end, in seconds."""


class Server(uvicorn.Server):
    """Ends all readings when it is stopped; asked again, each continues where it was."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On the first signal, end readings and let the rest finish; on the second, end all."""
        app: FastAPI = self.config.app  # type: ignore[assignment]
        app.state.service.stopping.set()
        super().handle_exit(sig, frame)


def server(app: FastAPI, *, port: int = 0) -> Server:
    """Return a server of the application; `run()` it.

    Args:
        app: the application that `create_app` returned.
        port: port of this machine, if it is run without a socket; 0 takes a free one.
    """
    return Server(config(app, grace=_GRACE, port=port))


def run(app: FastAPI, listening: socket.socket, host: str) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        app: the application that `create_app` returned.
        listening: the socket, which several workers may share.
        host: the name or address that it listens on.
    """
    log_to_stderr()
    fields = {"url": f"{url_of(listening, host)}/v1", "models": app.state.models.names}
    log.info("starting", extra={"fields": fields})
    serve(server(app), listening)
    log.info("stopped")
