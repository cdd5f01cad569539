"""Pass requests for other paths on to the model's server unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from openai.types import Completion, CreateEmbeddingResponse
from pydantic import BaseModel, ConfigDict

from memagent_http.refusals import Refusal
from memagent_openai_server.chat.endpoint import passed
from memagent_openai_server.http.delivery import unless_gone
from memagent_openai_server.http.requests import BareRoute, aparse, limited_body
from memagent_openai_server.http.schema import described
from memagent_openai_server.upstream.server import Upstream

if TYPE_CHECKING:
    from memagent_openai_server.models import Models

_NOT_THERE = (404, 405)


class CompletionRequest(BaseModel):
    """The body of `POST /v1/completions`."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    prompt: Any
    stream: bool | None = None


class EmbeddingRequest(BaseModel):
    """The body of `POST /v1/embeddings`."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str
    input: Any


class TokenizeRequest(BaseModel):
    """The body of `POST /tokenize`: a prompt, or the messages of a chat."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


class DetokenizeRequest(BaseModel):
    """The body of `POST /detokenize`."""

    model_config = ConfigDict(extra="allow", strict=True)

    model: str | None = None
    tokens: list[int]


class Tokens(BaseModel):
    """vLLM's reply to `POST /tokenize`."""

    model_config = ConfigDict(extra="allow")

    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(BaseModel):
    """vLLM's reply to `POST /detokenize`."""

    model_config = ConfigDict(extra="allow")

    prompt: str


PASSED = (CompletionRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest)


def passing(models: Models) -> APIRouter:
    """Return the routes whose requests are passed on."""
    router = APIRouter(route_class=BareRoute)

    def add(
        path: str, body: type[BaseModel], answer: type[BaseModel], *, streams: bool = False
    ) -> None:
        schema = described(body, answer, streams=streams)
        router.add_api_route(
            path,
            _endpoint(models, path, body),
            methods=["POST"],
            name=path.rpartition("/")[2],
            description="Passed on to the model's server.",
            **schema,
        )

    add("/v1/completions", CompletionRequest, Completion, streams=True)
    add("/v1/embeddings", EmbeddingRequest, CreateEmbeddingResponse)
    add("/tokenize", TokenizeRequest, Tokens)
    add("/detokenize", DetokenizeRequest, Detokenized)
    return router


def _endpoint(models: Models, path: str, kind: type[BaseModel]) -> Any:
    async def pass_on(request: Request) -> Response:
        body = await limited_body(request, models.first.limits)
        _, asked = await aparse(body, kind)
        wanted: str | None = asked.model_dump(include={"model"})["model"]
        service = models.first if wanted is None else models.named(wanted)
        if not isinstance(service.upstream, Upstream):
            raise _not_offered(service.name, path)
        record = request.state.record
        record.how = "passed"
        try:
            response = await unless_gone(service.upstream.post(path, body), request.receive)
        except Refusal as refused:
            if refused.status_code in _NOT_THERE:
                raise _not_offered(service.name, path) from None
            raise
        return await passed(response, request, record)

    return pass_on


def _not_offered(name: str, path: str) -> Refusal:
    message = f"The model {name!r} has no {path}: only a server behind this one may offer it."
    return Refusal(404, message, code="not_offered")
