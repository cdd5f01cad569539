"""Pages about people: their list, what is remembered of one, and forgetting them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from memagent_graph.cli.options import operator
from memagent_graph.conversation import proposal
from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError, StoreError
from memagent_graph.facts.record import is_facts
from memagent_inspector.http.forms import fields_of, form_of
from memagent_inspector.pages.edits import show_form
from memagent_inspector.pages.requests import export_of, needed, sought, state_of
from memagent_inspector.rendering import page, url
from memagent_inspector.views.facts import facts_page
from memagent_inspector.views.people import list_people, show_person

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def show_list(request: Request) -> Response:
    """The first people of the list, or of a search."""
    return await _list(request, "people.html")


async def show_rows(request: Request) -> Response:
    """More rows of the list."""
    return await _list(request, "people_rows.html")


async def show(request: Request) -> Response:
    """Show what is remembered of a person, from which messages, and what was done to it."""
    user = needed(fields_of(request), "of")
    person = await show_person(state_of(request).users, user)
    has_facts = person.version is not None and is_facts(person.version.text)
    return page("person.html", {"person": person, "has_facts": has_facts})


async def show_facts(request: Request) -> Response:
    """The facts that are remembered of a person."""
    fields = fields_of(request)
    user, at = needed(fields, "of"), fields.get("at", "")[:40]
    version = await state_of(request).users.aget(user)
    values = {
        "of": user,
        "section": "people",
        "here": "/person/facts",
        "back": "/person",
        "edit": "/person/edit",
        "shown": version,
        "found": facts_page(version, fields.get("about", "")[:400], at),
        "at": at,
    }
    return page("facts.html", values)


async def show_edit(request: Request) -> Response:
    """The form with what is remembered of a user."""
    user = needed(fields_of(request), "of")
    version = await state_of(request).users.aget(user)
    return show_form(user, version.id, version.text, action="/person/edit", back="/person")


async def edit(request: Request) -> Response:
    """Store a text. The second of two editors sees what was stored, and keeps their own text."""
    form, users = await form_of(request), state_of(request).users
    user, seen = needed(form, "of"), needed(form, "seen")
    text = form.get("text", "").strip("\n")
    shown = partial(show_form, user, action="/person/edit", back="/person")
    try:
        now = await users.aget(user)
        if text != now.text:
            await users.aedit(user, text, by=operator(), before=seen)
    except MemoryConflictError:
        now = await users.aget(user)
        return shown(now.id, text, status=409, now=now)
    except StoreError as error:
        return shown(seen, text, status=503, problem=f"Nothing was stored: {error}")
    return RedirectResponse(url("/person", of=user), 303)


async def export(request: Request) -> Response:
    """All that is stored of a person, as `memagent memory export --user` prints it."""
    user = needed(fields_of(request), "of")
    return export_of(user, await state_of(request).users.aexport([user]))


async def decide(request: Request) -> Response:
    """Accept or refuse a proposal."""
    form = await form_of(request)
    user = needed(form, "of")
    accept, refuse = ([form[name]] if form.get(name) else [] for name in ("accept", "refuse"))
    decision = proposal.Decision(accept=accept, refuse=refuse)
    await proposal.decide(state_of(request).users.of(user), decision, by=operator())
    return RedirectResponse(url("/person", of=user), 303)


async def show_preview(request: Request) -> Response:
    """Show what forgetting a user would delete."""
    user = needed(fields_of(request), "of")
    held = await state_of(request).users.aheld(user)
    if not held.items:
        message = f"Nothing is stored of {user!r}."
        raise MemoryNotFoundError(message)
    return page("forget_person.html", {"user": user, "held": held})


async def forget(request: Request) -> Response:
    """Forget a person."""
    user = needed(await form_of(request), "of")
    done = await state_of(request).users.aforget(user, by=operator())
    return page("forgotten_person.html", {"user": user, "done": done})


async def _list(request: Request, template: str) -> Response:
    words, start = sought(fields_of(request))
    listing = await list_people(state_of(request).users, words, start)
    return page(template, {"words": words, "listing": listing})
