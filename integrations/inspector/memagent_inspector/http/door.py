"""What web pages of other sites may have a browser send, and what a browser may do with ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

from memagent_http.access import check_address, check_origin
from memagent_http.refusals import Refusal, methods_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
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
    """Refuse what a page of another site can have a browser send.

    Args:
        request: the request.
        hosts: names under which the server may be called; empty for any.
        routes: routes of the application, which say what methods a page has.

    Raises:
        Refusal: It is not from a page of ours.
    """
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
    """Adds to all answers what bounds a browser.

    Args:
        app: what is inside.
    """

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
