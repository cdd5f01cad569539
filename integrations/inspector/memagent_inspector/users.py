"""Pages about users: their list, what is remembered of one, and forgetting them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from memagent_graph.cli.options import operator
from memagent_graph.conversation import proposal
from memagent_graph.conversation.proposal import list_proposals
from memagent_graph.conversation.users import finder
from memagent_graph.errors import MemoryNotFoundError
from memagent_inspector.door import fields_of, form_of
from memagent_inspector.facts import is_facts
from memagent_inspector.history import changed_lines, changes
from memagent_inspector.listing import ROWS, Listing, Row
from memagent_inspector.pages import (
    export_of,
    is_partial,
    needed,
    save,
    show_facts_of,
    show_form,
    sought,
    state_of,
)
from memagent_inspector.rendering import page, url

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from memagent_graph.conversation.episodes import KeptMessage
    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.version import LineSource

_FACTS = {
    "section": "users",
    "here": "/user/facts",
    "back": "/user",
    "edit": "/user/edit",
}
_MOST_SEEN = 1_000
"""Users whom one request of a search looks at."""
_EXCERPT = 200
"""Code points of a memory that a list shows."""
_MOST_SHOWN = 50
"""Messages, and changes, of one user that are shown."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a memory."""

    text: str
    said: KeptMessage | None
    source: LineSource | None


async def list_users(users: Users, words: str = "", start: int = 0) -> Listing:
    """The next page of users; of those whose id, memory or messages have all the words."""
    names, at, wanted = await users.anames(), start, bool(words.split())
    rows: list[Row] = []
    while len(rows) < ROWS and at < min(len(names), start + _MOST_SEEN):
        batch = names[at : at + ROWS]
        at += len(batch)
        found = await _search(users, words, batch) if wanted else dict.fromkeys(batch, "")
        rows += [
            Row(user, version, text=found[user] or (version.text[:_EXCERPT] if version else ""))
            for user, version in await users.alist(found)
        ]
    return Listing(rows, at if at < len(names) else None, at)


async def _search(users: Users, words: str, batch: Sequence[str]) -> dict[str, str]:
    """Those of some users who are found, each with the first line that was."""
    has, lines = finder(words), dict[str, str]()
    for user, line in await users.asearch(words, batch):
        lines.setdefault(user, line)
    return {user: lines.get(user, "") for user in batch if user in lines or has(user)}


def _line(text: str, source: LineSource | None, said: Sequence[KeptMessage]) -> Line:
    if source is not None:
        found = (one for one in said if (one.id, one.thread) == (source.message, source.thread))
    else:
        found = (one for one in reversed(said) if text.strip() in one.text)
    return Line(text, next(found, None), source)


async def show_list(request: Request) -> Response:
    """Users of the list, or of a search."""
    words, start = sought(fields_of(request))
    values = {"words": words, "listing": await list_users(state_of(request).users, words, start)}
    return page("users_rows.html" if is_partial(request) else "users.html", values)


async def show(request: Request) -> Response:
    """Show what is remembered of a user, from which messages, and what was done to it."""
    user, users = needed(fields_of(request), "of"), state_of(request).users
    history, lines = await users.ahistory(user)
    said = [*(await users.of(user).episodes.read()).said]
    version = history[0] if history else None
    text, told = ("", ()) if version is None else (version.text, version.told)
    sources = {item.line: item for item in told if not item.until}
    told_of = {line.version for line in lines[:_MOST_SHOWN]}
    runs = {
        version.id: changed_lines(changes(before, version))
        for version, before in zip_longest(history, history[1:])
        if version.id in told_of
    }
    found = {
        "user": user,
        "version": version,
        "has_facts": is_facts(text),
        "lines": [_line(x, sources.get(x), said) for x in text.splitlines() if x.strip()],
        "said": said[: -_MOST_SHOWN - 1 : -1],
        "kept": len(said),
        "changes": [(line, runs.get(line.version)) for line in lines[:_MOST_SHOWN]],
        "proposals": await list_proposals(users.of(user)),
    }
    return page("user.html", found)


async def show_facts(request: Request) -> Response:
    """The facts that are remembered of a user."""
    fields = fields_of(request)
    version = await state_of(request).users.aget(needed(fields, "of"))
    return show_facts_of(fields, version, _FACTS)


async def show_edit(request: Request) -> Response:
    """The form with what is remembered of a user."""
    user = needed(fields_of(request), "of")
    version = await state_of(request).users.aget(user)
    return show_form(user, version.id, version.text, action="/user/edit", back="/user")


async def edit(request: Request) -> Response:
    """Store another text for what is remembered of a user."""
    form, users = await form_of(request), state_of(request).users
    user, seen = needed(form, "of"), needed(form, "seen")

    async def change(text: str) -> None:
        if text != (await users.aget(user)).text:
            await users.aedit(user, text, by=operator(), before=seen)

    now = partial(users.aget, user)
    return await save(form, change, now, action="/user/edit", back="/user")


async def export(request: Request) -> Response:
    """All that is stored of a user, as `memagent memory export --user` prints it."""
    user = needed(fields_of(request), "of")
    return export_of(user, await state_of(request).users.aexport([user]))


async def decide(request: Request) -> Response:
    """Accept or refuse a proposal."""
    form = await form_of(request)
    user = needed(form, "of")
    accept, refuse = ([form[name]] if form.get(name) else [] for name in ("accept", "refuse"))
    decision = proposal.Decision(accept=accept, refuse=refuse)
    await proposal.decide(state_of(request).users.of(user), decision, by=operator())
    return RedirectResponse(url("/user", of=user), 303)


async def show_preview(request: Request) -> Response:
    """Show what forgetting a user would delete."""
    user = needed(fields_of(request), "of")
    held = await state_of(request).users.aheld(user)
    if not held.items:
        message = f"Nothing is stored of {user!r}."
        raise MemoryNotFoundError(message)
    return page("forget_user.html", {"user": user, "held": held})


async def forget(request: Request) -> Response:
    """Forget a user."""
    user = needed(await form_of(request), "of")
    done = await state_of(request).users.aforget(user, by=operator())
    return page("forgotten_user.html", {"user": user, "done": done})
