"""Convert the errors of model calls to ours, and repeat calls after transient ones."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from langchain_core.exceptions import ContextOverflowError

from memagent_graph.errors import ContextLengthError, ModelError, RefusalError, TransientModelError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from memagent_graph.config import ReadingConfig

_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
_TRANSIENT_NAME = re.compile(
    r"Timeout|TimedOut|Connect|Network|RemoteProtocol|IncompleteRead|ReadError|WriteError"
    r"|Overloaded|Unavailable|Throttl|RateLimit|\bAPIError$"  # the last: an error within a stream
)
_BROKEN_NAME = re.compile(
    r"Connect|Network|RemoteProtocol|IncompleteRead|ReadError|WriteError|BrokenResource"
)
_LASTING_OS_ERRORS = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_LASTING_TEXT = re.compile(
    r"certificate.verify.failed|unsupported protocol|missing an 'http", re.IGNORECASE
)
_MALFORMED_NAME = re.compile(r"JSONDecodeError|UnicodeDecodeError|ResponseValidationError")
_CONTEXT = re.compile(
    r"context[_ ](length|window|size|limit)|maximum (context|model|input|sequence)|max_model_len"
    r"|prompt is too long|input (is )?too long|longer than the (maximum|model)"
    r"|too many (input )?tokens|token count.{1,40}exceeds|tokens.{1,40}must be <=",
    re.IGNORECASE,
)
_FEWER = "fewer output tokens"
"""In vLLM's error for `max_tokens` above its window, where a shorter prompt does not help."""
_QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})
_FILTER = re.compile(r"content_filter|content management policy|safety system", re.IGNORECASE)
_LONGEST_TEXT = 600
"""Characters passed on of a provider's message."""


def model_error(error: Exception, *, served: Sequence[str] = ()) -> ModelError:
    """Return the `ModelError` whose class says what a caller can do about `error`.

    Errors are classified by status code and name, not by class, so that the clients of all
    providers are covered and none needs to be installed.

    Args:
        error: the client's error.
        served: names of the server's models, for the message of a 404.
    """
    if isinstance(error, ModelError):
        return error
    text, status = _text(error), _status(error)
    if isinstance(error, ContextOverflowError) or _is_too_long(status, text):
        return ContextLengthError(
            f"The prompt is too long for the model; lower chunk_tokens or memory_tokens. {text}"
        )
    if status is not None:
        return _from_status(status, text, error, served)
    lineage = " ".join(kind.__name__ for kind in reversed(type(error).__mro__))
    if _MALFORMED_NAME.search(lineage):
        return TransientModelError(f"The model's reply is malformed: {text}")
    if _is_transient(error, lineage, text):
        return TransientModelError(
            f"The model cannot be reached{_place(error)}: {text}",
            retry_after=_retry_after(error),
        )
    return ModelError(f"The model call failed: {type(error).__name__}: {text}")


def is_unreachable(error: Exception) -> bool:
    """Whether there is no server, or its connection broke; a slow server does not count.

    A gateway answers 502 or 503 for a server behind it that is down or starting.
    """
    status = _status(error)
    if status is not None:
        return status in (502, 503)
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lineage = " ".join(kind.__name__ for each in (error, root) for kind in type(each).__mro__)
    if "Timeout" in lineage and "ConnectTimeout" not in lineage:
        return False
    return isinstance(error, OSError) or bool(_BROKEN_NAME.search(lineage))


def _is_too_long(status: int | None, text: str) -> bool:
    if status == 429:  # noqa: PLR2004 - HTTP's number
        return "request too large" in text.lower()  # it never fits, so waiting does not help
    if status in (401, 402, 403, 404) or _FEWER in text.lower():
        return False
    return status == 413 or bool(_CONTEXT.search(text))  # noqa: PLR2004 - HTTP's number


def _is_transient(error: Exception, lineage: str, text: str) -> bool:
    if isinstance(error, _LASTING_OS_ERRORS) or _LASTING_TEXT.search(text):
        return False
    if isinstance(error, OSError) or getattr(error, "is_retryable", False):
        return True
    return bool(_TRANSIENT_NAME.search(lineage))


def _from_status(status: int, text: str, error: Exception, served: Sequence[str]) -> ModelError:
    if status in (400, 403, 422) and _FILTER.search(text):
        return RefusalError(f"The provider refused the prompt: {text}")
    if status == 402 or (status == 429 and _code(error) in _QUOTA_CODES):  # noqa: PLR2004 - HTTP's
        return ModelError(f"The account's quota is spent: check its plan and billing. {text}")
    if status in _TRANSIENT_STATUS or status >= 500:  # noqa: PLR2004 - HTTP's number
        return TransientModelError(
            f"The server answered {status}: {text}", retry_after=_retry_after(error)
        )
    if status in (401, 403):
        return ModelError(
            f"The server refused the credentials ({status}): check OPENAI_API_KEY or the "
            f"provider's own variable, and the base URL. The server said: {text}"
        )
    if status == 404:  # noqa: PLR2004 - HTTP's number
        hint = (
            f"it serves {', '.join(served)}"
            if served
            else "GET /v1/models lists its models, and the base URL usually ends in /v1"
        )
        return ModelError(
            f"The server does not know this model or path (404): {hint}. The server said: {text}"
        )
    return ModelError(f"The server answered {status}: {text}")


def _place(error: Exception) -> str:
    """The URL of the request, if the client reports it."""
    with suppress(Exception):  # some clients raise when there was no request
        url = str(error.request.url).partition("?")[0]  # type: ignore[attr-defined]
        return f" at {url.removesuffix('/chat/completions').removesuffix('/models')}"
    return ""


def _text(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if (code := _code(error)) and code not in text:
        text = f"{text} ({code})"
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    if str(root) not in text:  # SDKs say "Connection error." without the reason
        text = f"{text} ({root})"
    return text[:_LONGEST_TEXT]


def _code(error: Exception) -> str:
    code = getattr(error, "code", None)
    return str(code) if isinstance(code, str | int) else ""


def _status(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    found = [getattr(error, "status_code", None), getattr(response, "status_code", None)]
    if isinstance(response, Mapping):  # botocore
        found.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    code = _code(error)  # Google's errors, and errors within a stream
    found.append(int(code) if code.isdecimal() else None)
    return next((n for n in found if isinstance(n, int) and 400 <= n < 600), None)  # noqa: PLR2004 - HTTP's


def _retry_after(error: Exception) -> float | None:
    """The pause that the server asks for, in seconds; sent as a number or as a date."""
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    milliseconds, seconds = headers.get("retry-after-ms", ""), headers.get("retry-after", "")
    with suppress(TypeError, ValueError):
        return max(0.0, float(milliseconds) / 1000)
    with suppress(TypeError, ValueError):
        return max(0.0, float(seconds))
    with suppress(TypeError, ValueError):  # TypeError for a date without a time zone
        until = parsedate_to_datetime(seconds) - datetime.now(UTC)
        return max(0.0, until.total_seconds())
    return None


T = TypeVar("T")

_LONGEST_PAUSE = 60.0
"""Longest pause in seconds, both for a server's Retry-After and for our own interval."""


async def repeat(call: Callable[[], Awaitable[T]], config: ReadingConfig) -> T:
    """Make a call, and repeat it after transient errors, with doubling intervals.

    A server's Retry-After is waited for in addition.

    Args:
        call: makes one attempt.
        config: gives `max_attempts` and `retry_interval`, in seconds.

    Raises:
        ModelError: The call failed for good, or `max_attempts` times.
    """
    attempt = 1
    while True:
        try:
            return await call()
        except TransientModelError as error:
            if attempt == config.max_attempts:
                times = f" after {attempt} attempts" if attempt > 1 else ""
                message = f"The model call failed{times}: {error}"
                raise ModelError(message) from error
            await obey(error)
        await asyncio.sleep(min(config.retry_interval * 2 ** (attempt - 1), _LONGEST_PAUSE))
        attempt += 1


async def obey(error: TransientModelError) -> None:
    """Wait for the server's Retry-After, at most a minute."""
    if error.retry_after:
        await asyncio.sleep(min(error.retry_after, _LONGEST_PAUSE))
