"""The items of the responses API, to and from the messages and parts of chat completions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import event
from memagent_openai_server.requests import LOGPROBS, ReasoningOptions, TextOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_openai_server.requests import ResponseRequest
    from memagent_openai_server.responses import Making

Message = dict[str, Any]
Item = dict[str, Any]

_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields in which servers return a model's reasoning."""


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


def items_of(choice: dict[str, Any], status: str = "completed") -> list[dict[str, Any]]:
    """Convert a choice of a completion to output items of a response.

    Args:
        choice: a choice of the completion.
        status: status of the message.
    """
    message, items = choice["message"], list[dict[str, Any]]()
    if thought := thought_in(message):
        part = {"type": "summary_text", "text": thought}
        items.append({**reasoning_item(), "summary": [part]})
    content = []
    if message.get("content"):
        logprobs = (choice.get("logprobs") or {}).get("content") or []
        content.append(text_part(message["content"], logprobs))
    if message.get("refusal"):
        content.append(refusal_part(message["refusal"]))
    if content:
        items.append({**message_item(status), "content": content})
    for call in message.get("tool_calls") or ():
        function = call["function"]
        items.append(call_item(call["id"], function["name"], function["arguments"]))
    return items


def thought_in(said: dict[str, Any]) -> str | None:
    """Return the reasoning in a message or a delta, or None."""
    return next((said[key] for key in _THOUGHTS if said.get(key)), None)


def message_item(status: str) -> dict[str, Any]:
    """Make a message of the assistant without content."""
    own = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
    return {**own, "status": status, "content": []}


def reasoning_item() -> dict[str, Any]:
    """Make a reasoning item without content."""
    return {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": []}


def text_part(text: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Make a part of a message that holds text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


def refusal_part(text: str) -> dict[str, Any]:
    """Make a part of a message that holds a refusal."""
    return {"type": "refusal", "refusal": text}


def call_item(call: str, name: str, arguments: str) -> dict[str, Any]:
    """Make an item for the call of a function."""
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


class ItemEvents:
    """The part of a response that has been sent.

    Args:
        making: the response.

    Attributes:
        output: the complete items.
        usage: usage of the completion; None until known.
        memagent: the reading; None until known.
        finish_reason: finish reason of the completion; None until known.
    """

    def __init__(self, making: Making) -> None:
        self.output: list[Item] = []
        self.usage: dict[str, Any] | None = None
        self.memagent: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._making = making
        self._number = -1
        self._open: _Open | None = None
        self._calls: dict[int, dict[str, str]] = {}

    def begin(self) -> Iterator[bytes]:
        """Yield the first events."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._making.response("in_progress", []))

    def part(self, part: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events for a part of the completion."""
        self.usage = part.get("usage") or self.usage
        self.memagent = part.get("memagent") or self.memagent
        for choice in (part.get("choices") or ())[:1]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            delta = choice.get("delta") or {}
            if thought := thought_in(delta):
                yield from self._add("reasoning", "summary_text", thought)
            if delta.get("content"):
                logprobs = (choice.get("logprobs") or {}).get("content") or []
                yield from self._add("message", "output_text", delta["content"], logprobs)
            if delta.get("refusal"):
                yield from self._add("message", "refusal", delta["refusal"])
            for call in delta.get("tool_calls") or ():
                self._add_call(call)

    def finish_items(self, status: str) -> Iterator[bytes]:
        """Yield the events after the last part, for the text and for all function calls.

        Args:
            status: status of the message.
        """
        yield from self._close(status)
        for call in self._calls.values():
            item = call_item(call["id"], call["name"], call["arguments"])
            at = {"output_index": len(self.output)}
            about = {**at, "item_id": item["id"]}
            begun = {**item, "arguments": "", "status": "in_progress"}
            yield self._event("output_item.added", item=begun, **at)
            arguments = item["arguments"]
            yield self._event("function_call_arguments.delta", delta=arguments, **about)
            yield self._event(
                "function_call_arguments.done", arguments=arguments, name=item["name"], **about
            )
            yield self._event("output_item.done", item=item, **at)
            self.output.append(item)

    def end(self, response: dict[str, Any]) -> bytes:
        """Return the last event: the response is completed, incomplete or failed."""
        return self._event(response["status"], response=response)

    def _add_call(self, delta: dict[str, Any]) -> None:
        empty = {"id": "", "name": "", "arguments": ""}
        call = self._calls.setdefault(delta.get("index") or 0, empty)
        function = delta.get("function") or {}
        call["id"] = call["id"] or delta.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _add(
        self, item: str, part: str, text: str, logprobs: list[dict[str, Any]] | None = None
    ) -> Iterator[bytes]:
        if self._open is None or self._open.kind != part:
            if self._open is None or self._open.item["type"] != item:
                yield from self._close()
                begun = message_item("in_progress") if item == "message" else reasoning_item()
                yield self._event("output_item.added", item=begun, output_index=len(self.output))
            else:
                begun = self._open.item
                yield from self._close_part(self._open)
            self._open = _Open(begun, part, len(self.output))
            name = "content_part" if item == "message" else "reasoning_summary_part"
            yield self._event(f"{name}.added", part=self._open.part, **self._open.place)
        opened = self._open
        opened.text += text
        opened.logprobs += logprobs or []
        more = {"logprobs": logprobs or []} if part == "output_text" else {}
        yield self._event(f"{opened.name}.delta", delta=text, **more, **opened.place)

    def _close(self, status: str = "completed") -> Iterator[bytes]:
        if self._open is None:
            return
        opened, self._open = self._open, None
        yield from self._close_part(opened)
        item = opened.item if opened.kind == "summary_text" else {**opened.item, "status": status}
        yield self._event("output_item.done", item=item, output_index=len(self.output))
        self.output.append(item)

    def _close_part(self, opened: _Open) -> Iterator[bytes]:
        part, kind = opened.part, opened.kind
        text = {"refusal": part["refusal"]} if kind == "refusal" else {"text": part["text"]}
        more = {"logprobs": opened.logprobs} if kind == "output_text" else {}
        yield self._event(f"{opened.name}.done", **text, **more, **opened.place)
        name = "reasoning_summary_part" if kind == "summary_text" else "content_part"
        yield self._event(f"{name}.done", part=part, **opened.place)
        opened.item = {**opened.item, opened.list: [*opened.item[opened.list], part]}

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": self._number, **fields}, name)


class _Open:
    """A part of an item that is being sent.

    Args:
        item: the item, with the parts before this one.
        kind: type of the part.
        number: index of the item in the output.
    """

    def __init__(self, item: Item, kind: str, number: int) -> None:
        self.item = item
        self.kind = kind
        self.text = ""
        self.logprobs: list[dict[str, Any]] = []
        self.list = "summary" if kind == "summary_text" else "content"
        self.name = f"reasoning_{kind}" if kind == "summary_text" else kind
        index = len(item[self.list])
        own = {"item_id": item["id"], "output_index": number}
        self.place = {**own, f"{self.list}_index": index}

    @property
    def part(self) -> Item:
        """The part, with the text so far."""
        if self.kind == "refusal":
            return refusal_part(self.text)
        if self.kind == "summary_text":
            return {"type": "summary_text", "text": self.text}
        return text_part(self.text, self.logprobs)
