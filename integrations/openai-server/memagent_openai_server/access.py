"""Who may call, with what and how often: keys, host names, origins, content types and rates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from starlette.requests import ClientDisconnect, Request

from memagent_graph.errors import ConfigurationError
from memagent_http.access import (
    SHORTEST,
    Keys,
    RateLimit,
    address_of,
    check_address,
    check_json,
    check_origin,
)
from memagent_http.bodies import BytesUnderWay
from memagent_openai_server.errors import refuse
from memagent_openai_server.records import Metrics, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OPEN = ("/health", "/ping")
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body_bytes: largest body. A million tokens are about 5 MB.
        body_seconds: time in which a body must arrive, in seconds.
        bytes_under_way: total size of the bodies of all requests under way; one caller may hold
            half of it.
        requests_per_minute: requests of a key, or of an address without keys; 0 for no limit.
        readings: most model calls of readings at once. The built-in reader makes one at a time.

    Raises:
        ConfigurationError: `bytes_under_way` is less than twice `body_bytes`.

    Examples:
        >>> from memagent_openai_server import Limits, create_app
        >>> app = create_app(limits=Limits(requests_per_minute=60))
    """

    body_bytes: int = 32 * 2**20
    body_seconds: float = 30.0
    bytes_under_way: int = 256 * 2**20
    requests_per_minute: int = 0
    readings: int = 64

    def __post_init__(self) -> None:
        if self.bytes_under_way < 2 * self.body_bytes:
            message = (
                f"Bodies of {self.body_bytes} bytes need at least {2 * self.body_bytes} bytes "
                f"under way, twice as many, but only {self.bytes_under_way} are allowed: raise "
                "bytes_under_way (--megabytes-under-way)."
            )
            raise ConfigurationError(message)


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
        if not _TENANT.fullmatch(tenant) or len(key) < SHORTEST or not key.isascii():
            message = (
                f"{where}, line {number}: write a name of letters, digits, - and _, a space, and "
                f"a key of {SHORTEST} or more ASCII characters."
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


class Access:
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
        self._keys = Keys(keys) if keys else None
        self._hosts = {host.strip("[]") for host in hosts}
        self._origins = origins
        self._rate = RateLimit(limits.requests_per_minute)
        self._bytes = BytesUnderWay(limits.bytes_under_way)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(f"req_{uuid4().hex}", self._metrics, address_of(scope))
        state = scope.setdefault("state", {})
        state["record"] = record
        head = scope["method"] == "HEAD"
        # A trailing slash is removed without a redirect, which clients follow without body and key.
        scope = {**scope, "path": scope["path"].rstrip("/") or "/"}

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                named = (b"x-request-id", record.id.encode())
                message = {**message, "headers": [*message.get("headers", ()), named]}
            elif head:
                message = {**message, "body": b""}
            await send(message)

        try:
            with self._metrics.under_way.track_inprogress():
                self._let_in(Request(scope), record)
                with self._bytes.hold(record.caller) as state["take"]:
                    await self._app(scope, receive, send_named)
        except ClientDisconnect as error:
            record.failed(error)
        except Exception as error:  # noqa: BLE001 - this is the outermost place
            record.failed(error)
            if not record.status:
                await refuse(error)(scope, receive, send_named)
        finally:
            record.path = getattr(scope.get("route"), "path", None)
            record.close()

    def _let_in(self, request: Request, record: Record) -> None:
        check_address(request, self._hosts)
        check_origin(request, self._origins)
        if request.scope["path"] not in _OPEN:
            if self._keys is not None:
                record.tenant = self._keys.check(request)
            self._rate.take(record.caller)
        check_json(request)
