"""Who may call, with what and how often; and the record of each request: log lines and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
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
from memagent_openai_server.errors import refusal, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("memagent_openai_server")

_OPEN = ("/health", "/ping")
_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)
_TENANT = re.compile(r"[A-Za-z0-9_-]{1,64}")


_MOST_BODIES = 8
"""Bodies of the largest size whose bytes may be under way together."""


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body_bytes: largest body. A million tokens are about 5 MB. All requests under way may have
            eight times as many together, and one caller may hold half of that.
        body_seconds: time in which a body must arrive, in seconds.
        requests_per_minute: requests of a key, or of an address without keys; 0 for no limit.
        readings: most model calls of readings at once. The built-in reader makes one at a time.

    Examples:
        >>> from memagent_openai_server import Limits, create_app
        >>> app = create_app(limits=Limits(requests_per_minute=60))
    """

    body_bytes: int = 32 * 2**20
    body_seconds: float = 30.0
    requests_per_minute: int = 0
    readings: int = 64


def load_keys(text: str, *, where: str) -> dict[str, str]:
    """Return tenants by key, of lines (or parts between commas) with a name and a key."""
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
    """Return the keys in a file; see `load_keys`."""
    try:
        return load_keys(file.read_text("utf-8"), where=str(file))
    except (OSError, UnicodeDecodeError) as error:
        message = (
            f"The keys in {file} cannot be read ({type(error).__name__}): check the path and "
            "its permissions."
        )
        raise ConfigurationError(message) from error


class Metrics:
    """Metrics of a server; none distinguishes tenants."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        labels = ("path", "how", "status")
        self.requests = count("memagent_requests", "Requests, passed on, read or neither.", labels)
        self.seconds = Histogram(
            "memagent_request_seconds",
            "Time that a request took.",
            labels[:2],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.abandoned = count("memagent_requests_abandoned", "Requests whose client left.")
        self.under_way = gauge("memagent_requests_under_way", "Requests now.")
        self.readings = gauge("memagent_readings_under_way", "Readings now.")
        self.chunks = count("memagent_chunks_read", "Chunks read.")
        self.tokens = count("memagent_tokens", "Tokens of readings.", ["kind"])
        tasks = gauge("memagent_tasks", "Tasks of the event loop.")
        tasks.set_function(lambda: len(asyncio.all_tasks()))


@dataclass
class Record:
    """One request. Of what the client sent, it only has the name of the key's tenant.

    Attributes:
        id: id of the request, which is also sent to the client.
        address: address of the client; not logged.
        path: route; None if there is none.
        how: "passed" or "read"; "" for neither.
        error: type of the error that ended it.
    """

    id: str
    metrics: Metrics
    address: str = ""
    tenant: str | None = None
    path: str | None = None
    how: str = ""
    status: int = 0
    chunks: int = 0
    error: str | None = None
    started: float = field(default_factory=perf_counter)

    @property
    def caller(self) -> str:
        """The tenant or, without keys, the client's address."""
        return self.tenant or self.address

    def failed(self, error: Exception) -> None:
        """Record the error that ended the request; for an unexpected one, also log its place."""
        self.error = type(error).__name__
        if isinstance(error, ClientDisconnect | OSError):
            self.error = "ClientDisconnect"
            self.metrics.abandoned.inc()
            return
        why = refusal(error)
        if why.said is not None:
            fields = {"id": self.id, "said": why.said, "reason": str(why)}
            log.warning("upstream", extra={"fields": fields})
        if why.code == "internal_error":
            frames = traceback.extract_tb(error.__traceback__)
            where = [f"{frame.filename}:{frame.lineno}" for frame in frames[-8:]]
            log.error("error", extra={"fields": {"id": self.id, "error": self.error, "at": where}})

    def close(self) -> None:
        """Log the request, and update the metrics."""
        path, seconds = self.path or "none", perf_counter() - self.started
        self.metrics.requests.labels(path, self.how, str(self.status)).inc()
        self.metrics.seconds.labels(path, self.how).observe(seconds)
        found = {
            "id": self.id,
            "tenant": self.tenant,
            "path": path,
            "status": self.status,
            "how": self.how or None,
            "chunks": self.chunks or None,
            "error": self.error,
            "seconds": round(seconds, 3),
        }
        fields = {name: value for name, value in found.items() if value is not None}
        log.info("request", extra={"fields": fields})


class JsonLines(logging.Formatter):
    """Formats a log record as a line of JSON.

    Errors are logged with their type only, because their messages may have a client's text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        own = record.name == log.name
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "event": record.getMessage() if own or not record.args else str(record.msg),
            **getattr(record, "fields", {}),
        }
        if not own:
            line["logger"] = record.name
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = record.exc_info[0].__name__
        return json.dumps(line)


def log_to_stderr() -> None:
    """Write JSON lines of this server, and warnings of other modules, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    log.setLevel(logging.INFO)


class Access:
    """Middleware that checks and records requests; no `keys`, or no `hosts`, accept all."""

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
        self._bytes = BytesUnderWay(_MOST_BODIES * limits.body_bytes)
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it here."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(f"req_{uuid4().hex}", self._metrics, address_of(scope))
        state = scope.setdefault("state", {})
        state["record"] = record
        # A trailing slash is removed without a redirect, which clients follow without body and key.
        scope = {**scope, "path": scope["path"].rstrip("/") or "/"}

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                named = (b"x-request-id", record.id.encode())
                message = {**message, "headers": [*message.get("headers", ()), named]}
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
