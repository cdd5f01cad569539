"""Convert completions and stream parts of the OpenAI format to LangChain's messages."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from memagent_graph.errors import TransientModelError
from memagent_graph.models.generation import Generation

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
    from openai.types.chat.chat_completion_chunk import ChoiceDelta


def to_result(completion: ChatCompletion, started: float) -> ChatResult:
    """Convert a whole completion.

    Args:
        completion: the completion, parsed but not validated by the SDK.
        started: time of the request, by `perf_counter`.
    """
    choices = getattr(completion, "choices", None)
    message = getattr(choices[0], "message", None) if choices else None
    if message is None:
        text = (
            f"The server's reply is not a chat completion: {str(completion)[:300]} Check that the "
            "base URL is that of an OpenAI-compatible API."
        )
        raise TransientModelError(text)
    choice = completion.choices[0]
    extra = _extra(message)
    calls = [call.model_dump() for call in message.tool_calls or ()]
    if calls:
        extra["tool_calls"] = calls  # AIMessage parses them into `tool_calls`
    generation = Generation(
        prompt_token_ids=getattr(completion, "prompt_token_ids", None),
        token_ids=getattr(choice, "token_ids", None),
        logprobs=_logprobs(choice) or None,
        finish_reason=choice.finish_reason,
        seconds=perf_counter() - started,
    )
    reply = AIMessage(
        content=message.content or "",
        additional_kwargs=extra,
        usage_metadata=_usage(completion),
        response_metadata={
            "finish_reason": choice.finish_reason,
            "model_name": completion.model,
            "id": completion.id,
            "generation": generation,
        },
    )
    return ChatResult(generations=[ChatGeneration(message=reply)])


class PartialCompletion:
    """Turns a stream's parts into chunks, and collects what only the last chunk can report.

    Args:
        started: time of the request, by `perf_counter`.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._model: str | None = None
        self._finish_reason: str | None = None
        self._prompt_token_ids: list[int] | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []

    def chunk(self, part: ChatCompletionChunk) -> ChatGenerationChunk:
        """Convert one part of the stream."""
        self._model = getattr(part, "model", None) or self._model
        self._prompt_token_ids = getattr(part, "prompt_token_ids", None) or self._prompt_token_ids
        choices = getattr(part, "choices", None)
        if not choices or choices[0].delta is None:  # the part with the usage
            return ChatGenerationChunk(
                message=AIMessageChunk(content="", usage_metadata=_usage(part))
            )
        choice = choices[0]
        self._finish_reason = choice.finish_reason or self._finish_reason
        self._token_ids += getattr(choice, "token_ids", None) or []
        self._logprobs += _logprobs(choice)
        calls = [
            tool_call_chunk(
                name=call.function.name if call.function else None,
                args=call.function.arguments if call.function else None,
                id=call.id,
                index=call.index,
            )
            for call in choice.delta.tool_calls or ()
        ]
        message = AIMessageChunk(
            content=choice.delta.content or "",
            additional_kwargs=_extra(choice.delta),
            tool_call_chunks=calls,
            usage_metadata=_usage(part),
        )
        return ChatGenerationChunk(message=message)

    def last(self) -> ChatGenerationChunk:
        """Return the chunk that ends the reply.

        Raises:
            TransientModelError: The connection ended before the reply did.
        """
        if self._finish_reason is None:
            raise TransientModelError("The server ended the stream before the reply was complete.")
        generation = Generation(
            prompt_token_ids=self._prompt_token_ids,
            token_ids=self._token_ids or None,
            logprobs=self._logprobs or None,
            finish_reason=self._finish_reason,
            seconds=perf_counter() - self._started,
        )
        message = AIMessageChunk(
            content="",
            response_metadata={
                "finish_reason": self._finish_reason,
                "model_name": self._model,
                "generation": generation,
            },
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message)


def _extra(message: ChatCompletionMessage | ChoiceDelta) -> dict[str, object]:
    """Refusal, and reasoning, which are not part of the text."""
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    found = {"refusal": message.refusal, "reasoning_content": reasoning}
    return {name: value for name, value in found.items() if value}


def _logprobs(choice: Choice | ChunkChoice) -> list[float]:
    content = choice.logprobs.content if choice.logprobs else None
    return [token.logprob for token in content or ()]


def _usage(reply: ChatCompletion | ChatCompletionChunk) -> UsageMetadata | None:
    usage = getattr(reply, "usage", None)
    if usage is None:
        return None
    found = UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.total_tokens,
    )
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    if prompt and prompt.cached_tokens is not None:
        found["input_token_details"] = InputTokenDetails(cache_read=prompt.cached_tokens)
    if completion and completion.reasoning_tokens is not None:
        found["output_token_details"] = OutputTokenDetails(reasoning=completion.reasoning_tokens)
    return found
