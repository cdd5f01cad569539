"""Checks of requests: headers, host names, origins and content types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach."""
HEADER_BYTES = 64 * 2**10
"""Largest headers of a request, in bytes."""
_WITH_BODY = ("POST", "PUT")


class Guard:
    """Middleware that checks requests, and answers refused ones in plain text.

    Args:
        app: the application inside.
        check: raises `Refusal` for a request that may not come in.
    """

    def __init__(self, app: ASGIApp, check: Callable[[Request], object]) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        app = self._app
        if scope["type"] == "http":
            try:
                self._check(Request(scope))
            except Refusal as refusal:
                app = plain(refusal)
        await app(scope, receive, send)


def plain(refusal: Refusal) -> PlainTextResponse:
    """Return a refusal as plain text."""
    return PlainTextResponse(str(refusal), refusal.status_code, refusal.headers)


def check_address(request: Request, hosts: Collection[str]) -> None:
    """Check the headers' length, and the host name by which a request calls the server.

    Args:
        request: the request.
        hosts: host names under which the server may be called; empty for any.

    Raises:
        Refusal: It is called by another, as browsers do after DNS rebinding.
    """
    if sum(len(name) + len(value) for name, value in request.headers.raw) > HEADER_BYTES:
        raise Refusal(431, "The headers are too long: send fewer.", code="headers_too_long")
    if hosts and _name(request.headers.get("host", "")) not in hosts:
        raise Refusal(421, "This server does not serve that host name.", code="unknown_host")


def check_origin(request: Request, allowed: Collection[str], *, needed: bool = False) -> None:
    """Check whether a page of that origin may call: it could change memories, and spend.

    Args:
        request: the request.
        allowed: origins whose pages may call the server, "*" for all.
        needed: whether a request without an origin is refused.

    Raises:
        Refusal: It may not.
    """
    origin = request.headers.get("origin")
    if needed if origin is None else not {origin, "*"} & {*allowed}:
        raise Refusal(403, "Pages of that origin may not call this server.", code="origin")


def check_json(request: Request) -> None:
    """Check that a body is JSON: a page can send other types, or none, without a preflight.

    Raises:
        Refusal: It is not.
    """
    if request.method in _WITH_BODY and content_type(request) != "application/json":
        raise Refusal(415, "The content must be application/json.", code="content_type")


def content_type(request: Request) -> str:
    """Return the content type of a request, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _name(host: str) -> str:
    """The host without port, and without the brackets of an IPv6 address."""
    name, colon, port = host.rpartition(":")
    whole = not colon or bool(port.strip("0123456789"))
    return (host if whole else name).strip("[]").lower()
