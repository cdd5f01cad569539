"""The application with its routes, and the server that runs it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import uvicorn
from langgraph.store.memory import InMemoryStore
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from memagent_graph.memory.items import NAMESPACE
from memagent_http.refusals import Refusal, methods_of
from memagent_http.server import config as uvicorn_config
from memagent_http.server import serve, url_of
from memagent_openai_server.access import Access, Limits, Metrics, log
from memagent_openai_server.chat import PASSED, Passed, complete, pass_on
from memagent_openai_server.delivery import unless_gone
from memagent_openai_server.models import Catalogue, ModelLike, Models
from memagent_openai_server.requests import ChatRequest, receive_fields
from memagent_openai_server.responses import ResponseRequest, refuse_stored, respond

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from types import FrameType

    from langgraph.store.base import BaseStore
    from pydantic import BaseModel
    from starlette.requests import Request

    from memagent_graph.config import ReadingConfig
    from memagent_graph.prompts import Prompts
    from memagent_graph.text.tokens import TokenizerLike
    from memagent_openai_server.requests import Received

_GRACE = 30
"""Time for requests that are passed on to end, in seconds."""


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
) -> Starlette:
    """Make the application, for any ASGI server; `memagent serve` runs it with uvicorn.

    Args:
        model: the model, as for `create_memagent`; or several, by the names that clients use, each
            as such or as `Served`, with its own server and window.
        base_url: URL of the model's server, for an `openai:` model; `OPENAI_BASE_URL` by default.
        store: store of the memories; None keeps them in this process.
        namespace: namespace of the memories; each key's own is below one more label, which comes
            first.
        config: settings of the readings.
        prompts: prompts for a chat model.
        tokenizer: counts tokens and cuts chunks.
        window: context length of the model in tokens; None asks its server.
        keys: names by key; without keys, all requests are accepted.
        hosts: host names under which the server may be called; any by default.
        origins: sites whose pages may call it from a browser (CORS); none by default.
        limits: limits on clients.
        remember: whether what a `user` says in chats is remembered, and used in later chats.

    Raises:
        ConfigurationError: There is no such model, the budgets do not fit its context, or LangGraph
            does not allow the namespace.

    Examples:
        >>> from starlette.testclient import TestClient
        >>> from memagent_openai_server import create_app
        >>> said = "The vault opens at 6:40. When does the vault open?"
        >>> asked = {"model": "extractive", "messages": [{"role": "user", "content": said}]}
        >>> with TestClient(create_app()) as client:  # or create_app("openai:MODEL", base_url=...)
        ...     done = client.post("/v1/chat/completions", json=asked).json()
        >>> done["choices"][0]["message"]["content"]
        'The vault opens at 6:40.'
    """
    limits = limits or Limits()
    models = Models(
        model,
        base_url=base_url,
        store=store or InMemoryStore(),
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
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await models.aclose()

    access = Middleware(
        Access, keys=keys or {}, hosts=hosts, origins=origins, limits=limits, metrics=metrics
    )
    # Outermost, because a browser's preflight has no key:
    cors = Middleware(
        CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"]
    )
    app = Starlette(
        routes=_ROUTES,
        middleware=[cors, access] if origins else [access],
        exception_handlers={HTTPException: _raise_refusal},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # `Access` removes them
    app.state.models, app.state.service, app.state.metrics = models, models.first, metrics
    return app


async def _list_models(request: Request) -> Response:
    models: Models = request.app.state.models
    cards = [await models.card(name) for name in models]
    return JSONResponse({"object": "list", "data": cards})


async def _show_model(request: Request) -> Response:
    models: Models = request.app.state.models
    return JSONResponse(await models.card(request.path_params["name"]))


async def _show_health(request: Request) -> Response:
    is_stopping = request.app.state.service.stopping.is_set()
    return JSONResponse({"status": "stopping" if is_stopping else "ok"})


async def _show_version(_: Request) -> Response:
    return JSONResponse({"version": version("memagent-openai-server")})


async def _show_metrics(request: Request) -> Response:
    found = generate_latest(request.app.state.metrics.registry)
    return Response(found, media_type=CONTENT_TYPE_LATEST)


def _post(
    path: str,
    kind: type[BaseModel],
    handle: Callable[[Request, Received[Any]], Awaitable[Response]],
) -> Route:
    """Return the route of a path with bodies of this kind; work ends if the client leaves."""

    async def endpoint(request: Request) -> Response:
        sent = await receive_fields(request, kind)
        return await unless_gone(handle(request, sent), request.receive)

    return Route(path, endpoint, methods=["POST"])


_ROUTES = [
    _post("/v1/chat/completions", ChatRequest, complete),
    _post("/v1/responses", ResponseRequest, respond),
    Route("/v1/responses/{key}", refuse_stored, methods=["GET", "DELETE"]),
    *(_post(path, Passed, pass_on) for path in PASSED),
    Route("/v1/models", _list_models),
    Route("/v1/models/{name:path}", _show_model),
    Route("/health", _show_health),
    Route("/ping", _show_health),
    Route("/version", _show_version),
    Route("/metrics", _show_metrics),
]


async def _raise_refusal(request: Request, error: Exception) -> Response:
    """Raise an error of HTTP as one that `Access` answers."""
    if isinstance(error, Refusal):
        raise error
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:  # the first route knows its own alone
        headers["Allow"] = methods_of(request.app.routes, request.scope)
    raise Refusal(error.status_code, str(error.detail), headers=headers)


class Server(uvicorn.Server):
    """Ends all readings when it is stopped; asked again, each continues where it was."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On the first signal, end readings and let the rest finish; on the second, end all."""
        app: Any = self.config.app
        app.state.service.stopping.set()
        super().handle_exit(sig, frame)


def make_server(app: Starlette) -> Server:
    """Return a server of the application; `run()` it."""
    return Server(uvicorn_config(app, grace=_GRACE))


def run(app: Starlette, listening: socket.socket, host: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    fields = {"url": f"{url_of(listening, host)}/v1", "models": [*app.state.models]}
    log.info("starting", extra={"fields": fields})
    serve(make_server(app), listening)
    log.info("stopped")
