"""Run the application with uvicorn until a signal."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import uvicorn
from sse_starlette.sse import AppStatus

from memagent_http.server import config
from memagent_mcp_server.exit import UNENDED, end_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from socket import socket
    from types import FrameType

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_GRACE = 10
"""Time for readings to end, and then for answers to be sent, in seconds."""
_LATEST = 30
"""Longest time from a signal to the end of the process, in seconds."""
_TIDYING = 1
"""Time for the store to be closed after everything else has ended, in seconds."""


class HTTPServer(uvicorn.Server):
    """Ends readings and open streams when it is stopped.

    Args:
        app: the application of `create_app`.
        stop: ends the readings under way; their clients get answers before streams end.
    """

    def __init__(self, app: ASGIApp, *, stop: Callable[[], Awaitable[None]]) -> None:
        self._stop = stop
        self._leaving = asyncio.Event()
        self._signalled = False
        super().__init__(config(self._with_an_end(app), grace=_GRACE))
        # By default it ends streams at the signal, before the last answers are sent.
        AppStatus.enable_automatic_graceful_drain = False
        AppStatus.should_exit = False  # another server of this process may have ended

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at a signal."""
        self._signalled = True
        end_within(_LATEST, UNENDED)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Stop readings, then streams that never end by themselves, then the rest."""
        try:
            await asyncio.wait_for(self._stop(), _GRACE)
        except TimeoutError:
            sys.stderr.write(f"memagent: {UNENDED}\n")
        self._leaving.set()
        await super().shutdown(sockets)
        if self._signalled:  # do not wait for threads that still open a file
            end_within(_TIDYING)

    def _with_an_end(self, app: ASGIApp) -> ASGIApp:
        """The application; on shutdown, clients that only listen appear as disconnected."""

        async def ending(scope: Scope, receive: Receive, send: Send) -> None:
            async def receive_or_leave() -> Message:
                coming = asyncio.ensure_future(receive())
                leaving = asyncio.ensure_future(self._leaving.wait())
                try:
                    await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    return coming.result() if coming.done() else {"type": "http.disconnect"}
                finally:
                    coming.cancel()
                    leaving.cancel()

            listens = scope["type"] == "http" and scope["method"] == "GET"
            await app(scope, receive_or_leave if listens else receive, send)

        return ending
