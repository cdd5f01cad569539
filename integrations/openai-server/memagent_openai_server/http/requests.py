"""What clients send: only what this server itself uses is checked, the rest is the model's."""

from __future__ import annotations

import asyncio
from math import isfinite
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NotRequired,
    ParamSpec,
    TypeAlias,
    TypeVar,
)

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from memagent_openai_server.http.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

_DEEPEST = 100
"""Lists and objects within each other: tools have schemas of a dozen."""
_MOST_VALUES = 200_000
"""In a body, texts not counted: a list of empty lists takes 20 times its length in memory."""
_WINDOW = 64 * 2**10
"""Bytes that are looked through at once: the event loop waits as long."""
_SMALL = 64 * 2**10
"""Bytes of a body that takes less time than the event loop may be kept from others."""

Model = TypeVar("Model", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")

Objects: TypeAlias = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
"""One wrong element is the error: a hundred thousand errors would take long to make."""


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class Message(TypedDict):
    """One message of a conversation; no model, which takes seven times as long to make."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: NotRequired[str | Objects | None]
    tool_calls: NotRequired[Objects | None]


class StreamOptions(_Fields):
    """How to stream."""

    include_usage: bool | None = None


class Continued(BaseModel):
    """What to go on from.

    Attributes:
        memory: a memory's id, as an earlier response had it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    memory: str = Field(min_length=1, max_length=200)


class ChatRequest(_Fields):
    """The body of `POST /v1/chat/completions`."""

    model: str
    messages: list[Message] = Field(min_length=1, fail_fast=True)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=512)
    n: int | None = Field(default=None, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stop: str | list[str] | None = None
    tools: Objects | None = None
    response_format: dict[str, Any] | None = None
    memagent: Continued | None = None


async def unless_small(size: int, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
    """The result of `work` on a body of so many bytes: of a small one at once, else in a thread."""
    if size <= _SMALL:
        return work(*args, **more)
    return await asyncio.to_thread(work, *args, **more)


async def aparse(body: bytes, kind: type[Model]) -> tuple[dict[str, Any], Model]:
    """As `parse`, while the event loop goes on."""
    return await unless_small(len(body), parse, body, kind)


def parse(body: bytes, kind: type[Model]) -> tuple[dict[str, Any], Model]:
    """The fields of a body, as they were sent and as they are understood.

    A whole number of more than 64 bits becomes a float, as JavaScript has it.

    Raises:
        Refusal: It is not what `kind` says, not JSON, or text that nothing could store.
    """
    if len(body) > _MOST_VALUES and count_values(body) > _MOST_VALUES:
        raise Refusal(400, f"The body has more than {_MOST_VALUES} values.")
    try:
        fields = orjson.loads(body)
        _check(fields)
    except ValueError as error:  # it says where it is wrong, never what stands there
        raise Refusal(400, f"The body is not JSON: {error}") from None
    return fields, understand(fields, kind)


def understand(fields: Any, kind: type[Model]) -> Model:
    """The fields of a body as they are understood.

    Raises:
        Refusal: They are not what `kind` says.
    """
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, found["loc"]))
        raise Refusal(400, f"{place or 'body'}: {found['msg']}", param=place or None) from None


def count_values(body: bytes, window: int = _WINDOW) -> int:
    """Commas and brackets in a body, except for those in its texts: no fewer than it has values.

    Args:
        body: JSON, or what claims to be.
        window: bytes that are looked through at once.
    """
    values, within, held = 0, 0, b""
    for start in range(0, len(body), window):
        text = (held + body[start : start + window]).replace(rb"\\", b"").replace(rb"\"", b"")
        held = b"\\" if text.endswith(b"\\") else b""
        parts = text.split(b'"')  # every second one is within a text
        outside = b" ".join(parts[within::2])
        values += sum(map(outside.count, (b",", b"[", b"{")))
        within ^= 1 - len(parts) % 2
    return values


def _check(fields: Any) -> None:
    """Refuse what is nested too deep, and numbers that cannot be written as JSON again: 1e999."""
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
