"""How pages fail: with what happened, and what to do next."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_http.refusals import methods_of
from memagent_inspector.http.forms import place_of
from memagent_inspector.rendering import page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show_error(request: Request, error: Exception) -> Response:
    """An error of the library; a page that the store kept from being shown comes with it."""
    if isinstance(error, MemoryNotFoundError):
        return _page(404, "Not found", error)
    if isinstance(error, MemoryConflictError):
        return _page(409, "Not done", error)
    if isinstance(error, BadRecordError):
        return _page(500, "Not readable", error)
    if isinstance(error, StoreError):
        again = place_of(request) if request.method == "GET" else ""
        values = {"again": again, "problem": str(error)}
        return page("away.html", values, status=503)
    return _page(400, "Not done", error)


async def show_refusal(request: Request, error: Exception) -> Response:
    """A request that cannot be understood."""
    status = getattr(error, "status_code", 400)
    title = "Not found" if status == HTTPStatus.NOT_FOUND else "Not done"
    response = _page(status, title, getattr(error, "detail", error))
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["allow"] = methods_of(request.app.routes, request.scope) or "GET, HEAD"
    return response


async def show_crash(_: Request, error: Exception) -> Response:
    """A defect of ours."""
    kind = type(error).__name__
    return _page(500, "Something broke", f"{kind}: the inspector's log says where.")


def _page(status: int, title: str, problem: object) -> Response:
    values = {"title": title, "problem": str(problem)}
    return page("problem.html", values, status=status)
