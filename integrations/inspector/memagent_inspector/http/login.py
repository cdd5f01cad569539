"""The token: asked for on a page, and kept in a cookie that only this server can make."""

from __future__ import annotations

import hmac
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from memagent_graph.errors import ConfigurationError
from memagent_http.access import SHORTEST, Keys, address_of
from memagent_http.refusals import Refusal
from memagent_inspector.http.forms import form_of, place_of
from memagent_inspector.rendering import page

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_COOKIE = "memagent-inspector"
_WRONG = 10
"""Wrong tokens of one address per minute."""


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
        self._keys = Keys({token: "visitor"}, what="token", wrong=_WRONG)
        secret = token.encode("utf-8", "surrogateescape")
        self._ticket = hmac.new(secret, b"memagent-inspector", sha256).hexdigest()

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
        with suppress(Refusal):
            self._keys.check(request)
            return True
        ticket = request.cookies.get(_COOKIE, "")
        return hmac.compare_digest(ticket.encode(), self._ticket.encode())

    async def _log_in(self, request: Request) -> Response:
        leads_to = ""
        try:
            form = await form_of(request)
            leads_to = form.get("next", "/")
            self._keys.check_given(form.get("token", ""), address_of(request.scope))
        except Refusal as refusal:
            wrong = refusal.status_code == HTTPStatus.UNAUTHORIZED
            problem = "That is not the token." if wrong else str(refusal)
            return _ask(request, refusal.status_code, problem, leads_to)
        response = RedirectResponse(_inside(leads_to), 303)
        secure = request.url.scheme == "https"
        response.set_cookie(_COOKIE, self._ticket, httponly=True, samesite="strict", secure=secure)
        return response


def _ask(request: Request, status: int, problem: str = "", leads_to: str = "") -> Response:
    wanted = leads_to or (place_of(request) if request.method == "GET" else "/")
    response = page("login.html", {"problem": problem, "next": _inside(wanted)}, status=status)
    response.headers["www-authenticate"] = "Bearer"
    return response


def _inside(place: str) -> str:
    """A place on this server: what is none is its first page."""
    sound = place.startswith("/") and not place.startswith("//")
    return place if sound and place.isascii() and place.isprintable() and "\\" not in place else "/"
