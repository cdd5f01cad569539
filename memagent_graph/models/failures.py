"""What went wrong with a model call, whoever's client raised it, as one of our errors."""

from __future__ import annotations

import json
import re
from typing import Any

from memagent_graph.errors import (
    ContextLengthError,
    ModelError,
    RefusalError,
    TransientModelError,
)

_TRANSIENT_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
_TRANSIENT_NAME = re.compile(
    r"Timeout|Connect|Network|RemoteProtocol|ReadError|WriteError|Overloaded"
)
_CONTEXT = re.compile(
    r"context[_ ](length|window)|maximum (context|model|input|sequence)|prompt is too long"
    r"|too many (input )?tokens|max_model_len|input (is )?too long|longer than the (maximum|model)",
    re.IGNORECASE,
)
_TOO_MANY_REQUESTS = 429
_SPENT = re.compile(r"insufficient_quota|exceeded your current quota|billing", re.IGNORECASE)
_FILTER = re.compile(r"content_filter|content management policy|safety system", re.IGNORECASE)


def model_error(error: Exception) -> ModelError:
    """The error of our hierarchy that says what a caller can do about `error`.

    Known by status code and name rather than by class, so that the clients of all providers are
    covered and none needs to be installed.
    """
    if isinstance(error, ModelError):
        return error
    text = str(error) or type(error).__name__
    if code := getattr(error, "code", None):
        text = f"{text} ({code})"
    status = _status(error)
    if status is not None:
        return _from_status(status, text, error)
    lineage = " ".join(kind.__name__ for kind in type(error).__mro__)
    if isinstance(error, TimeoutError | ConnectionError | OSError) or _TRANSIENT_NAME.search(
        lineage
    ):
        return TransientModelError(f"The model cannot be reached: {text}")
    if isinstance(error, json.JSONDecodeError) or "APIResponseValidationError" in lineage:
        return TransientModelError(f"The model's reply is malformed: {text}")
    if _CONTEXT.search(text):
        return ContextLengthError(f"The prompt is too long for the model: {text}")
    return ModelError(f"The model call failed: {type(error).__name__}: {text}")


def _from_status(status: int, text: str, error: Exception) -> ModelError:
    if status in (400, 413, 422) and _CONTEXT.search(text):
        return ContextLengthError(f"The prompt is too long for the model: {text}")
    if _FILTER.search(text) and status < _TOO_MANY_REQUESTS:
        return RefusalError(f"The provider refused the prompt: {text}")
    if status == _TOO_MANY_REQUESTS and _SPENT.search(text):
        return ModelError(f"The account's quota is spent: {text}")
    if status in _TRANSIENT_STATUS:
        return TransientModelError(
            f"The server answered {status}: {text}", retry_after=_retry_after(error)
        )
    if status in (401, 403):
        return ModelError(
            f"The server refused the credentials ({status}): check OPENAI_API_KEY or the "
            f"provider's own variable, and the base URL. It said: {text}"
        )
    if status == 404:  # noqa: PLR2004 - HTTP's number
        return ModelError(
            f"The server does not know this model or path (404): GET /v1/models lists its "
            f"models, and the base URL usually ends in /v1. It said: {text}"
        )
    return ModelError(f"The server answered {status}: {text}")


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    for value in (getattr(error, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(value, int) and value >= 400:  # noqa: PLR2004 - HTTP's number
            return value
    return None


def _retry_after(error: Exception) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return max(0.0, float(headers.get("retry-after")))
    except (TypeError, ValueError):
        return None
