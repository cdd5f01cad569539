"""Run an application with uvicorn until a signal."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from memagent_graph.errors import ConfigurationError
from memagent_http.access import HEADER_BYTES

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp

_BACKLOG = 2048
"""Connections that wait to be accepted."""
HEADER_SECONDS = 30.0
"""Time in which the headers of a request must arrive, in seconds; uvicorn sets no limit."""
_LINGER = 5.0
"""Time for a client that is still sending to read a refusal, in seconds."""
_LINGER_BYTES = 4 * 2**20
"""Bytes that it may send in that time."""
_TOO_LONG = b"\r\n".join(
    (
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"content-type: text/plain; charset=utf-8",
        b"content-length: 25",
        b"connection: close",
        b"",
        b"The headers are too long.",
    )
)


class Connection(HttpToolsProtocol):
    """Closes the connection of a client whose headers are incomplete in time, or too long."""

    _head_open = False
    _idle_bytes = 0
    _refused = False
    _hanging_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if they are incomplete."""
        self._idle_bytes += len(data)
        if self._refused:
            if self._idle_bytes > _LINGER_BYTES:
                self.transport.close()
            return
        super().data_received(data)
        if self._idle_bytes > HEADER_BYTES:
            # The parser would keep all of an endless header.
            self._refuse()
        elif self._head_open or self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._wait_no_more()

    def on_message_begin(self) -> None:
        """Note that headers have begun."""
        self._head_open = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Pass the request on, if it has one Host header."""
        self._head_open, self._idle_bytes = False, 0
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts != 1 and self.parser.get_http_version() == "1.1":
            message = "A request of HTTP/1.1 must have one Host header."
            raise httptools.HttpParserError(message)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._idle_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _refuse(self) -> None:
        """Answer, unless an answer is under way, and close the connection after a while.

        If it were closed while the client is still sending, it would be reset, and the answer lost.
        """
        self._refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(_TOO_LONG)
        self.transport.write_eof()
        self.loop.call_later(_LINGER, self.transport.close)

    def _wait(self) -> None:
        if self._hanging_up is None:
            self._hanging_up = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._hanging_up is not None:
            self._hanging_up.cancel()
            self._hanging_up = None


def config(app: ASGIApp, *, grace: int) -> uvicorn.Config:
    """Return the settings of a server, whose requests end within `grace` seconds of a signal."""
    return uvicorn.Config(
        app,
        port=0,
        http=Connection,
        ws="none",
        backlog=_BACKLOG,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=grace,
    )


def serve(server: uvicorn.Server, listening: socket.socket) -> None:
    """Serve on a socket until SIGINT or SIGTERM."""
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again when it has stopped
        server.run([listening])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address, which can be announced; 0 is a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number else error
        message = f"{host}:{port} cannot be listened on ({why}): choose another --port or --host."
        raise ConfigurationError(message) from error


def url_of(listening: socket.socket, host: str) -> str:
    """Return the URL of a socket that `listen` bound for a host."""
    name = host.strip("[]")
    return f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}"
