"""Pages that change a memory: edit, roll back, branch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse, Response

from memagent_graph.errors import StoreError
from memagent_inspector.http.forms import fields_of, form_of
from memagent_inspector.pages.requests import needed, state_of
from memagent_inspector.rendering import page, url
from memagent_inspector.views import edits
from memagent_inspector.views.edits import ChangedMeanwhileError
from memagent_inspector.views.history import describe
from memagent_inspector.views.subject import find
from memagent_inspector.views.words import compare, side

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from memagent_graph.memory.version import MemoryVersion
    from memagent_inspector.views.subject import Subject

_CONFLICT = 409
_AWAY = 503
_OLDER = 8
"""Older versions from which an edit of a reading under way can begin."""


async def show_edit(request: Request) -> Response:
    """The form with a memory's text; with a version, that of a reading under way."""
    fields, bank = fields_of(request), state_of(request).bank
    reference, seen = needed(fields, "of"), fields.get("version")
    if seen is None:
        subject = await find(bank, reference)
        return show_form(reference, subject.version.id, subject.version.text)
    text = (await bank.aget(fields.get("start", seen))).text
    older = (await bank.ahistory(seen))[1 : _OLDER + 1]
    return show_form(reference, seen, text, older=older, back="/reading")


async def edit(request: Request) -> Response:
    """Store a text. The second of two editors sees what was stored, and keeps their own text."""
    form = await form_of(request)
    reference, seen = needed(form, "of"), needed(form, "seen")
    text = form.get("text", "").strip("\n")
    back = "/reading" if form.get("back") == "/reading" else "/memory"
    show = partial(show_form, reference, text=text, back=back)
    try:
        await edits.edit(state_of(request).bank, reference, seen, text)
    except ChangedMeanwhileError as error:
        return show(error.now.id, status=_CONFLICT, now=error.now)
    except StoreError as error:
        return show(seen, status=_AWAY, problem=f"Nothing was stored: {error}")
    return RedirectResponse(url(back, of=reference), 303)


async def show_rollback(request: Request) -> Response:
    """Show what going back to a version changes, with the button that does it."""
    fields, bank = fields_of(request), state_of(request).bank
    subject = await find(bank, needed(fields, "of"))
    to = await bank.aget(needed(fields, "to"))
    return _rollback(subject, to)


async def roll_back(request: Request) -> Response:
    """Make an older version the newest one again."""
    form, bank = await form_of(request), state_of(request).bank
    subject = await find(bank, needed(form, "of"))
    try:
        await edits.roll_back(bank, subject, needed(form, "seen"), needed(form, "to"))
    except ChangedMeanwhileError as error:
        to = await bank.aget(form["to"])
        now = await find(bank, subject.reference)
        return _rollback(now, to, status=_CONFLICT, problem=str(error))
    return RedirectResponse(url("/memory", of=subject.reference), 303)


async def branch(request: Request) -> Response:
    """Give a version a name of its own."""
    form, bank = await form_of(request), state_of(request).bank
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
