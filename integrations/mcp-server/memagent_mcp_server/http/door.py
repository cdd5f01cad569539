"""Check requests: host name, origin, content type and token."""

from __future__ import annotations

import hmac
import re
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive, Scope, Send


class Door:
    """Refuses requests that web pages in a browser could send.

    Args:
        app: the application inside.
        hosts: host names under which the server may be called; empty for any.
        origins: sites whose pages may call it, "*" for all.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if self._hosts and _name(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("This server does not serve that host name.", 421)
        origin = headers.get("origin")
        allowed = origin is None or bool({origin, "*"} & self._origins) or _is_own(origin, scope)
        if not allowed:
            return PlainTextResponse("Pages of that origin may not call this server.", 403)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json":
            # A page can send other types, or none, to any site without a preflight.
            return PlainTextResponse("The content must be application/json.", 415)
        return None


class TokenDoor:
    """Refuses requests without the token.

    Args:
        app: the application inside.
        token: the bearer token that clients must send.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] == "http":
            sent = Headers(scope=scope).get("authorization", "")
            scheme, _, given = sent.partition(" ")  # the scheme in any case: RFC 7235, section 2.1
            given_bytes = given.strip(" ").encode("latin-1")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given_bytes, self._token):
                refusal = PlainTextResponse(
                    "Send the token: Authorization: Bearer ...",
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_own(origin: str, scope: Scope) -> bool:
    """Whether a page of this machine, at the port that the server itself listens on, calls it."""
    _, port = scope.get("server") or ("", None)
    names = ("localhost", "127.0.0.1", "[::1]")
    return port is not None and origin in {f"http://{name}:{port}" for name in names}


def _name(host: str) -> str:
    """The host without port, and without the brackets of an IPv6 address."""
    return re.sub(r":\d*$", "", host).strip("[]").lower()
