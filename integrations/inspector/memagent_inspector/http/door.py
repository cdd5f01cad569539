"""Who may come in, and what a browser may do with our pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from memagent_graph.cli.server import methods_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # "no-referrer" would make browsers send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Door:
    """Refuses what a web page of another site can have a browser send, and bounds what ours can do.

    Args:
        app: what is inside.
        hosts: names under which the server may be called; empty for any.
        routes: routes of the application, which say what methods a page has.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], routes: Sequence[BaseRoute]) -> None:
        self._app = app
        self._routes = routes
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers, method = Headers(scope=scope), scope["method"]
        host = headers.get("host", "")
        if self._hosts and _name(host) not in self._hosts:
            return PlainTextResponse("This server does not go by that name.", 421)
        if method not in ("GET", "HEAD", "POST"):
            allowed = methods_of(self._routes, scope) or "GET, HEAD"
            message = "Pages are fetched with GET and changed with POST."
            return PlainTextResponse(message, 405, {"allow": allowed})
        origin = headers.get("origin")
        # Browsers send the origin with every POST; what has none is no form of ours.
        if (origin is not None or method == "POST") and not _is_own(origin, host):
            return PlainTextResponse("Pages of that origin may not call this server.", 403)
        site = headers.get("sec-fetch-site", "none")
        followed = method == "GET" and headers.get("sec-fetch-dest") == "document"
        if site not in ("none", "same-origin") and not followed:
            return PlainTextResponse("Pages of other sites may only link to this one.", 403)
        return None


def _is_own(origin: str | None, host: str) -> bool:
    return origin is not None and origin.lower() in {
        f"{scheme}://{host.lower()}" for scheme in ("http", "https")
    }


def _name(host: str) -> str:
    """The host without its port, and an address of version 6 without its brackets."""
    name, colon, port = host.rpartition(":")
    whole = not colon or bool(port.strip("0123456789"))
    return (host if whole else name).strip("[]").lower()
