"""Readings under way: their list; pause one, hold it while its page is open, let it read on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from memagent_graph.cli.options import operator
from memagent_graph.errors import MemoryConflictError, StoreError
from memagent_inspector.http.forms import fields_of, form_of
from memagent_inspector.pages.asking import bank_of, is_partial, needed, nothing_new
from memagent_inspector.rendering import page, url
from memagent_inspector.views.holding import controls_of, hold_of, list_readings

if TYPE_CHECKING:
    from starlette.requests import Request

_SECONDS = 30.0
"""Time without a sign of life of its page after which a reading continues, in seconds."""


async def show_under_way(request: Request) -> Response:
    """The readings that are under way."""
    partial = is_partial(request)
    try:
        readings = await list_readings(bank_of(request))
    except StoreError:
        if not partial:
            raise
        return nothing_new()
    state = " ".join(reading.memory + reading.state for reading in readings)
    if partial and fields_of(request).get("state") == state:
        return nothing_new()
    name = "under_way_rows.html" if partial else "under_way.html"
    return page(name, {"readings": readings, "state": state})


async def show_controls(request: Request) -> Response:
    """Show what can be done about a reading, if that has changed."""
    fields = fields_of(request)
    return await _controls(request, needed(fields, "of"), "", fields.get("state"))


async def hold(request: Request) -> Response:
    """Pause a reading before its next section."""
    memory = needed(await form_of(request), "of")
    held = await bank_of(request).ahold(memory, operator(), seconds=_SECONDS)
    return RedirectResponse(url("/reading", of=memory, hold=held.id), 303)


async def renew(request: Request) -> Response:
    """Hold a reading for as long as its page is open."""
    form, bank = await form_of(request), bank_of(request)
    memory, mine = needed(form, "of"), needed(form, "hold")
    with suppress(MemoryConflictError, StoreError):  # the controls show it
        await bank.arenew(await hold_of(bank, memory, mine))
    return await _controls(request, memory, mine, form.get("state"))


async def release(request: Request) -> Response:
    """Let a reading go on, also one that somebody else holds."""
    memory = needed(await form_of(request), "of")
    await bank_of(request).arelease(memory)
    return RedirectResponse(url("/reading", of=memory), 303)


async def _controls(request: Request, memory: str, mine: str, state: str | None) -> Response:
    try:
        controls = await controls_of(bank_of(request), memory, mine)
    except StoreError:
        return nothing_new()
    if controls.state == state:
        return nothing_new()
    return page("controls.html", {"controls": controls, "mine": mine})
