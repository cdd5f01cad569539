"""`POST /v1/chat/completions`, and what is passed on to other paths of the model's server."""

from __future__ import annotations

import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import EVENTS, EventStream, unless_gone
from memagent_openai_server.reading import Call, Read, Reading, decide
from memagent_openai_server.requests import ChatRequest, receive_fields
from memagent_openai_server.upstream import (
    MEMORY_HEADER,
    Head,
    Reply,
    Upstream,
    events,
    headers_of,
    overhear,
    parts_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from starlette.requests import Request

    from memagent_openai_server.models import Models
    from memagent_openai_server.users import Turn

PASSED = {
    "/v1/completions": {"prompt"},
    "/v1/embeddings": {"input"},
    "/tokenize": set(),
    "/detokenize": {"tokens"},
}
"""Paths whose requests are passed on, with the fields that each needs; those of vLLM may leave the
model out."""
_NOT_THERE = (404, 405)


class _Passed(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None


async def complete(models: Models, request: Request) -> Response:
    """Answer a chat completion.

    Raises:
        Refusal: The request cannot be answered.
        MemAgentError: The model or the store failed.
    """
    body, fields, chat = await receive_fields(request, models.first.limits, ChatRequest)
    service = models.named(chat.model)
    call = await Call.of(service, request, body, fields, chat)
    return await return_reply(await answer(call), request, call.turn)


async def answer(call: Call) -> Reply:
    """Return the reply of the model's server if the request fits; otherwise that of a reading.

    Raises:
        Refusal: The request cannot be answered, or the server is stopping.
        ClientDisconnect: The client is gone.
        MemAgentError: The model or the store failed.
    """
    found, stop = await decide(call), call.service.stopping
    if not isinstance(found, Reading):
        return found
    if call.chat.stream:
        return Reply.stream(_chunks(found), stop)
    completion = await unless_gone(_whole(found), call.receive, stop)
    memory = completion["memagent"]["memory"]
    return Reply.whole(completion, **({MEMORY_HEADER: memory} if memory else {}))


def pass_on(models: Models, path: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a path whose requests are passed on."""

    async def endpoint(request: Request) -> Response:
        body, fields, asked = await receive_fields(request, models.first.limits, _Passed)
        needed = PASSED[path] | ({"model"} if path.startswith("/v1/") else set())
        for name in sorted(needed):
            if fields.get(name) is None:
                raise Refusal(400, f"{name}: Field required", param=name)
        service = models.first if asked.model is None else models.named(asked.model)
        message = (
            f"The model {service.name!r} has no {path}: only a server behind this one may offer it."
        )
        absent = Refusal(404, message, code="not_offered")
        if not isinstance(service.upstream, Upstream):
            raise absent
        request.state.record.how = "passed"
        try:
            reply = await unless_gone(service.upstream.post(path, body), request.receive)
        except Refusal as refused:
            raise (absent if refused.status_code in _NOT_THERE else refused) from None
        return await return_reply(reply, request)

    return endpoint


async def return_reply(reply: Reply, request: Request, turn: Turn | None = None) -> Response:
    """Return the reply of the model's server, byte for byte.

    Args:
        reply: the reply of the model's server.
        request: the client's request.
        turn: turn of a remembered user; None without one.
    """
    if not reply.headers.get("content-type", "").startswith(EVENTS):
        body = await unless_gone(reply.read(), request.receive)
        if turn is not None:
            with suppress(ValueError):  # a body that is not JSON is passed on, but not remembered
                await turn.hear(json.loads(body))
        return Response(body, reply.status_code, headers_of(reply))
    pieces = events(reply)
    pieces = pieces if turn is None else overhear(pieces, turn.hear)
    return EventStream(pieces, request.state.record, reply.stop)


async def _whole(reading: Reading) -> dict[str, Any]:
    """The completion of a reading."""
    call = reading.call
    async with aclosing(reading.parts()) as parts:
        async for part in parts:
            read = part
    assert isinstance(read, Read)  # noqa: S101 - the last part is the answer
    if reading.more:
        completion = json.loads(await (await _ask_more(reading, read)).read())
        return {**completion, "memagent": read.memagent, "usage": _sum(read, completion)}
    message = {"role": "assistant", "content": read.text, "refusal": None}
    whole = Head.new(call.service.name).whole(message, read.finish_reason, read.usage)
    return {**whole, "memagent": read.memagent}


async def _chunks(reading: Reading) -> AsyncGenerator[dict[str, Any], None]:
    """The parts of a completion: progress as reasoning, and then the answer."""
    call, said = reading.call, 0
    head = Head.new(call.service.name)
    yield head.chunk({"role": "assistant", "content": ""})
    async with aclosing(reading.parts()) as parts:
        async for part in parts:
            if not isinstance(part, Read):
                said += len(part.get("content", ""))
                yield head.chunk(part)
            elif reading.more:
                async with aclosing(_more(reading, part, head)) as more:
                    async for found in more:
                        yield found
            else:
                if rest := part.text[said:]:
                    yield head.chunk({"content": rest})
                yield {**head.chunk({}, part.finish_reason), "memagent": part.memagent}
                options = call.chat.stream_options
                if options and options.include_usage:
                    yield head.usage(part.usage)


async def _more(reading: Reading, read: Read, head: Head) -> AsyncGenerator[dict[str, Any], None]:
    """The model's stream after the reading, as parts of the same completion."""
    async with aclosing(parts_of(await _ask_more(reading, read))) as parts:
        async for part in parts:
            changed = {**part, "id": head.id, "created": head.created}
            if any(choice.get("finish_reason") for choice in part.get("choices") or ()):
                changed["memagent"] = read.memagent
            if part.get("usage") and not part.get("choices"):
                changed["usage"] = _sum(read, part)
            yield changed


async def _ask_more(reading: Reading, read: Read) -> Reply:
    """Ask the model itself, with notes for what was read."""
    upstream = reading.call.service.upstream
    assert upstream is not None  # noqa: S101 - otherwise more than text was refused
    body = await unless_small(len(reading.call.body), reading.rest, read.text)
    return await upstream.complete(body)


def _sum(read: Read, part: dict[str, Any]) -> dict[str, Any]:
    usage = part.get("usage") or {}
    total = {name: (usage.get(name) or 0) + tokens for name, tokens in read.usage.items()}
    return {**usage, **total}
