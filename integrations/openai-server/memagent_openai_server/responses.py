"""`POST /v1/responses`: the responses API, on top of chat completions; no response is stored."""

from __future__ import annotations

import json
from contextlib import aclosing
from time import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAlias
from uuid import uuid4

import orjson
from openai.types.responses import Response
from pydantic import Field, model_validator
from starlette.responses import Response as HTTPResponse

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.chat import answer
from memagent_openai_server.conversation import PICTURE, Message
from memagent_openai_server.delivery import EventStream, event
from memagent_openai_server.errors import broken, refusal
from memagent_openai_server.reading import Call
from memagent_openai_server.requests import (
    ChatRequest,
    Continued,
    Fields,
    Objects,
    Options,
    Received,
    User,
    validate,
)
from memagent_openai_server.upstream import events, headers_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.requests import Request

    from memagent_openai_server.access import Record
    from memagent_openai_server.upstream import Reply

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
    **dict.fromkeys(("logprobs", "top_logprobs"), "use chat completions"),
    "max_tokens": "use max_output_tokens",
    "max_completion_tokens": "use max_output_tokens",
    "response_format": "use text.format",
    "reasoning_effort": "use reasoning.effort",
    "verbosity": "use text.verbosity",
}
"""Fields that a request for a response cannot have, each with what to do instead, if there is
something."""


NotTrue: TypeAlias = Annotated[bool, Field(le=False)]


class ReasoningOptions(Options):
    """Options of the model's reasoning, which is always returned as a summary."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextOptions(Options):
    """Options of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseRequest(Fields):
    """The body of `POST /v1/responses`."""

    model: str
    input: str | Objects = Field(min_length=1)
    instructions: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[Literal["include_obfuscation"], NotTrue | None] | None = None
    user: User | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    max_tool_calls: int | None = Field(default=None, ge=1)
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
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

_ROLES = ("system", "developer", "user", "assistant")
_THOUGHTS = ("reasoning_content", "reasoning")
"""Fields in which servers return a model's reasoning."""
_PLAIN: dict[str, Any] = {
    **{name: None for name, field in Response.model_fields.items() if not field.is_required()},
    "object": "response",
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "store": False,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
}
"""Fields and values of most responses."""
_NEW_PARTS: dict[str, Item] = {
    "summary_text": {"text": ""},
    "output_text": {"text": "", "annotations": [], "logprobs": []},
    "refusal": {"refusal": ""},
}
"""The parts of items by their types, as they begin."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons for incomplete responses, by the finish reason of the completion."""


def _chat_fields(asked: ResponseRequest, model: str) -> dict[str, Any]:
    """Convert the request for a response to the fields of a chat completion."""
    messages = _messages(asked.input)
    if asked.instructions:
        messages.insert(0, {"role": "system", "content": asked.instructions})
    text, reasoning = asked.text or TextOptions(), asked.reasoning or ReasoningOptions()
    return _given(
        {
            **(asked.model_extra or {}),
            "model": model,
            "messages": messages,
            "stream": asked.stream or None,
            "stream_options": {"include_usage": True} if asked.stream else None,
            "tools": [*map(_tool, asked.tools or ())] or None,
            "user": asked.user,
            "max_tokens": asked.max_output_tokens,
            "tool_choice": _choice(asked.tool_choice),
            "response_format": _format(text.format),
            "verbosity": text.verbosity,
            "reasoning_effort": reasoning.effort,
        }
    )


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _messages(items: str | list[Item]) -> list[Message]:
    """Convert the input of a response to messages."""
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Message] = []
    for number, item in enumerate(items):
        match item.get("type") or "message":
            case "message":
                role, content = item.get("role"), _content(item.get("content"), number)
                if role not in _ROLES:
                    _refuse(number, "role must be system, developer, user or assistant")
                role = "system" if role == "developer" else role
                messages.append({"role": role, "content": content})
            case "function_call":
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                messages[-1].setdefault("tool_calls", []).append(_call(item))
            case "function_call_output":
                content, call = _content(item.get("output"), number), str(item.get("call_id"))
                messages.append({"role": "tool", "tool_call_id": call, "content": content})
            case kind if kind != "reasoning":
                _refuse(number, f"items of type {str(kind)[:40]!r} are not known here")
    return messages


def _call(item: Item) -> Item:
    function = {"name": str(item.get("name")), "arguments": str(item.get("arguments") or "{}")}
    return {"id": str(item.get("call_id")), "type": "function", "function": function}


def _content(content: Any, number: int) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        _refuse(number, "content must be text or a list of parts")
    if all(isinstance(part.get("text"), str) for part in content):
        return "\n\n".join(part["text"] for part in content)
    return [_part(part, number) for part in content]


def _part(part: Item, number: int) -> Item:
    match part:
        case {"text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "refusal"}:
            return part
        case {"type": "input_image", "image_url": str(url)}:
            return {"type": PICTURE, PICTURE: _given({"url": url, "detail": part.get("detail")})}
        case {"type": "input_file", "file_data": str()}:
            file = {name: part[name] for name in ("file_data", "filename") if name in part}
            return {"type": "file", "file": file}
    kind = str(part.get("type"))[:40]
    return _refuse(number, f"content of type {kind!r} must have text, an image_url or file_data")


def _tool(tool: Item) -> Item:
    match tool:
        case {"type": "function", **function}:
            return {"type": "function", "function": function}
    message = "Only functions can be tools here."
    raise Refusal(400, message, param="tools", code="unsupported_tool")


def _choice(choice: Any) -> Any:
    match choice:
        case {"type": "function"}:
            return {"type": "function", "function": {"name": choice.get("name")}}
        case {"type": "allowed_tools", "tools": [*tools]}:
            allowed = {"mode": choice.get("mode"), "tools": [*map(_choice, tools)]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case {}:
            message = "tool_choice: only functions can be chosen here."
            raise Refusal(400, message, param="tool_choice", code="unsupported_tool")
    return choice


def _format(shape: Any) -> Any:
    match shape:
        case None | {"type": "text"}:
            return None
        case {"type": "json_schema", **rest}:
            return {"type": "json_schema", "json_schema": rest}
        case {"type": "json_object"}:
            return shape
    message = "text.format: the type must be text, json_schema or json_object."
    raise Refusal(400, message, param="text.format")


def _refuse(number: int, why: str) -> NoReturn:
    raise Refusal(400, f"input.{number}: {why}.", param=f"input.{number}")


class ResponseBuilder:
    """Builds a response from a completion or its parts, with events for a client that streams."""

    def __init__(self, asked: ResponseRequest) -> None:
        self.finish_reason: str | None = None
        own = {"id": f"resp_{uuid4().hex}", "created_at": int(time())}
        repeated = asked.model_dump(include={*Response.model_fields}, exclude_none=True)
        self._response = {**_PLAIN, **repeated, **own, "status": "in_progress", "output": []}
        self._output: list[Item] = self._response["output"]
        self._more: dict[str, Any] = {}
        self._events = 0
        self._part: Item = {}
        """The part that is being sent; empty between parts."""
        self._calls: dict[int, dict[str, str]] = {}

    def begin(self) -> Iterator[bytes]:
        """Yield the first events."""
        for kind in ("created", "in_progress"):
            yield self._event(kind, response=self._response)

    def add(self, part: dict[str, Any]) -> Iterator[bytes]:
        """Yield the events for a completion, or its next part."""
        if part.get("usage"):
            self._more["usage"] = _usage(part["usage"])
        if part.get("memagent"):
            self._more["memagent"] = part["memagent"]
        for choice in (part.get("choices") or ())[:1]:
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            said = choice.get("message") or choice.get("delta") or {}
            if thought := next(filter(None, map(said.get, _THOUGHTS)), None):
                yield from self._add("summary_text", thought)
            if said.get("content"):
                yield from self._add("output_text", said["content"])
            if said.get("refusal"):
                yield from self._add("refusal", said["refusal"])
            for number, call in enumerate(said.get("tool_calls") or ()):
                self._add_call(call, number if "message" in choice else call.get("index") or 0)

    def finish(self, *, broken_off: bool = False) -> Iterator[bytes]:
        """Yield the events after the last part, for the text and for all function calls."""
        cut = broken_off or self.finish_reason in _INCOMPLETE
        yield from self._close("incomplete" if cut else "completed")
        for call in self._calls.values():
            own = {"id": f"fc_{uuid4().hex}", "type": "function_call", **call}
            arguments, kind = call["arguments"], "function_call_arguments"
            yield self._begin_item({**own, "arguments": "", "status": "in_progress"})
            at = self._place()
            yield self._event(f"{kind}.delta", delta=arguments, **at)
            yield self._event(f"{kind}.done", arguments=arguments, name=call["name"], **at)
            yield self._end_item({**own, "status": "completed"})

    def build(self, why: Refusal | None = None) -> dict[str, Any]:
        """Return the whole response, or the one that ended with an error."""
        if why is not None:
            code = "rate_limit_exceeded" if why.status_code == 429 else "server_error"  # noqa: PLR2004 - HTTP
            error = {"code": code, "message": str(why)}
            return {**self._response, "status": "failed", "error": error}
        found = {**self._response, **self._more, "status": "completed"}
        if reason := _INCOMPLETE.get(self.finish_reason or ""):
            found |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return found

    def end(self, why: Refusal | None = None) -> bytes:
        """Return the last event; see `build`."""
        response = self.build(why)
        return self._event(response["status"], response=response)

    def _add_call(self, delta: dict[str, Any], number: int) -> None:
        call = self._calls.setdefault(number, {"call_id": "", "name": "", "arguments": ""})
        function = delta.get("function") or {}
        call["call_id"] = call["call_id"] or delta.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _add(self, kind: str, text: str) -> Iterator[bytes]:
        """Add to the open part if it is of this kind; otherwise begin an item with one."""
        if self._part.get("type") != kind:
            yield from self._close("completed")
            if kind == "summary_text":
                item: Item = {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": []}
            else:
                item = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
                item |= {"status": "in_progress", "content": []}
            yield self._begin_item(item)
            self._part = {"type": kind, **_NEW_PARTS[kind]}
            yield self._part_event("part.added", part=self._part)
        self._part["refusal" if kind == "refusal" else "text"] += text
        yield self._part_event("delta", delta=text)

    def _close(self, status: str) -> Iterator[bytes]:
        """End the open part and its item, if there is one."""
        if not self._part:
            return
        part, item = self._part, self._output[-1]
        said = {name: part[name] for name in ("text", "refusal") if name in part}
        yield self._part_event("done", **said)
        yield self._part_event("part.done", part=part)
        self._part = {}
        ended = {"summary": [part]} if "summary" in item else {"status": status, "content": [part]}
        yield self._end_item(item | ended)

    def _part_event(self, what: str, **fields: Any) -> bytes:
        """An event about the text of the open part, or about the part itself ("part.added")."""
        kind = self._part["type"]
        holder, prefix = ("summary", "reasoning_") if kind == "summary_text" else ("content", "")
        place = {**self._place(), f"{holder}_index": 0}
        if what.startswith("part."):
            return self._event(f"{prefix}{holder}_{what}", **fields, **place)
        if kind == "output_text":
            place["logprobs"] = []
        return self._event(f"{prefix}{kind}.{what}", **fields, **place)

    def _begin_item(self, item: Item) -> bytes:
        self._output.append(item)
        return self._event("output_item.added", item=item, output_index=len(self._output) - 1)

    def _end_item(self, item: Item) -> bytes:
        self._output[-1] = item
        return self._event("output_item.done", item=item, output_index=len(self._output) - 1)

    def _place(self) -> dict[str, Any]:
        """The place of the last item in the response."""
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": number, **fields}, name)


async def respond(request: Request, sent: Received[ResponseRequest]) -> HTTPResponse:
    """Make a response."""
    asked = sent.asked
    service = request.app.state.models.named(asked.model)
    fields = _chat_fields(asked, service.name)
    chat = await unless_small(len(sent.body), _to_chat, fields)
    remembers = asked.store is not False  # False means that nothing is to be stored
    call = await Call.of(service, request, chat, remembers=remembers)
    reply, response = await answer(call), ResponseBuilder(asked)
    if asked.stream:
        return EventStream(_events(response, reply, call.record), call.record, reply.stop)
    said = await reply.read()
    try:
        completion = json.loads(said)
        _ = completion["choices"][0]["message"]["role"]
        _ = *response.add(completion), *response.finish()
        whole = orjson.dumps(response.build())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise broken() from error
    return HTTPResponse(whole, headers=headers_of(reply))


async def refuse_stored(_: Request) -> HTTPResponse:
    """Refuse to return or delete a response, with what to do instead."""
    raise Refusal(400, f"Responses are not stored here: {SEND_ALL}.", code="not_offered")


def _to_chat(fields: dict[str, Any]) -> Received[ChatRequest]:
    """Return a chat completion, as if it had been sent."""
    return Received(orjson.dumps(fields), fields, validate(fields, ChatRequest))


async def _events(
    response: ResponseBuilder, reply: Reply, record: Record
) -> AsyncGenerator[bytes, None]:
    why = None
    for each in response.begin():
        yield each
    try:
        async with aclosing(events(reply)) as found:
            async for _, part in found:
                for each in response.add(part or {}):
                    yield each
        if response.finish_reason is None:
            raise broken()  # noqa: TRY301 - as where it breaks off within a part
    except Exception as error:  # noqa: BLE001 - it is sent to the client within the stream
        record.failed(error)
        why = refusal(error)
    for each in response.finish(broken_off=why is not None):
        yield each
    yield response.end(why)


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
