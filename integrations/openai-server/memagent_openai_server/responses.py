"""`/v1/responses`: what its basics need, on top of chat completions."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response

from memagent_openai_server.chat import Answering, Arrived, decide, place
from memagent_openai_server.completions import (
    MEMORY_HEADER,
    check_model,
    chunks,
    read_whole,
    session_of,
    stream,
    streamed,
    whole,
)
from memagent_openai_server.items import chat_fields, items_of, messages_of
from memagent_openai_server.refusals import Refusal
from memagent_openai_server.requests import ChatRequest, ResponseRequest, parse
from memagent_openai_server.response_events import Told

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import httpx
    from starlette.requests import Request

    from memagent_openai_server.records import Record
    from memagent_openai_server.service import Service
    from memagent_openai_server.sessions import Sessions


@dataclass(frozen=True)
class Asking:
    """A response that is to be made.

    Attributes:
        asked: the request.
        messages: of the conversation, but for the instructions.
        sessions: of the tenant.
        id: of the response.
        created: Unix time.
    """

    asked: ResponseRequest
    messages: list[dict[str, Any]]
    sessions: Sessions
    id: str
    created: int

    def response(self, status: str, output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The response, as far as it is known."""
        asked = self.asked
        extra = asked.model_extra or {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": asked.model,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": asked.previous_response_id,
            "store": asked.store is not False,
            "temperature": extra.get("temperature"),
            "text": asked.text or {"format": {"type": "text"}},
            "tool_choice": extra.get("tool_choice") or "auto",
            "tools": asked.tools or [],
            "top_p": extra.get("top_p"),
            "truncation": "disabled",
            "usage": None,
            "user": asked.user,
            **more,
        }

    async def keep(
        self, found: httpx.Response | Answering, response: dict[str, Any], said: dict[str, Any]
    ) -> None:
        """Keep what a follow-up needs: the memory, and the messages that it does not hold."""
        if self.asked.store is False:
            return
        left = found.left() if isinstance(found, Answering) else self.messages
        memory = (response.get("memagent") or {}).get("memory")
        record = {"messages": [*left, said], "memory": memory, "response": response}
        await self.sessions.keep_response(self.id, record)


async def respond(service: Service, request: Request, body: bytes, record: Record) -> Response:
    """Make a response.

    Raises:
        Refusal: It cannot be made.
        MemAgentError: Likewise.
    """
    fields, asked = parse(body, ResponseRequest)
    check_model(service, asked.model)
    sessions = service.sessions(record.tenant)
    memory = asked.memagent.memory if asked.memagent else None
    messages = messages_of(fields["input"])
    if asked.previous_response_id is not None:
        before = await _kept(sessions, asked.previous_response_id)
        messages = [*before["messages"], *messages]
        memory = memory or before["memory"]
        where = await place(sessions, memory=memory, session=None, user=None)
    else:
        where = await place(sessions, memory=memory, session=session_of(request), user=asked.user)
    asking = Asking(asked, messages, sessions, f"resp_{uuid4().hex}", int(time()))
    chat_body = json.dumps(chat_fields(fields, messages, service.name)).encode()
    sent, chat = parse(chat_body, ChatRequest)
    arrived = Arrived(sent, chat, chat_body, request.receive, record)
    found = await decide(service, sessions, where, arrived)
    if not isinstance(found, Answering) and not found.is_success:
        return Response(found.content, found.status_code, {"content-type": "application/json"})
    if asked.stream:
        stop = service.stopping if isinstance(found, Answering) else None
        return stream(_events(asking, found, arrived), record, stop)
    response, said = await _whole(asking, found, arrived)
    await asking.keep(found, response, said)
    memory = (response.get("memagent") or {}).get("memory")
    return JSONResponse(response, headers={MEMORY_HEADER: memory} if memory else {})


async def retrieve(sessions: Sessions, key: str) -> dict[str, Any]:
    """A response that was kept.

    Raises:
        Refusal: There is none.
    """
    found: dict[str, Any] = (await _kept(sessions, key))["response"]
    return found


async def delete(sessions: Sessions, key: str) -> dict[str, Any]:
    """Delete a response with what was kept for a follow-up; memories stay.

    Raises:
        Refusal: There is none.
    """
    await _kept(sessions, key)
    await sessions.keep_response(key, None)
    return {"id": key, "object": "response", "deleted": True}


async def _kept(sessions: Sessions, key: str) -> dict[str, Any]:
    found = await sessions.response(key)
    if found is None:
        message = f"There is no response {key[:200]!r}."
        raise Refusal(404, message, code="response_not_found")
    return found


async def _whole(
    asking: Asking, found: httpx.Response | Answering, arrived: Arrived
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The response, and what the model said as a message of a chat."""
    if isinstance(found, Answering):
        _, completion = await whole(found, arrived)
    else:
        completion = json.loads(await read_whole(found, arrived.receive))
    said = completion["choices"][0]["message"]
    more = {name: completion[name] for name in ("memagent",) if name in completion}
    usage = usage_of(completion.get("usage"))
    response = asking.response("completed", items_of(said), usage=usage, **more)
    return response, {"role": "assistant", "content": said.get("content"), **_calls(said)}


async def _events(
    asking: Asking, found: httpx.Response | Answering, arrived: Arrived
) -> AsyncGenerator[bytes, None]:
    told = Told(asking.response)
    parts = chunks(found, arrived) if isinstance(found, Answering) else streamed(found)
    for event in told.begin():
        yield event
    async with aclosing(parts):
        async for part in parts:
            for event in told.part(part):
                yield event
    for event in told.finish_items():
        yield event
    usage = usage_of(told.usage)
    more = {} if told.memagent is None else {"memagent": told.memagent}
    response = asking.response("completed", told.output, usage=usage, **more)
    await asking.keep(found, response, told.said)
    yield told.end(response)


def usage_of(usage: dict[str, Any] | None) -> dict[str, Any] | None:
    """Usage as the responses API tells it."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.get("prompt_tokens") or 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.get("completion_tokens") or 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.get("total_tokens") or 0,
    }


def _calls(said: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": said["tool_calls"]} if said.get("tool_calls") else {}
