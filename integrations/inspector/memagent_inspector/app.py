"""The ASGI application: routes, behind the doors; and pages that fail."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memagent_graph.conversation.users import Users
from memagent_graph.errors import (
    BadRecordError,
    MemAgentError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.memory.store import store_seconds
from memagent_http.access import LOCAL, Guard
from memagent_http.refusals import methods_of
from memagent_inspector import calls, pages, readings, users
from memagent_inspector.door import Headers, TokenDoor, check, place_of
from memagent_inspector.pages import State
from memagent_inspector.passages import Documents
from memagent_inspector.readings import Tracks
from memagent_inspector.rendering import FOLDER, page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from langgraph.store.base import BaseStore
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

_ROUTES = (
    Route("/", pages.show_list),
    Route("/memory", pages.show_memory),
    Route("/facts", pages.show_facts),
    Route("/history", pages.show_history),
    Route("/passage", pages.show_passage),
    Route("/compare", pages.show_comparison),
    Route("/export", pages.export),
    Route("/costs", pages.show_costs),
    Route("/calls", calls.show_list),
    Route("/calls/of", calls.show_reading),
    Route("/reading", readings.show_reading),
    Route("/reading/news", readings.show_news),
    Route("/reading/folds", readings.show_folds),
    Route("/status", readings.show_status),
    Route("/under-way", readings.show_under_way),
    Route("/users", users.show_list),
    Route("/user", users.show),
    Route("/user/facts", users.show_facts),
    Route("/user/edit", users.show_edit),
    Route("/user/edit", users.edit, methods=["POST"]),
    Route("/user/export", users.export),
    Route("/user/decide", users.decide, methods=["POST"]),
    Route("/user/forget", users.show_preview),
    Route("/user/forget", users.forget, methods=["POST"]),
    Route("/edit", pages.show_edit),
    Route("/edit", pages.edit, methods=["POST"]),
    Route("/rollback", pages.show_rollback),
    Route("/rollback", pages.roll_back, methods=["POST"]),
    Route("/branch", pages.branch, methods=["POST"]),
    Route("/forget", pages.show_preview),
    Route("/forget/document", pages.show_document),
    Route("/forget", pages.forget, methods=["POST"]),
    Mount("/assets", StaticFiles(directory=FOLDER / "assets")),
)


def create_app(
    store: BaseStore,
    *,
    namespace: Sequence[str] = NAMESPACE,
    roots: Iterable[str | Path] = (),
    recorded: Sequence[str | Path] = (),
    token: str | None = None,
) -> ASGIApp:
    """Create the ASGI application.

    Args:
        store: whose memories to show.
        namespace: where they are in it.
        roots: files and folders below which documents are opened to show passages of them.
        recorded: files and folders of calls that a `TraceRecorder` wrote.
        token: what visitors have to give. Without one, requests that call the server by another
            name than this machine's are refused.

    Raises:
        ConfigurationError: The token is too short, or a root does not exist.

    Examples:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_inspector import create_app
        >>> app = create_app(InMemoryStore())  # for uvicorn, or another ASGI server
    """
    bank = MemoryBank(store, namespace, patience=store_seconds)
    inside = Starlette(
        routes=_ROUTES,
        exception_handlers={
            MemAgentError: _show_error,
            HTTPException: _show_refusal,
            Exception: _show_crash,
        },
    )
    remembered = Users(store, namespace, patience=store_seconds)
    inside.state.shared = State(bank, remembered, Documents(roots), Tracks(bank), recorded)
    app: ASGIApp = inside
    if token:
        app = TokenDoor(app, token)
    guarded = partial(check, hosts=() if token else LOCAL, routes=_ROUTES)
    return Headers(Guard(app, guarded))


_ERRORS = (
    (MemoryNotFoundError, 404, "Not found"),
    (MemoryConflictError, 409, "Not done"),
    (BadRecordError, 500, "Not readable"),
)


async def _show_error(request: Request, error: Exception) -> Response:
    """Show an error of the library; a page that the store kept from being shown comes with it."""
    for kind, status, title in _ERRORS:
        if isinstance(error, kind):
            return _problem(status, title, error)
    if isinstance(error, StoreError):
        again = place_of(request) if request.method == "GET" else ""
        return page("away.html", {"again": again, "problem": str(error)}, status=503)
    return _problem(400, "Not done", error)


async def _show_refusal(request: Request, error: Exception) -> Response:
    """Show that a request cannot be understood."""
    status = getattr(error, "status_code", 400)
    title = "Not found" if status == 404 else "Not done"  # noqa: PLR2004 - HTTP's
    response = _problem(status, title, getattr(error, "detail", error))
    if status == 405:  # noqa: PLR2004 - likewise
        response.headers["allow"] = methods_of(request.app.routes, request.scope) or "GET, HEAD"
    return response


async def _show_crash(_: Request, error: Exception) -> Response:
    """Show a defect of ours."""
    kind = type(error).__name__
    return _problem(500, "Something broke", f"{kind}: the inspector's log says where.")


def _problem(status: int, title: str, problem: object) -> Response:
    return page("problem.html", {"title": title, "problem": str(problem)}, status=status)
