"""`POST /v1/chat/completions`."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from memagent_openai_server.chat import Answering, may_fit, place
from memagent_openai_server.delivery import EventStream, event, last, unless_gone
from memagent_openai_server.refusals import Refusal
from memagent_openai_server.requests import ChatRequest, parse
from memagent_openai_server.shapes import Head, Progress, Read
from memagent_openai_server.upstream import is_too_long, passed_on

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import httpx
    from starlette.requests import Request

    from memagent_openai_server.records import Record
    from memagent_openai_server.service import Service

SESSION_HEADER = "x-memagent-session"
MEMORY_HEADER = "x-memagent-memory"
_ALIVE_EVERY = 10.0
"""Seconds between signs of life: proxies give up after 30 or 60."""


async def complete(service: Service, request: Request, body: bytes, record: Record) -> Response:
    """Answer a chat completion.

    Raises:
        Refusal: It cannot be answered.
        MemAgentError: Likewise.
    """
    fields, chat = parse(body, ChatRequest)
    check_model(service, chat.model)
    sessions = service.sessions(record.tenant)
    where = await place(
        sessions,
        memory=chat.memagent.memory if chat.memagent else None,
        session=session_of(request),
        user=chat.user,
    )
    refused = None
    if service.upstream is not None and not where.explicit and await may_fit(service, fields):
        response = await unless_gone(
            service.upstream.complete(body), request.receive, service.stopping
        )
        if not is_too_long(response):
            record.how = "passed"
            return await _passed(response, request, service, record)
        refused = response
    answering = await Answering.of(service, sessions, where, fields, chat)
    if refused is not None and not answering.asked.document:
        record.how = "passed"
        return await _passed(refused, request, service, record)
    record.how = "read"
    if chat.stream:
        return stream(_events(answering, fields, record), service, record)
    parts = record.counted(answering.parts())
    found = await last(parts, request.receive, service.stopping)
    assert isinstance(found, Read)  # noqa: S101 - the last part is the answer
    headers = {MEMORY_HEADER: found.memory} if found.memory else {}
    if not answering.more:
        return JSONResponse(Head.new(service.name).completion(found), headers=headers)
    rest = _rest(answering, found, fields)
    assert service.upstream is not None  # noqa: S101 - who wants more has one
    response = await unless_gone(service.upstream.complete(rest), request.receive, service.stopping)
    body = await unless_gone(_whole(response), request.receive, service.stopping)
    completion = json.loads(body)
    if response.is_success:
        completion = {**completion, "memagent": found.memagent}
        completion["usage"] = _sum(found, completion.get("usage"))
    return JSONResponse(completion, response.status_code, headers)


def check_model(service: Service, model: str) -> None:
    """Refuse what is asked of another model than the one that is served."""
    if model != service.name:
        message = f"The model {model!r} does not exist: this server has {service.name!r}."
        raise Refusal(404, message, code="model_not_found", param="model")


def session_of(request: Request) -> str | None:
    """The session that a request's header names."""
    session = request.headers.get(SESSION_HEADER)
    if session is not None and not 0 < len(session) <= 200:  # noqa: PLR2004 - said below
        raise Refusal(400, f"{SESSION_HEADER} must have 1 to 200 characters.")
    return session


def stream(events: AsyncGenerator[bytes, None], service: Service, record: Record) -> EventStream:
    """Events as a response."""
    return EventStream(
        events,
        service.stopping,
        every=_ALIVE_EVERY,
        failed=event,
        report=record.failed,
    )


async def _passed(
    response: httpx.Response, request: Request, service: Service, record: Record
) -> Response:
    """What the model's server said, byte for byte."""
    headers = passed_on(response)
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        body = await unless_gone(_whole(response), request.receive, service.stopping)
        return Response(body, response.status_code, headers)

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            async for part in response.aiter_raw():
                yield part
        finally:
            await response.aclose()

    return stream(parts(), service, record)


async def _whole(response: httpx.Response) -> bytes:
    try:
        return await response.aread()
    finally:
        await response.aclose()


async def _events(
    answering: Answering, fields: dict[str, Any], record: Record
) -> AsyncGenerator[bytes, None]:
    head = Head.new(answering.service.name)
    yield event(head.chunk({"role": "assistant", "content": ""}))
    async with aclosing(record.counted(answering.parts())) as parts:
        async for part in parts:
            if isinstance(part, Progress):
                yield event(head.chunk({"reasoning_content": part.text}))
            elif answering.more:
                async with aclosing(_more(answering, part, fields, head)) as more:
                    async for found in more:
                        yield found
            else:
                yield event(head.chunk({"content": part.text}))
                end = head.chunk({}, part.finish_reason)
                yield event({**end, "memagent": part.memagent})
                if _wants_usage(answering):
                    yield event(head.usage(part.usage))
    yield event("[DONE]")


async def _more(
    answering: Answering, read: Read, fields: dict[str, Any], head: Head
) -> AsyncGenerator[bytes, None]:
    """What the model streams after the reading, as parts of the same completion."""
    upstream = answering.service.upstream
    assert upstream is not None  # noqa: S101 - who wants more has one
    response = await upstream.complete(_rest(answering, read, fields))
    try:
        if not response.is_success:
            yield event(json.loads(response.content))
            return
        async for line in response.aiter_lines():
            data = line.removeprefix("data:").strip()
            if not line.startswith("data:") or data == "[DONE]":
                continue
            part = {**json.loads(data), "id": head.id, "created": head.created}
            if any(choice.get("finish_reason") for choice in part.get("choices") or ()):
                part["memagent"] = read.memagent
            if part.get("usage") and not part.get("choices"):
                part["usage"] = _sum(read, part["usage"])
            yield event(part)
    finally:
        await response.aclose()


def _rest(answering: Answering, read: Read, fields: dict[str, Any]) -> bytes:
    return json.dumps(answering.rest(read.text, fields)).encode()


def _wants_usage(answering: Answering) -> bool:
    options = answering.request.stream_options
    return bool(options and options.include_usage)


def _sum(read: Read, usage: dict[str, Any] | None) -> dict[str, Any]:
    usage = usage or {}
    total = {name: (usage.get(name) or 0) + tokens for name, tokens in read.usage.items()}
    return {**usage, **total}
