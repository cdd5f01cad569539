"""Pages about memories: lists, one memory, its history and facts, changes, and forgetting."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError, StoreError
from memagent_graph.memory.bank import answers_of
from memagent_graph.memory.items import newest_edit
from memagent_inspector.door import fields_of, form_of
from memagent_inspector.facts import facts_page, is_facts, lines_of
from memagent_inspector.history import Coverage, compare, describe, list_steps, side
from memagent_inspector.listing import add_up, find, list_page
from memagent_inspector.rendering import page, url

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from starlette.requests import Request

    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion
    from memagent_inspector.listing import Kind, Subject
    from memagent_inspector.passages import Documents
    from memagent_inspector.readings import Tracks


class State(NamedTuple):
    """State that the routes of this server share."""

    bank: MemoryBank
    users: Users
    documents: Documents
    tracks: Tracks
    calls: Sequence[str | Path]


def state_of(request: Request) -> State:
    """Return what the routes of this server share."""
    found: State = request.app.state.shared
    return found


def sought(fields: Mapping[str, str]) -> tuple[str, int]:
    """The words that a list is searched for, and how many of it to pass over."""
    return fields.get("words", "")[:200], number(fields, "start")


def is_partial(request: Request) -> bool:
    """Whether htmx asks, for a part of a page that it has."""
    return request.headers.get("hx-request") == "true"


def export_of(name: str, lines: Iterable[str]) -> Response:
    """Lines as a file to be saved under that name."""
    plain = (char if char.isascii() and char.isalnum() else "-" for char in name[:80])
    file = "".join(plain).strip("-") or "memory"
    headers = {"content-disposition": f'attachment; filename="{file}.jsonl"'}
    return Response("\n".join([*lines, ""]), headers=headers, media_type="application/jsonl")


def nothing_new() -> Response:
    """Leaves the part of a page that htmx asked for as it is."""
    return Response(status_code=204)


def needed(fields: Mapping[str, str], name: str) -> str:
    """A field that must be there."""
    value = fields.get(name, "")
    if not value:
        raise HTTPException(400, f"The field {name!r} is missing in this request.")
    return value


def number(fields: Mapping[str, str], name: str) -> int:
    """A field that is a number, 0 where it is not there."""
    value = fields.get(name, "0")
    if not (value.isascii() and value.isdigit() and len(value) < 10):  # noqa: PLR2004 - as an int of C
        raise HTTPException(400, f"The field {name!r} is no number in this request.")
    return int(value)


async def show_list(request: Request) -> Response:
    """Memories of a list, or of a search; without a kind, of a list that has some."""
    fields, bank = fields_of(request), state_of(request).bank
    is_start = "kind" not in fields and not fields.get("words", "").strip()
    if is_start and not (await list_page(bank, "memories")).rows:
        if (await list_page(bank, "readings")).rows:
            return RedirectResponse("/?kind=readings", 303)
        if await state_of(request).users.anames():
            return RedirectResponse("/users", 303)
    kind: Kind = "readings" if fields.get("kind") == "readings" else "memories"
    words, start = sought(fields)
    values = {"kind": kind, "words": words, "listing": await list_page(bank, kind, words, start)}
    return page("rows.html" if is_partial(request) else "list.html", values)


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
        "answer": (await answers_of(bank, [shown])).get(shown.id),
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
    section = "memories" if subject.kind in {"memory", "version"} else "readings"
    edit = "/edit" if subject.kind in {"memory", "reading"} else ""
    paths = {"section": section, "here": "/facts", "back": "/memory", "edit": edit}
    return show_facts_of(fields, subject.version, paths)


def show_facts_of(
    fields: Mapping[str, str], version: MemoryVersion, paths: dict[str, str]
) -> Response:
    """The page with a version's facts; `paths` are those of the pages about its memory."""
    about, at = fields.get("about", "")[:400], fields.get("at", "")[:40]
    found = facts_page(version, about, at)
    return page(
        "facts.html", {"of": fields["of"], "shown": version, "found": found, "at": at, **paths}
    )


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
    sides = [
        ("Before", before, describe(before), side(runs, "removed")),
        ("After", after, describe(after), side(runs, "added")),
    ]
    values = {"of": fields.get("of", ""), "sides": sides, "before": before, "after": after}
    return page("compare.html", values)


async def show_costs(request: Request) -> Response:
    """Show what the readings in this store cost."""
    return page("costs.html", {"costs": await add_up(state_of(request).bank)})


async def export(request: Request) -> Response:
    """A memory with its versions as JSON lines, as `memagent memory export` prints it."""
    reference = needed(fields_of(request), "of")
    return export_of(reference, await state_of(request).bank.aexport([reference]))


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
    """Store another text for a memory or reading, after the version that was seen."""
    form, bank = await form_of(request), state_of(request).bank
    reference, seen = needed(form, "of"), needed(form, "seen")
    back = "/reading" if form.get("back") == "/reading" else "/memory"

    async def change(text: str) -> None:
        subject = await find(bank, reference)
        if subject.kind == "version":
            raise _not_moved(subject)
        if text != (await bank.aget(seen)).text:
            await bank.aedit(reference, text, before=seen)

    async def now() -> MemoryVersion:
        return await newest_edit(bank, seen, reference) or await bank.aget(reference)

    return await save(form, change, now, action="/edit", back=back)


async def save(
    form: Mapping[str, str],
    change: Callable[[str], Awaitable[None]],
    find_now: Callable[[], Awaitable[MemoryVersion]],
    *,
    action: str,
    back: str,
) -> Response:
    """Store a text. The second of two editors sees what was stored, and keeps their own text."""
    reference, text = form["of"], form.get("text", "").strip("\n")
    show = partial(show_form, reference, text=text, action=action, back=back)
    try:
        await change(text)
    except MemoryConflictError:
        now = await find_now()
        return show(now.id, status=_CONFLICT, now=now)
    except StoreError as error:
        return show(form["seen"], status=_AWAY, problem=f"Nothing was stored: {error}")
    return RedirectResponse(url(back, of=reference), 303)


async def show_rollback(request: Request) -> Response:
    """Show what going back to a version changes, with the button that does it."""
    fields, bank = fields_of(request), state_of(request).bank
    subject = await find(bank, needed(fields, "of"))
    to = await bank.aget(needed(fields, "to"))
    return _rollback(subject, to)


async def roll_back(request: Request) -> Response:
    """Make an older version the newest one again, or of a reading its text; others stay stored."""
    form, bank = await form_of(request), state_of(request).bank
    subject, seen = await find(bank, needed(form, "of")), needed(form, "seen")
    older = await bank.aget(needed(form, "to"))
    if subject.kind not in {"memory", "reading"}:
        raise _not_moved(subject)
    done = subject.version.id == seen
    if done and subject.kind == "memory":
        done = await bank.amove_head(subject.reference, older.id, expected=seen)
    elif done:  # it is found by its chunks, and then by its edits
        try:
            await bank.aedit(subject.reference, older.text, before=seen)
        except MemoryConflictError:
            done = False
    if not done:
        problem = "Somebody changed this memory while you looked at it."
        now = await find(bank, subject.reference)
        return _rollback(now, older, status=_CONFLICT, problem=problem)
    return RedirectResponse(url("/memory", of=subject.reference), 303)


def _not_moved(subject: Subject) -> MemoryNotFoundError:
    message = (
        f"{subject.reference!r} is one version, or a reading that has not ended: name it with a "
        "branch."
    )
    return MemoryNotFoundError(message)


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
    """Show the form with a text, and what is stored `now` if somebody else changed it.

    `action` is the path that stores the text, and `back` the one that shows what is edited. An edit
    of a reading under way may begin with an `older` version.
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


async def show_preview(request: Request) -> Response:
    """Show what forgetting a memory would delete."""
    bank, reference = state_of(request).bank, needed(fields_of(request), "of")
    subject = await find(bank, reference)
    found = await bank.aforget(reference, preview=True)
    return page("forget.html", {"subject": subject, "memory": found})


async def show_document(request: Request) -> Response:
    """Show what forgetting a memory's document would delete, in all memories."""
    bank = state_of(request).bank
    subject = await find(bank, needed(fields_of(request), "of"))
    source = subject.version.document.digest
    found = await bank.aforget_source(source, preview=True) if source else None
    name = "forget_document.html" if is_partial(request) else "forget_document_page.html"
    return page(name, {"subject": subject, "document": found})


async def forget(request: Request) -> Response:
    """Forget a memory, or a document."""
    form, bank = await form_of(request), state_of(request).bank
    what = needed(form, "what")
    forget_it = bank.aforget_source if form.get("kind") == "document" else bank.aforget
    done = await forget_it(what)
    return page("forgotten.html", {"name": form.get("name", what), "versions": done.versions})
