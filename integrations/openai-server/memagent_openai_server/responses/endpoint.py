"""`/v1/responses`: the responses API, on top of chat completions."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson
from starlette.responses import JSONResponse, Response

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.chat.deciding import Answering, Arrived, decide, place
from memagent_openai_server.chat.endpoint import (
    MEMORY_HEADER,
    chunks,
    session_of,
    stream,
    whole,
)
from memagent_openai_server.http.refusals import refusal
from memagent_openai_server.http.requests import ChatRequest, aparse, understand
from memagent_openai_server.memories.sessions import reach, response_name, unless_away
from memagent_openai_server.responses import made
from memagent_openai_server.responses.events import EventStream
from memagent_openai_server.responses.items import Message, chat_fields, items_of, messages_of
from memagent_openai_server.responses.made import Making, small, status_of
from memagent_openai_server.responses.request import ResponseRequest
from memagent_openai_server.upstream.errors import broken
from memagent_openai_server.upstream.streams import parts_of, read_whole

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from memagent_openai_server.http.records import Record
    from memagent_openai_server.memories.sessions import Sessions
    from memagent_openai_server.models import Models
    from memagent_openai_server.responses.chain import Kept
    from memagent_openai_server.upstream.server import Reply


@dataclass(frozen=True)
class Asking:
    """A request for a response.

    Attributes:
        making: the response.
        before: messages of the responses that it follows.
        new: messages of its own input.
        sessions: the tenant's sessions.
    """

    making: Making
    before: list[Message]
    new: list[Message]
    sessions: Sessions

    async def own(self, found: Answering) -> Answering:
        """Store the reading for this response, unless it belongs to a session or is not stored.

        If the store fails, the request is read like a chat.
        """
        if self.making.asked.store is False or found.place.name is not None:
            return found
        name = response_name(self.making.id)
        with unless_away("A response cannot be followed up"):
            await self.sessions.used(name)
            return replace(found, place=replace(found.place, name=name))
        return found

    async def keep(self, found: Reply | Answering, response: dict[str, Any]) -> dict[str, Any]:
        """Store what a follow-up needs: the memory, and the messages that it does not have.

        Returns:
            The response, with whether it is stored.
        """
        if self.making.asked.store is False:
            return response
        new, follows = self.new, self.making.asked.previous_response_id
        all_of_it = [*self.before, *self.new]
        if isinstance(found, Answering):
            new = all_of_it = found.left()
            follows = None
        memory = (response.get("memagent") or {}).get("memory")
        kept = {"messages": new, "memory": memory, "response": small(response)}
        with unless_away("A response cannot be followed up"):
            await self.sessions.keep_response(self.making.id, kept, after=follows, whole=all_of_it)
            return response
        return {**response, "store": False}


async def respond(models: Models, request: Request, body: bytes, record: Record) -> Response:
    """Make a response.

    Raises:
        Refusal: The request cannot be answered.
        MemAgentError: The model or the store failed.
    """
    _, asked = await aparse(body, ResponseRequest)
    service = models.named(asked.model)
    sessions = service.sessions(record.tenant)
    memory = asked.memagent.memory if asked.memagent else None
    new, before = messages_of(asked.input), list[Message]()
    if asked.previous_response_id is not None:
        kept = await _kept(sessions, asked.previous_response_id)
        before = await _conversation(sessions, asked.previous_response_id, kept)
        memory = memory or kept["memory"]
        where = await place(sessions, memory=memory, session=None, user=None)
    else:
        where = await place(sessions, memory=memory, session=session_of(request), user=asked.user)
    asking = Asking(Making(asked, f"resp_{uuid4().hex}", int(time())), before, new, sessions)
    fields = chat_fields(asked, [*before, *new], service.name)
    chat, chat_body = await unless_small(len(body), _as_chat, fields)
    arrived = Arrived(fields, chat, chat_body, request.receive, record)
    remembers = asked.store is not False  # False means that nothing is to be stored
    arrived = await arrived.prepare(service, sessions, session_of(request), remembers=remembers)
    found = await decide(service, sessions, where, arrived)
    if isinstance(found, Answering):
        found = await asking.own(found)
    if asked.stream:
        stop = service.stopping if isinstance(found, Answering) else None
        return stream(_events(asking, found, arrived), record, stop)
    response = await _whole(asking.making, found, arrived)
    response = await asking.keep(found, response)
    memory = (response.get("memagent") or {}).get("memory")
    return JSONResponse(response, headers={MEMORY_HEADER: memory} if memory else {})


def _as_chat(fields: dict[str, Any]) -> tuple[ChatRequest, bytes]:
    """Return a chat completion as validated, and as passed on.

    Raises:
        Refusal: It is invalid, or an earlier response has half of a surrogate pair.
    """
    chat = understand(fields, ChatRequest)
    try:
        return chat, orjson.dumps(fields)
    except orjson.JSONEncodeError as error:
        raise Refusal(400, f"The conversation cannot be written as JSON: {error}.") from None


async def retrieve(sessions: Sessions, key: str) -> dict[str, Any]:
    """Return a stored response.

    Raises:
        Refusal: There is none.
    """
    return made.whole(key, (await _kept(sessions, key))["response"])


async def delete(sessions: Sessions, key: str) -> dict[str, Any]:
    """Delete a response, with its reading if nothing else uses that.

    Raises:
        Refusal: There is none.
    """
    await _kept(sessions, key)
    await sessions.forget(response_name(key))
    return {"id": key, "object": "response", "deleted": True}


async def _kept(sessions: Sessions, key: str) -> Kept:
    found = await reach(sessions.chain.get(key))
    if found is None:
        message = f"There is no response {key[:200]!r}: it was not stored, or was deleted."
        raise Refusal(404, message, code="response_not_found")
    return found


async def _conversation(sessions: Sessions, key: str, kept: Kept) -> list[Message]:
    messages = await reach(sessions.chain.conversation(kept))
    if messages is None:
        message = (
            f"A response that {key[:200]!r} follows is gone from the store: send the whole "
            "conversation."
        )
        raise Refusal(404, message, code="response_not_found", param="previous_response_id")
    return messages


async def _whole(making: Making, found: Reply | Answering, arrived: Arrived) -> dict[str, Any]:
    """The response.

    Raises:
        Refusal: The response of the model's server is not a completion.
    """
    if isinstance(found, Answering):
        _, completion = await whole(found, arrived)
        return _of(making, completion)
    body = await read_whole(found, arrived.receive)
    try:
        completion = json.loads(body)
        response = _of(making, completion)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise broken() from error
    if arrived.turn is not None:
        arrived.turn.hear(completion)
    return response


def _of(making: Making, completion: dict[str, Any]) -> dict[str, Any]:
    choice = completion["choices"][0]
    reason = choice.get("finish_reason")
    output = items_of(choice, status_of(reason))
    return making.ended(output, reason, completion.get("usage"), completion.get("memagent"))


async def _events(
    asking: Asking, found: Reply | Answering, arrived: Arrived
) -> AsyncGenerator[bytes, None]:
    making = asking.making
    events = EventStream(making)
    parts = chunks(found, arrived) if isinstance(found, Answering) else parts_of(found)
    for event in events.begin():
        yield event
    try:
        async with aclosing(parts):
            async for part in parts:
                if arrived.turn is not None and not isinstance(found, Answering):
                    arrived.turn.hear(part)
                for event in events.part(part):
                    yield event
        if events.finish_reason is None:
            raise broken()  # noqa: TRY301 - as where it breaks off within a part
    except Exception as error:  # noqa: BLE001 - it is sent to the client within the stream
        arrived.record.failed(error)
        for event in events.finish_items("incomplete"):
            yield event
        yield events.end(making.failed(events.output, refusal(error)))
        return
    for event in events.finish_items(status_of(events.finish_reason)):
        yield event
    response = making.ended(events.output, events.finish_reason, events.usage, events.memagent)
    yield events.end(await asking.keep(found, response))
