"""Requests to OpenAI-compatible servers, and the fields that a server refuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from langchain_core.messages import convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool

from memagent_graph.models.failures import error_text, is_too_long

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from langchain_core.messages import BaseMessage

_SDK_OPTIONS = ("stream", "extra_headers", "extra_query", "extra_body", "timeout")
"""Arguments of the SDK's `create` that it handles itself; all others are fields of the request."""
_AFTER = r"(?:: |[`'\"“\[({.]|\b(?:parameter|field|argument|property|supplied|name|key)s?\W{1,4})"
"""Signs that a word is the name of a field."""
_OPTIONAL = {  # fields that a request can do without, and how errors write them
    name: re.compile(written, re.IGNORECASE)
    for name, written in {
        "temperature": r"\btemperature\b",
        "top_p": r"\btop_?p\b",
        "seed": rf"{_AFTER}seed\b|\bseed[`'\"”:]|^seed\b",
        "max_tokens": r"\bmax_?tokens\b",
        "max_completion_tokens": r"\bmax_?completion_?tokens\b",
        "stop": rf"{_AFTER}stop\b|\bstop[`'\"”:]|^stop\b|\bstop_?sequences?\b",
        "stream_options": r"\bstream_?options\b",
    }.items()
}
_NOT_TAKEN = (400, 422, 501)
_UNSUPPORTED = re.compile(
    r"un(?:supported|known|recogni[sz]ed|expected)|extra(?:neous)?\b|extra_forbidden|deprecated"
    r"|(?:not|n't|no longer)(?: \w+){0,2} (?:support|permit|allow|accept|valid|recogni|avail)"
    r"|not a valid|cannot find field|does ?n[o']t (?:have|exist)|forbidden|incompatible|drop_params"
    r"|不支持",
    re.IGNORECASE,
)
"""Words by which servers' errors reject a field."""
_BAD_VALUE = re.compile(
    r"invalid|must|should|only|cannot|can't|out of|between|greater|less|positive|range|参数",
    re.IGNORECASE,
)
"""Words by which servers' errors reject the value of a field."""
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


def refused_field(
    error: Exception, request: Mapping[str, object], *, constrained: bool = False
) -> str | None:
    """Return the optional field that the server refused; None if the error is another.

    OpenAI's reasoning models refuse a temperature, and have another name for `max_tokens`. Some
    servers do not support schemas, seeds or usage in streams. Each has words of its own for it.

    Args:
        error: the server's error.
        request: the request.
        constrained: whether its `response_format` was made from `json_schema`.
    """
    text, status = error_text(error), getattr(error, "status_code", None)
    if status not in _NOT_TAKEN or is_too_long(text, status):
        return None
    if constrained and "response_format" in request and _SCHEMA.search(text):
        return "json_schema"
    named, code = getattr(error, "param", None), getattr(error, "code", None)
    unsupported = "unsupported" in str(code) or bool(_UNSUPPORTED.search(text))
    if not (unsupported or _BAD_VALUE.search(text)):
        return None
    # A limit with a wrong value is the user's to correct.
    sent = [name for name in _OPTIONAL if name in request and (unsupported or "max_" not in name)]
    if named in sent:
        return str(named)
    places = {name: _OPTIONAL[name].search(text) for name in sent}
    found = {name: match.start() for name, match in places.items() if match}
    return min(found, key=lambda name: found[name], default=None)


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
