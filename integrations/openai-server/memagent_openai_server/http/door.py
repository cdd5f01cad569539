"""Who may come in: keys, hosts, kinds of content; and what is written down of everyone."""

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
"""Longest headers."""

_OPEN = ("/health", "/ping")
_WITH_BODY = ("POST", "PUT")
_WRONG_KEYS = 20
"""Of one address in a minute: enough for a mistake, too few for guessing."""
_MOST_ADMITTED = 10_000
"""Tenants with their addresses that are remembered; those seen longest ago are forgotten."""
_NETWORK_BITS = 64
"""Of an IPv6 address: who has one has all that begin alike."""
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHORTEST_KEY = 16


def load_keys(text: str, *, where: str) -> dict[str, str]:
    """Keys with the tenants that they belong to.

    Args:
        text: a line, or what stands between two commas, is a tenant's name and a key.
        where: it is from, for messages.

    Raises:
        ConfigurationError: A line is something else.
    """
    keys = {}
    for number, line in enumerate(re.split(r"[\n,]", text), 1):
        tenant, _, key = line.strip().partition(" ")
        key = key.strip()
        if not tenant or tenant.startswith("#"):
            continue
        if not _TENANT.fullmatch(tenant) or len(key) < _SHORTEST_KEY or not key.isascii():
            message = (
                f"{where}, line {number}: a line is a name of letters, digits, - and _, a space, "
                f"and a key of {_SHORTEST_KEY} characters or more."
            )
            raise ConfigurationError(message)
        keys[key] = tenant
    return keys


def keys_from_file(file: Path) -> dict[str, str]:
    """As `load_keys`, from a file.

    Raises:
        ConfigurationError: It cannot be read.
    """
    try:
        return load_keys(file.read_text("utf-8"), where=str(file))
    except (OSError, UnicodeDecodeError) as error:
        message = f"The keys in {file} cannot be read: {type(error).__name__}"
        raise ConfigurationError(message) from error


class Door:
    """Middleware around the whole application.

    Args:
        app: what is inside.
        keys: whose key it is, by the key; empty lets everybody in.
        hosts: names under which this server may be called; empty for any.
        origins: sites whose pages may call it, "*" for all.
        limits: how often.
        metrics: of the server.
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
        # What ends in a slash is not redirected: a client would not send its body and key again.
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
            raise Refusal(431, "The headers are too long.", code="headers_too_long")
        if self._hosts and _host(request) not in self._hosts:
            raise Refusal(421, "This server does not go by that name.", code="unknown_host")
        origin = request.headers.get("origin")
        if origin is not None and not {origin, "*"} & self._origins:
            # A page of another site: what it may not read it could still write, and spend.
            raise Refusal(403, "Pages of that origin may not call this server.", code="origin")
        if self._tenants and request.url.path not in _OPEN:
            record.tenant = self._tenant(request, record.address)
        if request.url.path not in _OPEN:
            self._rate.take(record.caller)
        kind = request.headers.get("content-type", "").partition(";")[0]
        if request.method in _WITH_BODY and kind.strip().lower() != "application/json":
            # A page in somebody's browser can send other kinds, and none, anywhere without asking.
            raise Refusal(415, "The content must be application/json.", code="content_type")

    def _tenant(self, request: Request, address: str) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # All are compared, and in constant time: the time taken tells nothing of a key.
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
        """Let a right key in; not while somebody guesses there, unless it was in use before."""
        here = (address, tenant)
        if self._admitted.pop(here, None) is None:
            self._wrong.check(address)
        self._admitted[here] = True
        if len(self._admitted) > _MOST_ADMITTED:
            del self._admitted[next(iter(self._admitted))]


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _address(scope: Scope) -> str:
    """Where a request comes from, as far as its sender could not choose it."""
    address: str = scope["client"][0] if scope.get("client") else ""
    try:
        found = IPv6Address(address)
    except ValueError:
        return address
    return str(found.ipv4_mapped or IPv6Network((int(found), _NETWORK_BITS), strict=False))


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return re.sub(r":\d*$", "", host).lower()
