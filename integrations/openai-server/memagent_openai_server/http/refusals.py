"""Error responses to clients, in the format of OpenAI's errors."""

from __future__ import annotations

from typing import Any

from memagent_graph.errors import (
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
    ModelError,
    QuestionError,
    RefusalError,
    SourceError,
    StoreError,
)
from memagent_http.refusals import Refusal

_SERVER = 500
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def body_of(refusal: Refusal) -> dict[str, Any]:
    """Return the JSON of a response."""
    kind = "api_error" if refusal.status_code >= _SERVER else "invalid_request_error"
    kind = _TYPES.get(refusal.status_code, kind)
    error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": error}


_KNOWN: list[tuple[type[Exception], int, str]] = [
    (QuestionError, 400, "question"),
    (SourceError, 400, "document"),
    (RefusalError, 400, "content_filter"),
    (MemoryNotFoundError, 404, "memory_not_found"),
    (MemoryConflictError, 409, "memory_conflict"),
]
_OWN: list[tuple[type[Exception], int, str, str]] = [
    (StoreError, 503, "store_failed", "The memory store failed. Try again."),
    (ConfigurationError, 503, "misconfigured", "This server's budgets do not fit its model."),
    (ModelError, 502, "model_failed", "The model failed. What was read so far is kept."),
]
"""Errors of the server's own side, whose messages may name its addresses, with other messages."""


def refusal(error: Exception) -> Refusal:
    """Return the response to a client for an error."""
    if isinstance(error, Refusal):
        return error
    for kind, status, code in _KNOWN:
        if isinstance(error, kind):
            return Refusal(status, str(error), code=code)
    for kind, status, code, message in _OWN:
        if isinstance(error, kind):
            return Refusal(status, message, code=code)
    return Refusal(_SERVER, "This server has an error; see its log.", code="internal_error")


def stopping() -> Refusal:
    """Return the response for a reading that ends because the server is stopping."""
    message = "The server is stopping. Ask again: the reading continues where it stopped."
    return Refusal(503, message, code="stopping", headers={"retry-after": "5"})
