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
from langchain_core.messages import AIMessageChunk, convert_to_messages, convert_to_openai_messages

from memagent_graph.errors import ContextLengthError
from memagent_graph.models.failures import model_error
from memagent_graph.models.reply import is_cut_off, usage_of
from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import EVENTS, event, unless_gone
from memagent_openai_server.errors import broken, error_in, reword, too_long, unanswered

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


def begin_completion(model: str) -> dict[str, Any]:
    """Return the fields that all parts of a new completion share."""
    key = f"chatcmpl-{uuid4().hex}"
    return {"id": key, "object": _CHUNK, "created": int(time()), "model": model}


def choose(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    """Return what a part of a completion has of the only choice."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"choices": [choice]}


def count_usage(prompt: int, completion: int) -> dict[str, int]:
    """Return the usage in OpenAI's format."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


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
    async def of(
        cls,
        chunks: AsyncGenerator[dict[str, Any], None],
        asked: Mapping[str, Any],
        stop: asyncio.Event | None = None,
    ) -> Reply:
        """Return the reply for the parts of a completion, as a stream if that is `asked`."""
        if not asked.get("stream"):
            completion = await unless_gone(join(chunks), stop=stop)
            headers = {"content-type": "application/json"}
            if memory := completion.get("memagent", {}).get("memory"):
                headers[MEMORY_HEADER] = memory
            return cls(HTTPStatus.OK, headers, _once(completion))
        first = await anext(chunks)  # most refusals come before it
        shows_usage = bool((asked.get("stream_options") or {}).get("include_usage"))

        async def parts() -> AsyncGenerator[bytes, None]:
            yield event(first)
            async with aclosing(chunks):
                async for chunk in chunks:
                    if shows_usage or chunk.get("choices"):
                        yield event(chunk)
            yield b"data: [DONE]\n\n"

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


async def _once(completion: dict[str, Any]) -> AsyncGenerator[bytes, None]:
    yield json.dumps(completion, ensure_ascii=False).encode()


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

    async def complete(self, body: bytes, path: str = "/v1/chat/completions") -> Reply:
        """Post a body of JSON, and return the reply, which the caller reads or closes.

        The body is sent unchanged, unless the model's name for clients differs from its server's.

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
        return await Reply.of(self._say(fields), fields)

    async def _say(self, fields: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        limit = fields.get("max_completion_tokens") or fields.get("max_tokens")
        wanted, known = {**fields, "max_tokens": limit}, type(self._model).model_fields
        names = [name for name in _OPTIONS if name in known and wanted.get(name) is not None]
        options, stop = {name: wanted[name] for name in names}, fields.get("stop")
        head, whole = begin_completion(self._name), AIMessageChunk(content="")
        model: Any = self._model
        first = {"role": "assistant"}
        try:
            if fields.get("tools"):
                model = model.bind_tools(fields["tools"], tool_choice=fields.get("tool_choice"))
            messages = convert_to_messages(fields["messages"])
            stops = [stop] if isinstance(stop, str) else stop
            async for part in model.astream(messages, stop=stops, **options):
                whole += part
                if first or part.text:
                    yield head | choose({**first, "content": part.text})
                first = {}
        except (ValueError, NotImplementedError) as error:
            raise Refusal(400, "The model does not take this conversation.") from error
        except Exception as error:
            found = model_error(error)
            raise (too_long() if isinstance(found, ContextLengthError) else found) from error
        said: Any = convert_to_openai_messages(whole)
        if calls := said.get("tool_calls"):
            numbered = [{"index": index, **call} for index, call in enumerate(calls)]
            yield head | choose({"tool_calls": numbered})
        yield head | choose(
            {}, "tool_calls" if calls else "length" if is_cut_off(whole) else "stop"
        )
        cost = usage_of(whole)
        yield {**head, "choices": [], "usage": count_usage(cost.input_tokens, cost.output_tokens)}


def headers_of(reply: Reply) -> Mapping[str, str]:
    """Return the headers of a reply that the client gets."""
    return {name: reply.headers[name] for name in _PASSED_ON if name in reply.headers}


async def events(reply: Reply) -> AsyncGenerator[tuple[bytes, dict[str, Any] | None], None]:
    """Yield each event of a stream, and the part of a completion in it; None for a comment.

    A stream without an end, or an answer without one, broke off.
    """
    begun = ended = False
    try:
        async with aclosing(_split(reply.parts)) as split:
            async for raw in split:
                part = _part(reply, raw)
                if part is not None:
                    begun = begun or "choices" in part
                    ended = ended or any(each.get("finish_reason") for each in choices(part))
                    if reply.hear:
                        await reply.hear(part)
                elif begun and not ended and _data(raw) == _DONE:
                    break
                yield raw, part
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
