"""Shared parts of commands that serve with uvicorn and h11, which their distributions install."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from memagent_graph.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, MutableMapping

HEADER_SECONDS = 30.0
"""Within which the headers of a request must have come: uvicorn waits for ever."""
HEADER_BYTES = 64 * 2**10
"""Longest headers."""


class HeaderTimeout(H11Protocol):
    """Hangs up on a client that does not finish the headers of a request."""

    _hanging_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, unless they are complete."""
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._hanging_up is None:
            self._hanging_up = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()
            self._hanging_up = None


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, so that it can be announced.

    Args:
        host: name or address to listen on.
        port: 0 takes a free one.

    Raises:
        ConfigurationError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number else error
        message = f"{host}:{port} cannot be listened on ({why}): choose another --port or --host."
        raise ConfigurationError(message) from error


_BACKLOG = 2048
"""Connections that wait to be accepted."""


def url_of(listening: socket.socket, host: str) -> str:
    """Return the URL of a socket that `listen` bound for a host."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


def methods_of(routes: Iterable[Any], scope: MutableMapping[str, Any]) -> str:
    """Return the methods of all routes of a request's path, for the header `Allow`.

    Args:
        routes: routes of Starlette or FastAPI; folders of files among them are left out.
        scope: the request.
    """
    from starlette.routing import Match, Mount

    pages = [route for route in routes if not isinstance(route, Mount)]
    found = [
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(page.matches({**scope, "method": method})[0] is Match.FULL for page in pages)
    ]
    return ", ".join(found)
