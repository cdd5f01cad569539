"""What is sent to an OpenAI-compatible server, and what a server turned out not to take."""

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
"""Arguments of the SDK's `create` that are not fields, and the one that it acts on itself."""
_OPTIONAL = ("temperature", "top_p", "seed", "max_tokens", "stop")
_NOT_TAKEN = (400, 422, 501)
_SCHEMA = re.compile(r"response_format|schema|grammar|structured|guided", re.IGNORECASE)
"""How servers name what holds a reply to a schema, when they refuse it."""


def build_request(
    messages: Sequence[BaseMessage],
    fields: Mapping[str, Any],
    *,
    refused: AbstractSet[str] = frozenset(),
    logprobs: bool = False,
    return_token_ids: bool = False,
) -> dict[str, object]:
    """Arguments of the SDK's `chat.completions.create`.

    Args:
        messages: the conversation.
        fields: of the request, by the SDK's names; those that are None are left out. The field
            `json_schema` is a schema, with a name, that the reply should match.
        refused: fields that the server does not take.
        logprobs: ask for the log-probability of each token.
        return_token_ids: ask a vLLM server for the token ids of prompt and completion.
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
    """The same request with its fields where the SDK sends them as they are.

    In their own places it first walks through them, type by type, which takes a good part of the
    processor time of a short call.
    """
    options = {name: value for name, value in request.items() if name in _SDK_OPTIONS}
    body = {name: value for name, value in request.items() if name not in _SDK_OPTIONS}
    body |= options.get("extra_body") or {}
    return {**options, "model": request["model"], "messages": [], "extra_body": body}


def refused_field(error: Exception, request: Mapping[str, object]) -> str | None:
    """The field that the server refused and that the request can do without, if that is it.

    Args:
        error: the server's.
        request: what was sent, with the fields that it was built from.
    """
    # OpenAI's reasoning models take no temperature, and call `max_tokens` by another name. Other
    # servers know no schemas for replies.
    if "json_schema" in request and "response_format" in request and _SCHEMA.search(str(error)):
        return "json_schema" if getattr(error, "status_code", None) in _NOT_TAKEN else None
    name = getattr(error, "param", None)
    refused = getattr(error, "code", None) in ("unsupported_parameter", "unsupported_value")
    return name if refused and name in _OPTIONAL and name in request else None


def tool_fields(tools: Sequence[Any], tool_choice: str | None) -> dict[str, object]:
    """Fields that offer tools; `tool_choice` is "auto", "any", "none" or a tool's name."""
    fields: dict[str, object] = {"tools": [convert_to_openai_tool(tool) for tool in tools]}
    if tool_choice in ("auto", "none", "required"):
        fields["tool_choice"] = tool_choice
    elif tool_choice == "any":  # LangChain's word
        fields["tool_choice"] = "required"
    elif tool_choice:
        fields["tool_choice"] = {"type": "function", "function": {"name": tool_choice}}
    return fields
