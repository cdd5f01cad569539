"""Read replies of the model's server, as bytes for the client or as parts of a completion."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from memagent_openai_server.http.delivery import unless_gone
from memagent_openai_server.upstream.errors import broken, error_in, reworded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator

    from starlette.types import Receive

    from memagent_openai_server.upstream.server import Reply

_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""Byte sequences that end an event."""
_EVENT = re.compile(rb".+?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
_LONGEST_END = 3
"""Bytes of such a sequence that an earlier piece may hold."""
_LONGEST_EVENT = 32 * 2**20
"""Longest event, in bytes; no model writes more."""
_USUAL = (b"data: {", b"data:{", b"data: [DONE]", b":")
"""Beginnings of events that are not errors, unless they contain that word."""


async def read_whole(reply: Reply, receive: Receive) -> bytes:
    """Return the body of a reply.

    Raises:
        ClientDisconnect: The client is gone.
        Refusal: The model's server broke off, or the body is an error.
    """
    body = await unless_gone(reply.read(), receive)
    if b'"error"' in body:
        with suppress(ValueError):  # a body that is not JSON is the client's business
            if error_in(json.loads(body)) is not None:
                raise await asyncio.to_thread(reworded, reply, body)
    return body


async def events(reply: Reply) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream of events, in pieces that end where events do.

    So comments that keep the connection alive can be sent between events, never within one.

    Raises:
        Refusal: The model's server broke off, sent an error, or sent an event without an end.
    """
    held = bytearray()
    try:
        async for part in reply.parts:
            looked = max(0, len(held) - _LONGEST_END)
            held += part
            ends = [held.rfind(sign, looked) + len(sign) for sign in _ENDS if sign in held[looked:]]
            if end := max(ends, default=0):
                for piece in _checked(reply, bytes(held[:end])):
                    yield piece
                del held[:end]
            elif len(held) > _LONGEST_EVENT:
                raise broken()
        for piece in _checked(reply, bytes(held)):
            yield piece
    finally:
        await reply.aclose()


async def overheard(
    pieces: AsyncGenerator[bytes, None], hear: Callable[[Any], None]
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a stream unchanged, each after a call of `hear` for each of its parts."""
    async with aclosing(pieces):
        async for piece in pieces:
            for event in _EVENT.findall(piece):
                with suppress(ValueError):  # "[DONE]", and other data for the client alone
                    hear(json.loads(_data(event)))
            yield piece


async def parts_of(reply: Reply) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the parts of a streamed completion.

    Raises:
        Refusal: The model's server broke off, or sent an error.
    """
    async with aclosing(events(reply)) as pieces:
        async for piece in pieces:
            for event in _EVENT.findall(piece):
                data = _data(event)
                if data and data != b"[DONE]":
                    yield json.loads(data)


def _checked(reply: Reply, piece: bytes) -> Iterator[bytes]:
    """Yield whole events unchanged, up to one that is an error."""
    for event in _EVENT.finditer(piece):
        found = event[0]
        if (b'"error"' not in found and found.startswith(_USUAL)) or not _reports_error(found):
            continue
        if event.start():
            yield piece[: event.start()]
        raise reworded(reply, _data(found) or found)
    if piece:
        yield piece


def _reports_error(event: bytes) -> bool:
    """Whether an event is an error: by its data, its name, or because it is not JSON."""
    data = _data(event)
    if not data or data == b"[DONE]":
        return event.startswith(b"error")  # llama.cpp's format
    try:
        return error_in(json.loads(data)) is not None or event.startswith(b"event: error")
    except ValueError:
        return True


def _data(event: bytes) -> bytes:
    lines = (line for line in event.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].strip() for line in lines)
