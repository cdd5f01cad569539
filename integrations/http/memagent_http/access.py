"""Who may call: host names, origins, content types, keys, and requests per minute."""

from __future__ import annotations

import hmac
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network
from time import monotonic
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse

from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, MutableMapping

    from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine can reach."""
HEADER_BYTES = 64 * 2**10
"""Largest headers of a request, in bytes."""
SHORTEST = 16
"""Characters of a key: shorter ones can be guessed."""
_WITH_BODY = ("POST", "PUT")
_WRONG = 20
"""Wrong keys of one address per minute: enough for mistakes, too few for guessing."""
_MOST_ADMITTED = 10_000
"""Pairs of caller and address that are remembered; the oldest are dropped."""
_MOST_CALLERS = 10_000
"""Buckets kept; the least recently used are dropped."""
_NETWORK_BITS = 64
"""Bits of an IPv6 address that identify a client, which has all addresses below them."""


class Guard:
    """Middleware that checks requests, and answers refused ones in plain text."""

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

    After DNS rebinding, browsers call it by another than `hosts`; empty `hosts` allow any.
    """
    if sum(len(name) + len(value) for name, value in request.headers.raw) > HEADER_BYTES:
        raise Refusal(431, "The headers are too long: send fewer.", code="headers_too_long")
    if hosts and _name(request.headers.get("host", "")) not in hosts:
        raise Refusal(421, "This server does not serve that host name.", code="unknown_host")


def check_origin(request: Request, allowed: Collection[str], *, needed: bool = False) -> None:
    """Check whether a page of that origin may call: it could change memories, and spend.

    `allowed` may have "*" for all; if an origin is `needed`, a request without one is refused.
    """
    origin = request.headers.get("origin")
    if needed if origin is None else not {origin, "*"} & {*allowed}:
        raise Refusal(403, "Pages of that origin may not call this server.", code="origin")


def check_json(request: Request) -> None:
    """Check that a body is JSON: a page can send other types, or none, without a preflight."""
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


class RateLimit:
    """A token bucket per caller, with the requests of one minute; 0 sets no limit."""

    def __init__(self, per_minute: int, of: str = "requests") -> None:
        self._per_minute = per_minute
        self._of = of
        self._buckets: dict[str, tuple[float, float]] = {}

    def check(self, caller: str) -> float:
        """Return the number of requests left to a caller."""
        now, each = monotonic(), 60.0 / self._per_minute
        left, when = self._buckets.get(caller, (float(self._per_minute), now))
        left = min(self._per_minute, left + (now - when) / each)
        if left < 1:
            seconds = max(1, round((1 - left) * each))
            message = f"More than {self._per_minute} {self._of} a minute: try again in {seconds} s."
            headers = {"retry-after": str(seconds)}
            raise Refusal(429, message, code="rate_limit_exceeded", headers=headers)
        return left

    def take(self, caller: str) -> None:
        """Count one request."""
        if not self._per_minute:
            return
        left = self.check(caller)
        self._buckets.pop(caller, None)
        self._buckets[caller] = (left - 1, monotonic())
        if len(self._buckets) > _MOST_CALLERS:
            del self._buckets[next(iter(self._buckets))]


def address_of(scope: MutableMapping[str, Any]) -> str:
    """Return the address of a client, without the part that it can choose."""
    address: str = scope["client"][0] if scope.get("client") else ""
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), _NETWORK_BITS), strict=False))


class Keys:
    """The keys of a server.

    Args:
        names: names of callers by key.
        what: name of a key, for messages.
        wrong: wrong keys per minute after which an address must wait.
    """

    def __init__(self, names: Mapping[str, str], *, what: str = "key", wrong: int = _WRONG) -> None:
        self._names = {_digest(_encode(key)): name for key, name in names.items()}
        self._what = what
        self._wrong = RateLimit(wrong, f"wrong {what}s")
        self._admitted: dict[tuple[str, str], bool] = {}

    def check(self, request: Request) -> str:
        """Return the name of a request's caller, who sends a key as a bearer token."""
        address = address_of(request.scope)
        # The scheme is in any case: RFC 7235, section 2.1.
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = key.strip(" ").encode("latin-1")
        if scheme.lower() == "bearer" and given:
            name = self._find(given)
            if name is not None:
                self._admit(address, name)
                return name
            self._wrong.take(address)
        raise self._refusal()

    def check_given(self, key: str, address: str) -> None:
        """Check a key that a form gives, of an address that may have sent too many wrong ones."""
        self._wrong.check(address)
        if self._find(_encode(key)) is None:
            self._wrong.take(address)
            raise self._refusal()

    def _refusal(self) -> Refusal:
        return Refusal(
            401,
            f"A {self._what} of this server is needed: Authorization: Bearer {self._what.upper()}.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    def _find(self, given: bytes) -> str | None:
        """The caller of a key: all are compared, so that timing reveals nothing about them."""
        found = _digest(given)
        names = [name for digest, name in self._names.items() if hmac.compare_digest(digest, found)]
        return names[0] if names else None

    def _admit(self, address: str, name: str) -> None:
        """Accept a right key, unless its address is guessing keys and has not used it before."""
        here = (address, name)
        if self._admitted.pop(here, None) is None:
            self._wrong.check(address)
        self._admitted[here] = True
        if len(self._admitted) > _MOST_ADMITTED:
            del self._admitted[next(iter(self._admitted))]


def _encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


def _digest(key: bytes) -> str:
    return sha256(key).hexdigest()
