"""`POST /v1/chat/completions`, and what is passed on to other paths of the model's server."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import EVENTS, EventStream, unless_gone
from memagent_openai_server.errors import TOO_LONG
from memagent_openai_server.reading import Call, Read, Reading
from memagent_openai_server.upstream import (
    MEMORY_HEADER,
    Head,
    Reply,
    Upstream,
    choices,
    events,
    headers_of,
    join,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from memagent_openai_server.requests import ChatRequest, Received


PASSED = {
    "/v1/completions": ("model", "prompt"),
    "/v1/embeddings": ("input", "model"),
    "/tokenize": (),
    "/detokenize": ("tokens",),
}
"""Paths whose requests are passed on, with the fields that each needs; those of vLLM may leave the
model out."""
_NOT_THERE = (404, 405)


class Passed(BaseModel):
    """The body of a request that is passed on."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None


async def complete(request: Request, sent: Received[ChatRequest]) -> Response:
    """Answer a chat completion.

    Raises:
        Refusal: The request cannot be answered.
        MemAgentError: The model or the store failed.
    """
    service = request.app.state.models.named(sent.asked.model)
    call = await Call.of(service, request, sent)
    return await return_reply(await answer(call), request)


async def answer(call: Call) -> Reply:
    """Return the reply of the model's server if the request fits; otherwise that of a reading.

    The turn of a remembered user hears it.

    Raises:
        Refusal: The request cannot be answered, or the server is stopping.
        ClientDisconnect: The client is gone.
        MemAgentError: The model or the store failed.
    """
    upstream, refused = call.service.upstream, None
    hear = call.turn.hear if call.turn else None
    call.record.how = "passed"
    if upstream is not None and not call.continues and await call.may_fit():
        try:
            return replace(await upstream.complete(call.body), hear=hear)
        except Refusal as refusal:
            if refusal.code != TOO_LONG:
                raise
            refused = refusal
    reading = await Reading.of(call)
    if refused is not None and not reading.asked.document:
        raise refused
    call.record.how = "read"
    stop = call.service.stopping
    if call.chat.stream:
        reply = Reply.stream(_chunks(reading), call.fields.get("stream_options"), stop)
    else:
        completion = await unless_gone(_whole(reading), stop=stop)
        memory = completion["memagent"]["memory"]
        reply = Reply.whole(completion, **({MEMORY_HEADER: memory} if memory else {}))
    return replace(reply, hear=hear)


async def pass_on(request: Request, sent: Received[Passed]) -> Response:
    """Pass a request on to the same path of the model's server.

    Raises:
        Refusal: A field is missing, or there is no such server.
    """
    path, models, name = request.scope["route"].path, request.app.state.models, sent.asked.model
    for field in PASSED[path]:
        if sent.fields.get(field) is None:
            raise Refusal(400, f"{field}: Field required", param=field)
    service = models.first if name is None else models.named(name)
    message = f"The model {service.name!r} has no {path}: only a server behind this one may have."
    absent = Refusal(404, message, code="not_offered")
    if not isinstance(service.upstream, Upstream):
        raise absent
    request.state.record.how = "passed"
    try:
        reply = await service.upstream.post(path, sent.body)
    except Refusal as refused:
        raise (absent if refused.status_code in _NOT_THERE else refused) from None
    return await return_reply(reply, request)


async def return_reply(reply: Reply, request: Request) -> Response:
    """Return the reply of the model's server, byte for byte."""
    if not reply.headers.get("content-type", "").startswith(EVENTS):
        return Response(await reply.read(), reply.status_code, headers_of(reply))
    return EventStream(_raw(reply), request.state.record, reply.stop)


async def _raw(reply: Reply) -> AsyncGenerator[bytes, None]:
    async with aclosing(events(reply)) as found:
        async for each in found:
            yield each.raw


async def _whole(reading: Reading) -> dict[str, Any]:
    """The completion of a reading."""
    if not reading.more:
        return await join(_chunks(reading))
    async with aclosing(reading.parts()) as parts:
        async for part in parts:
            read = part
    assert isinstance(read, Read)  # noqa: S101 - the last part is the answer
    completion = json.loads(await (await _ask_more(reading, read)).read())
    return {**completion, "memagent": read.memagent, "usage": _sum(read, completion)}


async def _chunks(reading: Reading) -> AsyncGenerator[dict[str, Any], None]:
    """The parts of a completion: progress as reasoning, and then the answer."""
    head, said = Head.new(reading.call.service.name), 0
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
                yield head.usage(part.usage)


async def _more(reading: Reading, read: Read, head: Head) -> AsyncGenerator[dict[str, Any], None]:
    """The model's stream after the reading, as parts of the same completion."""
    async with aclosing(events(await _ask_more(reading, read))) as found:
        async for _, part in found:
            if part is None:
                continue
            changed = {**part, "id": head.id, "created": head.created}
            if any(choice.get("finish_reason") for choice in choices(part)):
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
