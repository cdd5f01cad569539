"""`POST /v1/chat/completions`."""

from __future__ import annotations

import json
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.chat.deciding import Answering, Arrived, decide, place
from memagent_openai_server.chat.shapes import Head, Progress, Read, Said
from memagent_openai_server.http.delivery import EventStream, event, last, unless_gone
from memagent_openai_server.http.requests import ChatRequest, aparse
from memagent_openai_server.upstream.server import passed_on
from memagent_openai_server.upstream.streams import events, overheard, parts_of, read_whole

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from memagent_openai_server.http.records import Record
    from memagent_openai_server.memories.remembering import Turn
    from memagent_openai_server.models import Models
    from memagent_openai_server.upstream.server import Reply

SESSION_HEADER = "x-memagent-session"
MEMORY_HEADER = "x-memagent-memory"
_ALIVE_EVERY = 10.0
"""Interval of keep-alive comments, in seconds: proxies give up after 30 or 60."""


async def complete(models: Models, request: Request, body: bytes, record: Record) -> Response:
    """Answer a chat completion.

    Raises:
        Refusal: The request cannot be answered.
        MemAgentError: The model or the store failed.
    """
    fields, chat = await aparse(body, ChatRequest)
    service = models.named(chat.model)
    sessions = service.sessions(record.tenant)
    where = await place(
        sessions,
        memory=chat.memagent.memory if chat.memagent else None,
        session=session_of(request),
        user=chat.user,
    )
    arrived = Arrived(fields, chat, body, request.receive, record)
    arrived = await arrived.prepare(service, sessions, session_of(request))
    found = await decide(service, sessions, where, arrived)
    if not isinstance(found, Answering):
        return await passed(found, request, record, arrived.turn)
    if chat.stream:
        return stream(sent(chunks(found, arrived)), record, service.stopping)
    read, completion = await whole(found, arrived)
    return JSONResponse(completion, headers={MEMORY_HEADER: read.memory} if read.memory else {})


def session_of(request: Request) -> str | None:
    """Return the session in a request's header; None without one.

    Raises:
        Refusal: It is empty or too long.
    """
    session = request.headers.get(SESSION_HEADER)
    if session is not None and not 0 < len(session) <= 200:  # noqa: PLR2004 - said below
        raise Refusal(400, f"{SESSION_HEADER} must have 1 to 200 characters.")
    return session


def stream(
    events: AsyncGenerator[bytes, None], record: Record, stop: asyncio.Event | None
) -> EventStream:
    """Return a response of events."""
    return EventStream(
        events,
        stop,
        every=_ALIVE_EVERY,
        failed=event,
        report=record.failed,
    )


async def passed(
    reply: Reply, request: Request, record: Record, turn: Turn | None = None
) -> Response:
    """Return the response of the model's server, byte for byte.

    Args:
        reply: the reply of the model's server.
        request: the client's request.
        record: record of the request.
        turn: turn of a remembered user; None without one.
    """
    headers = passed_on(reply)
    if not reply.headers.get("content-type", "").startswith("text/event-stream"):
        body = await read_whole(reply, request.receive)
        if turn is not None:
            with suppress(ValueError):  # a body that is not JSON is passed on, but not remembered
                turn.hear(json.loads(body))
        return Response(body, reply.status_code, headers)

    pieces = events(reply)
    return stream(pieces if turn is None else overheard(pieces, turn.hear), record, None)


async def whole(answering: Answering, arrived: Arrived) -> tuple[Read, dict[str, Any]]:
    """Return the reading, and its completion.

    Raises:
        Refusal: The server is stopping, or the model refuses.
        ClientDisconnect: The client is gone.
        MemAgentError: The reading failed.
    """
    service = answering.service
    parts = arrived.record.counted(answering.parts())
    read = await last(parts, arrived.receive, service.stopping)
    assert isinstance(read, Read)  # noqa: S101 - the last part is the answer
    if not answering.more:
        return read, _heard(Head.new(service.name).completion(read), answering)
    assert service.upstream is not None  # noqa: S101 - who wants more has one
    rest = await _rest(answering, read, arrived)
    completing = service.upstream.complete(rest)
    response = await unless_gone(completing, arrived.receive)
    body = await read_whole(response, arrived.receive)
    completion = json.loads(body)
    usage = _sum(read, completion.get("usage"))
    _heard(completion, answering)
    return read, {**completion, "memagent": read.memagent, "usage": usage}


async def chunks(answering: Answering, arrived: Arrived) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the parts of a completion: progress as reasoning, and then the answer.

    Raises:
        Refusal: The model refuses.
        MemAgentError: The reading failed.
    """
    async with aclosing(_chunks(answering, arrived)) as parts:
        async for part in parts:
            yield _heard(part, answering)


async def _chunks(answering: Answering, arrived: Arrived) -> AsyncGenerator[dict[str, Any], None]:
    head, said = Head.new(answering.service.name), 0
    yield head.chunk({"role": "assistant", "content": ""})
    async with aclosing(arrived.record.counted(answering.parts())) as parts:
        async for part in parts:
            if isinstance(part, Progress):
                yield head.chunk({"reasoning_content": part.text})
            elif isinstance(part, Said):
                said += len(part.text)
                yield head.chunk({"content": part.text})
            elif answering.more:
                async with aclosing(_more(answering, part, arrived, head)) as more:
                    async for found in more:
                        yield found
            else:
                if rest := part.text[said:]:
                    yield head.chunk({"content": rest})
                yield {**head.chunk({}, part.finish_reason), "memagent": part.memagent}
                if _wants_usage(answering):
                    yield head.usage(part.usage)


async def sent(
    parts: AsyncGenerator[dict[str, Any], None],
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a completion as events."""
    async with aclosing(parts):
        async for part in parts:
            yield event(part)
    yield event("[DONE]")


async def _more(
    answering: Answering, read: Read, arrived: Arrived, head: Head
) -> AsyncGenerator[dict[str, Any], None]:
    """The model's stream after the reading, as parts of the same completion."""
    upstream = answering.service.upstream
    assert upstream is not None  # noqa: S101 - who wants more has one
    response = await upstream.complete(await _rest(answering, read, arrived))
    async with aclosing(parts_of(response)) as parts:
        async for part in parts:
            changed = {**part, "id": head.id, "created": head.created}
            if any(choice.get("finish_reason") for choice in part.get("choices") or ()):
                changed["memagent"] = read.memagent
            if part.get("usage") and not part.get("choices"):
                changed["usage"] = _sum(read, part["usage"])
            yield changed


async def _rest(answering: Answering, read: Read, arrived: Arrived) -> bytes:
    def rest() -> bytes:
        return json.dumps(answering.rest(read.text, arrived.fields)).encode()

    return await unless_small(len(arrived.body), rest)


def _heard(part: dict[str, Any], answering: Answering) -> dict[str, Any]:
    if answering.turn is not None:
        answering.turn.hear(part)
    return part


def _wants_usage(answering: Answering) -> bool:
    options = answering.request.stream_options
    return bool(options and options.include_usage)


def _sum(read: Read, usage: dict[str, Any] | None) -> dict[str, Any]:
    usage = usage or {}
    total = {name: (usage.get(name) or 0) + tokens for name, tokens in read.usage.items()}
    return {**usage, **total}
