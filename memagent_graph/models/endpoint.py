"""A chat model of any OpenAI-compatible server: vLLM, OpenAI, llama.cpp, a gateway."""

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

from langchain_core.messages import convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool
from openai import (
    DEFAULT_CONNECTION_LIMITS,
    APIStatusError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    NotFoundError,
    OpenAIError,
    Timeout,
)
from pydantic import ConfigDict, Field, PositiveInt, PrivateAttr, SecretStr

from memagent_graph.errors import ModelError, TransientModelError
from memagent_graph.models.completion import Completion, LoopChatModel, ModelCall
from memagent_graph.models.failures import (
    fields_of,
    find_refused_field,
    is_unreachable,
    model_error,
)
from memagent_graph.models.reply import count_of
from memagent_graph.sync import LoopThread, to_sync

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGenerationChunk
    from langchain_core.runnables import Runnable
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
                        served = [*await self.list_models()]
                failure = model_error(error, served=served)
                if not is_unreachable(error):
                    self._answered |= isinstance(error, APIStatusError)
                elif self._answered and isinstance(failure, TransientModelError):
                    failure.patience = self._timeout  # an address that is wrong never answered
                raise failure from error
            self._answered = True

    async def describe(self, model: str) -> Served:
        """Return what the server reports of a model; its answer is kept.

        That is nothing if the server cannot be asked; then the first call raises the reason.
        Raises `ModelError` if vLLM has no model of this name.
        """
        async with self._open().asking:
            if model not in self._served and monotonic() >= self._ask_after:
                try:
                    listed = await self.list_models()
                except ModelError:
                    self._ask_after = monotonic() + _ASK_AGAIN  # or each of a batch would ask
                    return Served()
                # Other servers than vLLM accept more names than they list.
                is_exact = any(entry.get("owned_by") == "vllm" for entry in listed.values())
                if is_exact and model not in listed:
                    names = ", ".join(listed)
                    message = f"The server does not know the model {model!r}: it serves {names}."
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

    async def list_models(self) -> dict[str, dict[str, Any]]:
        """Return what the server says of its models, by their ids."""
        try:
            found = (await self._get_models()).json()
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error
        listed = found.get("data") if isinstance(found, dict) else None
        entries = listed if isinstance(listed, list) else ()
        return {one["id"]: one for one in entries if isinstance(one, dict) and one.get("id")}

    async def _get_models(self) -> Any:
        options: RequestOptions = {"timeout": self._quick}
        return await self._open().client.get("/models", cast_to=_HTTP.Response, options=options)


_DEFAULT_URL = "https://api.openai.com/v1"
_FIELDS = ("model", "temperature", "top_p", "seed", "max_tokens", "stop", "extra_body")
_STREAMED: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}


class ChatEndpoint(LoopChatModel):
    """A chat model of an OpenAI-compatible server, on the `openai` SDK.

    Args:
        model: name of the model on the server.
        base_url: URL of the server, up to `/v1`; `OPENAI_BASE_URL`, or else OpenAI's, by default.
        api_key: `OPENAI_API_KEY` by default; local servers usually need none.
        temperature: 0 by default.
        top_p: nucleus sampling.
        seed: seed of the sampling, for servers that support it.
        max_tokens: longest reply, in tokens. Set here, it also overrides the reader's budgets, to
            leave a reasoning model room to think.
        stop: strings that end the reply.
        timeout: longest silence of the server, in seconds. Without streaming, a server is silent
            until the reply is complete.
        max_concurrency: most calls under way at once, over all threads and event loops; others
            wait. 256 is vLLM's default batch, and fits the usual limit of 1,024 open files. A
            stream counts until it is read to its end or closed.
        extra_body: fields that the server accepts and the SDK does not know.
        logprobs: whether to request the log-probability of each token.
        return_token_ids: whether to request the token ids of prompt and completion (vLLM).

    With the call option `plain`, the reply continues the last message as a plain text, with the
    log-probability of each token. A reply's `response_metadata["generation"]` is a
    `models.completion.Generation`. While a server that answered before is down, a reading repeats
    its calls for up to `timeout` seconds.

    Raises:
        ConfigurationError: An argument is invalid; raised on construction.
        ModelError: A call failed, in the subclass that says what to do; see
            `models.failures.model_error`.

    Examples:
        >>> from memagent_graph.models.endpoint import ChatEndpoint
        >>> name = "Qwen/Qwen2.5-7B-Instruct"
        >>> model = ChatEndpoint(model=name, base_url="http://localhost:8000/v1")
        >>> model.health()
        True
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str
    base_url: str | None = None
    api_key: SecretStr | None = Field(
        default_factory=lambda: (
            SecretStr(key) if (key := os.environ.get("OPENAI_API_KEY")) else None
        )
    )
    temperature: float | None = 0.0
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: list[str] | None = None
    timeout: float = 600.0
    max_concurrency: PositiveInt = 256
    extra_body: dict[str, object] | None = None
    logprobs: bool = False
    return_token_ids: bool = False

    _server: Server = PrivateAttr()
    _served: Served = PrivateAttr(default=Served())
    _refused: set[str] = PrivateAttr(default_factory=set)

    def model_post_init(self, context: object, /) -> None:
        """Fill in the default URL, and check it."""
        super().model_post_init(context)
        self.base_url = self.base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL
        if not self.base_url.startswith(("http://", "https://")):
            text = f"{self.base_url!r} is no base URL: give one such as http://localhost:8000/v1."
            raise ValueError(text)
        self._server = Server(
            self.base_url,
            api_key=self.api_key.get_secret_value() if self.api_key else None,
            timeout=self.timeout,
            max_concurrency=self.max_concurrency,
        )

    @property
    def _llm_type(self) -> str:
        return "openai-compatible"

    @property
    def _identifying_params(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("base_url", *_FIELDS)}

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: object
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model call tools; `tool_choice`: "auto", "any", "required", "none" or a name."""
        fields: dict[str, Any] = {"tools": [convert_to_openai_tool(tool) for tool in tools]}
        if tool_choice in ("auto", "none", "required", "any"):  # the last is LangChain's word
            fields["tool_choice"] = "required" if tool_choice == "any" else tool_choice
        elif tool_choice:
            fields["tool_choice"] = {"type": "function", "function": {"name": tool_choice}}
        return self.bind(**fields, **kwargs)

    def constraint(self, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return call options that constrain the reply to a JSON schema, if the server can."""
        return {"json_schema": {"name": name, "schema": dict(schema)}}

    @property
    def window_tokens(self) -> int | None:
        """Context length in tokens; None before `adiscover`, or if not reported."""
        return self._served.window

    @property
    def continues(self) -> bool:
        """Whether calls have the option `plain`, as far as the server has shown."""
        return "plain" not in self._refused

    @property
    def served_name(self) -> str:
        """A name that says the model's size, as the server knows it; "" if it is not reported."""
        return self._served.name

    async def adiscover(self) -> int | None:
        """Ask the server once for the model's context length in tokens, and its size.

        Returns None if it does not report it, or cannot be asked: the first call raises the reason.
        Raises `ModelError` if the server has no model of this name, or OpenAI's gets no key.
        """
        self.check_key()
        self._served = await server_thread().run(self._server.describe(self.model))
        return self._served.window

    def check_key(self) -> None:
        """Raise `ModelError` if the server is OpenAI's, and there is no key."""
        if self.base_url == _DEFAULT_URL and self.api_key is None:
            message = (
                f"No API key for {_DEFAULT_URL}: set OPENAI_API_KEY, or name a local "
                "server with --base-url or OPENAI_BASE_URL."
            )
            raise ModelError(message)

    async def amodels(self) -> dict[str, int | None]:
        """Return the server's models with their context lengths in tokens, None if not reported."""
        self.check_key()
        listed = await server_thread().run(self._server.list_models())
        return {name: _describe(entry).window for name, entry in listed.items()}

    models = to_sync(amodels)

    async def ahealth(self) -> bool:
        """Return whether the server answers; an error below 500, such as a wrong key, counts."""
        return await server_thread().run(self._server.is_healthy())

    health = to_sync(ahealth)

    async def aclose(self) -> None:
        """Close the connections; they also close when the model is dropped."""
        await server_thread().run(self._server.aclose())

    close = to_sync(aclose)

    def _loop_thread(self) -> LoopThread:
        return server_thread()

    async def _parts(self, call: ModelCall) -> AsyncGenerator[ChatGenerationChunk, None]:
        async with self._server.call() as client:
            reply, is_done = Completion(), call.whole
            response = await self._create(client, call)
            if call.whole:
                yield reply.add_whole(response.json())
            else:
                async with aclosing(response), aclosing(read_events(response)) as events:
                    async for event in events:
                        is_done = is_done or event is None
                        if (part := reply.add(event)) is not None:
                            yield part
            if call.options.get("plain") and reply.lacks_logprobs:
                self._refused.add("plain")
                raise ModelError("The server continues a text without the tokens' probabilities.")
            yield reply.end(is_done=is_done)

    async def _create(self, client: AsyncOpenAI, call: ModelCall) -> Any:
        self.check_key()
        streamed = {} if call.whole else _STREAMED
        fields = {name: getattr(self, name) for name in _FIELDS} | call.options | streamed
        while True:
            request = self._build_request(call.messages, fields)
            try:
                return await post(client, request)
            except OpenAIError as error:
                if "prompt" in request and isinstance(error, NotFoundError):
                    self._refused.add("plain")
                constrained = fields.get("json_schema") is not None
                name = find_refused_field(error, request, constrained=constrained)
                if name is None:
                    raise
                self._refused.add(name)

    def _build_request(
        self, messages: list[BaseMessage], fields: Mapping[str, Any]
    ) -> dict[str, object]:
        """Return a request without what the server refuses; None leaves a field out."""
        request, refused = dict(fields), self._refused
        if self.logprobs:
            request["logprobs"] = True
        if self.return_token_ids:
            request["extra_body"] = {**(request["extra_body"] or {}), "return_token_ids": True}
        if "max_tokens" in refused:
            request["max_completion_tokens"] = request["max_tokens"]
        schema, plain = request.pop("json_schema", None), request.pop("plain", False)
        if schema is not None and "json_schema" not in refused:
            request["response_format"] = {"type": "json_schema", "json_schema": schema}
        sent = {
            name: value
            for name, value in request.items()
            if value is not None and name not in refused
        }
        if plain:
            return sent | {"prompt": messages[-1].text, "logprobs": 1}
        return sent | {"messages": convert_to_openai_messages(messages)}
