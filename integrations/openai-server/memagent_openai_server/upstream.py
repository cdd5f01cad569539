"""Whom requests are passed on to: the model's server, or a model that has none."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import uuid4

import aiohttp
import httpx
import orjson
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    convert_to_messages,
    convert_to_openai_messages,
)

from memagent_graph.errors import ContextLengthError
from memagent_graph.models.failures import model_error
from memagent_graph.readers.completion import is_cut_off, usage_of
from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import EVENTS, event
from memagent_openai_server.errors import TOO_LONG, broken, error_in, reword, unanswered

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping

    from langchain_core.language_models import BaseChatModel

    from memagent_graph.models.endpoint import ChatEndpoint

_OPTIONS = ("temperature", "top_p", "seed", "max_tokens")
_LONGEST_CONNECT = 10.0
_BESIDE = ("/tokenize", "/detokenize")
"""Paths of vLLM that are not below `/v1`."""
MEMORY_HEADER = "x-memagent-memory"
_PASSED_ON = ("content-type", MEMORY_HEADER)
_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""Byte sequences that end an event."""
_EVENT = re.compile(rb".+?(?:\r\n\r\n|\n\n|\r\r|\Z)", re.DOTALL)
_LONGEST_END = 3
"""Bytes of such a sequence that an earlier piece may hold."""
_LONGEST_EVENT = 32 * 2**20
"""Longest event, in bytes; no model writes more."""
_DONE = b"data: [DONE]"
_FINISHED = re.compile(rb'"finish_reason"\s{0,9}:\s{0,9}"')
_USUAL = (b"data: {", b"data:{", _DONE, b":")
"""Beginnings of events that are not errors, unless they contain that word."""


def count_usage(prompt: int, completion: int) -> dict[str, int]:
    """Return the usage in OpenAI's format."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


@dataclass(frozen=True)
class Head:
    """The fields that all parts of a completion share."""

    model: str
    id: str
    created: int

    @classmethod
    def new(cls, model: str) -> Head:
        """Return the fields of a new completion."""
        return cls(model, f"chatcmpl-{uuid4().hex}", int(time()))

    def whole(
        self, message: dict[str, Any], finish_reason: str, usage: dict[str, int]
    ) -> dict[str, Any]:
        """Return a whole completion of one message."""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return {**self._fields("chat.completion"), "choices": [choice], "usage": usage}

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """Return a part of a completion."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._fields("chat.completion.chunk"), "choices": [choice]}

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the part with the usage."""
        return {**self._fields("chat.completion.chunk"), "choices": [], "usage": usage}

    def _fields(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


@dataclass(frozen=True)
class Reply:
    """A completion as a server sends it, or a model without one, or a reading.

    Attributes:
        status_code: the HTTP status.
        headers: the headers.
        parts: the body; raises `Refusal` if it breaks off.
        asked: the body of the request; empty for a model without a server.
        response: holds the connection, which is closed unless all was read.
        stop: set when this server stops, if that ends the reply.
    """

    status_code: int
    headers: Mapping[str, str]
    parts: AsyncGenerator[bytes, None]
    asked: bytes = field(default=b"", repr=False)
    response: aiohttp.ClientResponse | None = None
    stop: asyncio.Event | None = None

    @classmethod
    def whole(cls, completion: dict[str, Any], **headers: str) -> Reply:
        """Return the reply for a completion."""

        async def parts() -> AsyncGenerator[bytes, None]:
            yield json.dumps(completion, ensure_ascii=False).encode()

        return cls(HTTPStatus.OK, {"content-type": "application/json", **headers}, parts())

    @classmethod
    def stream(
        cls, chunks: AsyncGenerator[dict[str, Any], None], stop: asyncio.Event | None = None
    ) -> Reply:
        """Return the reply for the parts of a completion."""

        async def parts() -> AsyncGenerator[bytes, None]:
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield event(chunk)
            yield event("[DONE]")

        return cls(HTTPStatus.OK, {"content-type": EVENTS}, parts(), stop=stop)

    @property
    def is_success(self) -> bool:
        """Whether the status says so."""
        return HTTPStatus.OK <= self.status_code < HTTPStatus.MULTIPLE_CHOICES

    async def read(self) -> bytes:
        """Return the whole body.

        Raises:
            Refusal: It breaks off, or is an error.
        """
        try:
            body = b"".join([part async for part in self.parts])
        finally:
            await self.aclose()
        is_error = not self.is_success
        if self.is_success and b'"error"' in body:
            with suppress(ValueError):  # a body that is not JSON is the client's business
                is_error = error_in(json.loads(body)) is not None
        if is_error:
            raise await asyncio.to_thread(reword, self, body)
        return body

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
        if model.api_key is not None:
            self._headers["authorization"] = f"Bearer {model.api_key.get_secret_value()}"
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
        except (aiohttp.ClientError, OSError) as error:
            raise unanswered(error) from error
        reply = Reply(response.status, response.headers, _parts(response), body, response)
        if not reply.is_success:
            await reply.read()
        return reply

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


class LocalModel:
    """A LangChain chat model: vLLM or transformers in this process, or any provider's.

    Args:
        model: the model.
        name: the model's name for clients.
    """

    def __init__(self, model: BaseChatModel, name: str) -> None:
        self._model = model
        self._name = name

    async def complete(self, body: bytes) -> Reply:
        """Answer a chat completion as a server would.

        Raises:
            Refusal: The model cannot do what the request asks for.
            ModelError: The model failed.
        """
        fields = json.loads(body)
        parts = self._parts(fields)
        head = Head.new(self._name)
        try:
            message = await anext(parts, AIMessageChunk(content=""))
            if fields.get("stream"):
                options = fields.get("stream_options") or {}
                usage = bool(options.get("include_usage"))
                return Reply.stream(_chunks(head, message, parts, usage=usage))
            async for part in parts:
                message += part
            whole = head.whole(_said(message), _finish_reason(message), _usage(message))
            return Reply.whole(whole)
        except (Refusal, ValueError, NotImplementedError) as error:
            if isinstance(error, Refusal):
                raise
            raise Refusal(400, "The model does not take this conversation.") from error
        except Exception as error:
            found = model_error(error)
            if isinstance(found, ContextLengthError):
                why = "The request is longer than the model's maximum context length."
                raise Refusal(400, why, code=TOO_LONG, param="messages") from error
            raise found from error

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""

    async def _parts(self, fields: dict[str, Any]) -> AsyncGenerator[AIMessageChunk, None]:
        for name, value in (("n", 1), ("logprobs", False), ("response_format", {"type": "text"})):
            if fields.get(name) not in (None, value):
                message = f"This model gives one answer, in plain text: it does not take {name}."
                raise Refusal(400, message, param=name, code="unsupported_parameter")
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
        wanted = {**fields, "max_tokens": limit}
        known = type(self._model).model_fields
        options = {
            name: wanted[name]
            for name in _OPTIONS
            if wanted.get(name) is not None and name in known
        }
        stop = fields.get("stop")
        model: Any = self._model
        if fields.get("tools"):
            model = model.bind_tools(fields["tools"], tool_choice=fields.get("tool_choice"))
        messages = convert_to_messages(fields["messages"])
        async for part in model.astream(
            messages, stop=[stop] if isinstance(stop, str) else stop, **options
        ):
            yield part


async def _chunks(
    head: Head, first: AIMessageChunk, rest: AsyncGenerator[AIMessageChunk, None], *, usage: bool
) -> AsyncGenerator[dict[str, Any], None]:
    yield head.chunk({"role": "assistant", "content": ""})
    if first.text:
        yield head.chunk({"content": first.text})
    whole = first
    async with aclosing(rest):
        try:
            async for part in rest:
                whole += part
                if part.text:
                    yield head.chunk({"content": part.text})
        except Exception as error:
            raise model_error(error) from error
    if calls := _said(whole).get("tool_calls"):
        numbered = [{"index": index, **call} for index, call in enumerate(calls)]
        yield head.chunk({"tool_calls": numbered})
    yield head.chunk({}, _finish_reason(whole))
    if usage:
        yield head.usage(_usage(whole))


def _said(message: AIMessage) -> dict[str, Any]:
    """A message in OpenAI's format."""
    said: Any = convert_to_openai_messages(message)
    return {**said, "content": message.text}


def _finish_reason(message: AIMessage) -> str:
    if message.tool_calls:
        return "tool_calls"
    return "length" if is_cut_off(message) else "stop"


def _usage(message: AIMessage) -> dict[str, int]:
    cost = usage_of(message)
    return count_usage(cost.input_tokens, cost.output_tokens)


def headers_of(reply: Reply) -> Mapping[str, str]:
    """Return the headers of a reply that the client gets."""
    return {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}


async def events(reply: Reply) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a stream of events, in pieces that end where events do.

    So comments that keep the connection alive can be sent between events, never within one.

    Raises:
        Refusal: The model's server broke off, sent an error, or sent an event without an end; or
            the answer has no reason for its end.
    """
    begun = ended = False
    async with aclosing(_pieces(reply)) as pieces:
        async for piece in pieces:
            begun = begun or b'"choices"' in piece
            ended = ended or _FINISHED.search(piece) is not None
            done = piece.find(_DONE) if begun and not ended else -1
            yield piece if done < 0 else piece[:done]
            if done >= 0:
                break
    if begun and not ended:
        raise broken()


async def _pieces(reply: Reply) -> AsyncGenerator[bytes, None]:
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
    pieces: AsyncGenerator[bytes, None], hear: Callable[[Any], Awaitable[None]]
) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a stream unchanged, each after a call of `hear` for each of its parts."""
    async with aclosing(pieces):
        async for piece in pieces:
            with suppress(ValueError):  # other data for the client alone
                for part in _parts_in(piece):
                    await hear(part)
            yield piece


async def parts_of(reply: Reply) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the parts of a streamed completion.

    Raises:
        Refusal: The model's server broke off, or sent an error.
    """
    async with aclosing(events(reply)) as pieces:
        async for piece in pieces:
            for part in _parts_in(piece):
                yield part


def _parts_in(piece: bytes) -> Iterator[dict[str, Any]]:
    for found in _EVENT.findall(piece):
        data = _data(found)
        if data and data != b"[DONE]":
            yield json.loads(data)


def _checked(reply: Reply, piece: bytes) -> Iterator[bytes]:
    """Yield whole events unchanged, up to one that is an error."""
    for match in _EVENT.finditer(piece):
        found = match[0]
        if (b'"error"' not in found and found.startswith(_USUAL)) or not _reports_error(found):
            continue
        if match.start():
            yield piece[: match.start()]
        raise reword(reply, _data(found) or found)
    if piece:
        yield piece


def _reports_error(found: bytes) -> bool:
    """Whether an event is an error: by its data, its name, or because it is not JSON."""
    data = _data(found)
    if not data or data == b"[DONE]":
        return found.startswith(b"error")  # llama.cpp's format
    try:
        return error_in(json.loads(data)) is not None or found.startswith(b"event: error")
    except ValueError:
        return True


def _data(found: bytes) -> bytes:
    lines = (line for line in found.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].strip() for line in lines)
