"""Run the application with uvicorn, until a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp

HEADER_SECONDS = 30.0
"""Within which the headers of a request must have come: uvicorn waits for ever."""
_HEADER_BYTES = 64 * 2**10
_GRACE = 5
"""Seconds that are left for answers when the server is told to stop."""


class Connection(H11Protocol):
    """Hangs up on a client that does not finish the headers of a request."""

    _hanging_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, unless they are complete."""
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
            self._hanging_up = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()
            self._hanging_up = None


def run(app: ASGIApp, *, host: str, port: int) -> None:
    """Serve the application until a signal.

    Args:
        app: from `create_app`.
        host: address to listen on.
        port: port to listen on.
    """
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=Connection,
        h11_max_incomplete_event_size=_HEADER_BYTES,
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
