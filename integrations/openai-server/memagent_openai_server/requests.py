"""Bodies of requests: each field is honoured here, refused by name, or left to the model."""

from __future__ import annotations

from math import isfinite
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    TypeAlias,
    TypeVar,
)

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from memagent_http.bodies import read_body, unless_small
from memagent_http.refusals import Refusal

_DEEPEST = 100
"""Deepest nesting of lists and objects; schemas of tools have about a dozen."""
_MOST_VALUES = 200_000
"""Most values in a body, except for texts: empty lists take 20 times their length in memory."""
_WINDOW = 64 * 2**10
"""Bytes scanned at once, during which the event loop waits."""

if TYPE_CHECKING:
    from starlette.requests import Request

    from memagent_openai_server.access import Limits

Model = TypeVar("Model", bound=BaseModel)

Objects: TypeAlias = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
"""Validation stops at the first error, since reporting a hundred thousand would be slow."""


class Fields(BaseModel):
    """A body, which may have further fields."""

    model_config = ConfigDict(extra="allow", strict=True)


class Message(TypedDict):
    """One message of a conversation; not a model, which takes seven times as long to create."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: NotRequired[str | Objects | None]
    tool_calls: NotRequired[Objects | None]


User: TypeAlias = Annotated[str, Field(max_length=512)]
"""The name of a user, wherever a request names one."""


class Options(BaseModel):
    """Options that belong together, all of which are known."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Continued(Options):
    """The memory to continue from."""

    memory: str = Field(min_length=1, max_length=200)


class ChatRequest(Fields):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: list[Message] = Field(min_length=1, fail_fast=True)
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    user: User | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    tools: Objects | None = None
    response_format: dict[str, Any] | None = None
    memagent: Continued | None = None


class Received(NamedTuple, Generic[Model]):
    """The body of a request, its fields as sent, and the same as validated."""

    body: bytes
    fields: dict[str, Any]
    asked: Model


async def receive_fields(request: Request, kind: type[Model]) -> Received[Model]:
    """Return the body of a request."""
    limits: Limits = request.app.state.service.limits
    take = request.state.take
    body = await read_body(request, most=limits.body_bytes, seconds=limits.body_seconds, take=take)
    return Received(body, *await unless_small(len(body), parse, body, kind))


def parse(body: bytes, kind: type[Model]) -> tuple[dict[str, Any], Model]:
    """Return the fields of a body, as sent and as validated.

    An integer of more than 64 bits becomes a float, as in JavaScript.
    """
    if len(body) > _MOST_VALUES and count_values(body) > _MOST_VALUES:
        raise Refusal(400, f"The body has more than {_MOST_VALUES} values: send less at once.")
    try:
        fields = orjson.loads(body)
        _check(fields)
    except ValueError as error:  # the message has the place of the error, never the content
        raise Refusal(400, f"The body is not JSON: {error}") from None
    return fields, validate(fields, kind)


def validate(fields: Any, kind: type[Model]) -> Model:
    """Validate the fields of a body."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, found["loc"]))
        raise Refusal(400, f"{place or 'body'}: {found['msg']}", param=place or None) from None


def count_values(body: bytes, window: int = _WINDOW) -> int:
    """Count commas and brackets outside of texts in a body, an upper bound of its values."""
    values, within, held = 0, 0, b""
    for start in range(0, len(body), window):
        text = (held + body[start : start + window]).replace(rb"\\", b"").replace(rb"\"", b"")
        held = b"\\" if text.endswith(b"\\") else b""
        parts = text.split(b'"')  # every second part is within a text
        outside = b" ".join(parts[within::2])
        values += sum(map(outside.count, (b",", b"[", b"{")))
        within ^= 1 - len(parts) % 2
    return values


def _check(fields: Any) -> None:
    """Refuse deep nesting, and numbers such as 1e999 that JSON cannot encode again."""
    level = [fields]
    for _ in range(_DEEPEST):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, float) and not isfinite(value):
                message = "a number is too large"
                raise ValueError(message)
        if not inner:
            return
        level = inner
    message = f"it is nested more than {_DEEPEST} deep"
    raise ValueError(message)
