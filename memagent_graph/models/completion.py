"""Convert messages, completions and engine outputs between formats."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, TypedDict

from langchain_core.messages import AIMessage, AIMessageChunk, convert_to_openai_messages
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from memagent_graph.errors import ConfigurationError, TransientModelError
from memagent_graph.text.tokens import HuggingFaceTokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from langchain_core.messages import BaseMessage
    from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
    from openai.types.chat.chat_completion_chunk import ChoiceDelta


class Generation(TypedDict):
    """The entry `generation` in a reply's `response_metadata`.

    Attributes:
        prompt_token_ids: the prompt's tokens; None if not reported.
        token_ids: the completion's tokens, including the one that ended it; None if not reported.
        logprobs: natural logarithm of each completion token's probability under the model, before
            temperature and top-p; None if not requested or not reported.
        finish_reason: why the engine stopped, in its own words ("stop", "length", ...).
        seconds: time from the request to the end of the reply, in seconds.
    """

    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    logprobs: list[float] | None
    finish_reason: str | None
    seconds: float


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


def whole_reply(text: str, generation: Generation, model: str) -> ChatResult:
    """Return a complete reply; `generation` must have both lists of token ids."""
    message = AIMessage(
        content=text,
        usage_metadata=_usage_reply(generation),
        response_metadata=_metadata(generation, model),
    )
    return ChatResult(generations=[ChatGeneration(message=message)])


def reply_part(text: str) -> ChatGenerationChunk:
    """Return a piece of a streamed reply."""
    return ChatGenerationChunk(message=AIMessageChunk(content=text))


def reply_end(text: str, generation: Generation, model: str) -> ChatGenerationChunk:
    """Return the last piece of a streamed reply, with usage and `generation`."""
    message = AIMessageChunk(
        content=text,
        usage_metadata=_usage_reply(generation),
        response_metadata=_metadata(generation, model),
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)


def _metadata(generation: Generation, model: str) -> dict[str, object]:
    reason = generation["finish_reason"]
    return {"finish_reason": reason, "model_name": model, "generation": generation}


def _usage_reply(generation: Generation) -> UsageMetadata:
    read = len(generation["prompt_token_ids"] or ())
    written = len(generation["token_ids"] or ())
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


class ChatTemplate:
    """Turns messages into a prompt in the format that the model was trained on.

    Args:
        tokenizer: a tokenizer of `transformers`, with a chat template.
        variables: variables of the template, such as `enable_thinking`.

    Raises:
        ConfigurationError: The tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, variables: Mapping[str, object] | None = None) -> None:
        if getattr(tokenizer, "chat_template", "") is None:
            message = (
                f"The tokenizer of {tokenizer.name_or_path!r} has no chat template: use the "
                "model's instruction-tuned version, or set chat_template in its "
                "tokenizer_config.json."
            )
            raise ConfigurationError(message)
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.tokenizer = HuggingFaceTokenizer(backend) if backend is not None else None
        self._original = tokenizer
        self._variables = dict(variables or {}, add_generation_prompt=True)

    def token_ids(self, messages: Sequence[BaseMessage]) -> list[int]:
        """Return the token ids of the text of `messages`, up to where the reply begins."""
        asked = convert_to_openai_messages(list(messages))
        template = self._original.apply_chat_template
        if self.tokenizer is None:  # it is not of the `tokenizers` library
            ids: list[int] = template(asked, tokenize=True, return_dict=False, **self._variables)
            return ids
        return self.tokenizer.encode(template(asked, tokenize=False, **self._variables))
