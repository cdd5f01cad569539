"""An MCP server that reads documents of any length and keeps the memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_mcp_server.roots import Roots

if TYPE_CHECKING:
    from memagent_mcp_server.server import create_server

__all__ = ["Roots", "create_server"]


def __getattr__(name: str) -> Any:
    """Import the server at its first use, since every `memagent` command loads this package."""
    if name != "create_server":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from memagent_mcp_server.server import create_server

    return create_server
