"""What clients send: only what this server itself uses is checked, the rest is the model's."""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memagent_openai_server.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEEPEST = 100
"""Lists and objects within each other: tools have schemas of a dozen."""
_MOST_VALUES = 200_000
"""In a body, texts not counted: a list of empty lists takes 20 times its length in memory."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""In a body: how half of a surrogate pair is written. In pairs they are a letter."""

Model = TypeVar("Model", bound=BaseModel)


class _Fields(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class Message(_Fields):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None


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
    messages: list[Message] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, max_length=512)
    n: int | None = Field(default=None, ge=1, le=128)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None
    response_format: dict[str, Any] | None = None
    memagent: Continued | None = None


class ResponseRequest(_Fields):
    """The body of `POST /v1/responses`."""

    model: str
    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = Field(default=None, min_length=1, max_length=200)
    store: bool | None = None
    stream: bool | None = None
    user: str | None = Field(default=None, max_length=512)
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: list[dict[str, Any]] | None = None
    text: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    background: Literal[False] | None = None
    conversation: None = None
    memagent: Continued | None = None


def parse(body: bytes, kind: type[Model]) -> tuple[dict[str, Any], Model]:
    """The fields of a body, as they were sent and as they are understood.

    Raises:
        Refusal: It is not what `kind` says, not JSON, or text that nothing could store.
    """
    try:
        _check_values(body)
        fields = json.loads(body.decode("utf-8"), parse_constant=_finite, parse_float=_finite)
        _check_depth(fields)
        if _HALF.search(body):
            json.dumps(fields, ensure_ascii=False).encode("utf-8")
        return fields, kind.model_validate(fields)
    except UnicodeEncodeError:
        message = "The body has half of a surrogate pair: text was cut within a character."
    except RecursionError:
        message = f"The body is nested more than {_DEEPEST} deep."
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, found["loc"]))
        raise Refusal(400, f"{place or 'body'}: {found['msg']}", param=place or None) from None
    except ValueError as error:  # no UTF-8, no JSON, or a number of too many digits
        message = f"The body is not JSON: {_place(error)}"
    raise Refusal(400, message) from None


def _check_values(body: bytes) -> None:
    """Refuse a body of too many values, before they are made; those in texts do not count."""
    if _values(body, 0, len(body)) <= _MOST_VALUES:
        return
    values, at = 0, 0
    for text in _STRING.finditer(body):
        values += _values(body, at, text.start())
        at = text.end()
        if values > _MOST_VALUES:
            break
    else:
        values += _values(body, at, len(body))
    if values > _MOST_VALUES:
        raise Refusal(400, f"The body has more than {_MOST_VALUES} values.")


def _values(body: bytes, start: int, end: int) -> int:
    return sum(body.count(sign, start, end) for sign in (b",", b"[", b"{"))


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
    raise RecursionError


def _inner(value: Any) -> Iterable[Any]:
    found = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [inner for inner in found if isinstance(inner, dict | list)]


def _place(error: ValueError) -> str:
    """Where it is wrong; never what stands there."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (line {error.lineno}, column {error.colno})"
    return type(error).__name__


def _finite(number: str) -> float:
    """A number that can be written as JSON again: not NaN, and not 1e999."""
    found = float(number)
    if not isfinite(found):
        raise ValueError
    return found
