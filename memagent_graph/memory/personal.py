"""What is remembered of one person: a chain of versions to which all their threads add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.memory.version import MemoryVersion

_NAME = "memory"


class PersonalMemory:
    """One person's versions, in a part of the store that is theirs alone.

    A thread's mark says which of its messages were folded last; it is written in one step with the
    version and the head. So a turn that was cut off after that step finds, when it is tried again,
    that its messages are in, and two turns at once see what the other has folded.

    Args:
        store: where.
        namespace: of the library in that store.
        user: whose memory.
        keep_versions: how many of the newest versions stay; None for all.
        ttl: minutes that a memory lives on when it is not read; None for the store's default.
        patience: see `MemoryBank`.
    """

    def __init__(
        self,
        store: BaseStore,
        namespace: Sequence[str],
        user: str,
        *,
        keep_versions: int | None = None,
        ttl: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        # LangGraph joins labels with periods, and takes no empty one. The user comes first: in a
        # cluster, the first label decides on the node.
        label = "user-" + user.replace("%", "%25").replace(".", "%2E")
        place = (label, *namespace, "conversations")
        self.bank = MemoryBank(store, place, ttl=ttl, patience=patience)
        self._keep = keep_versions

    async def head(self) -> MemoryVersion | None:
        """The newest version, None when nothing is remembered."""
        return await self.bank.ahead(_NAME)

    async def history(self) -> History:
        """All versions, newest first; none when nothing is remembered."""
        return History() if await self.head() is None else await self.bank.ahistory(_NAME)

    async def folded(self, thread: str) -> list[str]:
        """Ids of the messages that this thread has had folded last, the newest at the end.

        Those of earlier folds left the thread long ago.
        """
        records = self.bank.records
        (mark,) = await records.values([(records.threads, thread)])
        if mark is None:
            return []
        found = mark.get("messages") if isinstance(mark, dict) else None
        return [*map(str, found)] if isinstance(found, list) else await self._folded_last(thread)

    async def _folded_last(self, thread: str) -> list[str]:
        """As `folded`, from the versions, when the mark cannot be read."""
        history = await self.bank.ahistory(_NAME)
        return [*next((v.messages for v in history if v.thread == thread and v.messages), ())]

    async def add(self, version: MemoryVersion, *, after: MemoryVersion | None) -> bool:
        """Make `version` the newest, unless `after` no longer is; say whether it was done."""
        mark = {"messages": [*version.messages]}
        expected = None if after is None else after.id
        records = self.bank.records
        put = records.put(records.threads, version.thread or "", mark)
        if not await self.bank.aadvance(_NAME, version, expected=expected, also=[put]):
            return False
        if self._keep is not None:
            await self.bank.athin(_NAME, self._keep)
        return True

    async def forget(self) -> int:
        """Delete everything of this person; say how many items that were."""
        return await self.bank.aclear()
