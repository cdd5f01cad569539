"""The token: asked for on a page, and kept in a cookie that only this server can make."""

from __future__ import annotations

import hmac
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from memagent_graph.errors import ConfigurationError
from memagent_inspector.http.forms import form_of, place_of
from memagent_inspector.rendering import page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SHORTEST = 16
"""Characters of a token: shorter ones can be guessed."""
_COOKIE = "memagent-inspector"
_TRIES = 10
_SECONDS = 60.0
"""Within which an address may give so many wrong tokens."""
_MOST_ADDRESSES = 10_000


class TokenDoor:
    """Lets requests through that have the token, in a header or as the cookie that it bought.

    Args:
        app: what is inside.
        token: what has to be given.

    Raises:
        ConfigurationError: The token is too short.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        if len(token) < SHORTEST:
            message = f"MEMAGENT_INSPECT_TOKEN needs {SHORTEST} characters: openssl rand -hex 24"
            raise ConfigurationError(message)
        self._app = app
        self._token = token.encode("utf-8", "surrogateescape")
        self._ticket = hmac.new(self._token, b"memagent-inspector", sha256).hexdigest()
        self._wrong: dict[str, list[float]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or show the page that asks for the token."""
        if scope["type"] != "http" or scope["path"].startswith("/assets/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if scope["path"] == "/login" and request.method == "POST":
            await (await self._log_in(request))(scope, receive, send)
        elif self._is_known(request):
            await self._app(scope, receive, send)
        else:
            await _ask(request, 401)(scope, receive, send)

    def _is_known(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and not self._is_closed(request):
            if hmac.compare_digest(given.strip(" ").encode("latin-1"), self._token):
                return True
            self._count(request)
        ticket = request.cookies.get(_COOKIE, "")
        return hmac.compare_digest(ticket.encode(), self._ticket.encode())

    async def _log_in(self, request: Request) -> Response:
        if self._is_closed(request):
            return _ask(request, 429, "Too many wrong tokens. Wait a minute.")
        try:
            form = await form_of(request)
        except HTTPException as error:
            return _ask(request, error.status_code, error.detail)
        given = form.get("token", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._token):
            self._count(request)
            return _ask(request, 401, "That is not the token.", form.get("next", "/"))
        response = RedirectResponse(_inside(form.get("next", "/")), 303)
        secure = request.url.scheme == "https"
        response.set_cookie(_COOKIE, self._ticket, httponly=True, samesite="strict", secure=secure)
        return response

    def _is_closed(self, request: Request) -> bool:
        times = self._wrong.get(_address(request), [])
        return len(times) >= _TRIES and monotonic() - times[-_TRIES] < _SECONDS

    def _count(self, request: Request) -> None:
        times = self._wrong.pop(_address(request), [])
        self._wrong[_address(request)] = [*times, monotonic()][-_TRIES:]
        if len(self._wrong) > _MOST_ADDRESSES:
            del self._wrong[next(iter(self._wrong))]


def _ask(request: Request, status: int, problem: str = "", leads_to: str = "") -> Response:
    wanted = leads_to or (place_of(request) if request.method == "GET" else "/")
    response = page("login.html", {"problem": problem, "next": _inside(wanted)}, status=status)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _inside(place: str) -> str:
    """A place on this server: what is none is its first page."""
    sound = place.startswith("/") and not place.startswith("//")
    return place if sound and place.isascii() and place.isprintable() and "\\" not in place else "/"


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
