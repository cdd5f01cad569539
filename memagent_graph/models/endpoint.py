"""A chat model behind any OpenAI-compatible server: vLLM, OpenAI, llama.cpp, a gateway."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    convert_to_openai_messages,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from openai import AsyncOpenAI, OpenAI, OpenAIError
from pydantic import ConfigDict, Field, PrivateAttr, SecretStr

from memagent_graph.models.failures import model_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.runnables import Runnable
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

_DEFAULT_URL = "https://api.openai.com/v1"
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
        max_tokens: longest reply.
        stop: strings that end the reply.
        timeout: seconds that a request may take.
        max_retries: repeats made by the client itself. 0, because the reading graph repeats
            calls already; set it when the model is used on its own.
        extra_body: fields that the server knows and the SDK does not.

    Raises:
        ModelError: Of the kind that says what to do; see `models.failures.model_error`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    model: str
    base_url: str | None = Field(
        default_factory=lambda: os.environ.get("OPENAI_BASE_URL"), validate_default=True
    )
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

    _client: OpenAI | None = PrivateAttr(default=None)
    # An async client's connections belong to the event loop that opened them.
    _async_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncOpenAI] = PrivateAttr(
        default_factory=WeakKeyDictionary
    )

    def model_post_init(self, context: Any, /) -> None:
        """Fill in the server's address when None was passed on."""
        super().model_post_init(context)
        if self.base_url is None:
            self.base_url = os.environ.get("OPENAI_BASE_URL") or _DEFAULT_URL

    @property
    def _llm_type(self) -> str:
        return "openai-compatible"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        names = ("model", "base_url", "temperature", "top_p", "seed", "stop", "extra_body")
        return {name: getattr(self, name) for name in names}

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Let the model call tools; `tool_choice` is "auto", "required", "none" or a name."""
        formatted = [convert_to_openai_tool(tool) for tool in tools]
        if tool_choice and tool_choice not in ("auto", "required", "none"):
            kwargs["tool_choice"] = {"type": "function", "function": {"name": tool_choice}}
        elif tool_choice:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=formatted, **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        try:
            return _result(
                self._sync().chat.completions.create(**self._request(messages, stop, kwargs))
            )
        except (OpenAIError, ValueError, TypeError, AttributeError) as error:
            raise model_error(error) from error

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        request = self._request(messages, stop, kwargs)
        try:
            return _result(await self._async().chat.completions.create(**request))
        except (OpenAIError, ValueError, TypeError, AttributeError) as error:
            raise model_error(error) from error

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs) | _STREAMED
        try:
            with self._sync().chat.completions.create(**request) as parts:
                for part in parts:
                    chunk = _chunk(part)
                    if run_manager:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        except OpenAIError as error:
            raise model_error(error) from error

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        request = self._request(messages, stop, kwargs) | _STREAMED
        try:
            async with await self._async().chat.completions.create(**request) as parts:
                async for part in parts:
                    chunk = _chunk(part)
                    if run_manager:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
        except OpenAIError as error:
            raise model_error(error) from error

    def close(self) -> None:
        """Close the connections of synchronous calls."""
        if self._client is not None:
            self._client.close()

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        client = self._async_clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def _request(
        self, messages: list[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        names = ("model", "temperature", "top_p", "seed", "max_tokens", "stop", "extra_body")
        fields = {name: getattr(self, name) for name in names} | options
        if stop is not None:
            fields["stop"] = stop
        request = {name: value for name, value in fields.items() if value is not None}
        return request | {"messages": convert_to_openai_messages(messages)}

    def _options(self) -> dict[str, Any]:
        key = self.api_key.get_secret_value() if self.api_key else _NO_KEY
        return {
            "api_key": key,
            "base_url": self.base_url,
            "timeout": self.timeout,
            "max_retries": self.max_retries,
        }

    def _sync(self) -> OpenAI:
        if self._client is None:
            self._client = OpenAI(**self._options())
        return self._client

    def _async(self) -> AsyncOpenAI:
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            self._async_clients[loop] = AsyncOpenAI(**self._options())
        return self._async_clients[loop]


_STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def _result(completion: ChatCompletion) -> ChatResult:
    choice = completion.choices[0]
    message = choice.message
    extra: dict[str, Any] = {}
    if message.refusal:
        extra["refusal"] = message.refusal
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    if reasoning:
        extra["reasoning_content"] = reasoning
    calls = [call.model_dump() for call in message.tool_calls or ()]
    if calls:
        extra["tool_calls"] = calls  # AIMessage parses them into `tool_calls`
    reply = AIMessage(
        content=message.content or "",
        additional_kwargs=extra,
        usage_metadata=_usage(completion),
        response_metadata={
            "finish_reason": choice.finish_reason,
            "model_name": completion.model,
            "id": completion.id,
        },
    )
    return ChatResult(generations=[ChatGeneration(message=reply)])


def _chunk(part: ChatCompletionChunk) -> ChatGenerationChunk:
    usage = _usage(part)
    if not part.choices:
        return ChatGenerationChunk(message=AIMessageChunk(content="", usage_metadata=usage))
    choice = part.choices[0]
    delta = choice.delta
    reasoning = getattr(delta, "reasoning_content", None) or getattr(delta, "reasoning", None)
    calls = [
        tool_call_chunk(
            name=call.function.name if call.function else None,
            args=call.function.arguments if call.function else None,
            id=call.id,
            index=call.index,
        )
        for call in delta.tool_calls or ()
    ]
    metadata = {"finish_reason": choice.finish_reason} if choice.finish_reason else {}
    message = AIMessageChunk(
        content=delta.content or "",
        additional_kwargs={"reasoning_content": reasoning} if reasoning else {},
        tool_call_chunks=calls,
        usage_metadata=usage,
        response_metadata=metadata,
    )
    return ChatGenerationChunk(message=message)


def _usage(reply: ChatCompletion | ChatCompletionChunk) -> Any:
    if reply.usage is None:
        return None
    return {
        "input_tokens": reply.usage.prompt_tokens,
        "output_tokens": reply.usage.completion_tokens,
        "total_tokens": reply.usage.total_tokens,
    }
