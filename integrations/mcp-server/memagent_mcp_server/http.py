"""Streamable HTTP: on this machine for whoever is on it, elsewhere for who has the token."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp, Receive, Scope, Send

_LOCAL = ("127.0.0.1", "localhost", "::1")


def create_app(server: MCPServer[Any], *, host: str, token: str | None) -> ASGIApp:
    """The ASGI application that serves `/mcp`.

    Args:
        server: what to serve.
        host: the address that it will listen on. On a loopback address, requests with another
            `Host` or a foreign `Origin` are refused, as a browser sends them for a web page.
        token: what clients have to send as `Authorization: Bearer`.

    Raises:
        ConfigurationError: Others could connect, and there is no token.
    """
    if host not in _LOCAL and not token:
        message = (
            f"Who can reach {host} could read everything below the roots: set MEMAGENT_MCP_TOKEN, "
            "which clients then have to send."
        )
        raise ConfigurationError(message)
    app: ASGIApp = server.streamable_http_app(host=host)
    return _Guarded(app, token) if token else app


class _Guarded:
    """Lets requests through that have the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._expected):
                refusal = PlainTextResponse(
                    "Send the token: Authorization: Bearer ...",
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
