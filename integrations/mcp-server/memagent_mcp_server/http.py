"""Streamable HTTP: access, limits on requests, and shutdown."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp.server.transport_security import TransportSecuritySettings
from sse_starlette.sse import AppStatus
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request

from memagent_graph.errors import ConfigurationError
from memagent_http.access import (
    LOCAL,
    Guard,
    Keys,
    address_of,
    check_address,
    check_json,
    check_origin,
    plain,
)
from memagent_http.bodies import BytesUnderWay, read_body
from memagent_http.refusals import Refusal
from memagent_http.server import config
from memagent_mcp_server.exit import UNENDED, end_within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from socket import socket
    from types import FrameType

    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BODY_SECONDS = 30.0
"""Time in which the body of a request must arrive, in seconds."""
_MOST_BYTES = 64 * 2**20
"""Total size of the bodies of requests under way."""
_MOST_SESSIONS = 1000
"""Most open sessions, of 40 KB each; further clients are refused with 503."""
_IDLE_SECONDS = 1800
"""Time without a request or open stream after which a session ends, in seconds."""


def create_app(
    server: MCPServer[Any], *, host: str, token: str | None, origins: Sequence[str] = ()
) -> ASGIApp:
    """Create the ASGI application.

    Args:
        server: the MCP server.
        host: the address that it will listen on.
        token: the bearer token that clients must send. Without one, requests under another host
            name than this machine's are refused, as a browser sends them after DNS rebinding.
        origins: sites whose pages may call it, "*" for all.

    Raises:
        ConfigurationError: Other machines could connect, and there is no token.
    """
    if host not in LOCAL and not token:
        message = (
            f"Anyone who can reach {host} could read everything below the roots: set "
            "MEMAGENT_MCP_TOKEN, which clients must then send."
        )
        raise ConfigurationError(message)
    app: ASGIApp = server.streamable_http_app(
        host=host,
        max_sessions=_MOST_SESSIONS,
        session_idle_timeout=_IDLE_SECONDS,
        # `_check` does the same, and more.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    app = Bodies(app)
    if token:
        app = Guard(app, Keys({token: "client"}, what="token").check)
    if origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["mcp-session-id"],
        )
    return Guard(app, partial(_check, hosts=() if token else LOCAL, origins=origins))


def _check(request: Request, hosts: Sequence[str], origins: Sequence[str]) -> None:
    """Refuse what a page of another site could send, through a browser on this machine."""
    check_address(request, hosts)
    _, port = request.scope.get("server") or ("", None)
    own = [f"http://{name}:{port}" for name in ("localhost", "127.0.0.1", "[::1]")]
    check_origin(request, [*origins, *own])
    check_json(request)


class Bodies:
    """Reads each body before the application sees its request, and refuses slow or large ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._bytes = BytesUnderWay(_MOST_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._bytes.hold(address_of(scope)) as take:
            try:
                body = await read_body(
                    Request(scope, receive),
                    most=DEFAULT_MAX_REQUEST_BODY_SIZE,
                    seconds=_BODY_SECONDS,
                    take=take,
                )
            except ClientDisconnect:
                return
            except Refusal as refusal:
                await plain(refusal)(scope, receive, send)
                return
            read: list[Message] = [{"type": "http.request", "body": body}]

            async def replay() -> Message:
                return read.pop() if read else await receive()

            await self._app(scope, replay, send)


_GRACE = 10
"""Time for readings to end, and then for answers to be sent, in seconds."""
_LATEST = 30
"""Longest time from a signal to the end of the process, in seconds."""
_TIDYING = 1
"""Time for the store to be closed after everything else has ended, in seconds."""


class HTTPServer(uvicorn.Server):
    """Ends readings (`stop`) and open streams at a signal; clients get answers before that."""

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
