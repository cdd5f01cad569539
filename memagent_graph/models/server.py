"""An OpenAI-compatible server, shared by all calls of a model: turns, errors, list of models."""

from __future__ import annotations

import asyncio
import json
import os
from codecs import BOM_UTF8
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import finalize

from openai import (
    DEFAULT_CONNECTION_LIMITS,
    APIStatusError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    NotFoundError,
    OpenAIError,
    Timeout,
)

from memagent_graph.errors import ModelError, TransientModelError
from memagent_graph.models.failures import fields_of, is_unreachable, model_error
from memagent_graph.models.reply import count_of
from memagent_graph.sync import LoopThread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from openai._types import RequestOptions

_WINDOW_NAMES = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio, where `max_context_length` is what it could load
    "context_length",  # OpenRouter, Together
    "context_window",  # Groq
    "max_context_length",  # Mistral
)
"""Names of the context length."""


class Served(NamedTuple):
    """The report of a server on a model: its context length in tokens, a name with its size."""

    window: int | None = None
    name: str = ""


def _describe(listed: Mapping[str, Any]) -> Served:
    meta = fields_of(listed.get("meta"))  # llama.cpp
    found = (count_of(listed.get(name)) for name in _WINDOW_NAMES)
    window = next((length for length in found if length), None)
    parameters = count_of(meta.get("n_params"))
    name = f"{parameters / 1e9:.2f}b" if parameters else listed.get("root")  # vLLM's folder or id
    return Served(window, name if isinstance(name, str) else "")


_LONGEST_REST = 0.5
"""Longest wait for the end of a stream after its "[DONE]", in seconds; then it is closed."""
_HTTP = import_module(type(DEFAULT_CONNECTION_LIMITS).__module__.partition(".")[0])
"""The HTTP library that this release of the SDK uses."""


async def post(client: AsyncOpenAI, request: Mapping[str, Any]) -> Any:
    """Send a request for a completion, and return the response of the HTTP library.

    The SDK's own method transforms all fields by their types, and parses the reply into objects,
    which takes much of the processor time of a short call.
    """
    options = {name: request[given] for given, name in _OPTIONS.items() if given in request}
    fields = {name: value for name, value in request.items() if name not in _NO_FIELDS}
    return await client.post(
        "/completions" if "prompt" in request else "/chat/completions",
        cast_to=_HTTP.Response,
        body=fields | (request.get("extra_body") or {}),
        options=cast("RequestOptions", options),
        stream=bool(request.get("stream")),
    )


_OPTIONS = {"extra_headers": "headers", "extra_query": "params", "timeout": "timeout"}
"""Arguments of a call that are no fields of its request, by their names in the SDK."""
_NO_FIELDS = frozenset({*_OPTIONS, "extra_body"})


async def read_events(response: Any) -> AsyncGenerator[Any, None]:
    """Yield the events of a stream, as parsed JSON; None if it says that it is complete.

    A reply that is no stream but one JSON object is its only event.
    """
    whole = b""
    async with aclosing(_read_lines(response)) as lines:
        async for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data.startswith(b"[DONE]"):
                    yield None
                    with suppress(Exception):  # a connection read to its end can be used again
                        async with asyncio.timeout(_LONGEST_REST):
                            async for _ in lines:
                                pass
                    return
                if data:
                    yield json.loads(data)
            elif whole or line.startswith(b"{"):
                whole += line
    if whole:
        yield json.loads(whole)


async def _read_lines(response: Any) -> AsyncGenerator[bytes, None]:
    """The lines of a reply, without a byte order mark and what surrounds them."""
    held = bytearray()
    async with aclosing(response.aiter_bytes()) as parts:
        async for part in parts:
            held += part
            *lines, held = held.split(b"\n")
            for line in lines:
                yield bytes(line.removeprefix(BOM_UTF8).strip())
    yield bytes(held.removeprefix(BOM_UTF8).strip())


_LONGEST_CONNECT = 10.0
"""Longest wait for a connection, or for the list of models, in seconds."""
_LONGEST_IDLE = 30.0
"""Time for which a connection without a call is kept, in seconds: a busy graph takes some."""
_ASK_AGAIN = 60.0
"""Time after which a server that did not list its models is asked again, in seconds."""
_NO_KEY = "not-needed"
"""Sent to servers without a key: the SDK requires one."""
_SERVER_FAILURE = 500


def server_thread() -> LoopThread:
    """Return the event loop on which this process talks to all servers, in its thread."""
    return LoopThread.of("memagent-servers")


def _close_soon(thread: LoopThread, client: AsyncOpenAI) -> None:
    """Close a client that nobody has any more."""
    if thread.pid == os.getpid():
        asyncio.run_coroutine_threadsafe(client.close(), thread.loop)


@dataclass
class _Opened:
    pid: int
    client: AsyncOpenAI
    turns: asyncio.Semaphore
    asking: asyncio.Lock


class Server:
    """The server of a `ChatEndpoint`; its coroutines run on the loop of `server_thread`.

    `timeout` is the longest silence during a call, and the `patience` of errors of a server that is
    down, in seconds; `max_concurrency` the most calls under way at once.
    """

    def __init__(
        self, base_url: str, *, api_key: str | None, timeout: float, max_concurrency: int
    ) -> None:
        self._quick = min(timeout, _LONGEST_CONNECT)
        self._max_concurrency = max_concurrency
        self._options: dict[str, Any] = {
            "api_key": api_key or _NO_KEY,
            "base_url": base_url,
            "timeout": Timeout(timeout, connect=self._quick),
            "max_retries": 0,
        }
        self._timeout = timeout
        self._answered = False
        self._opened: _Opened | None = None
        self._served: dict[str, Served] = {}
        self._ask_after = 0.0

    @asynccontextmanager
    async def call(self) -> AsyncIterator[AsyncOpenAI]:
        """Wait for a turn, and yield the client for one call; its errors are converted to ours."""
        opened = self._open()
        async with opened.turns:
            try:
                yield opened.client
            except Exception as error:
                served: Sequence[str] = ()
                if isinstance(error, NotFoundError):
                    with suppress(ModelError):  # the 404 already says enough
                        served = [*await self.models()]
                failure = model_error(error, served=served)
                if not is_unreachable(error):
                    self._answered |= isinstance(error, APIStatusError)
                elif self._answered and isinstance(failure, TransientModelError):
                    failure.patience = self._timeout  # an address that is wrong never answered
                raise failure from error
            self._answered = True

    async def models(self) -> dict[str, int | None]:
        """Return its models, with their context lengths in tokens, None if not reported."""
        return {entry["id"]: _describe(entry).window for entry in await self._list()}

    async def describe(self, model: str) -> Served:
        """Return what the server reports of a model; its answer is kept.

        That is nothing if the server cannot be asked; then the first call raises the reason.
        Raises `ModelError` if vLLM has no model of this name.
        """
        async with self._open().asking:
            if model not in self._served and monotonic() >= self._ask_after:
                try:
                    listed = {entry["id"]: entry for entry in await self._list()}
                except ModelError:
                    self._ask_after = monotonic() + _ASK_AGAIN  # or each of a batch would ask
                    return Served()
                # Other servers than vLLM accept more names than they list.
                is_exact = any(entry.get("owned_by") == "vllm" for entry in listed.values())
                if is_exact and model not in listed:
                    message = (
                        f"The server does not know the model {model!r}: it serves "
                        f"{', '.join(listed)}."
                    )
                    raise ModelError(message)
                # llama.cpp and others answer with their only model, whatever its name.
                only = {} if len(listed) > 1 else next(iter(listed.values()), {})
                # A missing model may be loaded later, so its absence is not kept.
                self._served[model] = _describe(listed.get(model, only))
        return self._served.get(model, Served())

    async def is_healthy(self) -> bool:
        """Return whether the server answers; an error below 500, such as a wrong key, counts."""
        try:
            await self._get_models()
        except APIStatusError as error:
            return error.status_code < _SERVER_FAILURE
        except OpenAIError:
            return False
        return True

    async def aclose(self) -> None:
        """Close the connections; the next call opens others."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            await opened.client.close()

    def _open(self) -> _Opened:
        if self._opened is None or self._opened.pid != os.getpid():
            limits = _HTTP.Limits(
                max_keepalive_connections=self._max_concurrency, keepalive_expiry=_LONGEST_IDLE
            )
            http = DefaultAsyncHttpxClient(limits=limits)
            client = AsyncOpenAI(**self._options, http_client=http)
            turns = asyncio.Semaphore(self._max_concurrency)
            self._opened = _Opened(os.getpid(), client, turns, asyncio.Lock())
            finalize(self, _close_soon, server_thread(), client).atexit = False
        return self._opened

    async def _list(self) -> list[dict[str, Any]]:
        try:
            found = (await self._get_models()).json()
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error
        listed = found.get("data") if isinstance(found, dict) else None
        entries = listed if isinstance(listed, list) else ()
        return [entry for entry in entries if isinstance(entry, dict) and entry.get("id")]

    async def _get_models(self) -> Any:
        options: RequestOptions = {"timeout": self._quick}
        return await self._open().client.get("/models", cast_to=_HTTP.Response, options=options)
