"""Who may come in: keys, hosts, kinds of content; and what is written down of everyone."""

from __future__ import annotations

import hmac
import re
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from memagent_graph.errors import ConfigurationError
from memagent_openai_server.limits import Limits, RateLimit
from memagent_openai_server.records import Metrics, Record
from memagent_openai_server.refusals import Refusal, refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER_BYTES = 64 * 2**10
"""Longest headers."""

_OPEN = ("/health",)
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
        limits: how often.
        metrics: of the server.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Mapping[str, str],
        hosts: Sequence[str],
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._tenants = {_digest(key): tenant for key, tenant in keys.items()}
        self._hosts = frozenset(hosts)
        self._rate = RateLimit(limits.requests_per_minute)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(f"req_{uuid4().hex}", self._metrics)
        scope.setdefault("state", {})["record"] = record

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message = {
                    **message,
                    "headers": [*message["headers"], (b"x-request-id", record.id.encode())],
                }
            await send(message)

        try:
            with self._metrics.under_way.track_inprogress():
                await self._let_in(Request(scope), record)
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

    async def _let_in(self, request: Request, record: Record) -> None:
        if sum(len(name) + len(value) for name, value in request.headers.raw) > HEADER_BYTES:
            raise Refusal(431, "The headers are too long.", code="headers_too_long")
        if self._hosts and _host(request) not in self._hosts:
            raise Refusal(421, "This server does not go by that name.", code="unknown_host")
        if self._tenants and request.url.path not in _OPEN:
            record.tenant = self._tenant(request)
        client = request.client.host if request.client else ""
        if request.url.path not in _OPEN:
            self._rate.take(record.tenant or client)
        kind = request.headers.get("content-type", "application/json").partition(";")[0]
        if request.method == "POST" and kind.strip().lower() != "application/json":
            # A page in somebody's browser can send other kinds anywhere without asking.
            raise Refusal(415, "The content must be application/json.", code="content_type")

    def _tenant(self, request: Request) -> str:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        given = _digest(key.strip())
        # All are compared, and in constant time: the time taken tells nothing of a key.
        found = [t for digest, t in self._tenants.items() if hmac.compare_digest(digest, given)]
        if scheme.lower() != "bearer" or not found:
            raise Refusal(
                401,
                "A key of this server is needed: Authorization: Bearer KEY.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return found[0]


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _host(request: Request) -> str:
    host = request.headers.get("host", "")
    return re.sub(r":\d*$", "", host).lower()
