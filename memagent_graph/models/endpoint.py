"""A chat model of any OpenAI-compatible server: vLLM, OpenAI, llama.cpp, a gateway."""

from __future__ import annotations

import os
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from langchain_core.messages import convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool
from openai import NotFoundError, OpenAIError
from pydantic import ConfigDict, Field, PositiveInt, PrivateAttr, SecretStr

from memagent_graph.errors import ModelError
from memagent_graph.models.completion import Completion, LoopChatModel, ModelCall
from memagent_graph.models.failures import error_text, is_too_long
from memagent_graph.models.server import Served, Server, post, read_events, server_thread
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGenerationChunk
    from langchain_core.runnables import Runnable
    from openai import AsyncOpenAI

    from memagent_graph.sync import LoopThread

_AFTER = r"(?:: |[`'\"“\[({.]|\b(?:parameter|field|argument|property|supplied|name|key)s?\W{1,4})"
"""Signs that a word is the name of a field."""
_OPTIONAL = {  # fields that a request can do without, and how errors write them
    name: re.compile(written, re.IGNORECASE)
    for name, written in {
        "temperature": r"\btemperature\b",
        "top_p": r"\btop_?p\b",
        "seed": rf"{_AFTER}seed\b|\bseed[`'\"”:]|^seed\b",
        "max_tokens": r"\bmax_?tokens\b",
        "max_completion_tokens": r"\bmax_?completion_?tokens\b",
        "stop": rf"{_AFTER}stop\b|\bstop[`'\"”:]|^stop\b|\bstop_?sequences?\b",
        "stream_options": r"\bstream_?options\b",
    }.items()
}
_NOT_TAKEN = (400, 422, 501)
_UNSUPPORTED = re.compile(
    r"un(?:supported|known|recogni[sz]ed|expected)|extra(?:neous)?\b|extra_forbidden|deprecated"
    r"|(?:not|n't|no longer)(?: \w+){0,2} (?:support|permit|allow|accept|valid|recogni|avail)"
    r"|not a valid|cannot find field|does ?n[o']t (?:have|exist)|forbidden|incompatible|drop_params"
    r"|不支持",
    re.IGNORECASE,
)
"""Words by which servers' errors reject a field."""
_BAD_VALUE = re.compile(
    r"invalid|must|should|only|cannot|can't|out of|between|greater|less|positive|range|参数",
    re.IGNORECASE,
)
"""Words by which servers' errors reject the value of a field."""
_SCHEMA = re.compile(r"response_format|schema|grammar|structured|guided", re.IGNORECASE)
"""Words by which servers' errors name a constraint to a JSON schema."""


def find_refused_field(
    error: Exception, request: Mapping[str, object], *, constrained: bool = False
) -> str | None:
    """Return the optional field that the server refused; None if the error is another.

    OpenAI's reasoning models refuse a temperature, and have another name for `max_tokens`. Some
    servers do not support schemas, seeds or usage in streams. Each has words of its own for it.
    The request is `constrained` if its `response_format` was made from `json_schema`.
    """
    text, status = error_text(error), getattr(error, "status_code", None)
    if status not in _NOT_TAKEN or is_too_long(text, status):
        return None
    if constrained and "response_format" in request and _SCHEMA.search(text):
        return "json_schema"
    named, code = getattr(error, "param", None), getattr(error, "code", None)
    unsupported = "unsupported" in str(code) or bool(_UNSUPPORTED.search(text))
    if not (unsupported or _BAD_VALUE.search(text)):
        return None
    # A limit with a wrong value is the user's to correct.
    sent = [name for name in _OPTIONAL if name in request and (unsupported or "max_" not in name)]
    if named in sent:
        return str(named)
    places = {name: _OPTIONAL[name].search(text) for name in sent}
    found = {name: match.start() for name, match in places.items() if match}
    return min(found, key=lambda name: found[name], default=None)


def tool_fields(tools: Sequence[Any], tool_choice: str | None) -> dict[str, object]:
    """Return the request fields that offer tools; the choice may also be the name of a tool."""
    fields: dict[str, object] = {"tools": [convert_to_openai_tool(tool) for tool in tools]}
    if tool_choice in ("auto", "none", "required", "any"):  # the last is LangChain's word
        fields["tool_choice"] = "required" if tool_choice == "any" else tool_choice
    elif tool_choice:
        fields["tool_choice"] = {"type": "function", "function": {"name": tool_choice}}
    return fields


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
            text = (
                f"{self.base_url!r} is not a base URL: give one such as http://localhost:8000/v1."
            )
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
        return self.bind(**tool_fields(tools, tool_choice), **kwargs)

    def constraint(self, name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return call options that constrain the reply to a JSON schema, if the server can."""
        return {"json_schema": {"name": name, "schema": dict(schema)}}

    @property
    def window_tokens(self) -> int | None:
        """Context length in tokens; None before `adiscover`, or if not reported."""
        return self._served.window

    @property
    def continues(self) -> bool:
        """Whether calls have the option `plain`, as far as the server has said."""
        return "plain" not in self._refused

    @property
    def served_name(self) -> str:
        """A name that says the model's size, as the server knows it; "" if it is not reported."""
        return self._served.name

    async def adiscover(self) -> int | None:
        """Ask the server once for the model's context length in tokens, and its size.

        Returns None if it does not report it, or cannot be asked: the first call raises the reason.

        Raises:
            ModelError: The server has no model of this name, or there is no key for OpenAI's.
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
        return await server_thread().run(self._server.models())

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
