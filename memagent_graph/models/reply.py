"""Convert the output of an engine in this process to LangChain's messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

if TYPE_CHECKING:
    from memagent_graph.models.generation import Generation


def whole_reply(text: str, generation: Generation, model: str) -> ChatResult:
    """Return a complete reply; `generation` must have both lists of token ids."""
    message = AIMessage(
        content=text,
        usage_metadata=_usage(generation),
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
        usage_metadata=_usage(generation),
        response_metadata=_metadata(generation, model),
        chunk_position="last",
    )
    return ChatGenerationChunk(message=message)


def _metadata(generation: Generation, model: str) -> dict[str, object]:
    reason = generation["finish_reason"]
    return {"finish_reason": reason, "model_name": model, "generation": generation}


def _usage(generation: Generation) -> UsageMetadata:
    read = len(generation["prompt_token_ids"] or ())
    written = len(generation["token_ids"] or ())
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)
