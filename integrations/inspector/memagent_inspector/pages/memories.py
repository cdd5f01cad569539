"""Pages that only look: lists, a memory, its history, passages, comparisons, an export."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse

from memagent_graph.facts.record import is_facts
from memagent_graph.memory.runs import answers_of
from memagent_inspector.http.forms import fields_of
from memagent_inspector.pages.requests import (
    export_of,
    is_partial,
    needed,
    number,
    sought,
    state_of,
)
from memagent_inspector.rendering import page
from memagent_inspector.views.costs import add_up
from memagent_inspector.views.coverage import Coverage
from memagent_inspector.views.facts import facts_page
from memagent_inspector.views.history import describe, list_steps
from memagent_inspector.views.listing import list_page
from memagent_inspector.views.statements import lines_of
from memagent_inspector.views.subject import find
from memagent_inspector.views.words import compare, side

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from memagent_graph.memory.version import MemoryVersion
    from memagent_inspector.views.listing import Kind


async def show_list(request: Request) -> Response:
    """The first memories of a list, or of a search; without a kind, of a list that has some."""
    fields = fields_of(request)
    if "kind" not in fields and not fields.get("words", "").strip():
        bank = state_of(request).bank
        if not (await list_page(bank, "memories")).rows:
            if (await list_page(bank, "readings")).rows:
                return RedirectResponse("/?kind=readings", 303)
            if await state_of(request).users.anames():
                return RedirectResponse("/people", 303)
    return await _list(request, "list.html")


async def show_rows(request: Request) -> Response:
    """More rows of a list."""
    return await _list(request, "rows.html")


async def show_memory(request: Request) -> Response:
    """A memory as statements, with how far its document was read, and its history."""
    fields, bank = fields_of(request), state_of(request).bank
    subject = await find(bank, needed(fields, "of"))
    shown = subject.version
    if "version" in fields:
        shown = await bank.aget(fields["version"])
    values = {
        "subject": subject,
        "shown": shown,
        "what": describe(shown),
        "answer": (await answers_of(bank.records, [shown])).get(shown.id),
        "lines": lines_of(shown),
        "has_facts": is_facts(shown.text),
        "coverage": Coverage.of(shown),
        "lanes": await state_of(request).tracks.lanes(subject.reference),
    }
    return page("memory.html", values)


async def show_facts(request: Request) -> Response:
    """The facts of a memory: what is near a name, what is disputed, and all of them."""
    fields, bank = fields_of(request), state_of(request).bank
    subject = await find(bank, needed(fields, "of"))
    about, at = fields.get("about", "")[:400], fields.get("at", "")[:40]
    is_editable = subject.kind in {"memory", "reading"}
    values = {
        "of": subject.reference,
        "section": "memories" if subject.kind in {"memory", "version"} else "readings",
        "here": "/facts",
        "back": "/memory",
        "edit": "/edit" if is_editable else "",
        "shown": subject.version,
        "found": facts_page(subject.version, about, at),
        "at": at,
    }
    return page("facts.html", values)


async def show_history(request: Request) -> Response:
    """Versions of a memory, some at a time."""
    fields = fields_of(request)
    reference = needed(fields, "of")
    steps = await list_steps(state_of(request).bank, reference, fields.get("first"))
    return page("steps.html", {"reference": reference, "history": steps})


async def show_passage(request: Request) -> Response:
    """The passage of a document that a statement came from."""
    fields, bank = fields_of(request), state_of(request).bank
    version = await bank.aget(needed(fields, "version"))
    at = number(fields, "evidence")
    if at >= len(version.memory.evidence):
        raise HTTPException(404, "This version has no such statement.")
    passage = await state_of(request).documents.passage(bank, version, at)
    values = {"passage": passage, "version": version}
    return page("passage.html" if is_partial(request) else "passage_page.html", values)


async def show_comparison(request: Request) -> Response:
    """Two versions side by side."""
    fields, bank = fields_of(request), state_of(request).bank
    before = await bank.aget(needed(fields, "before"))
    after = await bank.aget(needed(fields, "after"))
    runs = compare(before.text, after.text)
    sides: list[tuple[str, MemoryVersion, Literal["added", "removed"]]] = [
        ("Before", before, "removed"),
        ("After", after, "added"),
    ]
    shown = [
        (label, version, describe(version), side(runs, kind)) for label, version, kind in sides
    ]
    values = {"of": fields.get("of", ""), "sides": shown, "before": before, "after": after}
    return page("compare.html", values)


async def show_costs(request: Request) -> Response:
    """Show what the readings in this store cost."""
    return page("costs.html", {"costs": await add_up(state_of(request).bank)})


async def export(request: Request) -> Response:
    """A memory with its versions as JSON lines, as `memagent memory export` prints it."""
    reference = needed(fields_of(request), "of")
    return export_of(reference, await state_of(request).bank.aexport([reference]))


async def _list(request: Request, template: str) -> Response:
    fields = fields_of(request)
    kind: Kind = "readings" if fields.get("kind") == "readings" else "memories"
    words, start = sought(fields)
    listing = await list_page(state_of(request).bank, kind, words, start)
    return page(template, {"kind": kind, "words": words, "listing": listing})
