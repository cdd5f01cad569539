"""Clients of the `openai` SDK, which keep their connections open from one call to the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, OpenAI

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Connections:
    """One synchronous client, and an asynchronous one for each event loop.

    A connection belongs to the event loop that opened it.

    Args:
        options: of the clients: address, key, timeout.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._client: OpenAI | None = None
        self._opened: dict[asyncio.AbstractEventLoop, AsyncGenerator[AsyncOpenAI, None]] = {}
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}

    def client(self) -> OpenAI:
        """The client for synchronous code."""
        if self._client is None:
            self._client = OpenAI(**self._options)
        return self._client

    async def async_client(self) -> AsyncOpenAI:
        """The client for the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            for other in [other for other in list(self._clients) if other.is_closed()]:
                self._forget(other)
            self._opened[loop] = self._open(loop)
            await anext(self._opened[loop])
        return self._clients[loop]

    def close(self) -> None:
        """Close the connections of synchronous code."""
        if self._client is not None:
            self._client.close()
            self._client = None

    async def aclose(self) -> None:
        """Close the connections of this event loop, as the loop itself does when it ends."""
        opened = self._opened.get(asyncio.get_running_loop())
        if opened is not None:
            await opened.aclose()

    async def _open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[AsyncOpenAI, None]:
        """A client until its loop ends: asyncio finishes a loop's generators before closing it."""
        async with AsyncOpenAI(**self._options) as client:
            self._clients[loop] = client
            try:
                yield client
            finally:
                self._forget(loop)

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clients.pop(loop, None)
        self._opened.pop(loop, None)
