"""The ASGI application: routes, behind the doors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from memagent_graph.conversation.users import Users
from memagent_graph.errors import MemAgentError
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.circuit import store_seconds
from memagent_graph.memory.items import NAMESPACE
from memagent_http.access import LOCAL, Guard
from memagent_inspector.http.door import Headers, check
from memagent_inspector.http.login import TokenDoor
from memagent_inspector.pages import (
    edits,
    errors,
    forget,
    memories,
    people,
    readings,
)
from memagent_inspector.pages.requests import State
from memagent_inspector.rendering import FOLDER
from memagent_inspector.views.lanes import Tracks
from memagent_inspector.views.passages import Documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from langgraph.store.base import BaseStore
    from starlette.types import ASGIApp

_ROUTES = (
    Route("/", memories.show_list),
    Route("/rows", memories.show_rows),
    Route("/memory", memories.show_memory),
    Route("/facts", memories.show_facts),
    Route("/history", memories.show_history),
    Route("/passage", memories.show_passage),
    Route("/compare", memories.show_comparison),
    Route("/export", memories.export),
    Route("/costs", memories.show_costs),
    Route("/reading", readings.show_reading),
    Route("/reading/news", readings.show_news),
    Route("/reading/folds", readings.show_folds),
    Route("/status", readings.show_status),
    Route("/under-way", readings.show_under_way),
    Route("/people", people.show_list),
    Route("/people/rows", people.show_rows),
    Route("/person", people.show),
    Route("/person/facts", people.show_facts),
    Route("/person/edit", people.show_edit),
    Route("/person/edit", people.edit, methods=["POST"]),
    Route("/person/export", people.export),
    Route("/person/decide", people.decide, methods=["POST"]),
    Route("/person/forget", people.show_preview),
    Route("/person/forget", people.forget, methods=["POST"]),
    Route("/edit", edits.show_edit),
    Route("/edit", edits.edit, methods=["POST"]),
    Route("/rollback", edits.show_rollback),
    Route("/rollback", edits.roll_back, methods=["POST"]),
    Route("/branch", edits.branch, methods=["POST"]),
    Route("/forget", forget.show_preview),
    Route("/forget/document", forget.show_document),
    Route("/forget", forget.forget, methods=["POST"]),
    Mount("/assets", StaticFiles(directory=FOLDER / "assets")),
)


def create_app(
    store: BaseStore,
    *,
    namespace: Sequence[str] = NAMESPACE,
    roots: Iterable[str | Path] = (),
    token: str | None = None,
) -> ASGIApp:
    """Create the ASGI application.

    Args:
        store: whose memories to show.
        namespace: where they are in it.
        roots: files and folders below which documents are opened to show passages of them.
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
            MemAgentError: errors.show_error,
            HTTPException: errors.show_refusal,
            Exception: errors.show_crash,
        },
    )
    users = Users(store, namespace, patience=store_seconds)
    inside.state.shared = State(bank, users, Documents(roots), Tracks(bank))
    app: ASGIApp = inside
    if token:
        app = TokenDoor(app, token)
    guarded = partial(check, hosts=() if token else LOCAL, routes=_ROUTES)
    return Headers(Guard(app, guarded))
