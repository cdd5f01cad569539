"""The memories of a tenant's conversations, and which messages each of them has."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from langgraph.store.base import GetOp, PutOp

from memagent_graph.conversation.backlog import backlog_of
from memagent_graph.conversation.users import Users
from memagent_graph.errors import (
    BadRecordError,
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
    StoreRefusedError,
)
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.circuit import store_seconds
from memagent_graph.memory.items import NAMESPACE
from memagent_graph.memory.owners import owners_of
from memagent_openai_server.http.records import log
from memagent_openai_server.memories.ledger import Entry, Ledger
from memagent_openai_server.responses.chain import Chain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.conversation.user_memory import ForgottenUser
    from memagent_graph.memory.bank import Forgotten
    from memagent_openai_server.memories.keeping import Keeper
    from memagent_openai_server.responses.chain import Kept

T = TypeVar("T")

_MOST_PREFIXES = 100
"""Conversations of a session that are recognized; an older one is read again."""

_MOST_OWNERS = 10
"""Most memories of a version whose use is recorded; one is enough to keep it."""
_AT_ONCE = 100
_RESPONSE = "response "
_CONVERSATION = "conversation "


class Sessions:
    """The memories of one tenant, in their own part of the store.

    Args:
        store: the server's store.
        tenant: name of the tenant; None if the server has no keys.
        namespace: namespace of the server in the store.
        keeper: enforces the tenant's quota.
    """

    def __init__(
        self,
        store: BaseStore,
        tenant: str | None,
        namespace: Sequence[str] = NAMESPACE,
        keeper: Keeper | None = None,
    ) -> None:
        # The tenant comes first, so that a Redis Cluster spreads them over its nodes.
        own = () if tenant is None else (f"tenant-{tenant}",)
        self.bank = MemoryBank(store, (*own, *namespace), patience=store_seconds)
        self.chain = Chain(self.bank)
        self.ledger = Ledger(self.bank.records)
        self.users = Users(store, self.bank.namespace, patience=store_seconds)
        self._keeper = keeper
        self._read = (*self.bank.namespace, "read")

    async def has(self, reference: str) -> bool:
        """Whether there is a memory of this name or id."""
        try:
            await reach(self.bank.aget(reference))
        except MemoryNotFoundError:
            return False
        return True

    async def known(self, reference: str) -> frozenset[str]:
        """Return the prefixes of conversations that this memory has."""
        item = await self._get(self._read, reference)
        return frozenset(item["prefixes"] if item else ())

    async def note(self, references: Sequence[str], prefix: str) -> None:
        """Record that these memories have a conversation's prefix."""
        for reference in references:
            item = await self._get(self._read, reference)
            before = [known for known in (item["prefixes"] if item else []) if known != prefix]
            value = {"prefixes": [*before, prefix][-_MOST_PREFIXES:]}
            await self._put(self._read, reference, value)

    async def branch(self, memory: str, name: str | None = None) -> str:
        """Give a memory another name, under which it can be extended; return the name."""
        name = name or f"branch {uuid4()}"
        with suppress(MemoryConflictError):  # it has that name already
            await reach(self.bank.abranch(memory, name))
        return name

    async def used(
        self, name: str, *, own: int = 0, read: int = 0, most: int | None = None
    ) -> None:
        """Record a use of something, and the bytes added to it; see `Ledger.add`."""
        await reach(self.ledger.add(name, own=own, read=read, most=most))
        if self._keeper is not None:
            await self._keeper.wrote(self, own + read)

    async def used_version(self, key: str) -> None:
        """Record a use of the memories that a version belongs to."""
        ((_, value),) = await reach(self.bank.records.by_id([key]))
        for name in owners_of(value)[:_MOST_OWNERS]:
            if await reach(self.ledger.get(name)) is not None:
                await self.used(name)

    async def keep_response(
        self, key: str, kept: Kept, *, after: str | None, whole: list[dict[str, Any]]
    ) -> None:
        """Store what a follow-up to a response needs; see `Chain.add`.

        Raises:
            StoreError: The store failed, or the response alone is more than the tenant may have.
        """
        size = len(json.dumps(kept, ensure_ascii=False).encode())
        if self._keeper is not None and size > self._keeper.room:
            raise StoreRefusedError("The response is larger than a tenant's quota.")
        if kept["memory"] is not None:
            await self.branch(kept["memory"], response_name(key))
        await self.used(response_name(key), own=size)
        await reach(self.chain.add(key, kept, after=after, whole=whole))

    async def forget(self, name: str, *, as_of: float | None = None) -> int:
        """Forget a memory, or a response with the memory that was read for it.

        Versions shared with other memories, and messages that later responses need, are kept.

        Args:
            name: name of the memory, or of the response's entry.
            as_of: Unix time; nothing used later is forgotten.

        Returns:
            The number of bytes freed, according to the ledger.
        """
        return await reach(self._forget(name, as_of))

    async def forget_user(self, user: str, *, by: str) -> ForgottenUser:
        """Forget what a user has said, including messages of this process not yet folded."""
        bank = self.users.of(user).bank
        await backlog_of(bank.store, bank.namespace).drop()
        done = await reach(self.users.aforget(user, by=by))
        await reach(self.ledger.drop([conversation_name(user)]))
        return done

    async def drop_leases(self, *, before: float) -> None:
        """Delete leases of readings that were interrupted.

        Args:
            before: Unix time; a held lease is written every few seconds.
        """
        records = self.bank.records
        async for item in records.scan(records.leases):
            if not isinstance(item, BadRecordError) and item.updated_at.timestamp() < before:
                await records.commit(
                    [records.put(item.namespace, item.key, None)],
                    {(item.namespace, item.key): item.value},
                )

    async def _forget(self, name: str, as_of: float | None) -> int:
        entry = await self.ledger.get(name) or Entry(name, 0.0)
        if as_of is not None and entry.used > as_of:
            return 0
        if name.startswith(_CONVERSATION):
            await self.forget_user(name.removeprefix(_CONVERSATION), by="server")
            return entry.size
        records, freed, gone = self.bank.records, entry.read, {name}
        ids = await records.keys(records.members(name))
        with suppress(MemoryNotFoundError):
            forgotten = await self.bank.aforget(name)
            freed -= await self._inherit(entry, forgotten)
        await self._forget_notes([name, *ids])
        if key := name.removeprefix(_RESPONSE) if name.startswith(_RESPONSE) else None:
            removed = {response_name(one) for one in await self.chain.remove(key)}
            if not removed and await self.chain.holds(key):
                await self.ledger.hold(entry)
                return freed
            for other in removed - {name}:
                held = await self.ledger.get(other)
                freed += held.size if held else 0
            gone |= removed
        await self.ledger.drop(gone)
        return freed + entry.size - entry.read

    async def _inherit(self, entry: Entry, forgotten: Forgotten) -> int:
        """Add the bytes that others still share of a memory to one of them; return their number."""
        shared = sorted(forgotten.shared.items(), key=lambda item: -item[1])
        for name, versions in shared:
            part = entry.read * versions // (versions + forgotten.versions)
            if await self.ledger.inherit(name, part):
                return part
        return 0

    async def _forget_notes(self, references: Sequence[str]) -> None:
        """Delete the prefixes recorded for names and versions that are gone."""
        records = self.bank.records
        for start in range(0, len(references), _AT_ONCE):
            batch = references[start : start + _AT_ONCE]
            notes = await records.values([(self._read, key) for key in batch])
            noted = [key for key, note in zip(batch, notes, strict=True) if note is not None]
            gone = [key for key, version in await records.by_id(noted) if version is None]
            puts = [records.put(self._read, key, None) for key in gone]
            if puts:
                await records.items(puts)

    async def _get(self, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None:
        (item,) = await reach(self.bank.items([GetOp(namespace, key)]))
        return None if item is None else item.value

    async def _put(self, namespace: tuple[str, ...], key: str, value: Any) -> None:
        await reach(self.bank.items([PutOp(namespace, key, value)]))


@contextmanager
def unless_away(loss: str) -> Iterator[None]:
    """Continue if the store fails: the answer is worth more than what follows it.

    Args:
        loss: the consequence, for the log.
    """
    try:
        yield
    except StoreError as error:
        log.warning("%s: %s", loss, type(error).__name__)


def response_name(key: str) -> str:
    """Return the name of a response's memory.

    Args:
        key: the response's id.
    """
    return f"{_RESPONSE}{key}"


def conversation_name(user: str) -> str:
    """Return the name of a user's conversations in the ledger."""
    return f"{_CONVERSATION}{user}"


async def reach(operation: Awaitable[T]) -> T:
    """Carry out an operation of the store.

    Raises:
        StoreError: The store failed, with any error.
    """
    try:
        return await operation
    except StoreError:
        raise
    except Exception as error:
        message = f"The memory store failed: {type(error).__name__}"
        raise StoreError(message) from error
