"""`POST /v1/responses`: the responses API, on top of chat completions; no response is stored."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.chat import chunks, whole, with_memory
from memagent_openai_server.delivery import EventStream
from memagent_openai_server.errors import broken, refusal
from memagent_openai_server.items import ItemEvents, chat_fields, items_of
from memagent_openai_server.reading import Call, Reading, decide
from memagent_openai_server.requests import (
    PASSED_ON,
    SEND_ALL,
    ChatRequest,
    ResponseRequest,
    receive_fields,
    validate,
)
from memagent_openai_server.upstream import parts_of, read_whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from memagent_openai_server.models import Models
    from memagent_openai_server.upstream import Reply

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

    def end(
        self,
        output: list[dict[str, Any]],
        finish_reason: str | None,
        usage: dict[str, Any] | None,
        memagent: dict[str, Any] | None,
    ) -> dict[str, Any]:
        """Return the response after its completion has ended."""
        more: dict[str, Any] = {"usage": _usage(usage)}
        if finish_reason in _INCOMPLETE:
            more["incomplete_details"] = {"reason": _INCOMPLETE[finish_reason]}
        if memagent is not None:
            more["memagent"] = memagent
        return self.response(status_of(finish_reason), output, **more)

    def fail(self, output: list[dict[str, Any]], why: Refusal) -> dict[str, Any]:
        """Return the response that ends with an error."""
        code = "rate_limit_exceeded" if why.status_code == 429 else "server_error"  # noqa: PLR2004 - HTTP
        return self.response("failed", output, error={"code": code, "message": str(why)})


def status_of(finish_reason: str | None) -> str:
    """Return the status of a response and its message for a completion's finish reason."""
    return "incomplete" if finish_reason in _INCOMPLETE else "completed"


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
    making = Making(asked, f"resp_{uuid4().hex}", int(time()))
    found = await decide(call)
    if asked.stream:
        stop = service.stopping if isinstance(found, Reading) else None
        return EventStream(_events(making, found, call), call.record, stop)
    return with_memory(await _whole(making, found, call))


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


async def _whole(making: Making, found: Reply | Reading, call: Call) -> dict[str, Any]:
    """The response.

    Raises:
        Refusal: The response of the model's server is not a completion.
    """
    if isinstance(found, Reading):
        return _convert(making, await whole(found))
    body = await read_whole(found, call.receive)
    try:
        completion = json.loads(body)
        response = _convert(making, completion)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise broken() from error
    if call.turn is not None:
        call.turn.hear(completion)
    return response


def _convert(making: Making, completion: dict[str, Any]) -> dict[str, Any]:
    choice = completion["choices"][0]
    reason = choice.get("finish_reason")
    output = items_of(choice, status_of(reason))
    return making.end(output, reason, completion.get("usage"), completion.get("memagent"))


async def _events(
    making: Making, found: Reply | Reading, call: Call
) -> AsyncGenerator[bytes, None]:
    events = ItemEvents(making)
    parts = chunks(found) if isinstance(found, Reading) else parts_of(found)
    for event in events.begin():
        yield event
    try:
        async with aclosing(parts):
            async for part in parts:
                if call.turn is not None and not isinstance(found, Reading):
                    call.turn.hear(part)
                for event in events.part(part):
                    yield event
        if events.finish_reason is None:
            raise broken()  # noqa: TRY301 - as where it breaks off within a part
    except Exception as error:  # noqa: BLE001 - it is sent to the client within the stream
        call.record.failed(error)
        for event in events.finish_items("incomplete"):
            yield event
        yield events.end(making.fail(events.output, refusal(error)))
        return
    for event in events.finish_items(status_of(events.finish_reason)):
        yield event
    made = making.end(events.output, events.finish_reason, events.usage, events.memagent)
    yield events.end(made)


def _usage(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """The usage of a completion, as in the responses API."""
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
