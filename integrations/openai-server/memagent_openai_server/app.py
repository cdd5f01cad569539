"""The application: which path does what."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from memagent_graph.errors import MemAgentError
from memagent_openai_server import responses
from memagent_openai_server.completions import complete
from memagent_openai_server.door import Door
from memagent_openai_server.limits import Limits, limited_body
from memagent_openai_server.records import Metrics
from memagent_openai_server.refusals import Refusal, refusal
from memagent_openai_server.requests import (
    ChatRequest,
    Continued,
    Message,
    ResponseRequest,
    StreamOptions,
)
from memagent_openai_server.service import Service
from memagent_openai_server.shapes import model_card

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from langchain_core.language_models import BaseChatModel
    from langgraph.store.base import BaseStore
    from pydantic import BaseModel

    from memagent_graph.config import ReadingConfig
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.base import Reader
    from memagent_graph.text.tokens import TokenizerLike


def create_app(
    model: str | BaseChatModel | Reader | None = None,
    *,
    base_url: str | None = None,
    store: BaseStore | None = None,
    config: ReadingConfig | None = None,
    prompts: Prompts | None = None,
    tokenizer: TokenizerLike = None,
    window: int | None = None,
    keys: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
) -> FastAPI:
    """Make the application, for any ASGI server; `memagent serve` runs it with uvicorn.

    Args:
        model: as for `create_memagent`.
        base_url: of the model's server, for an `openai:` model; `OPENAI_BASE_URL` by default.
        store: where memories are kept; None keeps them in this process.
        config: budgets of a reading.
        prompts: for a chat model.
        tokenizer: counts tokens and cuts chunks.
        window: tokens of the model's context; None asks its server.
        keys: the tenants, by their keys; without any, everybody is let in.
        hosts: names under which the server may be called; any by default.
        origins: pages of which sites may call it from a browser (CORS); none by default.
        limits: of what clients may send.

    Raises:
        ConfigurationError: The model is not known, or the budgets do not fit it.
    """
    limits = limits or Limits()
    service = Service(
        model,
        base_url=base_url,
        store=store,
        config=config,
        prompts=prompts,
        tokenizer=tokenizer,
        window=window,
        limits=limits,
    )
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.stopping.set()
        await service.aclose()

    app = FastAPI(title="memagent", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(Door, keys=keys or {}, hosts=hosts, limits=limits, metrics=metrics)
    if origins:  # outside, because a browser asks first, and without a key
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_exception_handler(HTTPException, _plain)
    for kind in (Refusal, MemAgentError):
        app.add_exception_handler(kind, _refused)
    _add_routes(app, service, metrics)
    _describe(app)
    return app


def _add_routes(app: FastAPI, service: Service, metrics: Metrics) -> None:
    @app.post(
        "/v1/chat/completions", openapi_extra=_body(ChatRequest, service.name), responses=_ERRORS
    )
    async def chat_completions(request: Request) -> Response:
        """A chat completion."""
        body = await limited_body(request, service.limits)
        return await complete(service, request, body, request.state.record)

    @app.post(
        "/v1/responses", openapi_extra=_body(ResponseRequest, service.name), responses=_ERRORS
    )
    async def new_response(request: Request) -> Response:
        """A response."""
        body = await limited_body(request, service.limits)
        return await responses.respond(service, request, body, request.state.record)

    @app.get("/v1/responses/{key}", responses=_ERRORS)
    async def response(request: Request, key: str) -> dict[str, Any]:
        """A response that was kept."""
        return await responses.retrieve(service.sessions(request.state.record.tenant), key)

    @app.delete("/v1/responses/{key}", responses=_ERRORS)
    async def deleted_response(request: Request, key: str) -> dict[str, Any]:
        """Delete a response."""
        return await responses.delete(service.sessions(request.state.record.tenant), key)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The one model that is served."""
        card = model_card(service.name, await service.window())
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}", responses=_ERRORS)
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        if name != service.name:
            message = f"The model {name!r} does not exist: this server has {service.name!r}."
            raise Refusal(404, message, code="model_not_found", param="model")
        return model_card(service.name, await service.window())

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the server answers."""
        return {"status": "stopping" if service.stopping.is_set() else "ok"}

    @app.get("/metrics")
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text}
    for status, text in {
        400: "Not a request that can be answered.",
        401: "No key of this server.",
        404: "No such model or memory.",
        408: "The body took too long.",
        409: "The memory was changed meanwhile.",
        413: "The body is too long.",
        415: "The content is not JSON.",
        429: "Too many requests.",
    }.items()
}


def _body(kind: type[BaseModel], model: str) -> dict[str, Any]:
    """The schema of a body that is read by hand."""
    schema = _schema(kind)
    schema["properties"]["model"]["enum"] = [model]
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _schema(kind: type[BaseModel]) -> dict[str, Any]:
    schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return schema


def _describe(app: FastAPI) -> None:
    """Add what the schemas of bodies refer to, which FastAPI cannot know of."""
    schema = app.openapi()
    known = schema.setdefault("components", {}).setdefault("schemas", {})
    known |= {kind.__name__: _schema(kind) for kind in (Message, StreamOptions, Continued)}


async def _refused(request: Request, error: Exception) -> JSONResponse:
    request.state.record.failed(error)
    found = refusal(error)
    return JSONResponse(found.body, found.status, found.headers)


async def _plain(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    found = Refusal(error.status_code, str(error.detail), headers=error.headers)
    return JSONResponse(found.body, found.status, found.headers)
