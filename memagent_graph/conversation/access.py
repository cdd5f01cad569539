"""A store that only reads, for the memories of another agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langgraph.store.base import BaseStore, PutOp

from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.items import atomic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph.store.base import Op, Result


def refuse_writes() -> ConfigurationError:
    """Return the error for a write to a memory that is attached read-only."""
    message = (
        "This memory is attached read-only (read_only=True): its own agent writes it. Use a "
        "ConversationMemory with another namespace to remember something here."
    )
    return ConfigurationError(message)


class ReadOnlyStore(BaseStore):
    """A store that reads from another one and refuses every write.

    Args:
        store: the other store.
    """

    def __init__(self, store: BaseStore) -> None:
        self.store = store
        self.ttl_config = store.ttl_config
        self.supports_ttl = store.supports_ttl
        self._atomic = atomic(store)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Read items.

        Raises:
            ConfigurationError: One of the operations writes.
        """
        return self.store.batch(_reads(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Any]:
        """Do what `batch` does."""
        return await self._atomic.abatch(_reads(ops))

    async def _refuse(self, *_: object, **__: object) -> Any:
        raise refuse_writes()

    acommit = _refuse


def _reads(ops: Iterable[Op]) -> list[Op]:
    found = [*ops]
    if any(isinstance(op, PutOp) for op in found):
        raise refuse_writes()
    return found
