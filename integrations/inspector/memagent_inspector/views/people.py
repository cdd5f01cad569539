"""What is remembered of the people who talk with a chatbot: all of them, and one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memagent_graph.conversation.proposal import list_proposals
from memagent_graph.conversation.users import finder
from memagent_inspector.views.history import changed_lines, changes
from memagent_inspector.views.listing import ROWS, Listing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memagent_graph.conversation.episodes import KeptMessage
    from memagent_graph.conversation.proposal import Proposal
    from memagent_graph.conversation.user_memory import MemoryChange
    from memagent_graph.conversation.users import Users
    from memagent_graph.memory.version import LineSource, MemoryVersion
    from memagent_inspector.views.words import Run

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
    """A line of a memory.

    Attributes:
        text: exactly as the memory has it.
        said: the message that it came from, if that was kept.
        source: who said it and when, where the memory is a profile.
    """

    text: str
    said: KeptMessage | None
    source: LineSource | None


@dataclass(frozen=True, slots=True)
class Changed:
    """A change of a memory.

    Attributes:
        change: by whom, and when.
        runs: the lines that it changed, marked against the text before; None if that is gone.
    """

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
    """The next page of people; of those whose id, memory or messages have all the words.

    Args:
        users: where they are.
        words: to be found, in any case.
        start: how many to pass over.
    """
    names, at, wanted = await users.anames(), start, bool(words.split())
    rows: list[Row] = []
    while len(rows) < ROWS and at < min(len(names), start + _MOST_SEEN):
        batch = names[at : at + ROWS]
        at += len(batch)
        found = await _search(users, words, batch) if wanted else dict.fromkeys(batch, "")
        rows += await _rows(users, found)
    return Listing(rows, at if at < len(names) else None, at)


async def show_person(users: Users, user: str) -> Person:
    """Return the memory of one user.

    Raises:
        MemoryNotFoundError: Nothing is, and nobody has forgotten them.
    """
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
