"""`POST /v1/responses`: the responses API, on top of chat completions; no response is stored."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.chat import answer
from memagent_openai_server.delivery import EventStream, event, unless_gone
from memagent_openai_server.errors import broken, refusal
from memagent_openai_server.reading import Call
from memagent_openai_server.requests import (
    ChatRequest,
    Continued,
    Fields,
    Objects,
    User,
    receive_fields,
    validate,
)
from memagent_openai_server.upstream import headers_of, parts_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.requests import Request

    from memagent_openai_server.models import Models
    from memagent_openai_server.upstream import Reply

PASSED_ON = (
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "temperature",
    "top_p",
)
"""Fields of OpenAI's responses API that chat completions have too. Fields of neither API, such as
`top_k`, are passed on as well: the model's server may know them."""

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that asks for log-probabilities."""


SEND_ALL = "send the whole conversation as `input` each time"
"""What to do instead of naming an earlier response."""


NOT_OFFERED = {
    "previous_response_id": SEND_ALL,
    **dict.fromkeys(("access_programs", "background", "background_options", "context_management")),
    **dict.fromkeys(("conversation", "image", "moderation", "prompt")),
    # Fields of chat completions for which a response has no place:
    **dict.fromkeys(("audio", "modalities", "n", "web_search_options")),
    "messages": "use input",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "logprobs": "use top_logprobs",
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "reasoning_effort": "use reasoning.effort",
    "verbosity": "use text.verbosity",
}
"""Fields that a request for a response cannot have, each with what to do instead, if there is
something."""


class Options(BaseModel):
    """Options of a response."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ReasoningOptions(Options):
    """Options of the model's reasoning, which is always returned as a summary."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextOptions(Options):
    """Options of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseStreamOptions(Options):
    """Options of a streamed response."""

    include_obfuscation: Annotated[bool, Field(le=False)] | None = None


class ResponseRequest(Fields):
    """The body of `POST /v1/responses`."""

    model: str
    input: str | Objects = Field(min_length=1)
    instructions: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    user: User | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    max_tool_calls: int | None = Field(default=None, ge=1)
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        None
    )
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    memagent: Continued | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        for name in NOT_OFFERED.keys() & fields:
            if fields[name] is not None and fields[name] is not False:
                advice = f": {NOT_OFFERED[name]}" if NOT_OFFERED[name] else ""
                raise Refusal(400, f"{name}: not offered here{advice}", param=name)
        return {name: value for name, value in fields.items() if name not in NOT_OFFERED}


Item = dict[str, Any]
Message = dict[str, Any]

_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields in which servers return a model's reasoning."""
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
    "store": False,
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
"""Fields and values of most responses."""
_NAME = {"summary_text": "reasoning_summary_text"}
"""Names in events of the types of parts that go by another one there."""
_HOLDER = {
    "summary_text": "reasoning_summary_part",
    "output_text": "content_part",
    "refusal": "content_part",
}
"""Names in events of the parts."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons for incomplete responses, by the finish reason of the completion."""


def _messages(items: str | list[dict[str, Any]]) -> list[Message]:
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
    messages = _messages(asked.input)
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


@dataclass(frozen=True)
class _Open:
    """An item that is being sent, with its one part.

    Attributes:
        item: the item without the part.
        part: the part so far.
        place: place of the part in the response.
    """

    item: Item
    part: Item
    place: dict[str, Any]

    @classmethod
    def new(cls, kind: str, number: int) -> _Open:
        """Begin an item.

        Args:
            kind: type of its part.
            number: index of the item in the output.
        """
        item: Item
        part: Item
        if kind == "summary_text":
            item = {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": []}
            part = {"type": kind, "text": ""}
        else:
            own = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
            item = {**own, "status": "in_progress", "content": []}
            text = {"type": kind, "text": "", "annotations": [], "logprobs": []}
            part = {"type": kind, "refusal": ""} if kind == "refusal" else text
        index = "summary_index" if kind == "summary_text" else "content_index"
        return cls(item, part, {"item_id": item["id"], "output_index": number, index: 0})


class Made:
    """A response that is made of a completion, with the events of a client that streams.

    Args:
        asked: the request.

    Attributes:
        finish_reason: finish reason of the completion; None until known.
    """

    def __init__(self, asked: ResponseRequest) -> None:
        self.finish_reason: str | None = None
        repeated = {*PASSED_ON, *(_PLAIN.keys() & ResponseRequest.model_fields)} - {"store"}
        own = {"id": f"resp_{uuid4().hex}", "created_at": int(time()), "model": asked.model}
        self._head = _PLAIN | own | asked.model_dump(include=repeated, exclude_none=True)
        self._output: list[Item] = []
        self._more: dict[str, Any] = {}
        self._events = 0
        self._open: _Open | None = None
        self._calls: dict[int, dict[str, str]] = {}

    def begin(self) -> Iterator[bytes]:
        """Yield the first events."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response("in_progress"))

    def take(self, part: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events for a completion, or its next part."""
        if part.get("usage"):
            self._more["usage"] = _usage(part["usage"])
        if part.get("memagent"):
            self._more["memagent"] = part["memagent"]
        for choice in (part.get("choices") or ())[:1]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            said = choice.get("message") or choice.get("delta") or {}
            logprobs = (choice.get("logprobs") or {}).get("content") or []
            for name in _THOUGHTS:
                if said.get(name):
                    yield from self._add("summary_text", said[name])
                    break
            if said.get("content"):
                yield from self._add("output_text", said["content"], logprobs)
            if said.get("refusal"):
                yield from self._add("refusal", said["refusal"])
            for number, call in enumerate(said.get("tool_calls") or ()):
                self._add_call(call, number if "message" in choice else call.get("index") or 0)

    def finish(self, *, broken_off: bool = False) -> Iterator[bytes]:
        """Yield the events after the last part, for the text and for all function calls."""
        yield from self._close(cut=broken_off or self.finish_reason in _INCOMPLETE)
        for call in self._calls.values():
            own = {"id": f"fc_{uuid4().hex}", "type": "function_call", "status": "completed"}
            item, arguments = {**own, **call}, call["arguments"]
            at = {"output_index": len(self._output)}
            about = {**at, "item_id": item["id"]}
            begun = {**item, "arguments": "", "status": "in_progress"}
            yield self._event("output_item.added", item=begun, **at)
            yield self._event("function_call_arguments.delta", delta=arguments, **about)
            yield self._event(
                "function_call_arguments.done", arguments=arguments, name=item["name"], **about
            )
            yield self._event("output_item.done", item=item, **at)
            self._output.append(item)

    def response(self, why: Refusal | None = None) -> dict[str, Any]:
        """Return the whole response.

        Args:
            why: the error with which it ended; None without one.
        """
        if why is not None:
            code = "rate_limit_exceeded" if why.status_code == 429 else "server_error"  # noqa: PLR2004 - HTTP
            return self._response("failed", error={"code": code, "message": str(why)})
        reason = _INCOMPLETE.get(self.finish_reason or "")
        if reason is None:
            return self._response("completed", **self._more)
        return self._response("incomplete", incomplete_details={"reason": reason}, **self._more)

    def end(self, why: Refusal | None = None) -> bytes:
        """Return the last event; see `response`."""
        response = self.response(why)
        return self._event(response["status"], response=response)

    def _response(self, status: str, **more: Any) -> dict[str, Any]:
        return {**self._head, "status": status, "output": self._output, **more}

    def _add_call(self, delta: dict[str, Any], number: int) -> None:
        call = self._calls.setdefault(number, {"call_id": "", "name": "", "arguments": ""})
        function = delta.get("function") or {}
        call["call_id"] = call["call_id"] or delta.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _add(
        self, kind: str, text: str, logprobs: list[dict[str, Any]] | None = None
    ) -> Iterator[bytes]:
        if self._open is None or self._open.part["type"] != kind:
            yield from self._close()
            self._open = _Open.new(kind, len(self._output))
            item, number = self._open.item, len(self._output)
            yield self._event("output_item.added", item=item, output_index=number)
            yield self._event(f"{_HOLDER[kind]}.added", part=self._open.part, **self._open.place)
        part, more = self._open.part, dict[str, Any]()
        part["refusal" if kind == "refusal" else "text"] += text
        if kind == "output_text":
            more = {"logprobs": logprobs or []}
            part["logprobs"] += more["logprobs"]
        yield self._event(f"{_NAME.get(kind, kind)}.delta", delta=text, **more, **self._open.place)

    def _close(self, *, cut: bool = False) -> Iterator[bytes]:
        if self._open is None:
            return
        opened, self._open = self._open, None
        part, kind = opened.part, opened.part["type"]
        said = {name: part[name] for name in ("text", "refusal", "logprobs") if name in part}
        yield self._event(f"{_NAME.get(kind, kind)}.done", **said, **opened.place)
        yield self._event(f"{_HOLDER[kind]}.done", part=part, **opened.place)
        if kind == "summary_text":
            item = {**opened.item, "summary": [part]}
        else:
            status = "incomplete" if cut else "completed"
            item = {**opened.item, "status": status, "content": [part]}
        yield self._event("output_item.done", item=item, output_index=len(self._output))
        self._output.append(item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": number, **fields}, name)


async def respond(models: Models, request: Request) -> Response:
    """Make a response.

    Raises:
        Refusal: The request cannot be answered.
        MemAgentError: The model or the store failed.
    """
    body, _, asked = await receive_fields(request, models.first.limits, ResponseRequest)
    service = models.named(asked.model)
    fields = chat_fields(asked, service.name)
    chat, chat_body = await unless_small(len(body), _to_chat, fields)
    remembers = asked.store is not False  # False means that nothing is to be stored
    call = await Call.of(service, request, chat_body, fields, chat, remembers=remembers)
    reply = await answer(call)
    if asked.stream:
        return EventStream(_events(Made(asked), reply, call), call.record, reply.stop)
    return await _whole(Made(asked), reply, call)


async def refuse_stored(_: Request) -> Response:
    """Refuse to return or delete a response.

    Raises:
        Refusal: Always, with what to do instead.
    """
    raise Refusal(400, f"Responses are not stored here: {SEND_ALL}.", code="not_offered")


def _to_chat(fields: dict[str, Any]) -> tuple[ChatRequest, bytes]:
    """Return a chat completion as validated, and as passed on.

    Raises:
        Refusal: It is invalid, or has half of a surrogate pair.
    """
    chat = validate(fields, ChatRequest)
    try:
        return chat, orjson.dumps(fields)
    except orjson.JSONEncodeError as error:
        raise Refusal(400, f"The input cannot be written as JSON: {error}.") from None


async def _whole(made: Made, reply: Reply, call: Call) -> Response:
    """The response.

    Raises:
        Refusal: The reply is not a completion.
    """
    body = await unless_gone(reply.read(), call.receive)
    try:
        completion = json.loads(body)
        _ = completion["choices"][0]["message"]["role"]
        _ = *made.take(completion), *made.finish()
        response = orjson.dumps(made.response())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise broken() from error
    if call.turn is not None:
        await call.turn.hear(completion)
    return Response(response, headers=headers_of(reply))


async def _events(made: Made, reply: Reply, call: Call) -> AsyncGenerator[bytes, None]:
    why = None
    for each in made.begin():
        yield each
    try:
        async with aclosing(parts_of(reply)) as parts:
            async for part in parts:
                if call.turn is not None:
                    await call.turn.hear(part)
                for each in made.take(part):
                    yield each
        if made.finish_reason is None:
            raise broken()  # noqa: TRY301 - as where it breaks off within a part
    except Exception as error:  # noqa: BLE001 - it is sent to the client within the stream
        call.record.failed(error)
        why = refusal(error)
    for each in made.finish(broken_off=why is not None):
        yield each
    yield made.end(why)


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage of a completion, as in the responses API."""
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
