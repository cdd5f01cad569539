"""What may come in: pages of this site alone, forms of bounded size, visitors with the token."""

from __future__ import annotations

import hmac
from contextlib import suppress
from hashlib import sha256
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from memagent_graph.errors import ConfigurationError
from memagent_http.access import (
    SHORTEST,
    Keys,
    address_of,
    check_address,
    check_origin,
    content_type,
)
from memagent_http.bodies import read_body
from memagent_http.refusals import Refusal, methods_of
from memagent_inspector.rendering import page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


def check(request: Request, hosts: Sequence[str], routes: Sequence[BaseRoute]) -> None:
    """Refuse what a page of another site can have a browser send."""
    check_address(request, hosts)
    headers, method = request.headers, request.method
    if method not in ("GET", "HEAD", "POST"):
        allowed = methods_of(routes, request.scope) or "GET, HEAD"
        message = "Pages are fetched with GET and changed with POST."
        raise Refusal(405, message, headers={"allow": allowed})
    own = [f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")]
    # Browsers send the origin with every POST; what has none is no form of ours.
    check_origin(request, own, needed=method == "POST")
    site = headers.get("sec-fetch-site", "none")
    followed = method == "GET" and headers.get("sec-fetch-dest") == "document"
    if site not in ("none", "same-origin") and not followed:
        raise Refusal(403, "Pages of other sites may only link to this one.")


class Headers:
    """Adds to all answers what bounds a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with these headers."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_guarded)


MOST_BYTES = 1 << 20
"""Of a form: the text of a memory is a few thousand."""
_SECONDS = 30.0
"""Within which a form must have come."""
_MOST_FIELDS = 20
_KIND = "application/x-www-form-urlencoded"


def place_of(request: Request) -> str:
    """A request's address within this server."""
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def fields_of(request: Request) -> dict[str, str]:
    """The fields of a request's address."""
    return _parse(request.scope["query_string"])


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; line ends are as a memory has them."""
    if content_type(request) != _KIND:
        raise Refusal(415, f"A form is sent as {_KIND}.")
    try:
        body = await read_body(request, most=MOST_BYTES, seconds=_SECONDS)
    except ClientDisconnect:
        raise Refusal(400, "The form did not come to its end.") from None
    fields = _parse(body)
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def _parse(raw: bytes) -> dict[str, str]:
    try:
        found = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    except ValueError:
        raise Refusal(400, "The fields of this request cannot be read.") from None
    return dict(found)


_COOKIE = "memagent-inspector"
_WRONG = 10
"""Wrong tokens of one address per minute."""


class TokenDoor:
    """Lets requests through that have the token, in a header or as the cookie that it bought."""

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
