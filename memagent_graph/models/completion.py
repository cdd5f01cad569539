"""Convert completions and stream parts of the OpenAI format to LangChain's messages."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import InputTokenDetails, OutputTokenDetails, UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import BaseModel

from memagent_graph.errors import TransientModelError
from memagent_graph.models.failures import reply_error, words_of
from memagent_graph.models.generation import Generation, count_of, ending_of

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionMessage
    from openai.types.chat.chat_completion import Choice
    from openai.types.chat.chat_completion_chunk import Choice as ChunkChoice
    from openai.types.chat.chat_completion_chunk import ChoiceDelta

_LONGEST_SHOWN = 300
"""Characters shown of a reply that is no completion."""


def to_result(completion: ChatCompletion, started: float) -> ChatResult:
    """Convert a whole completion.

    Args:
        completion: the completion, parsed but not validated by the SDK.
        started: time of the request, by `perf_counter`.

    Raises:
        ModelError: The reply holds an error, or is no completion.
    """
    body = _fields(completion)
    choice = _first(body.get("choices"))
    message = getattr(choice, "message", None)
    reason = getattr(choice, "finish_reason", None)
    _check(body, choice, reason)
    if message is None:
        text = (
            f"The server's reply is not a chat completion: {_shown(completion)} Check that the "
            "base URL is that of an OpenAI-compatible API."
        )
        raise TransientModelError(text)
    extra = _extra(message)
    calls = [call.model_dump() for call in getattr(message, "tool_calls", None) or ()]
    if calls:
        extra["tool_calls"] = calls  # AIMessage parses them into `tool_calls`
    generation = Generation(
        prompt_token_ids=body.get("prompt_token_ids"),
        token_ids=getattr(choice, "token_ids", None),
        logprobs=_logprobs(choice) or None,
        finish_reason=reason,
        seconds=perf_counter() - started,
    )
    reply = AIMessage(
        content=getattr(message, "content", None) or "",
        additional_kwargs=extra,
        usage_metadata=_Usage().add(body.get("usage")).metadata(),
        response_metadata={
            "finish_reason": reason,
            "model_name": body.get("model"),
            "id": body.get("id"),
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
        self._usage = _Usage()
        self._has_text = False

    def chunk(self, part: ChatCompletionChunk) -> ChatGenerationChunk:
        """Convert one part of the stream.

        Raises:
            ModelError: The part holds an error.
        """
        body = _fields(part)
        choice = _first(body.get("choices"))
        self._model = body.get("model") or self._model
        self._prompt_token_ids = body.get("prompt_token_ids") or self._prompt_token_ids
        self._usage.add(body.get("usage"))
        reason = getattr(choice, "finish_reason", None)
        _check(body, choice, reason)
        self._finish_reason = reason or self._finish_reason
        delta = getattr(choice, "delta", None)
        if delta is None and not self._has_text:  # MiniMax repeats the whole reply at the end
            delta = getattr(choice, "message", None)
        if delta is None:  # the part with the usage, or the last one
            return ChatGenerationChunk(message=AIMessageChunk(content=""))
        self._token_ids += getattr(choice, "token_ids", None) or []
        self._logprobs += _logprobs(choice)
        content = getattr(delta, "content", None) or ""
        self._has_text = self._has_text or bool(content)
        calls = [
            tool_call_chunk(
                name=call.function.name if call.function else None,
                args=call.function.arguments if call.function else None,
                id=call.id,
                index=call.index,
            )
            for call in getattr(delta, "tool_calls", None) or ()
        ]
        message = AIMessageChunk(
            content=content, additional_kwargs=_extra(delta), tool_call_chunks=calls
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
            usage_metadata=self._usage.metadata(),
            response_metadata={
                "finish_reason": self._finish_reason,
                "model_name": self._model,
                "generation": generation,
            },
            chunk_position="last",
        )
        return ChatGenerationChunk(message=message)


class _Usage:
    """The usage of a call, as far as the server reports it.

    In a stream, a part's usage is that of all parts so far, or each part has some of the counts.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, usage: object) -> Self:
        """Add what a reply or a part of one reports."""
        counts = _fields(usage)
        reported = {
            "input": _count(counts, "prompt_tokens", "input_tokens"),
            "output": _count(counts, "completion_tokens", "output_tokens"),
            "total": _count(counts, "total_tokens"),
            "cached": _count(_fields(counts.get("prompt_tokens_details")), "cached_tokens"),
            "reasoning": _count(
                _fields(counts.get("completion_tokens_details")), "reasoning_tokens"
            ),
        }
        for name, count in reported.items():
            if count is not None:
                self._counts[name] = max(count, self._counts.get(name, 0))
        return self

    def metadata(self) -> UsageMetadata | None:
        """Return the usage; None unless both of its counts are known."""
        counts = self._counts
        total, read, written = (counts.get(name) for name in ("total", "input", "output"))
        if read is None and total is not None and written is not None:
            read = max(0, total - written)
        if written is None and total is not None and read is not None:
            written = max(0, total - read)
        if read is None and written is None:
            return None
        read, written = read or 0, written or 0
        found = UsageMetadata(
            input_tokens=read, output_tokens=written, total_tokens=max(total or 0, read + written)
        )
        if "cached" in counts:
            found["input_token_details"] = InputTokenDetails(cache_read=counts["cached"])
        if "reasoning" in counts:
            found["output_token_details"] = OutputTokenDetails(reasoning=counts["reasoning"])
        return found


def _count(counts: Mapping[str, Any], *names: str) -> int | None:
    found = (count_of(counts.get(name)) for name in names)
    return next((count for count in found if count is not None), None)


def _check(body: Mapping[str, Any], choice: object, reason: str | None) -> None:
    """Raise the error that a reply, or a part of one, has in place of a completion."""
    if (error := reply_error(body)) is not None:
        raise error
    if ending_of(reason) == "failed":
        said = words_of(getattr(choice, "error", None))
        found = reply_error({"error": getattr(choice, "error", None)})
        text = f"The server broke off the reply ({reason}){': ' if said else '.'}{said}"
        raise found or TransientModelError(text)


def _fields(parsed: object) -> dict[str, Any]:
    """The fields of an object that the SDK parsed without validating it."""
    if isinstance(parsed, Mapping):
        return dict(parsed)
    return {**vars(parsed), **(parsed.model_extra or {})} if isinstance(parsed, BaseModel) else {}


def _first(choices: object) -> Any:
    return choices[0] if isinstance(choices, list) and choices else None


def _shown(reply: object) -> str:
    text = words_of(reply if isinstance(reply, str) else _fields(reply)) or "it is empty."
    return text[:_LONGEST_SHOWN]


def _extra(message: ChatCompletionMessage | ChoiceDelta) -> dict[str, object]:
    """Refusal, and reasoning, which are not part of the text."""
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    found = {"refusal": getattr(message, "refusal", None), "reasoning_content": reasoning}
    return {name: value for name, value in found.items() if value}


def _logprobs(choice: Choice | ChunkChoice) -> list[float]:
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    return [token.logprob for token in content or ()]
