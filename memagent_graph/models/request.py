"""Requests to OpenAI-compatible servers, and the fields that a server refuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from langchain_core.messages import convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from langchain_core.messages import BaseMessage

_SDK_OPTIONS = ("stream", "extra_headers", "extra_query", "extra_body", "timeout")
"""Arguments of the SDK's `create` that it handles itself; all others are fields of the request."""
_OPTIONAL = ("temperature", "top_p", "seed", "max_tokens", "stop")
_NOT_TAKEN = (400, 422, 501)
_SCHEMA = re.compile(r"response_format|schema|grammar|structured|guided", re.IGNORECASE)
"""Words by which servers' errors name a constraint to a JSON schema."""


def build_request(
    messages: Sequence[BaseMessage],
    fields: Mapping[str, Any],
    *,
    refused: AbstractSet[str] = frozenset(),
    logprobs: bool = False,
    return_token_ids: bool = False,
) -> dict[str, object]:
    """Return the arguments of the SDK's `chat.completions.create`.

    Args:
        messages: the conversation.
        fields: fields of the request, by the SDK's names; None leaves one out. The field
            `json_schema` is a named schema that the reply should match.
        refused: fields that the server refuses.
        logprobs: whether to request the log-probability of each token.
        return_token_ids: whether to request the token ids of prompt and completion (vLLM).
    """
    request = dict(fields)
    if logprobs:
        request["logprobs"] = True
    if return_token_ids:
        request["extra_body"] = {**(request.get("extra_body") or {}), "return_token_ids": True}
    if "max_tokens" in refused:
        request["max_completion_tokens"] = request.get("max_tokens")
    if (schema := request.pop("json_schema", None)) is not None and "json_schema" not in refused:
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    wanted = {
        name: value for name, value in request.items() if value is not None and name not in refused
    }
    return wanted | {"messages": convert_to_openai_messages(messages)}


def as_extra_body(request: Mapping[str, Any]) -> dict[str, Any]:
    """Move the fields of a request to `extra_body`, which the SDK sends unchanged.

    The SDK transforms all other fields by their types, which takes much of the processor time of a
    short call.
    """
    options = {name: value for name, value in request.items() if name in _SDK_OPTIONS}
    body = {name: value for name, value in request.items() if name not in _SDK_OPTIONS}
    body |= options.get("extra_body") or {}
    return {**options, "model": request["model"], "messages": [], "extra_body": body}


def refused_field(error: Exception, request: Mapping[str, object]) -> str | None:
    """Return the optional field that the server refused; None if the error is another.

    Args:
        error: the server's error.
        request: the request, with the fields that it was built from.
    """
    # OpenAI's reasoning models refuse a temperature, and have another name for `max_tokens`. Some
    # servers do not support schemas.
    if "json_schema" in request and "response_format" in request and _SCHEMA.search(str(error)):
        return "json_schema" if getattr(error, "status_code", None) in _NOT_TAKEN else None
    name = getattr(error, "param", None)
    refused = getattr(error, "code", None) in ("unsupported_parameter", "unsupported_value")
    return name if refused and name in _OPTIONAL and name in request else None


def tool_fields(tools: Sequence[Any], tool_choice: str | None) -> dict[str, object]:
    """Return the request fields that offer tools.

    Args:
        tools: anything that LangChain converts to an OpenAI tool.
        tool_choice: "auto", "any", "required", "none", the name of a tool, or None.
    """
    fields: dict[str, object] = {"tools": [convert_to_openai_tool(tool) for tool in tools]}
    if tool_choice in ("auto", "none", "required"):
        fields["tool_choice"] = tool_choice
    elif tool_choice == "any":  # LangChain's word
        fields["tool_choice"] = "required"
    elif tool_choice:
        fields["tool_choice"] = {"type": "function", "function": {"name": tool_choice}}
    return fields
