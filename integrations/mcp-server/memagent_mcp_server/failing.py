"""How a tool fails: with the library's own message, for the model to act on."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from mcp.server.mcpserver.exceptions import ToolError

from memagent_graph.errors import MemAgentError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def failing_as_a_tool() -> Iterator[None]:
    """Tell the client what went wrong; of other errors the SDK tells it the tool's name alone."""
    try:
        yield
    except MemAgentError as error:
        raise ToolError(str(error)) from error
