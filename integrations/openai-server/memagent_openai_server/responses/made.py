"""Responses as clients see them, and as they are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memagent_openai_server.responses.request import PASSED_ON

if TYPE_CHECKING:
    from memagent_http.refusals import Refusal
    from memagent_openai_server.responses.request import ResponseRequest

_PLAIN: dict[str, Any] = {
    "object": "response",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
    "usage": None,
    "user": None,
}
"""Fields and values of most responses, which are not stored."""
_USAGE = (
    ("input_tokens", None),
    ("input_tokens_details", "cached_tokens"),
    ("input_tokens_details", "cache_write_tokens"),
    ("output_tokens", None),
    ("output_tokens_details", "reasoning_tokens"),
    ("total_tokens", None),
)
"""Paths of the numbers of a usage that are stored."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons for incomplete responses, by the finish reason of the completion."""
_ECHOED = (
    *PASSED_ON,
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "previous_response_id",
    "reasoning",
    "store",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
    "user",
)
"""Fields of a request that its response repeats."""


@dataclass(frozen=True)
class Making:
    """A response that is being made.

    Attributes:
        asked: the request.
        id: id of the response.
        created: time of creation, in Unix seconds.
    """

    asked: ResponseRequest
    id: str
    created: int

    def response(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Return the response, as far as it is known."""
        asked = self.asked.model_dump(exclude_none=True)
        echoed = {name: asked[name] for name in _ECHOED if name in asked}
        own = {"id": self.id, "created_at": self.created, "model": self.asked.model}
        return {**_PLAIN, **own, **echoed, "status": status, "output": output, **more}

    def ended(
        self,
        output: list[dict[str, Any]],
        finish_reason: str | None,
        usage: dict[str, Any] | None,
        memagent: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the response after its completion has ended."""
        more: dict[str, Any] = {"usage": usage_of(usage)}
        if finish_reason in _INCOMPLETE:
            more["incomplete_details"] = {"reason": _INCOMPLETE[finish_reason]}
        if memagent is not None:
            more["memagent"] = memagent
        return self.response(status_of(finish_reason), output, **more)

    def failed(self, output: list[dict[str, Any]], why: Refusal) -> dict[str, Any]:
        """Return the response that ends with an error."""
        code = "rate_limit_exceeded" if why.status_code == 429 else "server_error"  # noqa: PLR2004 - HTTP
        return self.response("failed", output, error={"code": code, "message": str(why)})


def status_of(finish_reason: str | None) -> str:
    """Return the status of a response and its message for a completion's finish reason."""
    return "incomplete" if finish_reason in _INCOMPLETE else "completed"


def small(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response for storage: without its id and common fields, its usage as numbers."""
    kept = {
        name: value
        for name, value in response.items()
        if name != "id" and (name not in _PLAIN or value != _PLAIN[name])
    }
    if usage := kept.pop("usage", None):
        kept["usage"] = [usage[name].get(of) if of else usage[name] for name, of in _USAGE]
    return kept


def whole(key: str, kept: dict[str, Any]) -> dict[str, Any]:
    """Restore a response from what `small` returned.

    Args:
        key: the response's id.
        kept: the stored fields.
    """
    usage: dict[str, Any] = {}
    for (name, of), number in zip(_USAGE, kept.get("usage") or (), strict=False):
        if of:
            usage.setdefault(name, {})[of] = number
        else:
            usage[name] = number
    return {**_PLAIN, "id": key, **kept, "usage": usage or None}


def usage_of(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Convert the usage of a completion to that of the responses API."""
    if usage is None:
        return None
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage.get("prompt_tokens") or 0,
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens") or 0,
            "cache_write_tokens": prompt.get("cache_write_tokens") or 0,
        },
        "output_tokens": usage.get("completion_tokens") or 0,
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens") or 0},
        "total_tokens": usage.get("total_tokens") or 0,
    }
