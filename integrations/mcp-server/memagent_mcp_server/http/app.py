"""The ASGI application that serves `/mcp`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.transport_security import TransportSecuritySettings
from starlette.middleware.cors import CORSMiddleware

from memagent_graph.errors import ConfigurationError
from memagent_mcp_server.http.bodies import Bodies
from memagent_mcp_server.http.door import Door, TokenDoor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcp.server.mcpserver import MCPServer
    from starlette.types import ASGIApp

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach."""

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
        # `Door` checks the same, and more.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    app = Bodies(app)
    if token:
        app = TokenDoor(app, token)
    if origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["mcp-session-id"],
        )
    return Door(app, hosts=() if token else LOCAL, origins=origins)
