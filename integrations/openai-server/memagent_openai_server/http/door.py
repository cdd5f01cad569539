"""Check and record all requests: keys, host names, origins, content types and rates."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from memagent_graph.errors import ConfigurationError
from memagent_openai_server.http.bodies import BytesUnderWay
from memagent_openai_server.http.limits import Limits, RateLimit
from memagent_openai_server.http.records import Metrics, Record
from memagent_openai_server.http.refusals import Refusal, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER_BYTES = 64 * 2**10
"""Largest headers of a request, in bytes."""

_OPEN = ("/health", "/ping")
_WITH_BODY = ("POST", "PUT")
_WRONG_KEYS = 20
"""Wrong keys of one address per minute: enough for mistakes, too few for guessing."""
_MOST_ADMITTED = 10_000
"""Pairs of tenant and address that are remembered; the oldest are dropped."""
_NETWORK_BITS = 64
"""Bits of an IPv6 address that identify a client, which has all addresses below them."""
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHORTEST_KEY = 16


def load_keys(text: str, *, where: str) -> dict[str, str]:
    """Return tenants by key.

    Args:
        text: a tenant's name and a key per line, or between commas.
        where: origin of the text, for messages.

    Raises:
        ConfigurationError: A line is not of this form.
    """
    keys = {}
    for number, line in enumerate(re.split(r"[\n,]", text), 1):
        tenant, _, key = line.strip().partition(" ")
        key = key.strip()
        if not tenant or tenant.startswith("#"):
            continue
        if not _TENANT.fullmatch(tenant) or len(key) < _SHORTEST_KEY or not key.isascii():
            message = (
                f"{where}, line {number}: write a name of letters, digits, - and _, a space, and "
                f"a key of {_SHORTEST_KEY} or more ASCII characters."
            )
            raise ConfigurationError(message)
        keys[key] = tenant
    return keys


def keys_from_file(file: Path) -> dict[str, str]:
    """Return the keys in a file; see `load_keys`.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return load_keys(file.read_text("utf-8"), where=str(file))
    except (OSError, UnicodeDecodeError) as error:
        message = (
            f"The keys in {file} cannot be read ({type(error).__name__}): check the path and "
            "its permissions."
        )
        raise ConfigurationError(message) from error


class Door:
    """Middleware around the whole application, which checks and records requests.

    Args:
        app: the application inside.
        keys: tenants by key; empty accepts all requests.
        hosts: host names under which this server may be called; empty for any.
        origins: sites whose pages may call it, "*" for all.
        limits: limits on clients.
        metrics: the server's metrics.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Mapping[str, str],
        hosts: Sequence[str],
        origins: Sequence[str] = (),
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._tenants = {_digest(key): tenant for key, tenant in keys.items()}
        self._hosts = frozenset(hosts)
        self._origins = frozenset(origins)
        self._rate = RateLimit(limits.requests_per_minute)
        self._wrong = RateLimit(_WRONG_KEYS, "wrong keys")
        self._admitted: dict[tuple[str, str], bool] = {}
        self._bytes = BytesUnderWay(limits.bytes_under_way)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(f"req_{uuid4().hex}", self._metrics, _address(scope))
        state = scope.setdefault("state", {})
        state["record"] = record
        head = scope["method"] == "HEAD"
        # A trailing slash is removed without a redirect, which clients follow without body and key.
        scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        if head:
            scope["method"] = "GET"

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {"headers": [], **message}
                MutableHeaders(scope=message)["x-request-id"] = record.id
            elif head:
                message = {**message, "body": b""}
            await send(message)

        try:
            with self._metrics.under_way.track_inprogress():
                self._let_in(Request(scope), record)
                with self._bytes.hold(record.caller) as state["held"]:
                    await self._app(scope, receive, told)
        except ClientDisconnect as error:
            record.failed(error)
        except Exception as error:  # noqa: BLE001 - this is the outermost place
            record.failed(error)
            found = refusal(error)
            if not record.status:
                response = JSONResponse(found.body, found.status, found.headers)
                await response(scope, receive, told)
        finally:
            route = scope.get("route")
            record.path = getattr(route, "path", None)
            record.close()

    def _let_in(self, request: Request, record: Record) -> None:
        if sum(len(name) + len(value) for name, value in request.headers.raw) > HEADER_BYTES:
            raise Refusal(431, "The headers are too long: send fewer.", code="headers_too_long")
        if self._hosts and _host(request) not in self._hosts:
            raise Refusal(421, "This server does not serve that host name.", code="unknown_host")
        origin = request.headers.get("origin")
        if origin is not None and not {origin, "*"} & self._origins:
            # A page of another site cannot read the answer, but could change memories and spend.
            raise Refusal(403, "Pages of that origin may not call this server.", code="origin")
        if self._tenants and request.url.path not in _OPEN:
            record.tenant = self._tenant(request, record.address)
        if request.url.path not in _OPEN:
            self._rate.take(record.caller)
        kind = request.headers.get("content-type", "").partition(";")[0]
        if request.method in _WITH_BODY and kind.strip().lower() != "application/json":
            # A page can send other types, or none, to any site without a preflight.
            raise Refusal(415, "The content must be application/json.", code="content_type")

    def _tenant(self, request: Request, address: str) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # All keys are compared in constant time, so that timing reveals nothing about them.
        found = [t for digest, t in self._tenants.items() if hmac.compare_digest(digest, given)]
        if scheme.lower() == "bearer" and found:
            self._admit(address, found[0])
            return found[0]
        if key:
            self._wrong.take(address)
        raise Refusal(
            401,
            "A key of this server is needed: Authorization: Bearer KEY.",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )

    def _admit(self, address: str, tenant: str) -> None:
        """Accept a right key, unless its address is guessing keys and has not used it before."""
        here = (address, tenant)
        if self._admitted.pop(here, None) is None:
            self._wrong.check(address)
        self._admitted[here] = True
        if len(self._admitted) > _MOST_ADMITTED:
            del self._admitted[next(iter(self._admitted))]


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _address(scope: Scope) -> str:
    """The address of a client, without the part that it can choose."""
    address: str = scope["client"][0] if scope.get("client") else ""
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), _NETWORK_BITS), strict=False))


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return re.sub(r":\d*$", "", host).lower()
