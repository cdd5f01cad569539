"""Find, edit, export and forget the memories of a tenant's users and sessions."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.conversation.users import finder
from memagent_graph.errors import BadRecordError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory import lookup
from memagent_graph.memory.forget import erase
from memagent_openai_server.http.records import log
from memagent_openai_server.memories.sessions import reach

if TYPE_CHECKING:
    from memagent_graph.conversation.user_memory import MemoryChange
    from memagent_graph.memory.version import MemoryVersion
    from memagent_openai_server.memories.sessions import Sessions

CONVERSATION, USER, SESSION = "conversation", "user", "session"
_AT_ONCE = 50


class Name(NamedTuple):
    """The name of a memory.

    Attributes:
        kind: "conversation" for a user's memory of conversations, "user" for readings of a user,
            or "session".
        of: the user or the session.
    """

    kind: str
    of: str

    @property
    def id(self) -> str:
        """Kind and name; for readings, the name of the memory in the tenant's bank."""
        return f"{self.kind} {self.of}"


class Gone(NamedTuple):
    """The result of forgetting.

    Attributes:
        items: items of a conversation's memory, and bytes of readings; above 0 if anything was
            deleted.
        threads: ids of threads whose messages were folded, which a checkpointer may have.
        left: the places where deleted text may remain; "" if there are none.
    """

    items: int
    threads: tuple[str, ...]
    left: str


def names_of(user: str, session: str) -> list[Name]:
    """Return the memories of a user or a session, in the order of lookup."""
    if user:
        return [Name(CONVERSATION, user), Name(USER, user)]
    return [Name(SESSION, session)]


class Managing:
    """Manages the memories of one tenant.

    Args:
        sessions: the tenant's sessions.
        by: author of the changes, for the log of changes.
    """

    def __init__(self, sessions: Sessions, by: str) -> None:
        self._sessions = sessions
        self._bank = sessions.bank
        self._users = sessions.users
        self._by = by

    async def find(
        self, names: list[Name] | None, *, named: str, text: str, after: str, most: int
    ) -> list[tuple[Name, MemoryVersion]]:
        """Return memories with their newest versions, sorted by id.

        Args:
            names: names of the memories; None for all.
            named: words that the user's or session's name must have.
            text: words that one line of the memory must have.
            after: id of the memory after which to continue.
            most: most memories to return.
        """
        called, has = finder(named), finder(text)
        left = await self._all() if names is None else names
        left = sorted((n for n in left if n.id > after and called(n.of)), key=lambda n: n.id)
        found: list[tuple[Name, MemoryVersion]] = []
        for start in range(0, len(left), _AT_ONCE):
            batch = left[start : start + _AT_ONCE]
            heads = await asyncio.gather(*map(self._readable, batch))
            for name, head in zip(batch, heads, strict=True):
                if head is not None and (not text or any(map(has, head.text.splitlines()))):
                    found.append((name, head))
            if len(found) >= most:
                break
        return found[:most]

    async def edit(
        self, names: list[Name], text: str, before: str | None
    ) -> tuple[Name, MemoryVersion]:
        """Replace the text of the first of these memories that exists.

        Raises:
            MemoryNotFoundError: None exists.
            MemoryConflictError: It changed meanwhile, or `before` is not its newest version.
        """
        name, head = await self._first(names)
        if before not in (None, head.id):
            message = f"The memory {name.id!r} changed meanwhile: get it, and edit it again."
            raise MemoryConflictError(message)
        if name.kind == CONVERSATION:
            edit = self._users.aedit(name.of, text, by=self._by, before=head.id)
            return name, await reach(edit)
        after = await reach(self._bank.aedit(name.id, text))
        await self._sessions.used(name.id, read=len(text.encode()))
        return name, after

    async def history(
        self, names: list[Name]
    ) -> list[tuple[MemoryChange | None, MemoryVersion | None]]:
        """Return the changes of these memories, newest first, with the versions that are left.

        Raises:
            MemoryNotFoundError: There is none.
        """
        rows: list[tuple[MemoryChange | None, MemoryVersion | None]] = []
        for name in names:
            with suppress(MemoryNotFoundError):
                if name.kind == CONVERSATION:
                    versions, changes = await reach(self._users.ahistory(name.of))
                    left = {version.id: version for version in versions}
                    rows += [(change, left.pop(change.version, None)) for change in changes]
                    rows += [(None, version) for version in left.values()]
                else:
                    rows += [(None, v) for v in await reach(self._bank.ahistory(name.id))]
        if not rows:
            raise nothing(names)
        return rows

    async def export(self, names: list[Name]) -> list[dict[str, Any]]:
        """Return everything stored of these memories, as the lines of `memagent memory export`.

        Raises:
            MemoryNotFoundError: There is none.
        """
        lines: list[str] = []
        for name in names:
            with suppress(MemoryNotFoundError):
                if name.kind == CONVERSATION:
                    lines += await reach(self._users.aexport([name.of]))
                else:
                    lines += await reach(self._bank.aexport([name.id]))
        if not lines:
            raise nothing(names)
        return [json.loads(line) for line in lines]

    async def forget(self, names: list[Name]) -> Gone:
        """Delete everything stored of these memories, and erase it from the store's files.

        Raises:
            MemoryNotFoundError: There is nothing.
        """
        items, threads, left = 0, tuple[str, ...](), ""
        for name in names:
            if name.kind != CONVERSATION:
                if await self._sessions.has(name.id):
                    items += max(1, await self._sessions.forget(name.id))
            else:
                done = await self._sessions.forget_user(name.of, by=self._by)
                items, threads, left = items + done.items, done.threads, done.left
        if not items:
            raise nothing(names)
        return Gone(items, threads, left or await erase(self._bank.store))

    async def _all(self) -> list[Name]:
        conversations = [Name(CONVERSATION, user) for user in await reach(self._users.anames())]
        readings = [
            Name(kind, of)
            for key, _ in await reach(lookup.list_names(self._bank.records))
            for kind, _, of in [key.partition(" ")]
            if kind in (USER, SESSION) and of
        ]
        return [*conversations, *readings]

    async def _first(self, names: list[Name]) -> tuple[Name, MemoryVersion]:
        for name in names:
            head = await reach(self._head(name))
            if head is not None:
                return name, head
        raise nothing(names)

    async def _readable(self, name: Name) -> MemoryVersion | None:
        try:
            return await reach(self._head(name))
        except (BadRecordError, MemoryNotFoundError) as error:
            log.warning(
                "a memory cannot be read", extra={"fields": {"error": type(error).__name__}}
            )
            return None

    async def _head(self, name: Name) -> MemoryVersion | None:
        if name.kind == CONVERSATION:
            return await self._users.of(name.of).head()
        return await self._bank.ahead(name.id)


def nothing(names: list[Name]) -> MemoryNotFoundError:
    """Return the error that there are no such memories."""
    name = names[-1]
    message = (
        f"There is no memory of the {name.kind} {name.of[:200]!r}: GET /v1/memories lists all."
    )
    return MemoryNotFoundError(message)
