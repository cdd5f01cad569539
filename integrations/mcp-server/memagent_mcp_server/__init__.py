"""Documents of any length, and the memories of them, for any MCP client."""

from memagent_mcp_server.roots import Roots
from memagent_mcp_server.server import create_server

__all__ = ["Roots", "create_server"]
