"""Answer lines on standard input that are no messages, and continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError
from pydantic import ValidationError

if TYPE_CHECKING:
    from types import TracebackType


class Messages:
    """The messages of a client; a line that is none is answered with an error of JSON-RPC.

    Args:
        lines: stream of messages, and of exceptions where a line is no message.
        answers: stream of the server's messages.
    """

    def __init__(self, lines: Any, answers: Any) -> None:
        self._lines = lines
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lines, name)

    async def receive(self) -> SessionMessage:
        """Return the next message."""
        while isinstance(found := await self._lines.receive(), Exception):
            answer = JSONRPCError(jsonrpc="2.0", id=None, error=_error(found))
            await self._answers.send(SessionMessage(answer))
        message: SessionMessage = found
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._lines.aclose()


def _error(found: Exception) -> ErrorData:
    """The error for a line, without its text."""
    is_json = isinstance(found, ValidationError) and found.errors()[0]["type"] != "json_invalid"
    if is_json:
        message = "The line is JSON, but no message of JSON-RPC 2.0."
        return ErrorData(code=INVALID_REQUEST, message=message)
    message = "The line is not JSON: send one message of JSON-RPC 2.0 a line."
    return ErrorData(code=PARSE_ERROR, message=message)
