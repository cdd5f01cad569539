"""The model's server: send requests and return replies, both unchanged, or read their parts."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import orjson

from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import unless_gone
from memagent_openai_server.errors import broken, error_in, reword

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping

    from starlette.types import Receive

    from memagent_graph.models.endpoint import ChatEndpoint

_LONGEST_CONNECT = 10.0
_BESIDE = ("/tokenize", "/detokenize")
"""Paths of vLLM that are not below `/v1`."""
_PASSED_ON = ("content-type", "retry-after")
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""Byte sequences that end an event."""
_EVENT = re.compile(rb".+?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
_LONGEST_END = 3
"""Bytes of such a sequence that an earlier piece may hold."""
_LONGEST_EVENT = 32 * 2**20
"""Longest event, in bytes; no model writes more."""
_USUAL = (b"data: {", b"data:{", b"data: [DONE]", b":")
"""Beginnings of events that are not errors, unless they contain that word."""


@dataclass(frozen=True)
class Reply:
    """The reply of a model's server, or of a model that has none; who has it reads or closes it.

    Attributes:
        status_code: the HTTP status.
        headers: the headers.
        parts: the body; raises `Refusal` if it breaks off.
        asked: the body of the request; empty for a model without a server.
        key: the key that was sent.
        response: holds the connection, which is closed unless all was read.
    """

    status_code: int
    headers: Mapping[str, str]
    parts: AsyncGenerator[bytes, None]
    asked: bytes = field(default=b"", repr=False)
    key: str = field(default="", repr=False)
    response: aiohttp.ClientResponse | None = None

    @property
    def is_success(self) -> bool:
        """Whether the status says so."""
        return HTTPStatus.OK <= self.status_code < HTTPStatus.MULTIPLE_CHOICES

    async def read(self) -> bytes:
        """Return the whole body."""
        try:
            return b"".join([part async for part in self.parts])
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Read no more."""
        await self.parts.aclose()
        if self.response is not None:
            self.response.close()  # the generator may not have begun


async def _parts(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    try:
        async for part in response.content.iter_any():
            yield part
    except (aiohttp.ClientError, OSError) as error:
        raise broken() from error


class Upstream:
    """An OpenAI-compatible server.

    Requests carry this server's key; clients' keys are not passed on.

    Args:
        model: the model on that server.
        name: the model's name for clients.
    """

    def __init__(self, model: ChatEndpoint, name: str) -> None:
        self._model, self._name = model.model, name
        self._base = str(model.base_url).rstrip("/")
        self._headers = {
            "accept": "*/*",
            "accept-encoding": "identity",
            "content-type": "application/json",
            "user-agent": "memagent",
        }
        self._key = model.api_key.get_secret_value() if model.api_key is not None else ""
        if self._key:
            self._headers["authorization"] = f"Bearer {self._key}"
        self._timeout = aiohttp.ClientTimeout(
            sock_connect=_LONGEST_CONNECT, sock_read=model.timeout
        )
        server = urlsplit(self._base)
        # Once: aiohttp would look for it in a thread, for each request.
        known = not proxy_bypass(server.hostname or "")
        self._proxy = getproxies().get(server.scheme) if known else None
        self._ssl = httpx.create_ssl_context() if server.scheme == "https" else True
        self._opened: aiohttp.ClientSession | None = None

    async def complete(self, body: bytes) -> Reply:
        """Post a chat completion; see `post`."""
        return await self.post("/v1/chat/completions", body)

    async def post(self, path: str, body: bytes) -> Reply:
        """Post a body of JSON, and return the reply, which the caller reads or closes.

        The body is sent unchanged, unless the model's name for clients differs from its server's.

        Args:
            path: a path of OpenAI's API, with `/v1`, or of vLLM's, without.
            body: the request's body.

        Raises:
            Refusal: The server refuses the request, is down, or is slow.
        """
        if self._model != self._name:
            body = await unless_small(len(body), _renamed, body, self._model)
        base = self._base.removesuffix("/v1") if path in _BESIDE else self._base
        url = base + path.removeprefix("/v1")
        try:
            response = await self._session().post(
                url, data=body, headers=self._headers, allow_redirects=False
            )
        except TimeoutError as error:
            raise Refusal(504, "The model took too long.", code="upstream_timeout") from error
        except (aiohttp.ClientError, OSError) as error:
            message = "The model's server cannot be reached. Try again."
            raise Refusal(503, message, code="upstream_unreachable") from error
        parts = _parts(response)
        reply = Reply(response.status, response.headers, parts, body, self._key, response)
        if reply.is_success:
            return reply
        raise await asyncio.to_thread(reword, reply, await reply.read())

    def _session(self) -> aiohttp.ClientSession:
        """The connections of this event loop, one for each request at once."""
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl),
                cookie_jar=aiohttp.DummyCookieJar(),
                proxy=self._proxy,
                timeout=self._timeout,
                auto_decompress=False,
            )
        return self._opened

    async def aclose(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened.close()
            self._opened = None


def _renamed(body: bytes, model: str) -> bytes:
    return orjson.dumps({**orjson.loads(body), "model": model})


def headers_of(reply: Reply) -> Mapping[str, str]:
    """Return the headers of a reply that the client gets."""
    return {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}


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
                raise await asyncio.to_thread(reword, reply, body)
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


async def overhear(
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
        raise reword(reply, _data(found) or found)
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
