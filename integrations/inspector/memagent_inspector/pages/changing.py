"""Pages that change a memory: edit, roll back, branch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from memagent_graph.errors import MemoryConflictError, StoreError
from memagent_inspector.http.forms import fields_of, form_of
from memagent_inspector.pages.asking import bank_of, needed
from memagent_inspector.rendering import page, url
from memagent_inspector.views import changing
from memagent_inspector.views.changing import ChangedMeanwhileError
from memagent_inspector.views.history import describe
from memagent_inspector.views.holding import controls_of
from memagent_inspector.views.subject import find
from memagent_inspector.views.words import compare, side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from memagent_graph.memory.version import MemoryVersion
    from memagent_inspector.views.holding import Controls
    from memagent_inspector.views.subject import Subject

_CONFLICT = 409
_AWAY = 503
_OLDER = 8
"""Older versions from which an edit of a paused reading can begin."""


async def show_edit(request: Request) -> Response:
    """The form with a memory's text."""
    fields, bank = fields_of(request), bank_of(request)
    reference, mine = needed(fields, "of"), fields.get("hold", "")
    if not mine:
        subject = await find(bank, reference)
        return show_form(reference, subject.version.id, subject.version.text)
    version = await bank.aget(needed(fields, "version"))
    text = version.text if "start" not in fields else (await bank.aget(fields["start"])).text
    controls = await controls_of(bank, reference, mine)
    older = (await bank.ahistory(version.id))[1 : _OLDER + 1]
    return show_form(reference, version.id, text, controls=controls, hold=mine, older=older)


async def edit(request: Request) -> Response:
    """Store a text. The second of two editors sees what was stored, and keeps their own text."""
    form = await form_of(request)
    reference, seen = needed(form, "of"), needed(form, "seen")
    text = form.get("text", "").strip("\n")
    bank, mine = bank_of(request), form.get("hold", "")
    try:
        if mine:
            await changing.edit_held(bank, reference, mine, seen, text)
            return RedirectResponse(url("/reading", of=reference, hold=mine), 303)
        subject = await find(bank, reference)
        if text == subject.version.text and subject.version.id == seen:
            return _to(subject)
        await changing.edit(bank, subject, seen, text)
    except ChangedMeanwhileError as error:
        return show_form(reference, error.now.id, text, status=_CONFLICT, now=error.now, hold=mine)
    except MemoryConflictError as error:
        return show_form(reference, seen, text, status=_CONFLICT, problem=str(error), hold=mine)
    except StoreError as error:
        return show_form(
            reference, seen, text, status=_AWAY, problem=f"Nothing was stored: {error}", hold=mine
        )
    return _to(subject)


async def show_rollback(request: Request) -> Response:
    """Show what going back to a version changes, with the button that does it."""
    fields, bank = fields_of(request), bank_of(request)
    subject = await find(bank, needed(fields, "of"))
    to = await bank.aget(needed(fields, "to"))
    return _rollback(subject, to)


async def roll_back(request: Request) -> Response:
    """Make an older version the newest one again."""
    form, bank = await form_of(request), bank_of(request)
    subject = await find(bank, needed(form, "of"))
    try:
        await changing.roll_back(bank, subject, needed(form, "seen"), needed(form, "to"))
    except ChangedMeanwhileError as error:
        to = await bank.aget(form["to"])
        now = await find(bank, subject.reference)
        return _rollback(now, to, status=_CONFLICT, problem=str(error))
    return _to(subject)


async def branch(request: Request) -> Response:
    """Give a version a name of its own."""
    form, bank = await form_of(request), bank_of(request)
    reference, name = needed(form, "version"), needed(form, "name")
    await bank.abranch(reference, name)
    return RedirectResponse(url("/memory", of=name), 303)


def show_form(
    reference: str,
    seen: str,
    text: str,
    *,
    status: int = 200,
    problem: str = "",
    now: MemoryVersion | None = None,
    hold: str = "",
    controls: Controls | None = None,
    older: Sequence[MemoryVersion] = (),
    action: str = "/edit",
    back: str = "/memory",
) -> Response:
    """Show the form with a text, and what somebody else stored meanwhile.

    Args:
        reference: what is edited.
        seen: id of the version that the text replaces.
        text: the text in the form.
        status: of the page.
        problem: why the text was not stored; empty if nothing was wrong.
        now: what is stored now, if somebody else changed it.
        hold: id of the visitor's hold on a reading; empty without one.
        controls: of that reading.
        older: versions from which the text can begin.
        action: path that stores the text.
        back: path of the page that shows what is edited.
    """
    runs = [] if now is None else side(compare(text, now.text), "added")
    values = {
        "of": reference,
        "seen": seen,
        "text": text,
        "problem": problem,
        "now": now,
        "runs": runs,
        "hold": hold,
        "mine": hold,
        "controls": controls,
        "older": older,
        "action": action,
        "back": back,
        "store": "away" if status == _AWAY else "here",
    }
    return page("edit.html", values, status=status)


def _rollback(
    subject: Subject, to: MemoryVersion, *, status: int = 200, problem: str = ""
) -> Response:
    values = {
        "subject": subject,
        "to": to,
        "what": describe(to),
        "runs": compare(subject.version.text, to.text),
        "problem": problem,
    }
    return page("rollback.html", values, status=status)


def _to(subject: Subject) -> Response:
    return RedirectResponse(url("/memory", of=subject.reference), 303)
