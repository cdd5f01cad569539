"""Records of requests: log lines and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import ClientDisconnect

from memagent_openai_server.errors import refusal

log = logging.getLogger("memagent_openai_server")

_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)


class Metrics:
    """Metrics of a server; none distinguishes tenants."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        count = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        how = "Requests, by path, what was done (passed on, read) and status."
        self.requests = count("memagent_requests", how, ["path", "how", "status"])
        self.seconds = Histogram(
            "memagent_request_seconds",
            "Time that a request took.",
            ["path", "how"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        left = "Requests whose client left before the end."
        self.abandoned = count("memagent_requests_abandoned", left)
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
        metrics: the server's metrics.
        address: address of the client; not logged.
        tenant: tenant of the key; None without keys.
        path: route; None if there is none.
        how: "passed" or "read"; "" for neither.
        status: HTTP status.
        chunks: number of chunks read.
        error: type of the error that ended it; None without one.
        started: time when it began, by `perf_counter`.
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

    def count_chunk(self) -> None:
        """Count a chunk that was read."""
        self.chunks += 1
        self.metrics.chunks.inc()

    def count_tokens(self, usage: dict[str, int]) -> None:
        """Count the tokens of a reading."""
        for kind in ("prompt", "completion"):
            self.metrics.tokens.labels(kind).inc(usage[f"{kind}_tokens"])

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
