"""A request for a response as the fields of a chat completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from memagent_http.refusals import Refusal
from memagent_openai_server.requests import LOGPROBS, ReasoningOptions, TextOptions

if TYPE_CHECKING:
    from memagent_openai_server.requests import ResponseRequest

Message = dict[str, Any]


def messages_of(items: str | list[dict[str, Any]]) -> list[Message]:
    """Convert the input of a response to messages.

    Raises:
        Refusal: Chats have no place for an item of this type.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Message] = []
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "message":
            messages.append(_message(item, number))
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "function_call_output":
            output = item.get("output")
            text = output if isinstance(output, str) else _parts(output, number)
            call = str(item.get("call_id"))
            messages.append({"role": "tool", "tool_call_id": call, "content": text})
        elif kind != "reasoning":
            _refuse(number, f"items of type {str(kind)[:40]!r} are not known here")
    return messages


def chat_fields(asked: ResponseRequest, model: str) -> dict[str, Any]:
    """Convert the request for a response to the fields of a chat completion.

    Raises:
        Refusal: An item of the input is unknown, a tool or the chosen tool is not a function, or
            the format is unknown.
    """
    messages = messages_of(asked.input)
    found = {name: value for name, value in (asked.model_extra or {}).items() if value is not None}
    if asked.instructions:
        messages = [{"role": "system", "content": asked.instructions}, *messages]
    found |= {"model": model, "messages": messages}
    if asked.stream:
        found |= {"stream": True, "stream_options": {"include_usage": True}}
    if asked.tools:
        found["tools"] = [_tool(tool) for tool in asked.tools]
    if asked.top_logprobs or LOGPROBS in (asked.include or ()):
        found["logprobs"] = True
    text, reasoning = asked.text or TextOptions(), asked.reasoning or ReasoningOptions()
    same = {
        "user": asked.user,
        "max_tokens": asked.max_output_tokens,
        "top_logprobs": asked.top_logprobs or None,
        "tool_choice": _choice(asked.tool_choice),
        "response_format": _format(text.format),
        "verbosity": text.verbosity,
        "reasoning_effort": reasoning.effort,
    }
    return found | {name: value for name, value in same.items() if value is not None}


def _message(item: dict[str, Any], number: int) -> Message:
    role = item.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        _refuse(number, "role must be system, developer, user or assistant")
    content = item.get("content")
    text = content if isinstance(content, str) else _parts(content, number)
    return {"role": "system" if role == "developer" else role, "content": text}


def _parts(content: Any, number: int) -> Any:
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        _refuse(number, "content must be text or a list of parts")
    if all(isinstance(part.get("text"), str) for part in content):
        return "\n\n".join(part["text"] for part in content)
    return [_part(part, number) for part in content]


def _part(part: dict[str, Any], number: int) -> dict[str, Any]:
    kind = part.get("type")
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "refusal":
        return part
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        image = {"url": part["image_url"], "detail": part.get("detail")}
        found = {name: value for name, value in image.items() if value is not None}
        return {"type": "image_url", "image_url": found}
    if kind == "input_file" and isinstance(part.get("file_data"), str):
        file = {name: part[name] for name in ("file_data", "filename") if name in part}
        return {"type": "file", "file": file}
    return _refuse(
        number, f"content of type {str(kind)[:40]!r} must have text, an image_url or file_data"
    )


def _add_call(messages: list[Message], item: dict[str, Any]) -> None:
    function = {"name": str(item.get("name")), "arguments": str(item.get("arguments") or "{}")}
    call = {"id": str(item.get("call_id")), "type": "function", "function": function}
    if messages and messages[-1]["role"] == "assistant":
        before = messages[-1].get("tool_calls") or []
        messages[-1] = {**messages[-1], "tool_calls": [*before, call]}
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        message = "Only functions can be tools here."
        raise Refusal(400, message, param="tools", code="unsupported_tool")
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _choice(choice: str | dict[str, Any] | None) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if choice.get("type") == "allowed_tools" and isinstance(choice.get("tools"), list):
        tools = [_choice(tool) for tool in choice["tools"]]
        allowed = {"mode": choice.get("mode"), "tools": tools}
        return {"type": "allowed_tools", "allowed_tools": allowed}
    message = "tool_choice: only functions can be chosen here."
    raise Refusal(400, message, param="tool_choice", code="unsupported_tool")


def _format(shape: dict[str, Any] | None) -> dict[str, Any] | None:
    kind = shape.get("type") if shape else "text"
    if kind == "text":
        return None
    if shape and kind == "json_schema":
        schema = {name: value for name, value in shape.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    if kind == "json_object":
        return shape
    message = "text.format: the type must be text, json_schema or json_object."
    raise Refusal(400, message, param="text.format")


def _refuse(number: int, why: str) -> NoReturn:
    raise Refusal(400, f"input.{number}: {why}.", param=f"input.{number}")
