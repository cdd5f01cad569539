"""What is remembered of one person: a chain of versions to which all their threads add."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import ConfigurationError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory import changes
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.episodes import Episodes, Step
from memagent_graph.memory.erasing import erase
from memagent_graph.memory.history import History
from memagent_graph.memory.removal import forget_topic
from memagent_graph.memory.version import edited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from langgraph.store.base import BaseStore

    from memagent_graph.memory.changes import Change
    from memagent_graph.memory.version import MemoryVersion

MEMORY = "memory"
"""The name of a person's memory in the part of the store that is theirs."""
CONVERSATION = "conversation"
"""Who folds messages, in lines of changes."""

_PREFIX, _SUFFIX = "user-", "conversations"
_ESCAPES = str.maketrans({char: f"%{ord(char):02X}" for char in "%.\0"})
_ESCAPED = re.compile("%(25|2E|00)")


class ForgottenUser(NamedTuple):
    """What forgetting a person did.

    Attributes:
        items: how many were deleted: versions, marks, lists and lines.
        threads: ids of their threads that a checkpointer may still hold.
        left: where deleted text may still be, and what to do about it; empty if nowhere.
        deleted: ids of the threads that were deleted in the checkpointer that was given.
    """

    items: int
    threads: tuple[str, ...]
    left: str = ""
    deleted: tuple[str, ...] = ()


def place_of(user: str, namespace: Sequence[str]) -> tuple[str, ...]:
    """The namespace of a person's memory.

    LangGraph joins labels with periods, and takes none that is empty or has a NUL. The user comes
    first: in a cluster, the first label decides on the node.

    Args:
        user: whose.
        namespace: of the library in the store.
    """
    label = _PREFIX + user.translate(_ESCAPES)
    return (label, *namespace, _SUFFIX)


def user_of(place: Sequence[str], namespace: Sequence[str]) -> str | None:
    """The reverse of `place_of`; None for a namespace that is not a person's."""
    label = place[0] if place else ""
    if tuple(place[1:]) != (*namespace, _SUFFIX) or not label.startswith(_PREFIX):
        return None
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), label[len(_PREFIX) :]) or None


def nothing_of(user: str) -> MemoryNotFoundError:
    """The error that nothing is remembered of a user."""
    message = (
        f"Nothing is remembered about the user {user!r} in this store and namespace: "
        "`memagent memory users` lists those who are remembered."
    )
    return MemoryNotFoundError(message)


class PersonalMemory:
    """One person's versions, in a part of the store that is theirs alone, and what they said.

    A thread's mark says which of its messages were folded last; it is written in one step with the
    version and the head. So a turn that was cut off after that step finds, when it is tried again,
    that its messages are in, and two turns at once see what the other has folded.

    Args:
        store: where.
        namespace: of the library in that store.
        user: whose memory.
        keep_versions: how many of the newest versions stay; None for all.
        keep_days: days that a version stays after a newer one replaced it; None for ever.
        episode_tokens: how many tokens of messages stay word for word.
        episode_days: days after which a message goes; None for never.
        ttl: minutes that a memory lives on when it is not read; None for the store's default.
        patience: see `MemoryBank`.

    Raises:
        ConfigurationError: The user is empty.
    """

    def __init__(
        self,
        store: BaseStore,
        namespace: Sequence[str],
        user: str,
        *,
        keep_versions: int | None = None,
        keep_days: float | None = None,
        episode_tokens: int = 0,
        episode_days: float | None = None,
        ttl: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        if not user:
            raise ConfigurationError("The user is empty: name the one whose memory is meant.")
        self.user = user
        self.bank = MemoryBank(store, place_of(user, namespace), ttl=ttl, patience=patience)
        self._namespace = tuple(namespace)
        self.episodes = Episodes(self.bank.records, episode_tokens, episode_days)
        self._keep = keep_versions
        self._days = keep_days

    async def head(self) -> MemoryVersion | None:
        """The newest version, None when nothing is remembered."""
        return await self.bank.ahead(MEMORY)

    async def history(self) -> History:
        """All versions, newest first; none when nothing is remembered."""
        return History() if await self.head() is None else await self.bank.ahistory(MEMORY)

    async def changes(self) -> list[Change]:
        """What was done to the memory, newest first: up to about 1,000 lines.

        The last is the line of when this person was forgotten, if they were.
        """
        records = self.bank.records
        lines = await changes.listed(records)
        forgotten = await changes.forgotten(records, self._namespace, self.user)
        return [*lines, forgotten] if forgotten else lines

    async def threads(self) -> tuple[str, ...]:
        """Ids of the threads whose messages were folded."""
        records = self.bank.records
        return tuple(sorted(await records.keys(records.threads)))

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
        history = await self.bank.ahistory(MEMORY)
        return [*next((v.messages for v in history if v.thread == thread and v.messages), ())]

    async def add(
        self,
        version: MemoryVersion,
        *,
        after: MemoryVersion | None,
        new: Sequence[str] = (),
        model: str = "",
        step: Step | None = None,
    ) -> bool:
        """Make `version` the newest, unless `after` no longer is; say whether it was done.

        Args:
            version: its `messages` are all that its thread has had folded last.
            after: what it follows.
            new: ids of the messages that were folded now.
            model: name of the model that did.
            step: what keeps the messages that were folded.
        """
        mark = {"messages": [*version.messages]}
        change = changes.of_version(version, "folded", CONVERSATION, messages=new, model=model)
        records = self.bank.records
        step = step or Step()
        also = [records.put(records.threads, version.thread or "", mark), *step.puts]
        if not await self._advance(version, after, change, step._replace(puts=also)):
            return False
        if self._keep is not None or self._days is not None:
            await self.thin(self._keep, self._days)
        return True

    async def edit(self, text: str, *, by: str, before: str | None = None) -> MemoryVersion:
        """Store another text, as a version that follows the one it replaces.

        Args:
            text: the whole memory.
            by: whom, for the line of this change.
            before: id of the version that it is to replace; None for the newest.

        Raises:
            MemoryNotFoundError: Nothing is remembered of this person.
            MemoryConflictError: The memory changed meanwhile, or `before` is not the newest.
        """
        head = await self.head()
        if head is None:
            raise nothing_of(self.user)
        after = edited(head, text)
        change = changes.of_version(after, "edited", by)
        if before not in (None, head.id) or not await self._advance(after, head, change):
            message = (
                f"The memory of {self.user!r} changed meanwhile: look at it and edit it again."
            )
            raise MemoryConflictError(message)
        return after

    async def thin(self, versions: int | None, days: float | None, *, preview: bool = False) -> int:
        """Delete old versions; say how many. The newest stays.

        Args:
            versions: how many of the newest stay; None for all.
            days: days after which a version goes that a newer one replaced; None for never.
            preview: whether to say only how many would go.
        """
        replaced = None if days is None else datetime.now(UTC) - timedelta(days=days)
        return await self.bank.athin(MEMORY, versions, replaced=replaced, preview=preview)

    async def thin_messages(self, days: float, *, preview: bool = False) -> int:
        """Delete messages that were said more than so many days ago; say how many.

        Args:
            days: how many; a message stays to the end of that day (UTC).
            preview: whether to say only how many would go.

        Raises:
            MemoryConflictError: This person went on talking each time.
        """
        episodes = Episodes(self.bank.records, sys.maxsize, days)
        return await episodes.expire(preview=preview)

    async def forget(self, *, by: str) -> ForgottenUser:
        """Delete everything of this person, and what the store's files keep of it.

        A line says afterwards that they were forgotten, when and by whom, under a digest of
        their id.
        """
        threads = await self.threads()
        items = await self.delete(by=by)
        return ForgottenUser(items, threads, await erase(self.bank.store))

    async def delete(self, *, by: str) -> int:
        """As `forget`, except for what the store's files keep; say how many items it were."""
        records = self.bank.records
        items = await self.bank.aclear()
        self.episodes.drop()
        await forget_topic(records, MEMORY)
        if items:
            await changes.note_forgotten(records, self._namespace, self.user, by)
        return items

    async def _advance(
        self,
        version: MemoryVersion,
        after: MemoryVersion | None,
        change: Change,
        step: Step | None = None,
    ) -> bool:
        step = step or Step()
        expected = None if after is None else after.id
        records = self.bank.records
        also = [*step.puts, changes.put(records, change)]
        if not await self.bank.aadvance(
            MEMORY, version, expected=expected, also=also, given=step.given
        ):
            return False
        await changes.trim(records, change)
        return True
