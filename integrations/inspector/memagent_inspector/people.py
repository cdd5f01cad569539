"""Pages about people: their list, what is remembered of one, and forgetting them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from memagent_graph.cli.options import operator
from memagent_graph.conversation import proposal
from memagent_graph.conversation.proposal import list_proposals
from memagent_graph.conversation.users import finder
from memagent_graph.errors import MemoryNotFoundError
from memagent_graph.facts.record import is_facts
from memagent_inspector.door import fields_of, form_of
from memagent_inspector.history import changed_lines, changes
from memagent_inspector.listing import ROWS, Listing
from memagent_inspector.pages import (
    export_of,
    needed,
    save,
    show_facts_of,
    show_form,
    sought,
    state_of,
)
from memagent_inspector.rendering import page, url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from memagent_graph.conversation.episodes import KeptMessage
    from memagent_graph.conversation.proposal import Proposal
    from memagent_graph.conversation.user_memory import MemoryChange
    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.version import LineSource, MemoryVersion
    from memagent_inspector.history import Run

_FACTS = {
    "section": "people",
    "here": "/person/facts",
    "back": "/person",
    "edit": "/person/edit",
}
_MOST_SEEN = 1_000
"""People whom one request of a search looks at."""
_EXCERPT = 200
"""Code points of a memory that a list shows."""
_MOST_SHOWN = 50
"""Messages, and changes, of one person that are shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One person in a list.

    Attributes:
        user: their id.
        line: of their memory, or a message, that a search found; else how the memory begins.
        version: the newest of their memory; None if there is none, or it cannot be read.
    """

    user: str
    line: str
    version: MemoryVersion | None


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a memory."""

    text: str
    said: KeptMessage | None
    source: LineSource | None


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of a memory."""

    change: MemoryChange
    runs: list[Run] | None


@dataclass(frozen=True, slots=True)
class Person:
    """One person.

    Attributes:
        user: their id.
        version: the newest of their memory; None if there is none, or they were forgotten.
        lines: of the memory.
        said: messages that were kept word for word, the newest first; not all of many.
        kept: how many there are.
        changes: what was done to the memory, the newest first; not all of many.
        proposals: what waits for approval, the oldest first.
    """

    user: str
    version: MemoryVersion | None
    lines: list[Line]
    said: list[KeptMessage]
    kept: int
    changes: list[Changed]
    proposals: list[Proposal]


async def list_people(users: Users, words: str = "", start: int = 0) -> Listing[Row]:
    """The next page of people; of those whose id, memory or messages have all the words."""
    names, at, wanted = await users.anames(), start, bool(words.split())
    rows: list[Row] = []
    while len(rows) < ROWS and at < min(len(names), start + _MOST_SEEN):
        batch = names[at : at + ROWS]
        at += len(batch)
        found = await _search(users, words, batch) if wanted else dict.fromkeys(batch, "")
        rows += await _rows(users, found)
    return Listing(rows, at if at < len(names) else None, at)


async def show_person(users: Users, user: str) -> Person:
    """Return the memory of one user."""
    history, lines = await users.ahistory(user)
    said = [*(await users.of(user).episodes.read()).said]
    version = history[0] if history else None
    texts = [] if version is None else version.text.splitlines()
    sources = (
        {} if version is None else {item.line: item for item in version.told if not item.until}
    )
    before = dict(zip((v.id for v in history), [*history[1:], None], strict=False))
    stored = {v.id: v for v in history}
    return Person(
        user,
        version,
        [_line(text, sources.get(text), said) for text in texts if text.strip()],
        said[: -_MOST_SHOWN - 1 : -1],
        len(said),
        [_changed(line, stored, before) for line in lines[:_MOST_SHOWN]],
        await list_proposals(users.of(user)),
    )


async def _rows(users: Users, found: Mapping[str, str]) -> list[Row]:
    """The rows of people, with the lines that a search found."""
    return [
        Row(user, found[user] or _beginning(version), version)
        for user, version in await users.alist(found)
    ]


async def _search(users: Users, words: str, batch: Sequence[str]) -> dict[str, str]:
    """Those of some people who are found, each with the first line that was."""
    has, lines = finder(words), dict[str, str]()
    for user, line in await users.asearch(words, batch):
        lines.setdefault(user, line)
    return {user: lines.get(user, "") for user in batch if user in lines or has(user)}


def _beginning(version: MemoryVersion | None) -> str:
    return "" if version is None else version.text[:_EXCERPT]


def _line(text: str, source: LineSource | None, said: Sequence[KeptMessage]) -> Line:
    if source is not None:
        found = (one for one in said if (one.id, one.thread) == (source.message, source.thread))
    else:
        found = (one for one in reversed(said) if text.strip() in one.text)
    return Line(text, next(found, None), source)


def _changed(
    change: MemoryChange,
    stored: Mapping[str, MemoryVersion],
    before: Mapping[str, MemoryVersion | None],
) -> Changed:
    version = stored.get(change.version)
    runs = None if version is None else changed_lines(changes(before[version.id], version))
    return Changed(change, runs)


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
    version = await state_of(request).users.aget(needed(fields, "of"))
    return show_facts_of(fields, version, _FACTS)


async def show_edit(request: Request) -> Response:
    """The form with what is remembered of a user."""
    user = needed(fields_of(request), "of")
    version = await state_of(request).users.aget(user)
    return show_form(user, version.id, version.text, action="/person/edit", back="/person")


async def edit(request: Request) -> Response:
    """Store another text for what is remembered of a user."""
    form, users = await form_of(request), state_of(request).users
    user, seen = needed(form, "of"), needed(form, "seen")

    async def change(text: str) -> None:
        if text != (await users.aget(user)).text:
            await users.aedit(user, text, by=operator(), before=seen)

    now = partial(users.aget, user)
    return await save(form, change, now, action="/person/edit", back="/person")


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
