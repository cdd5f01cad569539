"""`POST /v1/responses`: the responses API, on top of chat completions; no response is stored."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
from starlette.responses import Response

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.chat import answer
from memagent_openai_server.delivery import EventStream, event, unless_gone
from memagent_openai_server.errors import broken, refusal
from memagent_openai_server.items import chat_fields
from memagent_openai_server.reading import Call
from memagent_openai_server.requests import (
    PASSED_ON,
    SEND_ALL,
    ChatRequest,
    ResponseRequest,
    receive_fields,
    validate,
)
from memagent_openai_server.upstream import headers_of, parts_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from starlette.requests import Request

    from memagent_openai_server.models import Models
    from memagent_openai_server.upstream import Reply

Item = dict[str, Any]

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
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons for incomplete responses, by the finish reason of the completion."""
_ECHOED = (
    *PASSED_ON,
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "reasoning",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "truncation",
    "user",
)
"""Fields of a request that its response repeats."""


@dataclass
class _Part:
    """The one part of an item that is being sent.

    Attributes:
        kind: type of the part.
        item: the item without it.
        number: index of the item in the output.
        text: the text so far.
        logprobs: log-probabilities of its tokens.
    """

    kind: str
    item: Item
    number: int
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_thought(self) -> bool:
        """Whether it is part of a reasoning item."""
        return self.kind == "summary_text"

    @property
    def place(self) -> dict[str, Any]:
        """Its place in the response."""
        index = "summary_index" if self.is_thought else "content_index"
        return {"item_id": self.item["id"], "output_index": self.number, index: 0}

    @property
    def more(self) -> dict[str, Any]:
        """The text of the part, as its events and the part itself have it."""
        if self.kind == "refusal":
            return {"refusal": self.text}
        return {"text": self.text} | ({} if self.is_thought else {"logprobs": self.logprobs})

    @property
    def content(self) -> Item:
        """The part as the item has it."""
        annotations: Item = {"annotations": []} if self.kind == "output_text" else {}
        return {"type": self.kind, **annotations, **self.more}


class Made:
    """A response that is made of a completion, with the events of a client that streams.

    Args:
        asked: the request.

    Attributes:
        finish_reason: finish reason of the completion; None until known.
    """

    def __init__(self, asked: ResponseRequest) -> None:
        self.finish_reason: str | None = None
        fields = asked.model_dump(exclude_none=True)
        own = {"id": f"resp_{uuid4().hex}", "created_at": int(time()), "model": asked.model}
        self._head = _PLAIN | own | {name: fields[name] for name in _ECHOED if name in fields}
        self._output: list[Item] = []
        self._more: dict[str, Any] = {}
        self._events = 0
        self._open: _Part | None = None
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
        part, name = self._open, f"reasoning_{kind}" if kind == "summary_text" else kind
        if part is None or part.kind != kind:
            yield from self._close()
            part = self._open = _Part(kind, _item(kind), len(self._output))
            yield self._event("output_item.added", item=part.item, output_index=part.number)
            begun = "reasoning_summary_part" if part.is_thought else "content_part"
            yield self._event(f"{begun}.added", part=part.content, **part.place)
        part.text += text
        part.logprobs += logprobs or []
        more = {"logprobs": logprobs or []} if kind == "output_text" else {}
        yield self._event(f"{name}.delta", delta=text, **more, **part.place)

    def _close(self, *, cut: bool = False) -> Iterator[bytes]:
        if self._open is None:
            return
        part, self._open = self._open, None
        yield self._event(
            "reasoning_summary_text.done" if part.is_thought else f"{part.kind}.done",
            **part.more,
            **part.place,
        )
        begun = "reasoning_summary_part" if part.is_thought else "content_part"
        yield self._event(f"{begun}.done", part=part.content, **part.place)
        if part.is_thought:
            item = {**part.item, "summary": [part.content]}
        else:
            status = "incomplete" if cut else "completed"
            item = {**part.item, "status": status, "content": [part.content]}
        yield self._event("output_item.done", item=item, output_index=part.number)
        self._output.append(item)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._events = self._events, self._events + 1
        name = f"response.{kind}"
        return event({"type": name, "sequence_number": number, **fields}, name)


def _item(kind: str) -> Item:
    """A new item, without the part of this type that it will have."""
    if kind == "summary_text":
        return {"id": f"rs_{uuid4().hex}", "type": "reasoning", "summary": []}
    own = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant"}
    return {**own, "status": "in_progress", "content": []}


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
        call.turn.hear(completion)
    return Response(response, headers=headers_of(reply))


async def _events(made: Made, reply: Reply, call: Call) -> AsyncGenerator[bytes, None]:
    why = None
    for each in made.begin():
        yield each
    try:
        async with aclosing(parts_of(reply)) as parts:
            async for part in parts:
                if call.turn is not None:
                    call.turn.hear(part)
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
