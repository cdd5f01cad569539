"""Where a conversation's memory is kept, and how much of the conversation it holds."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from langgraph.store.base import GetOp, PutOp

from memagent_graph.errors import MemoryNotFoundError, StoreError
from memagent_graph.memory.bank import MemoryBank

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence

    from langgraph.store.base import BaseStore

_MOST_PREFIXES = 100
"""Conversations of a session that are known again; an older one would be read again."""


class Sessions:
    """The memories of one tenant, in a part of the store that is theirs alone.

    Args:
        store: of the server.
        tenant: whose; None where the server has no keys.
    """

    def __init__(self, store: BaseStore, tenant: str | None) -> None:
        own = () if tenant is None else ("tenants", f"tenant-{tenant}")
        self.bank = MemoryBank(store, ("memagent", *own))
        self._read = (*self.bank.namespace, "read")
        self._responses = (*self.bank.namespace, "responses")

    async def has(self, reference: str) -> bool:
        """Whether there is a memory of this name or id."""
        try:
            await _reach(self.bank.aget(reference))
        except MemoryNotFoundError:
            return False
        return True

    async def known(self, reference: str) -> frozenset[str]:
        """Prefixes of conversations that this memory holds."""
        item = await self._get(self._read, reference)
        return frozenset(item["prefixes"] if item else ())

    async def note(self, references: Sequence[str], prefix: str) -> None:
        """Remember that these memories hold a conversation's prefix from now on."""
        for reference in references:
            item = await self._get(self._read, reference)
            before = [known for known in (item["prefixes"] if item else []) if known != prefix]
            value = {"prefixes": [*before, prefix][-_MOST_PREFIXES:]}
            await self._put(self._read, reference, value)

    @asynccontextmanager
    async def branch(self, memory: str) -> AsyncIterator[str]:
        """A name for a stored version, under which it can be added to; it is gone at the end."""
        name = f"branch {uuid4()}"
        await _reach(self.bank.abranch(memory, name))
        try:
            yield name
        finally:
            with suppress(MemoryNotFoundError):
                await self.bank.adelete(name)

    async def response(self, key: str) -> dict[str, Any] | None:
        """What is kept of a response, None if there is no such one."""
        return await self._get(self._responses, key)

    async def keep_response(self, key: str, record: dict[str, Any] | None) -> None:
        """Keep what a follow-up to a response needs; None deletes it."""
        await self._put(self._responses, key, record)

    async def _get(self, namespace: tuple[str, ...], key: str) -> dict[str, Any] | None:
        (item,) = await _reach(self.bank.items([GetOp(namespace, key)]))
        return None if item is None else item.value

    async def _put(self, namespace: tuple[str, ...], key: str, value: Any) -> None:
        await _reach(self.bank.items([PutOp(namespace, key, value)]))


async def _reach(operation: Awaitable[Any]) -> Any:
    try:
        return await operation
    except StoreError:
        raise
    except Exception as error:
        message = f"The memory store failed: {type(error).__name__}"
        raise StoreError(message) from error
