"""What is remembered of one person: a chain of versions to which all their threads add."""

from __future__ import annotations

from typing import TYPE_CHECKING

from langgraph.store.base import GetOp, PutOp

from memagent_graph.memory.bank import MemoryBank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.memory.version import MemoryVersion

_NAME = "memory"


class PersonalMemory:
    """One person's versions, in a part of the store that is theirs alone.

    Each version says which messages of which thread were folded into it, and each thread has a
    mark, written before the head moves, that leads to the version it wrote last. So a turn that
    was cut off after the head had moved finds, when it is tried again, that its messages are in,
    and two turns at once see what the other has folded.

    Args:
        store: where.
        namespace: of the library in that store.
        user: whose memory.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str], user: str) -> None:
        # LangGraph joins labels with periods, and takes no empty one.
        label = "user-" + user.replace("%", "%25").replace(".", "%2E")
        self.bank = MemoryBank(store, (*namespace, "conversations", label))
        self._versions = (*self.bank.namespace, "versions")
        self._marks = (*self.bank.namespace, "threads")

    async def head(self) -> MemoryVersion | None:
        """The newest version, None when nothing is remembered."""
        return await self.bank.ahead(_NAME)

    async def folded(self, thread: str, head: MemoryVersion | None) -> set[str]:
        """Ids of the messages that this thread has had folded last, as far as they led to `head`.

        Those of earlier folds are in versions further back, and no longer in the thread.
        """
        (mark,) = await self.bank.items([GetOp(self._marks, thread)])
        if mark is None:
            return set()
        found: set[str] = set()
        current = head
        while current is not None and current.id != mark.value["parent"]:
            if current.thread == thread:
                found.update(current.messages)
            if current.id == mark.value["version"]:
                break
            current = await self.bank.before(current)
        return found

    async def add(self, version: MemoryVersion, *, after: MemoryVersion | None) -> bool:
        """Make `version` the newest, unless `after` no longer is; say whether it was done."""
        mark = {"version": version.id, "parent": version.parent}
        await self.bank.items(
            [
                PutOp(self._versions, version.id, version.to_record()),
                PutOp(self._marks, version.thread or "", mark),
            ]
        )
        expected = None if after is None else after.id
        if await self.bank.amove_head(_NAME, version.id, expected=expected):
            return True
        if not await self._has(version):  # a version that nothing leads to must not outlive forget
            await self.bank.items([PutOp(self._versions, version.id, None)])
        return False

    async def forget(self) -> int:
        """Delete everything of this person; say how many items that were."""
        return await self.bank.aclear()

    async def _has(self, version: MemoryVersion) -> bool:
        current = await self.head()
        while current is not None and current.id not in {version.id, version.parent}:
            current = await self.bank.before(current)
        return current is not None and current.id == version.id
