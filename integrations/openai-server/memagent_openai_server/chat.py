"""`POST /v1/chat/completions`, and what is passed on to other paths of the model's server."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from starlette.responses import Response

from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import EVENTS, EventStream
from memagent_openai_server.errors import TOO_LONG
from memagent_openai_server.reading import Call, Reading
from memagent_openai_server.requests import Fields
from memagent_openai_server.upstream import Reply, Upstream, events, headers_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from memagent_openai_server.requests import ChatRequest, Received


PASSED = ("/v1/completions", "/v1/embeddings", "/tokenize", "/detokenize")
"""Paths whose requests are passed on; a request without a model goes to the first one."""


class Passed(Fields):
    """The body of a request that is passed on."""

    model: str | None = None


async def complete(request: Request, sent: Received[ChatRequest]) -> Response:
    """Answer a chat completion."""
    service = request.app.state.models.named(sent.asked.model)
    call = await Call.of(service, request, sent)
    return await return_reply(await answer(call), request)


async def answer(call: Call) -> Reply:
    """Return the reply of the model's server if the request fits; otherwise that of a reading.

    The turn of a remembered user hears it.
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
    reply = await Reply.of(reading.chunks(), call.fields, call.service.stopping)
    return replace(reply, hear=hear)


async def pass_on(request: Request, sent: Received[Passed]) -> Response:
    """Pass a request on to the same path of the model's server."""
    path, models, name = request.scope["route"].path, request.app.state.models, sent.asked.model
    service = models.first if name is None else models.named(name)
    message = (
        f"The model {service.name!r} has no {path}: only a server behind this one may offer it."
    )
    absent = Refusal(404, message, code="not_offered")
    if not isinstance(service.upstream, Upstream):
        raise absent
    request.state.record.how = "passed"
    try:
        reply = await service.upstream.complete(sent.body, path)
    except Refusal as refused:
        raise (absent if refused.status_code in (404, 405) else refused) from None
    return await return_reply(reply, request)


async def return_reply(reply: Reply, request: Request) -> Response:
    """Return the reply of the model's server, byte for byte."""
    if not reply.headers.get("content-type", "").startswith(EVENTS):
        return Response(await reply.read(), reply.status_code, headers_of(reply))
    return EventStream(_raw(reply), request.state.record, reply.stop)


async def _raw(reply: Reply) -> AsyncGenerator[bytes, None]:
    async with aclosing(events(reply)) as found:
        async for raw, _ in found:
            yield raw
