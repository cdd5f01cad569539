"""Errors of tools: the library's own messages, for the model to act on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mcp.server.mcpserver.exceptions import ToolError

from memagent_graph.errors import MemAgentError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def failing_as_a_tool() -> Iterator[None]:
    """Pass our errors on to the client; for others, the SDK only reports the tool's name."""
    try:
        yield
    except MemAgentError as error:
        raise ToolError(str(error)) from error
