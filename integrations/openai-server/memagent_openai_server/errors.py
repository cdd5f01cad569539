"""Errors as clients see them: this server's own, and those of the model's server in its words."""

from __future__ import annotations

import json
import re
from math import ceil
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from memagent_graph.errors import (
    ConfigurationError,
    ContextLengthError,
    MemAgentError,
    MemoryConflictError,
    MemoryNotFoundError,
    ModelError,
    QuestionError,
    RefusalError,
    SourceError,
    StoreError,
    TransientModelError,
)
from memagent_graph.models.failures import is_unreachable, model_error, words_of
from memagent_http.refusals import Refusal

if TYPE_CHECKING:
    from memagent_openai_server.upstream import Reply

TOO_LONG = "context_length_exceeded"
"""The code of a request that the model's context cannot hold."""
_SERVER = 500
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_LONGEST_LOOK = 2_000
"""Length of the examined part of an error, in characters."""
_LONGEST_WORD = 20
"""Characters of a word of an error that is logged: a key is longer."""
_LONGEST_WAIT = 86_400
"""Longest `retry-after`, in seconds."""
_KEY = (502, "The model's server does not take the key of this server.", "upstream_key", None)
_SPENT = "This server's account with the model's provider is used up."
_QUOTA = "insufficient_quota"
_MEANINGS: dict[int | str | None, tuple[int, str, str, str | None]] = {
    401: _KEY,
    402: (402, _SPENT, _QUOTA, None),
    _QUOTA: (429, _SPENT, _QUOTA, None),
    403: _KEY,
    404: (404, "The model's server does not have this model.", "model_not_found", "model"),
    407: _KEY,
    429: (429, "The model's server has too much to do. Try again.", "rate_limit_exceeded", None),
}
"""Status, message, code and field for the client, by status or code of the model's server."""
_WINDOW = re.compile(r"(?:maximum|context|limit)\D{0,40}(\d{3,9})\b", re.IGNORECASE)
_PATH = re.compile(r"(\w{1,64})[\w.\[\]]{0,100}")
_WORD = re.compile(r"\w{1,64}")
_LABEL = re.compile(r"(?!(?:sk|pk|key|token)_)\w{1,31}", re.IGNORECASE)
"""A type or a code of an error that is one word, and no key."""
_COMMON = frozenset({"input", "messages", "model", "n", "stop", "stream", "tools", "user"})
"""Fields whose names are also words of other errors."""


class _Said(Exception):  # noqa: N818 - what a server said
    def __init__(self, text: str, status: int, code: Any, reply: Reply) -> None:
        super().__init__(text)
        self.status_code, self.code, self.response = status, code, reply


def broken() -> Refusal:
    """Return the refusal for a response that was cut off."""
    return Refusal(502, "The model's server broke off. Try again.", code="upstream_broken")


def unanswered(error: Exception) -> Refusal:
    """Return the refusal for a request that the model's server left without an answer."""
    if _is_timeout(error):
        return Refusal(504, "The model took too long.", code="upstream_timeout")
    message = "The model's server cannot be reached. Try again."
    return Refusal(503, message, code="upstream_unreachable")


def _is_timeout(error: Exception) -> bool:
    return "Timeout" in type(error).__name__


def error_in(said: Any) -> dict[str, Any] | None:
    """Return the error in a parsed reply of the model's server, or None."""
    if not isinstance(said, dict):
        return None
    error = said.get("error")
    if isinstance(error, dict):
        return error
    if said.get("object") == "error":  # the format of older servers
        return said
    return {"message": error} if error else None


def reword(reply: Reply, payload: bytes) -> Refusal:
    """Reword an error for the client, because it may contain keys, addresses and others' text.

    The status of the reply is kept, unless it is about this server's key; `said` has its status,
    type and code for the log, and its words about this server. The `payload` is the body, or the
    data of an event.
    """
    try:
        error = error_in(json.loads(payload)) or {}
    except ValueError:
        error = {}
    text = str(error.get("message") or payload.decode(errors="replace"))[:_LONGEST_LOOK]
    status, code = reply.status_code, error.get("code")
    if reply.is_success:
        status = code if isinstance(code, int) else 502
    status = status if 400 <= status < 600 else 502  # noqa: PLR2004 - HTTP's
    found = model_error(_Said(text, status, code, reply))
    known = _known(found, status, code)
    if isinstance(found, ContextLengthError):
        window = _WINDOW.search(text)
        refusal = too_long(f" of {window[1]} tokens" if window else "", status)
    elif known is not None:
        refusal = known
    elif status >= _SERVER:
        refusal = Refusal(status, "The model's server failed. Try again.", code="upstream_failed")
    elif param := _field(error, text, json.loads(reply.asked)):
        message = f"The model's server does not take {param!r} of this request."
        refusal = Refusal(status, message, code="invalid_value", param=param)
    else:
        message = f"The model's server does not take this request ({status})."
        refusal = Refusal(status, message, code="upstream_refused")
    if isinstance(found, TransientModelError) and found.retry_after is not None:
        refusal.headers["retry-after"] = str(ceil(min(found.retry_after, _LONGEST_WAIT)))
    words = "" if isinstance(found, RefusalError) or refusal is not known else text
    refusal.said = _line(reply.status_code, error.get("type"), code, words)
    return refusal


def too_long(window: str = "", status: int = 400) -> Refusal:
    """Return the refusal of a request that the model's context cannot hold."""
    message = f"The request is longer than the model's maximum context length{window}."
    return Refusal(status, message, code=TOO_LONG, param="messages")


def _known(error: ModelError, status: int | None, code: Any) -> Refusal | None:
    """The refusal for an error that means the same for every request; None for another one."""
    if isinstance(error, RefusalError):
        message = "The model's provider refuses this text."
        return Refusal(status or 400, message, code="content_filter")
    known = _MEANINGS.get(_QUOTA if code == _QUOTA else status)
    if known is None:
        return None
    status, message, code, param = known
    return Refusal(status, message, code=code, param=param)


def _line(status: Any, kind: Any, code: Any, words: str) -> str:
    """A line for the log: no place for a client's text, a key or an address.

    `words` are those of an error about this server, and not about what the client sent.
    """
    labels = [str(label) for label in (kind, code) if label and _LABEL.fullmatch(str(label))]
    plain = [word for word in words.split() if len(word) <= _LONGEST_WORD]
    plain = [word for word in plain if word.strip(".,:;!?").isalpha()]
    return " ".join([str(status), *labels, *plain])


def _field(error: dict[str, Any], text: str, asked: dict[str, Any]) -> str | None:
    """The field of the client's request that an error is about."""
    named = str(error.get("param") or "")
    path = _PATH.fullmatch(named)
    if path and path[1] in asked:
        return named
    words = (word for word in _WORD.findall(text) if word not in _COMMON)
    return next((word for word in words if word in asked), None)


def body_of(refusal: Refusal) -> dict[str, Any]:
    """Return the JSON of a response."""
    kind = "api_error" if refusal.status_code >= _SERVER else "invalid_request_error"
    kind = _TYPES.get(refusal.status_code, kind)
    error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": error}


_OWN: tuple[tuple[type[Exception], int, str, str], ...] = (
    (QuestionError, 400, "question", ""),
    (SourceError, 400, "document", ""),
    (MemoryNotFoundError, 404, "memory_not_found", "There is no such memory: it may have expired."),
    (MemoryConflictError, 409, "memory_conflict", ""),
    (StoreError, 503, "store_failed", "The memory store failed. Try again."),
    (ConfigurationError, 503, "misconfigured", "This server's budgets do not fit its model."),
)
"""Errors with status, code, and a message in place of one that may name this server's addresses."""


def refuse(error: Exception) -> JSONResponse:
    """Return the response to a client for an error."""
    found = refusal(error)
    return JSONResponse(body_of(found), found.status_code, found.headers)


def refusal(error: Exception) -> Refusal:
    """Return the refusal that a client gets for an error."""
    if isinstance(error, Refusal):
        return error
    for kind, status, code, message in _OWN:
        if isinstance(error, kind):
            return Refusal(status, message or str(error), code=code)
    if isinstance(error, ModelError):
        return _explain(error)
    return Refusal(_SERVER, "This server has an error; see its log.", code="internal_error")


def _explain(error: ModelError) -> Refusal:
    """Return the refusal for a reading that the model failed: a reason that a client can act on."""
    root = _cause(error)
    status, code = getattr(root, "status_code", None), getattr(root, "code", None)
    known, words = _known(error, status, code), ""
    if known is not None:
        found = known
        if not isinstance(error, RefusalError):
            words = words_of(getattr(root, "body", None))
    elif not isinstance(root, MemAgentError) and (_is_timeout(root) or is_unreachable(root)):
        found = unanswered(root)
    elif "The server cut the prompt" in str(error):
        message = "The model's server cut the prompt: its context is shorter than it says."
        found = Refusal(502, message, code="upstream_cut")
    else:
        message = "The model failed. What was read so far is kept."
        found = Refusal(502, message, code="model_failed")
    found.said = _line(status or type(root).__name__, getattr(root, "type", None), code, words)
    return found


def _cause(error: Exception) -> Exception:
    """The error of the model's server, or else the first one of all."""
    seen = [error]
    while not hasattr(seen[-1], "status_code"):
        # Some that were raised again name themselves as their cause.
        causes = (seen[-1].__cause__, seen[-1].__context__)
        before = [one for one in causes if isinstance(one, Exception) and one not in seen]
        if not before:
            break
        seen.append(before[0])
    return seen[-1]


def stopping() -> Refusal:
    """Return the response for a reading that ends because the server is stopping."""
    message = "The server is stopping. Ask again: the reading continues where it stopped."
    return Refusal(503, message, code="stopping", headers={"retry-after": "5"})
