"""The OpenAPI schema of manually parsed bodies, answers and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from openai.types import Model, chat
from openai.types.responses import ResponseUsage
from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastapi import FastAPI

_REFERENCES = "#/components/schemas/{model}"


class Error(BaseModel):
    """The content of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """The body of every error."""

    error: Error


class Reading(BaseModel):
    """The reading for an answer."""

    memory: str | None
    chunks: int
    coverage: float
    found: bool | None
    unsupported: list[str]
    warnings: list[str]


class ChatCompletion(chat.ChatCompletion):
    """A chat completion; `memagent` is set if something was read for it."""

    memagent: Reading | None = None


class ModelResponse(BaseModel):
    """A response, with the fields of OpenAI's format that this server sets."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    status: str
    model: str
    output: list[dict[str, Any]]
    previous_response_id: str | None
    usage: ResponseUsage | None
    memagent: Reading | None = None


class Deleted(BaseModel):
    """A deleted response."""

    id: str
    object: str
    deleted: bool


class ModelCard(Model):
    """A model, with the longest request in tokens that is not read."""

    max_model_len: int | None = None


class ModelList(BaseModel):
    """The models that are served."""

    object: Literal["list"]
    data: list[ModelCard]


# By reference: FastAPI would make a model anew for each error of each route, when it starts.
_FAILURE = {"application/json": {"schema": {"$ref": _REFERENCES.format(model=Failure.__name__)}}}
_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": _FAILURE}
    for status, text in {
        400: "Not a request that can be answered.",
        401: "No key of this server.",
        403: "A page of an origin that may not call this server.",
        404: "No such model or memory.",
        408: "The body took too long.",
        409: "The memory was changed meanwhile.",
        413: "The body is too long.",
        415: "The content is not JSON, or packed in an unknown way.",
        429: "Too many requests.",
        503: "Too many long requests at once, or what is needed is unreachable.",
    }.items()
}

SESSION = {
    "name": "x-memagent-session",
    "in": "header",
    "required": False,
    "description": "Name of a session to continue, or to begin.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 200},
}


def answers(answer: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a path: an answer, and the errors."""
    return {200: {"description": "The answer.", "model": answer}, **_ERRORS}


def described(
    body: type[BaseModel],
    answer: type[BaseModel],
    *,
    streams: bool = False,
    parameters: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """Return arguments of a route whose body is parsed manually.

    Args:
        body: model of the body; must also be given to `describe`.
        answer: model of the answer.
        streams: whether it can answer with events instead.
        parameters: parameters of the path, in OpenAPI's format.
    """
    responses = answers(answer)
    if streams:
        responses[200]["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
    schema = {"$ref": _REFERENCES.format(model=body.__name__)}
    extra: dict[str, Any] = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}
    }
    if parameters:
        extra["parameters"] = list(parameters)
    return {"responses": responses, "openapi_extra": extra}


def describe(app: FastAPI, bodies: Sequence[type[BaseModel]], models: list[str]) -> None:
    """Have the schema, when it is first asked for, completed with what FastAPI cannot know.

    Args:
        app: the application, with all routes.
        bodies: models of the bodies of `described` routes.
        models: names of the served models.
    """
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _complete(make(), bodies, models)
        return make()

    app.openapi = openapi  # type: ignore[method-assign] # as FastAPI's own guide does


def _complete(schema: dict[str, Any], bodies: Sequence[type[BaseModel]], models: list[str]) -> None:
    components = schema["components"]
    kinds: list[type[BaseModel]] = [*bodies, Failure]
    _, made = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REFERENCES)
    for kind in (kind for kind in bodies if "model" in kind.model_fields):
        made["$defs"][kind.__name__]["properties"]["model"] = {"type": "string", "enum": models}
    components["schemas"] |= made["$defs"]
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"key": []}, {}]
