"""A chat model behind any OpenAI-compatible server: vLLM, OpenAI, llama.cpp, a gateway."""

from __future__ import annotations

import os
from time import perf_counter
from typing import TYPE_CHECKING, Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import convert_to_openai_messages
from langchain_core.utils.function_calling import convert_to_openai_tool
from openai import NotFoundError, OpenAIError, Timeout
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr, ValidationError

from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.models.completion import PartialCompletion, to_result
from memagent_graph.models.connections import Connections
from memagent_graph.models.failures import model_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.messages import AIMessage, BaseMessage
    from langchain_core.outputs import ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable

_DEFAULT_URL = "https://api.openai.com/v1"
_LONGEST_CONNECT = 10.0
"""Seconds to wait for a connection, which takes much less time than a reply."""
_NO_KEY = "not-needed"
"""Sent to servers that ask for no key: the SDK insists on one."""


class ChatEndpoint(BaseChatModel):
    """A chat model on the `openai` SDK.

    Args:
        model: the model's name at the server.
        base_url: of the server, up to `/v1`; `OPENAI_BASE_URL`, or else OpenAI's, by default.
        api_key: `OPENAI_API_KEY` by default; local servers need none.
        temperature: 0 by default, so that a memory can be reused.
        top_p: nucleus sampling.
        seed: for servers that sample reproducibly.
        max_tokens: longest reply; set here, it also overrides a reader's budgets, which leaves
            a reasoning model room to think.
        stop: strings that end the reply.
        timeout: seconds without a word from the server, which says nothing until a reply that
            is not streamed is whole.
        max_retries: repeats made by the client itself. 0, because the reading graph repeats
            calls already; set it when the model is used on its own.
        extra_body: fields that the server knows and the SDK does not.
        logprobs: ask for the log-probability of each token.
        return_token_ids: ask a vLLM server for the token ids of prompt and completion.

    A reply's `response_metadata["generation"]` is a `models.generation.Generation`.

    Raises:
        ConfigurationError: An argument makes no sense; raised on construction.
        ModelError: Of the kind that says what to do; see `models.failures.model_error`.
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
    max_retries: int = 0
    extra_body: dict[str, Any] | None = None
    logprobs: bool = False
    return_token_ids: bool = False

    _connections: Connections = PrivateAttr()
    _refused: set[str] = PrivateAttr(default_factory=set)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            text = "; ".join(found["msg"] for found in error.errors())
            raise ConfigurationError(text) from error

    def model_post_init(self, context: Any, /) -> None:
        """Fill in the server's address when none was given."""
        super().model_post_init(context)
        self.base_url = self.base_url or os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL
        if not self.base_url.startswith(("http://", "https://")):
            text = f"{self.base_url!r} is no base URL: one looks like http://localhost:8000/v1."
            raise ValueError(text)
        self._connections = Connections(
            api_key=self.api_key.get_secret_value() if self.api_key else _NO_KEY,
            base_url=self.base_url,
            timeout=Timeout(self.timeout, connect=min(self.timeout, _LONGEST_CONNECT)),
            max_retries=self.max_retries,
        )

    @property
    def _llm_type(self) -> str:
        return "openai-compatible"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("base_url", *_FIELDS)}

    @property
    def deterministic(self) -> bool:
        """Whether sampling is off, and the server did not refuse to have it off."""
        return self.temperature == 0 and "temperature" not in self._refused

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model call tools; `tool_choice` is "auto", "any", "none" or a tool's name."""
        formatted = [convert_to_openai_tool(tool) for tool in tools]
        if tool_choice in ("auto", "none", "required"):
            kwargs["tool_choice"] = tool_choice
        elif tool_choice == "any":  # LangChain's word
            kwargs["tool_choice"] = "required"
        elif tool_choice:
            kwargs["tool_choice"] = {"type": "function", "function": {"name": tool_choice}}
        return self.bind(tools=formatted, **kwargs)

    def models(self) -> dict[str, int | None]:
        """Names of the models that the server has, with their context lengths where it tells."""
        try:
            return _lengths(self._connections.client().models.list())
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error

    async def amodels(self) -> dict[str, int | None]:
        """As `models`, from async code."""
        client = await self._connections.async_client()
        try:
            return _lengths(await client.models.list())
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        started = perf_counter()
        return to_result(self._create(messages, stop, kwargs), started)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        started = perf_counter()
        return to_result(await self._acreate(messages, stop, kwargs), started)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        partial = PartialCompletion(perf_counter())
        try:
            with self._create(messages, stop, kwargs | _STREAMED) as parts:
                for part in parts:
                    yield partial.chunk(part)
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error
        yield partial.last()

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        partial = PartialCompletion(perf_counter())
        try:
            async with await self._acreate(messages, stop, kwargs | _STREAMED) as parts:
                async for part in parts:
                    yield partial.chunk(part)
        except (OpenAIError, ValueError) as error:
            raise model_error(error) from error
        yield partial.last()

    def close(self) -> None:
        """Close the connections of synchronous calls."""
        self._connections.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop, as the loop itself does when it ends."""
        await self._connections.aclose()

    def _create(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> Any:
        request = self._request(messages, stop, options)
        try:
            return self._connections.client().chat.completions.create(**request)
        except NotFoundError as error:
            raise model_error(error, served=self._served()) from error
        except (OpenAIError, ValueError) as error:
            if self._adapts_to(error, request):
                return self._create(messages, stop, options)
            raise model_error(error) from error

    async def _acreate(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> Any:
        request = self._request(messages, stop, options)
        client = await self._connections.async_client()
        try:
            return await client.chat.completions.create(**request)
        except NotFoundError as error:
            raise model_error(error, served=await self._aserved()) from error
        except (OpenAIError, ValueError) as error:
            if self._adapts_to(error, request):
                return await self._acreate(messages, stop, options)
            raise model_error(error) from error

    def _served(self) -> list[str]:
        try:
            return list(self.models())
        except ModelError:  # the 404 already says enough
            return []

    async def _aserved(self) -> list[str]:
        try:
            return list(await self.amodels())
        except ModelError:
            return []

    def _adapts_to(self, error: Exception, request: dict[str, Any]) -> bool:
        """Whether the server refused a parameter that the request can do without.

        OpenAI's reasoning models take no temperature, and call `max_tokens` by another name.
        """
        name = getattr(error, "param", None)
        refused = getattr(error, "code", None) in ("unsupported_parameter", "unsupported_value")
        if not refused or name not in _OPTIONAL or name not in request:
            return False
        self._refused.add(name)
        return True

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in _FIELDS} | options
        if stop is not None:
            fields["stop"] = stop
        if self.logprobs:
            fields["logprobs"] = True
        if self.return_token_ids:
            fields["extra_body"] = {**(fields["extra_body"] or {}), "return_token_ids": True}
        if "max_tokens" in self._refused:
            fields["max_completion_tokens"] = fields["max_tokens"]
        request = {
            name: value
            for name, value in fields.items()
            if value is not None and name not in self._refused
        }
        return request | {"messages": convert_to_openai_messages(messages)}


_FIELDS = ("model", "temperature", "top_p", "seed", "max_tokens", "stop", "extra_body")
_OPTIONAL = ("temperature", "top_p", "seed", "max_tokens", "stop")
_STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def _lengths(listed: Any) -> dict[str, int | None]:
    found = getattr(listed, "data", None) or ()
    return {model.id: getattr(model, "max_model_len", None) for model in found}
