"""Whom requests are passed on to: the model's server, or a model that has none."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import uuid4

import aiohttp
import httpx
import orjson
from langchain_core.messages import (
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
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from langchain_core.language_models import BaseChatModel

    from memagent_graph.models.endpoint import ChatEndpoint

_OPTIONS = ("temperature", "top_p", "seed", "max_tokens")
_LONGEST_CONNECT = 10.0
_BESIDE = ("/tokenize", "/detokenize")
"""Paths of vLLM that are not below `/v1`."""
MEMORY_HEADER = "x-memagent-memory"
_PASSED_ON = ("content-type", MEMORY_HEADER)
_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
"""The end of an event."""
_LONGEST_END = 3
"""Bytes of it that an earlier piece may hold."""
_LONGEST_EVENT = 32 * 2**20
"""Longest event, in bytes; no model writes more."""
_DONE = b"[DONE]"
_CHUNK = "chat.completion.chunk"


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

    def chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        """Return a part of a completion."""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._fields(), "choices": [choice]}

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the part with the usage."""
        return {**self._fields(), "choices": [], "usage": usage}

    def _fields(self) -> dict[str, Any]:
        return {"id": self.id, "object": _CHUNK, "created": self.created, "model": self.model}


async def join(chunks: AsyncGenerator[dict[str, Any], None]) -> dict[str, Any]:
    """Return the whole completion of the parts of one, without its reasoning.

    A completion that comes whole is returned as it is.
    """
    whole: dict[str, Any] = {}
    message: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": None}
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.get("object") != _CHUNK:
                return chunk
            whole |= {name: value for name, value in chunk.items() if name != "choices"}
            for part in chunk["choices"]:
                choice["finish_reason"] = part["finish_reason"]
                message["content"] += part["delta"].get("content", "")
                for call in part["delta"].get("tool_calls", ()):
                    own = {name: value for name, value in call.items() if name != "index"}
                    message.setdefault("tool_calls", []).append(own)
    return {**whole, "object": "chat.completion", "choices": [choice]}


@dataclass(frozen=True)
class Reply:
    """A completion as a server sends it, or a model without one, or a reading.

    Attributes:
        status_code: the HTTP status.
        headers: the headers.
        parts: the body; raises `Refusal` if it breaks off.
        asked: the body of the request to a server, which may refuse a field of it.
        response: holds the connection, which is closed unless all was read.
        stop: set when this server stops, if that ends the reply.
        hear: called with the completion, or each of its parts; None without a listener.
    """

    status_code: int
    headers: Mapping[str, str]
    parts: AsyncGenerator[bytes, None]
    asked: bytes = field(default=b"", repr=False)
    response: aiohttp.ClientResponse | None = None
    stop: asyncio.Event | None = None
    hear: Callable[[Any], Awaitable[None]] | None = None

    @classmethod
    def whole(cls, completion: dict[str, Any], **headers: str) -> Reply:
        """Return the reply for a completion."""

        async def parts() -> AsyncGenerator[bytes, None]:
            yield json.dumps(completion, ensure_ascii=False).encode()

        return cls(HTTPStatus.OK, {"content-type": "application/json", **headers}, parts())

    @classmethod
    def stream(
        cls,
        chunks: AsyncGenerator[dict[str, Any], None],
        options: Mapping[str, Any] | None,
        stop: asyncio.Event | None = None,
    ) -> Reply:
        """Return the reply for the parts of a completion; its `options` may ask for the usage."""
        shows_usage = bool(options and options.get("include_usage"))

        async def parts() -> AsyncGenerator[bytes, None]:
            async with aclosing(chunks):
                async for chunk in chunks:
                    if shows_usage or chunk.get("choices"):
                        yield event(chunk)
            yield event("[DONE]")

        return cls(HTTPStatus.OK, {"content-type": EVENTS}, parts(), stop=stop)

    @property
    def is_success(self) -> bool:
        """Whether the status says so."""
        return HTTPStatus.OK <= self.status_code < HTTPStatus.MULTIPLE_CHOICES

    async def read(self) -> bytes:
        """Return the whole body."""
        try:
            body = b"".join([part async for part in self.parts])
        finally:
            await self.aclose()
        is_error = not self.is_success
        if self.is_success and (self.hear or b'"error"' in body):
            with suppress(ValueError):  # a body that is not JSON is the client's business
                found = json.loads(body)
                is_error = error_in(found) is not None
                if self.hear and not is_error:
                    await self.hear(found)
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
    """A LangChain chat model: vLLM or transformers in this process, or any provider's."""

    def __init__(self, model: BaseChatModel, name: str) -> None:
        self._model = model
        self._name = name

    async def complete(self, body: bytes) -> Reply:
        """Answer a chat completion as a server would."""
        fields = json.loads(body)
        for name, value in (("n", 1), ("logprobs", False), ("response_format", {"type": "text"})):
            if fields.get(name) not in (None, value):
                message = f"This model gives one answer, in plain text: it does not take {name}."
                raise Refusal(400, message, param=name, code="unsupported_parameter")
        said = self._say(fields)
        first = await anext(said, AIMessageChunk(content=""))  # most refusals come before it
        chunks = _chunks(Head.new(self._name), first, said)
        if fields.get("stream"):
            return Reply.stream(chunks, fields.get("stream_options"))
        return Reply.whole(await join(chunks))

    async def _say(self, fields: dict[str, Any]) -> AsyncGenerator[AIMessageChunk, None]:
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
        try:
            if fields.get("tools"):
                model = model.bind_tools(fields["tools"], tool_choice=fields.get("tool_choice"))
            messages = convert_to_messages(fields["messages"])
            async for part in model.astream(
                messages, stop=[stop] if isinstance(stop, str) else stop, **options
            ):
                yield part
        except (ValueError, NotImplementedError) as error:
            raise Refusal(400, "The model does not take this conversation.") from error
        except Exception as error:
            found = model_error(error)
            if isinstance(found, ContextLengthError):
                why = "The request is longer than the model's maximum context length."
                raise Refusal(400, why, code=TOO_LONG, param="messages") from error
            raise found from error


async def _chunks(
    head: Head, first: AIMessageChunk, rest: AsyncGenerator[AIMessageChunk, None]
) -> AsyncGenerator[dict[str, Any], None]:
    yield head.chunk({"role": "assistant", "content": ""})
    if first.text:
        yield head.chunk({"content": first.text})
    whole = first
    async with aclosing(rest):
        async for part in rest:
            whole += part
            if part.text:
                yield head.chunk({"content": part.text})
    said: Any = convert_to_openai_messages(whole)
    if calls := said.get("tool_calls"):
        numbered = [{"index": index, **call} for index, call in enumerate(calls)]
        yield head.chunk({"tool_calls": numbered})
    ended = "tool_calls" if calls else "length" if is_cut_off(whole) else "stop"
    yield head.chunk({}, ended)
    cost = usage_of(whole)
    yield head.usage(count_usage(cost.input_tokens, cost.output_tokens))


def headers_of(reply: Reply) -> Mapping[str, str]:
    """Return the headers of a reply that the client gets."""
    return {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}


class Event(NamedTuple):
    """The bytes of an event, and the part of a completion in it; None for a comment."""

    raw: bytes
    part: dict[str, Any] | None


async def events(reply: Reply) -> AsyncGenerator[Event, None]:
    """Yield the events of a stream; one without an end, or an answer without one, broke off."""
    begun = ended = False
    try:
        async with aclosing(_split(reply.parts)) as split:
            async for raw in split:
                found = Event(raw, _part(reply, raw))
                if found.part is not None:
                    begun = begun or "choices" in found.part
                    ended = ended or any(each.get("finish_reason") for each in choices(found.part))
                    if reply.hear:
                        await reply.hear(found.part)
                elif begun and not ended and _data(raw) == _DONE:
                    break
                yield found
    finally:
        await reply.aclose()
    if begun and not ended:
        raise broken()


def choices(part: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of a completion, or of a part of one."""
    found = part.get("choices")
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


async def _split(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events of a body, so that comments can be sent between and never within them."""
    held = bytearray()
    async for piece in pieces:
        looked, begins = max(0, len(held) - _LONGEST_END), 0
        held += piece
        for end in [found.end() for found in _END.finditer(held, looked)]:
            yield bytes(held[begins:end])
            begins = end
        del held[:begins]
        if len(held) > _LONGEST_EVENT:
            raise broken()
    if held:
        yield bytes(held)


def _part(reply: Reply, raw: bytes) -> dict[str, Any] | None:
    """Return the part of a completion in an event; raise what is an error by data, name or form."""
    data, part, is_error = _data(raw), None, raw.startswith((b"error", b"event: error"))
    if data and data != _DONE:
        try:
            part = json.loads(data)  # which takes NaN, as some servers send it
        except ValueError:
            is_error = True
    if is_error or error_in(part) is not None:
        raise reword(reply, data or raw)
    return part if isinstance(part, dict) else None


def _data(raw: bytes) -> bytes:
    lines = (line for line in raw.splitlines() if line.startswith(b"data:"))
    return b"\n".join(line[5:].strip() for line in lines)
