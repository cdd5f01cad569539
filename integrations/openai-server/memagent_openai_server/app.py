"""The application and its routes."""

from __future__ import annotations

from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from memagent_graph.errors import MemAgentError
from memagent_graph.memory.items import NAMESPACE
from memagent_http.refusals import Refusal, methods_of
from memagent_openai_server.chat.endpoint import complete
from memagent_openai_server.http import schema
from memagent_openai_server.http.door import Door
from memagent_openai_server.http.limits import Limits
from memagent_openai_server.http.records import Metrics
from memagent_openai_server.http.refusals import body_of, refusal
from memagent_openai_server.http.requests import BareRoute, ChatRequest, limited_body
from memagent_openai_server.memories.routes import MemoryText, memories
from memagent_openai_server.models import Catalogue, ModelLike, Models
from memagent_openai_server.responses import endpoint as responses
from memagent_openai_server.responses.request import ResponseRequest
from memagent_openai_server.upstream.passing import PASSED, passing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.config import ReadingConfig
    from memagent_graph.prompts import Prompts
    from memagent_graph.text.tokens import TokenizerLike


def create_app(
    model: ModelLike | Catalogue = None,
    *,
    base_url: str | None = None,
    store: BaseStore | None = None,
    namespace: Sequence[str] = NAMESPACE,
    config: ReadingConfig | None = None,
    prompts: Prompts | None = None,
    tokenizer: TokenizerLike = None,
    window: int | None = None,
    keys: Mapping[str, str] | None = None,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    limits: Limits | None = None,
    remember: bool = False,
) -> FastAPI:
    """Make the application, for any ASGI server; `memagent serve` runs it with uvicorn.

    Args:
        model: the model, as for `create_memagent`; or several, by the names that clients use, each
            as such or as `Served`, with its own server and window.
        base_url: URL of the model's server, for an `openai:` model; `OPENAI_BASE_URL` by default.
        store: store of the memories; None keeps them in this process.
        namespace: namespace of the memories; each tenant's is below one more label, which comes
            first.
        config: settings of the readings.
        prompts: prompts for a chat model.
        tokenizer: counts tokens and cuts chunks.
        window: context length of the model in tokens; None asks its server.
        keys: tenants by key; without keys, all requests are accepted.
        hosts: host names under which the server may be called; any by default.
        origins: sites whose pages may call it from a browser (CORS); none by default.
        limits: limits on clients.
        remember: whether what a `user` says in chats is remembered, and used in later chats.

    Raises:
        ConfigurationError: There is no such model, the budgets do not fit its context, or LangGraph
            does not allow the namespace.

    Examples:
        >>> from fastapi.testclient import TestClient
        >>> from memagent_openai_server import create_app
        >>> said = "The vault opens at 6:40. When does the vault open?"
        >>> asked = {"model": "extractive", "messages": [{"role": "user", "content": said}]}
        >>> with TestClient(create_app()) as client:  # or create_app("openai:MODEL", base_url=...)
        ...     done = client.post("/v1/chat/completions", json=asked).json()
        >>> done["choices"][0]["message"]["content"]
        'The vault opens at 6:40.'
    """
    limits = limits or Limits()
    models = Models.of(
        model,
        base_url=base_url,
        store=store,
        namespace=namespace,
        config=config,
        prompts=prompts,
        tokenizer=tokenizer,
        window=window,
        limits=limits,
        remember=remember,
    )
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        models.first.keeper.start()
        yield
        await models.aclose()

    app = FastAPI(
        title="memagent",
        version=version("memagent-openai-server"),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # `Door` removes them
        generate_unique_id_function=lambda route: route.name,
    )
    app.router.route_class = BareRoute
    app.state.models, app.state.service = models, models.first
    app.add_middleware(
        Door, keys=keys or {}, hosts=hosts, origins=origins, limits=limits, metrics=metrics
    )
    if origins:  # outermost, because a browser's preflight has no key
        app.add_middleware(
            CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_exception_handler(HTTPException, _plain)
    for kind in (Refusal, MemAgentError):
        app.add_exception_handler(kind, _refused)
    _add_routes(app, models, metrics)
    app.include_router(passing(models))
    app.include_router(memories(models))
    schema.describe(app, [ChatRequest, ResponseRequest, *PASSED, MemoryText], models.names)
    return app


def _add_routes(app: FastAPI, models: Models, metrics: Metrics) -> None:
    asked: dict[str, Any] = {"streams": True, "parameters": [schema.SESSION]}
    limits, sessions = models.first.limits, models.first.sessions

    @app.post(
        "/v1/chat/completions", **schema.described(ChatRequest, schema.ChatCompletion, **asked)
    )
    async def chat_completions(request: Request) -> Response:
        """A chat completion."""
        body = await limited_body(request, limits)
        return await complete(models, request, body, request.state.record)

    @app.post("/v1/responses", **schema.described(ResponseRequest, schema.ModelResponse, **asked))
    async def new_response(request: Request) -> Response:
        """A response."""
        body = await limited_body(request, limits)
        return await responses.respond(models, request, body, request.state.record)

    @app.get("/v1/responses/{key}", responses=schema.answers(schema.ModelResponse))
    async def response(request: Request, key: str) -> dict[str, Any]:
        """A stored response."""
        return await responses.retrieve(sessions(request.state.record.tenant), key)

    @app.delete("/v1/responses/{key}", responses=schema.answers(schema.Deleted))
    async def deleted_response(request: Request, key: str) -> dict[str, Any]:
        """Delete a response."""
        return await responses.delete(sessions(request.state.record.tenant), key)

    @app.get("/v1/models", responses=schema.answers(schema.ModelList))
    async def list_models() -> dict[str, Any]:
        """The models that are served."""
        return {"object": "list", "data": [await models.card(name) for name in models.names]}

    @app.get("/v1/models/{name:path}", responses=schema.answers(schema.ModelCard))
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        return await models.card(name)

    @app.get("/health")
    @app.get("/ping", operation_id="ping")
    async def health() -> dict[str, str]:
        """Whether the server answers."""
        return {"status": "stopping" if models.first.stopping.is_set() else "ok"}

    @app.get("/version")
    async def the_version() -> dict[str, str]:
        """The version of this server."""
        return {"version": app.version}

    @app.get("/metrics")
    async def prometheus() -> Response:
        """Metrics for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    request.state.record.failed(error)
    found = refusal(error)
    return JSONResponse(body_of(found), found.status_code, found.headers)


async def _plain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # the first route knows its own alone
        allowed = methods_of(request.app.routes, request.scope)
        headers["Allow"] = allowed.replace("GET", "GET, HEAD")  # `Door` answers one by the other
    found = Refusal(error.status_code, str(error.detail), headers=headers)
    return JSONResponse(body_of(found), found.status_code, found.headers)
