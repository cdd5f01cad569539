"""Readings under way: their list; one as it happens, with its folds and its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import MemoryNotFoundError, StoreError
from memagent_inspector.http.forms import fields_of
from memagent_inspector.pages.requests import is_partial, needed, nothing_new, state_of
from memagent_inspector.rendering import page
from memagent_inspector.views.coverage import Coverage
from memagent_inspector.views.history import changes, describe
from memagent_inspector.views.subject import find
from memagent_inspector.views.under_way import folds_of, list_readings

if TYPE_CHECKING:
    from typing import Any

    from starlette.requests import Request
    from starlette.responses import Response


async def show_reading(request: Request) -> Response:
    """A reading with all that is stored of it so far."""
    reference = needed(fields_of(request), "of")
    controls = await folds_of(state_of(request).bank, reference)
    try:
        values = await _news(request, reference)
    except MemoryNotFoundError:
        if not controls.folds:
            raise
        values = {"subject": None}  # its first section is being read
    return page("reading.html", {**values, "controls": controls})


async def show_news(request: Request) -> Response:
    """Send what is new of a reading since a version; nothing while the store is unreachable."""
    fields = fields_of(request)
    try:
        values = await _news(request, needed(fields, "of"), fields.get("seen"))
    except (MemoryNotFoundError, StoreError):  # the page says so itself
        return nothing_new()
    if values["lanes"].newest == fields.get("seen"):
        return nothing_new()
    return page("news.html", values)


async def show_folds(request: Request) -> Response:
    """Send where the folds of a reading are, if that has changed."""
    fields = fields_of(request)
    try:
        controls = await folds_of(state_of(request).bank, needed(fields, "of"))
    except StoreError:
        return nothing_new()
    if controls.state == fields.get("state"):
        return nothing_new()
    return page("controls.html", {"controls": controls})


async def show_under_way(request: Request) -> Response:
    """The readings that are under way."""
    partial = is_partial(request)
    try:
        readings = await list_readings(state_of(request).bank)
    except StoreError:
        if not partial:
            raise
        return nothing_new()
    state = " ".join(reading.memory + reading.state for reading in readings)
    if partial and fields_of(request).get("state") == state:
        return nothing_new()
    name = "under_way_rows.html" if partial else "under_way.html"
    return page(name, {"readings": readings, "state": state})


async def show_status(request: Request) -> Response:
    """Whether the store answers, if that has changed since the page heard of it."""
    bank, was = state_of(request).bank, fields_of(request).get("was", "here")
    try:
        await bank.records.values([(bank.records.forgotten, "sources")], refresh=False)
        now = "here"
    except StoreError:
        now = "away"
    if now == was:
        return nothing_new()
    response = page("status.html", {"now": now})
    if now == "here":
        response.headers["hx-trigger"] = "store-back"
    return response


async def _news(request: Request, reference: str, seen: str | None = None) -> dict[str, Any]:
    bank = state_of(request).bank
    lanes = await state_of(request).tracks.lanes(reference)
    if lanes.newest and lanes.newest == seen:
        return {"lanes": lanes}
    subject = await find(bank, reference)
    newest = await bank.aget(lanes.newest) if lanes.newest else subject.version
    before = None
    if newest.parent != newest.root:
        try:
            before = await bank.aget(newest.parent)
        except MemoryNotFoundError:  # it was thinned out
            before = newest
    return {
        "subject": subject,
        "lanes": lanes,
        "newest": newest,
        "what": describe(newest),
        "coverage": Coverage.of(newest),
        "runs": changes(before, newest),
    }
