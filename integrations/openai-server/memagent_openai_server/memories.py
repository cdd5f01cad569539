"""The memories of one key's users and sessions, and `/v1/memories` to see and manage them."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from langgraph.store.base import GetOp
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from memagent_graph.conversation.backlog import backlog_of
from memagent_graph.conversation.users import Users
from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.memory import lookup
from memagent_graph.memory.bank import MemoryBank, was_changed
from memagent_graph.memory.circuit import store_seconds
from memagent_graph.memory.forget import erase
from memagent_graph.memory.items import NAMESPACE
from memagent_http.bodies import unless_small
from memagent_http.refusals import Refusal
from memagent_openai_server.records import log
from memagent_openai_server.requests import User, receive_fields, validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import BaseStore
    from starlette.requests import Request
    from starlette.responses import Response

    from memagent_graph.memory.version import MemoryVersion

CONVERSATION, USER, SESSION = "conversation", "user", "session"
_MOST_PREFIXES = 100
"""Conversations of a session that are recognized; an older one is read again."""


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
        """Kind and name; for readings, the name of the memory in the key's bank."""
        return f"{self.kind} {self.of}"


class Memories:
    """The memories of one key, in their own part of the store.

    Args:
        store: the server's store.
        tenant: name of the key; None if the server has no keys.
        namespace: namespace of the server in the store.
        ttl: minutes that what is stored lives on unused; None for the store's default.
    """

    def __init__(
        self,
        store: BaseStore,
        tenant: str | None,
        namespace: Sequence[str] = NAMESPACE,
        ttl: float | None = None,
    ) -> None:
        # The key's name comes first, so that a Redis Cluster spreads keys over its nodes.
        own = () if tenant is None else (f"tenant-{tenant}",)
        self.bank = MemoryBank(store, (*own, *namespace), ttl=ttl, patience=store_seconds)
        self.users = Users(store, self.bank.namespace, ttl=ttl, patience=store_seconds)
        self._by = "client" if tenant is None else f"key {tenant}"
        self._read = (*self.bank.namespace, "read")

    async def has(self, reference: str) -> bool:
        """Whether there is a memory of this name or id."""
        try:
            await self.bank.aget(reference)
        except MemoryNotFoundError:
            return False
        return True

    async def prefixes(self, reference: str) -> list[str]:
        """Return the prefixes of conversations that this memory has."""
        (item,) = await self.bank.items([GetOp(self._read, reference)])
        return [] if item is None else item.value["prefixes"]

    async def add_prefix(self, references: Sequence[str], prefix: str) -> None:
        """Record that these memories have a conversation's prefix, if the store can be reached."""
        records = self.bank.records
        try:
            for reference in references:
                before = [known for known in await self.prefixes(reference) if known != prefix]
                value = {"prefixes": [*before, prefix][-_MOST_PREFIXES:]}
                await records.items([records.put(self._read, reference, value)])
        except StoreError as error:  # the answer is worth more than its follow-up
            kind = type(error).__name__
            log.warning("A follow-up will be read from its beginning: %s", kind)

    async def branch(self, memory: str, name: str | None = None) -> str:
        """Give a memory another name, under which it can be extended; return the name."""
        name = name or f"branch {uuid4()}"
        with suppress(MemoryConflictError):  # it has that name already
            await self.bank.abranch(memory, name)
        return name

    async def find(
        self, names: list[Name] | None, *, after: str, most: int
    ) -> list[tuple[Name, MemoryVersion]]:
        """Return memories with their newest versions, sorted by id.

        Args:
            names: names of the memories; None for all.
            after: id of the memory after which to continue.
            most: most memories to return.
        """
        known = await self._all() if names is None else names
        found: list[tuple[Name, MemoryVersion]] = []
        for name in sorted((one for one in known if one.id > after), key=lambda one: one.id):
            try:
                head = await self._head(name)
            except (BadRecordError, MemoryNotFoundError) as error:
                fields = {"error": type(error).__name__}
                log.warning("a memory cannot be read", extra={"fields": fields})
                continue
            found += [(name, head)] if head is not None else []
            if len(found) == most:
                break
        return found

    async def edit(
        self, names: list[Name], text: str, before: str | None
    ) -> tuple[Name, MemoryVersion]:
        """Replace the text of the first of these memories that exists.

        Raises:
            MemoryNotFoundError: None exists.
            MemoryConflictError: It changed meanwhile, or `before` is not its newest version.
        """
        found = [(name, head) for name in names if (head := await self._head(name)) is not None]
        if not found:
            raise _nothing(names)
        name, head = found[0]
        if before not in (None, head.id):
            raise was_changed(name.id)
        if name.kind == CONVERSATION:
            return name, await self.users.aedit(name.of, text, by=self._by, before=head.id)
        return name, await self.bank.aedit(name.id, text)

    async def forget(self, names: list[Name]) -> tuple[tuple[str, ...], str]:
        """Delete everything stored of these memories, and erase it from the store's files.

        Returns:
            The ids of threads whose messages were folded, which a checkpointer may have; and the
            places where deleted text may remain, "" if there are none.

        Raises:
            MemoryNotFoundError: There is nothing.
        """
        gone, threads, left = False, tuple[str, ...](), ""
        for name in names:
            if name.kind == CONVERSATION:
                bank = self.users.of(name.of).bank
                backlog = backlog_of(bank.store, bank.namespace)
                gone |= bool(backlog.waits)
                await backlog.drop()
                done = await self.users.aforget(name.of, by=self._by)
                gone, threads, left = gone or bool(done.items), done.threads, done.left
            else:
                gone = await self._forget_reading(name.id) or gone
        if not gone:
            raise _nothing(names)
        return threads, left or await erase(self.bank.store)

    async def _forget_reading(self, name: str) -> bool:
        records = self.bank.records
        references = [name, *await records.keys(records.members(name))]
        try:
            await self.bank.aforget(name)
        except MemoryNotFoundError:
            return False
        versions = await records.by_id(references)
        gone = [key for key, version in versions if version is None]
        if gone:  # what others share keeps its prefixes
            await records.items([records.put(self._read, key, None) for key in gone])
        return True

    async def _all(self) -> list[Name]:
        conversations = [Name(CONVERSATION, user) for user in await self.users.anames()]
        readings = [
            Name(kind, of)
            for key, _ in await lookup.list_names(self.bank.records)
            for kind, _, of in [key.partition(" ")]
            if kind in (USER, SESSION) and of
        ]
        return [*conversations, *readings]

    async def _head(self, name: Name) -> MemoryVersion | None:
        if name.kind == CONVERSATION:
            return await self.users.of(name.of).head()
        return await self.bank.ahead(name.id)


def _nothing(names: list[Name]) -> MemoryNotFoundError:
    name = names[-1]
    message = (
        f"There is no memory of the {name.kind} {name.of[:200]!r}: GET /v1/memories lists all."
    )
    return MemoryNotFoundError(message)


class Whose(BaseModel):
    """The query that names one user or one session."""

    model_config = ConfigDict(extra="forbid")

    user: User = ""
    session: str = Field("", max_length=200)

    def names(self) -> list[Name]:
        """Return the memories of this user or session, in the order of lookup.

        Raises:
            Refusal: It names neither, or both.
        """
        if bool(self.user) == bool(self.session):
            message = "Name either a user (?user=NAME) or a session (?session=NAME)."
            raise Refusal(400, message, param="user")
        if self.user:
            return [Name(CONVERSATION, self.user), Name(USER, self.user)]
        return [Name(SESSION, self.session)]


class Page(Whose):
    """The query of the list."""

    limit: int = Field(20, ge=1, le=100)
    after: str = Field("", max_length=600)


class MemoryText(BaseModel):
    """The body of `PUT /v1/memories`.

    Attributes:
        text: the whole new text.
        version: the version to replace; if there is a newer one, 409 is returned.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str = Field(min_length=1)
    version: str | None = None


async def list_memories(request: Request) -> Response:
    """Return a page of memories."""
    page = validate(dict(request.query_params), Page)
    wanted = page.names() if page.user or page.session else None
    found = await _memories(request).find(wanted, after=page.after, most=page.limit + 1)
    cards = [_card(*one) for one in found[: page.limit]]
    return JSONResponse({"object": "list", "data": cards, "has_more": len(found) > page.limit})


async def edit_memory(request: Request) -> Response:
    """Replace the text of a memory; see `Memories.edit`."""
    names, service = _whose(request).names(), request.app.state.service
    body, _, asked = await receive_fields(request, MemoryText)
    most = service.config.memory_tokens
    tokens = await unless_small(len(body), service.counter.count, asked.text)
    if not asked.text.strip() or tokens > most:
        message = f"A memory needs 1 to {most} tokens, but this text has {tokens}."
        raise Refusal(400, message, param="text")
    return JSONResponse(_card(*await _memories(request).edit(names, asked.text, asked.version)))


async def forget_memory(request: Request) -> Response:
    """Delete a memory; see `Memories.forget`."""
    threads, left = await _memories(request).forget(_whose(request).names())
    found = {"object": "memory", "deleted": True, "threads": threads, "left": left}
    return JSONResponse(found)


def _memories(request: Request) -> Memories:
    """The memories of the request's key."""
    found: Memories = request.app.state.service.memories(request.state.record.tenant)
    return found


def _whose(request: Request) -> Whose:
    return validate(dict(request.query_params), Whose)


def _card(name: Name, version: MemoryVersion) -> dict[str, Any]:
    of_session = name.kind == SESSION
    return {
        "id": name.id,
        "object": "memory",
        "kind": "conversation" if name.kind == CONVERSATION else "reading",
        "user": None if of_session else name.of,
        "session": name.of if of_session else None,
        "version": version.id,
        "text": version.text,
        "tokens": version.tokens,
        "created_at": int(datetime.fromisoformat(version.created_at).timestamp()),
        "edited": version.edited,
    }
