"""From the responses API to chat completions and back: the same conversation in other shapes."""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import uuid4

from memagent_openai_server.refusals import Refusal

Message = dict[str, Any]

_SAME = ("temperature", "top_p", "user", "tool_choice", "parallel_tool_calls")


def messages_of(items: str | list[dict[str, Any]]) -> list[Message]:
    """The input of a response as messages.

    Raises:
        Refusal: An item is of a kind that a chat has no place for.
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


def chat_fields(fields: dict[str, Any], messages: list[Message], model: str) -> dict[str, Any]:
    """The chat completion that a response is asked for with.

    Raises:
        Refusal: A tool is not a function.
    """
    found = {name: fields[name] for name in _SAME if fields.get(name) is not None}
    if instructions := fields.get("instructions"):
        messages = [{"role": "system", "content": instructions}, *messages]
    found |= {"model": model, "messages": messages}
    if fields.get("max_output_tokens"):
        found["max_tokens"] = fields["max_output_tokens"]
    if fields.get("tools"):
        found["tools"] = [_tool(tool) for tool in fields["tools"]]
        choice = found.get("tool_choice")
        if isinstance(choice, dict) and "name" in choice:
            function = {"name": choice["name"]}
            found["tool_choice"] = {"type": "function", "function": function}
    shape = (fields.get("text") or {}).get("format") or {}
    if shape.get("type") == "json_schema":
        schema = {name: value for name, value in shape.items() if name != "type"}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif shape.get("type") == "json_object":
        found["response_format"] = shape
    if fields.get("stream"):
        found |= {"stream": True, "stream_options": {"include_usage": True}}
    return found


def items_of(message: Message) -> list[dict[str, Any]]:
    """What a model said, as output of a response."""
    items: list[dict[str, Any]] = []
    if message.get("content"):
        items.append(message_item(message["content"]))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        items.append(call_item(call["id"], function["name"], function["arguments"]))
    return items


def message_item(text: str, *, status: str = "completed") -> dict[str, Any]:
    """A message of the assistant."""
    content = [text_part(text)] if status == "completed" else []
    own = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
    return {**own, "status": status, "content": content}


def text_part(text: str) -> dict[str, Any]:
    """A message's text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(call: str, name: str, arguments: str) -> dict[str, Any]:
    """A call of a function."""
    own = {"id": f"fc_{uuid4().hex}", "type": "function_call", "status": "completed"}
    return {**own, "call_id": call, "name": name, "arguments": arguments}


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
    return [_part(part) for part in content]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    return part


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


def _refuse(number: int, why: str) -> NoReturn:
    raise Refusal(400, f"input.{number}: {why}.", param=f"input.{number}")
