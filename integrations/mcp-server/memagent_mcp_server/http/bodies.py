"""Limits on the time in which a body must arrive, and on the size of all bodies."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from mcp.server.streamable_http_manager import DEFAULT_MAX_REQUEST_BODY_SIZE
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_SECONDS = 30.0
"""Time in which the body of a request must arrive, in seconds."""
MOST_BYTES = 64 * 2**20
"""Total size of the bodies of requests under way."""


class Bodies:
    """Reads each body before the application sees its request, and refuses slow or large ones.

    Args:
        app: the application inside.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        messages: deque[Message] = deque()
        length = 0

        async def replay() -> Message:
            return messages.popleft() if messages else await receive()

        try:
            refusal: ASGIApp | None = None
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    while not refusal and (not messages or messages[-1].get("more_body", False)):
                        messages.append(await receive())
                        if messages[-1]["type"] == "http.disconnect":
                            return  # nobody waits for an answer
                        size = len(messages[-1].get("body", b""))
                        length += size
                        self._held += size
                        refusal = self._refusal(length)
            except TimeoutError:
                refusal = PlainTextResponse("The body took too long: send it again.", 408)
            await (refusal or self._app)(scope, replay, send)
        finally:
            self._held -= length

    def _refusal(self, length: int) -> PlainTextResponse | None:
        if length > DEFAULT_MAX_REQUEST_BODY_SIZE:
            return PlainTextResponse("The body is too large: send less.", 413)
        if self._held > MOST_BYTES:
            return PlainTextResponse("Too many bodies are under way: try again later.", 503)
        return None
