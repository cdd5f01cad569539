"""Clients of the `openai` SDK that keep connections open between calls."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import finalize

from openai import DEFAULT_CONNECTION_LIMITS, AsyncOpenAI, DefaultAsyncHttpxClient

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from openai import AsyncStream

T = TypeVar("T")


class Connections:
    """One client per event loop, since a connection belongs to the loop that opened it.

    Args:
        kept: most connections kept open between calls; more may be open during calls.
        options: arguments of the clients: address, key, timeout.
    """

    def __init__(self, kept: int, **options: Any) -> None:
        # The class belongs to the HTTP library that this release of the SDK uses.
        self._limits = type(DEFAULT_CONNECTION_LIMITS)(max_keepalive_connections=kept)
        self._options = options
        self._opened: dict[asyncio.AbstractEventLoop, AsyncGenerator[AsyncOpenAI, None]] = {}
        self._clients: dict[asyncio.AbstractEventLoop, AsyncOpenAI] = {}
        # If this object becomes garbage, its clients must not: their sockets would be finalized
        # before the generators below could close them.
        finalize(self, self._clients.clear).atexit = False

    async def client(self) -> AsyncOpenAI:
        """Return the client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            for other in [other for other in list(self._clients) if other.is_closed()]:
                self._forget(other)
            self._opened[loop] = self._open(loop)
            await anext(self._opened[loop])
        return self._clients[loop]

    async def aclose(self) -> None:
        """Close the connections of this event loop; they also close when the loop ends."""
        opened = self._opened.get(asyncio.get_running_loop())
        if opened is not None:
            await opened.aclose()

    async def _open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[AsyncOpenAI, None]:
        """A client that lives as long as its loop: asyncio ends the generators before the loop."""
        http = DefaultAsyncHttpxClient(
            limits=self._limits,
            base_url=self._options["base_url"],
            timeout=self._options["timeout"],
        )
        async with AsyncOpenAI(**self._options, http_client=http) as client:
            self._clients[loop] = client
            try:
                yield client
            finally:
                self._forget(loop)

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        self._clients.pop(loop, None)
        self._opened.pop(loop, None)


@asynccontextmanager
async def streaming(stream: AsyncStream[T]) -> AsyncIterator[AsyncStream[T]]:
    """Close `stream` at the end, and release the generators that it reads from.

    The SDK does not end them if a stream fails or is abandoned. Held by the error's traceback and
    by a cycle, they would be left to the garbage collector, which may run in another thread.
    """
    try:
        async with stream:
            yield stream
    except Exception as error:
        clear_frames(error.__traceback__)
        raise
    finally:
        vars(stream).clear()
