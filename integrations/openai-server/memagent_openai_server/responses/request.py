"""The body of `POST /v1/responses`: each field is honoured, refused by name, or passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from memagent_openai_server.http.requests import Continued, Objects, User

if TYPE_CHECKING:
    from collections.abc import Callable

PASSED_ON = (
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "temperature",
    "top_p",
)
"""Fields of OpenAI's responses API that chat completions have too. Fields of neither API, such as
`top_k`, are passed on as well: the model's server may know them."""

LOGPROBS = "message.output_text.logprobs"
"""Value of `include` that asks for log-probabilities."""


def _not_offered(instead: str | None = None) -> Callable[[Any], None]:
    advice = f": use {instead}" if instead else ""

    def check(value: Any) -> None:
        if value is not None:
            raise PydanticCustomError("not_offered", f"not offered here{advice}")

    return check


def _check_bool(value: Any) -> Any:
    """Refuse 0, which equals False and so passes for the literal."""
    if value is not None and not isinstance(value, bool):
        raise PydanticCustomError("bool_type", "Input should be a valid boolean")
    return value


NotOffered = Annotated[None, BeforeValidator(_not_offered())]
Off = Annotated[Literal[False] | None, BeforeValidator(_check_bool)]
"""A switch that cannot be turned on."""


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ReasoningOptions(_Options):
    """Options of the model's reasoning, which is always returned as a summary."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextOptions(_Options):
    """Options of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ResponseStreamOptions(_Options):
    """Options of a streamed response."""

    include_obfuscation: Off = None


class ResponseRequest(BaseModel):
    """The body of `POST /v1/responses`."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    input: str | Objects = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1, max_length=200)
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    user: User | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    max_tool_calls: int | None = Field(default=None, ge=1)
    tools: Objects | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = (
        None
    )
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    memagent: Continued | None = None

    background: Off = None
    access_programs: NotOffered = None
    background_options: NotOffered = None
    context_management: NotOffered = None
    conversation: NotOffered = None
    image: NotOffered = None
    moderation: NotOffered = None
    prompt: NotOffered = None

    # Fields of chat completions for which a response has no place:
    audio: NotOffered = None
    modalities: NotOffered = None
    n: NotOffered = None
    web_search_options: NotOffered = None
    messages: Annotated[None, BeforeValidator(_not_offered("input"))] = None
    functions: Annotated[None, BeforeValidator(_not_offered("tools"))] = None
    function_call: Annotated[None, BeforeValidator(_not_offered("tool_choice"))] = None
    logprobs: Annotated[None, BeforeValidator(_not_offered("top_logprobs"))] = None
    max_tokens: Annotated[None, BeforeValidator(_not_offered("max_output_tokens"))] = None
    max_completion_tokens: Annotated[None, BeforeValidator(_not_offered("max_output_tokens"))] = (
        None
    )
    response_format: Annotated[None, BeforeValidator(_not_offered("text.format"))] = None
    reasoning_effort: Annotated[None, BeforeValidator(_not_offered("reasoning.effort"))] = None
    verbosity: Annotated[None, BeforeValidator(_not_offered("text.verbosity"))] = None
