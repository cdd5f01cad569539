"""The memory of one user, a chain of versions that all their threads extend, and its log.

Entries outlive the versions that they are about. When a user is forgotten, their entries are
deleted too. One entry stays, under a digest of the user's id: when they were forgotten, by whom.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from memagent_graph.conversation.episodes import Branch, EpisodePuts, Episodes, Recorded
from memagent_graph.errors import BadRecordError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.forget import release
from memagent_graph.memory.items import find_versions, label, name_user, place_of
from memagent_graph.memory.store import Tries
from memagent_graph.memory.stores import erase
from memagent_graph.memory.version import (
    History,
    MemoryVersion,
    ReadDocument,
    TextEdit,
    edit_version,
    root_id,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from langchain_core.messages import BaseMessage
    from langgraph.store.base import BaseStore, PutOp

    from memagent_graph.conversation.form import Dropped
    from memagent_graph.memory.items import Place, Records, UserId
    from memagent_graph.memory.store import Value

    Propose = Callable[["UserMemory", MemoryVersion, str, str], Awaitable[None]]

_log = logging.getLogger(__name__)

What = Literal["folded", "edited", "imported", "forgotten", "proposed", "accepted", "refused"]

_MOST = 1_000
"""Entries kept per user; the oldest are deleted first."""
_OFTEN = 64
"""Mean number of changes between two checks of the number of entries."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """One change of a user's memory.

    Attributes:
        at: time, ISO 8601, UTC.
        what: the kind of change.
        by: who made it: "conversation" for a chatbot, otherwise as given by the caller.
        version: id of the new version; "" if there is none.
        thread: id of the thread whose messages were folded.
        messages: ids of those messages.
        model: name of the model that folded them.
    """

    at: str
    what: What
    by: str = ""
    version: str = ""
    thread: str = ""
    messages: tuple[str, ...] = ()
    model: str = ""


def put_change(records: Records, change: MemoryChange) -> PutOp:
    """Return the put of an entry, to be carried out in one step with its change."""
    value = {name: found for name, found in asdict(change).items() if found}
    place = (*records.namespace, _CHANGES)
    return records.put(place, f"{change.at} {change.version[:8]}", value)


_CHANGES, _SAID, _FORGOTTEN = "changes", "said", ("forgotten", "users")
_change = TypeAdapter(MemoryChange)


class Changed(NamedTuple):
    """A message that is to be folded, and what it is known by.

    `before` is its record if it said something else before, None for a new one.
    """

    message: BaseMessage
    recorded: Recorded
    before: Value | None


_REMEMBERED = 100
"""Messages of a thread that a history without ids is compared with, at most."""


def _parse_mark(mark: Value | BadRecordError | None) -> list[Recorded]:
    """Return the messages in the record of a thread; none if it cannot be read."""
    if not isinstance(mark, dict):
        return []
    ids, said = mark.get("messages"), mark.get("said")
    if not (isinstance(ids, list) and isinstance(said, list)):
        return []
    return [Recorded(str(key), *f"{text} ".split(" ")[:2]) for key, text in zip(ids, said)]  # noqa: B905 - a shorter list is a damaged record


def days_ago(days: float) -> str:
    """Return the time some days ago, ISO 8601, UTC."""
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


MEMORY = "memory"
"""Name of a user's memory in their part of the store."""
CONVERSATION = "conversation"
"""`Change.by` of changes made by folding messages."""


class ForgottenUser(NamedTuple):
    """The result of forgetting a user.

    Attributes:
        items: number of items deleted: versions, marks, lists and changes.
        threads: ids of their threads, which a checkpointer may still have.
        left: places where deleted text may remain, and what to do about it; "" if there are none.
        deleted: ids of the threads deleted from the given checkpointer.
    """

    items: int
    threads: tuple[str, ...]
    left: str = ""
    deleted: tuple[str, ...] = ()


def unknown_user(user: str) -> MemoryNotFoundError:
    """The error that nothing is remembered about a user."""
    message = (
        f"Nothing is remembered about the user {user!r} in this store and namespace: "
        "`memagent memory users` lists those who are remembered."
    )
    return MemoryNotFoundError(message)


class UserMemory:
    """A user's versions and kept messages, in their own part of the store.

    A thread's mark lists the messages that were folded last. It is written in one step with the
    version and the head, so that a repeated turn finds that its messages are already folded, and
    two concurrent turns see what the other has folded.
    """

    def __init__(
        self,
        store: BaseStore,
        namespace: Sequence[str],
        user: UserId,
        *,
        keep_versions: int | None = None,
        keep_days: float | None = None,
        episode_tokens: int = sys.maxsize,
        episode_days: float | None = None,
        ttl: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self.user = user = name_user(user)
        self.bank = MemoryBank(store, place_of(user, namespace), ttl=ttl, patience=patience)
        records = self.bank
        self.forgotten = ((*namespace, *_FORGOTTEN), label(user))
        self._changes, self.said = (*records.namespace, _CHANGES), (*records.namespace, _SAID)
        self.episodes = Episodes(records, episode_tokens, episode_days)
        self.place: Place = (records.heads, MEMORY)  # of the pointer to the newest version
        self._keep, self._days = keep_versions, keep_days

    async def head(self) -> MemoryVersion | None:
        """Return the newest version; None if nothing is remembered."""
        return await self.bank.ahead(MEMORY)

    async def find_head(self) -> tuple[MemoryVersion | None, bool]:
        """Return the newest version that is left, and whether that was another one, which is gone.

        A server that evicts items, or lets them expire one by one, can lose the version or the
        pointer to it, which then points to the newest one that is left.
        """
        records = self.bank
        with suppress(MemoryNotFoundError):
            head = await self.head()
            if head is not None or not await records.keys(records.members(MEMORY)):
                return head, False
        (pointer,) = await records.values([self.place])
        if isinstance(pointer, BadRecordError):
            raise pointer
        newest = max(await self._versions(), key=lambda one: one.created_at, default=None)
        if newest is not None or pointer is not None:
            after = self.expect(newest)[self.place]
            await records.commit([records.put(*self.place, after)], {self.place: pointer})
            what = "an earlier one is continued" if newest else "none is left, and it begins anew"
            _log.warning("The newest version of the memory of %r is gone: %s.", self.user, what)
        return newest, True

    async def _versions(self) -> list[MemoryVersion]:
        ids = await self.bank.keys(self.bank.members(MEMORY))
        found = await find_versions(self.bank, ids)
        return [one for one in found if isinstance(one, MemoryVersion)]

    async def history(self) -> History:
        """Return all versions, newest first; empty if nothing is remembered."""
        return History() if await self.head() is None else await self.bank.ahistory(MEMORY)

    async def changes(self) -> list[MemoryChange]:
        """Return the changes to the memory, newest first, about 1,000 at most.

        If the user was forgotten, that is the last one. Unreadable entries are skipped.
        """
        records = self.bank
        found = [item async for item in records.scan(self._changes)]
        rows = {item.key: item.value for item in found if not isinstance(item, BadRecordError)}
        changes = list[MemoryChange]()
        last = await records.values([self.forgotten])
        for row in [*(rows[key] for key in sorted(rows, reverse=True)), *last]:
            with suppress(ValidationError):
                changes.append(_change.validate_python(row))
        return changes

    async def threads(self) -> tuple[str, ...]:
        """Return the ids of the threads whose messages were folded."""
        records = self.bank
        return tuple(sorted(await records.keys(records.threads)))

    async def read_mark(self, thread: str) -> Value | BadRecordError | None:
        """Return the record of the thread's messages that were folded last; None without one."""
        records = self.bank
        (mark,) = await records.values([(records.threads, thread)])
        return mark

    async def read_folded(self, thread: str) -> list[Recorded]:
        """Return the thread's first message and those that were folded last, in order."""
        return _parse_mark(await self.read_mark(thread))

    def put_said(
        self,
        thread: str,
        mark: Value | BadRecordError | None,
        changed: Sequence[Changed],
        branch: Branch,
    ) -> EpisodePuts:
        """Return the step that records messages as folded, and those of another branch as not.

        `mark` is the thread's record as it was. Messages that it no longer has need no checkpoint.
        """
        put, own = self.bank.put, (self.bank.threads, thread)
        gone = {one.id for one in branch.replaced}
        puts = [put(self.said, key, None) for key in gone]
        given: dict[Place, Value | None] = {}
        now: dict[str, Recorded] = {}
        for _, one, before in changed:
            puts.append(put(self.said, one.id, {"digest": one.digest, "thread": thread}))
            given[self.said, one.id] = before
            now[one.id] = replace(one, checkpoint=branch.checkpoint)
        found = [one for one in _parse_mark(mark) if one.id not in gone]
        if branch.there:
            at = branch.checkpoint
            ways = {one.id: one.checkpoint or at for one in found if one.id in branch.there}
            found = [replace(one, checkpoint=ways.get(one.id, "")) for one in found]
        found = [now.pop(one.id, one) for one in found] + [*now.values()]
        found = [*found[:1], *found[1:][-_REMEMBERED:]]
        said = [f"{one.digest} {one.checkpoint}".strip() for one in found]
        folded = {"messages": [one.id for one in found], "said": said}
        if not isinstance(mark, BadRecordError):
            given[own] = mark
        return EpisodePuts([*puts, put(*own, folded)], given)

    async def copy_said(self, other: UserMemory) -> None:
        """Know the messages that another memory knows as folded."""
        records = self.bank
        known = [item async for item in other.bank.scan(other.said)]
        sound = [item for item in known if not isinstance(item, BadRecordError)]
        await records.items([records.put(self.said, item.key, item.value) for item in sound])

    async def commit(self, step: EpisodePuts, head: MemoryVersion | None) -> bool:
        """Carry out a step unless `head` is no longer the newest version; None for no version."""
        return await self.bank.commit(*(step | EpisodePuts((), self.expect(head))))

    async def edit(
        self,
        text: str,
        *,
        by: str,
        before: str | None = None,
        goes: Callable[[str], bool] = lambda _: False,
    ) -> MemoryVersion:
        """Replace the text, as a new version that follows the current one, or that of `before`.

        Sources of lines that go are forgotten. Raises `MemoryNotFoundError` without a memory, and
        `MemoryConflictError` if it changed meanwhile.
        """
        head = await self.head()
        if head is None:
            raise unknown_user(self.user)
        after = edit_version(head, text)
        after = replace(after, told=tuple(item for item in after.told if not goes(item.line)))
        change = MemoryChange(after.created_at, "edited", by, after.id)
        if before not in (None, head.id) or not await self.advance(after, head, change):
            raise self.conflict()
        return after

    async def begin(self, text: str, fingerprint: str, *, by: str) -> None:
        """Store a text as the first version; `MemoryConflictError` if there is one already."""
        root = root_id("", fingerprint)
        nothing = ReadDocument("", "", 0, 0)
        empty = MemoryVersion(
            root, root, root, "", fingerprint, 0, nothing, Memory(""), 0, TextEdit("")
        )
        first = edit_version(empty, text)
        change = MemoryChange(first.created_at, "edited", by, first.id)
        if not await self.advance(first, None, change):
            raise self.conflict()

    async def drop(
        self,
        drop: Callable[[str], Dropped],
        *,
        by: str,
        corrects: bool = False,
        propose: Propose | None = None,
    ) -> list[str]:
        """Delete what `drop` takes from a text, and return it.

        Versions that had one go as well, unless it `corrects` the notes, or proposes a change.
        """
        forgets = not (corrects or propose)

        def goes(text: str) -> bool:
            return forgets and bool(drop(text)[1])

        gone, records = list[str](), self.bank
        async for _ in Tries(f"The memory of {self.user!r}"):
            head = await self.head()
            text, found = ("", []) if head is None else drop(head.text)
            gone += found
            with suppress(MemoryConflictError):
                if head is not None and found and propose:
                    await propose(self, head, text, by)
                elif head is not None and (found or any(goes(item.line) for item in head.told)):
                    await self.edit(text, by=by, before=head.id, goes=goes)
                now, old = await self.head(), await self._versions() if forgets else ()
                ids = [one.id for one in old if one != now and goes(one.text)]
                _, done = await release(records, MEMORY, ids, self.expect(now))
                if done:
                    break
        return gone

    def conflict(self) -> MemoryConflictError:
        """Return the error for what another writer has changed."""
        message = f"The memory of {self.user!r} changed meanwhile: read it, and try again."
        return MemoryConflictError(message)

    async def thin(self, versions: int | None, days: float | None, *, preview: bool = False) -> int:
        """Delete old versions, or only count them, and return their number. The newest is kept."""
        replaced = None if days is None else datetime.now(UTC) - timedelta(days=days)
        return await self.bank.athin(MEMORY, versions, replaced=replaced, preview=preview)

    async def expire(self, days: float, *, preview: bool = False) -> tuple[int, int]:
        """Delete messages, proposals, marks of threads and lines of the log of long ago.

        Returns the number of messages, also of those in proposals, and that of marks and lines;
        with `preview`, nothing is deleted.
        """
        records = self.bank
        messages = await Episodes(records, sys.maxsize, days).expire(preview=preview)
        since, gone = days_ago(days), []
        async for item in records.scan(records.proposals):
            if not isinstance(item, BadRecordError) and str(item.value.get("at")) < since:
                gone.append(records.put(records.proposals, item.key, None))
                messages += len(item.value.get("messages", ()))
        waiting = len(gone)
        (pointer,) = await records.values([self.place], refresh=False)
        head = pointer.get("version") if isinstance(pointer, dict) else ""
        threads = set[str]()
        for place in (records.threads, self._changes, self.said):
            async for item in records.scan(place):
                if isinstance(item, BadRecordError) or item.value.get("version") == head:
                    continue
                at = str(item.value.get("at") or item.updated_at.astimezone(UTC).isoformat())
                if at < since and (place != self.said or item.value.get("thread") in threads):
                    threads |= {item.key} if place == records.threads else set()
                    gone.append(records.put(place, item.key, None))
        if gone and not preview:
            await records.items(gone)
        return messages, len(gone) - waiting

    async def forget(self, *, by: str) -> ForgottenUser:
        """Delete everything about this user, and erase it from the store's files.

        Afterwards one entry stays, under a digest of their id: when they were forgotten, by whom.
        """
        threads = await self.threads()
        items = await self.delete(by=by)
        return ForgottenUser(items, threads, await erase(self.bank.store))

    async def delete(self, *, by: str) -> int:
        """Do as `forget`, without erasing the store's files; return the number of items."""
        records = self.bank
        items = await self.bank.aclear()
        self.episodes.drop()
        if items:
            value = {"at": datetime.now(UTC).isoformat(), "what": "forgotten", "by": by}
            await records.items([records.put(*self.forgotten, value)])
        return items

    def expect(self, head: MemoryVersion | None) -> dict[Place, Value | None]:
        """Return the condition that a version is still the newest; None for no version."""
        return {self.place: None if head is None else {"version": head.id}}

    async def advance(
        self,
        version: MemoryVersion,
        after: MemoryVersion | None,
        change: MemoryChange,
        step: EpisodePuts | None = None,
    ) -> bool:
        """Make `version` the newest unless `after` no longer is, log it, and thin old ones.

        `step` is stored with it. Returns whether it was done.
        """
        step = step or EpisodePuts()
        expected = None if after is None else after.id
        also = [*step.puts, put_change(self.bank, change)]
        if not await self.bank.aadvance(
            MEMORY, version, expected=expected, also=also, given=step.given
        ):
            return False
        await self._trim_changes(change)
        if self._keep is not None or self._days is not None:
            await self.thin(self._keep, self._days)
        return True

    async def _trim_changes(self, change: MemoryChange) -> None:
        """Now and then, delete the oldest entries if there are too many."""
        if change.version and int(change.version[:8], 16) % _OFTEN == 0:
            records = self.bank
            keys = sorted(await records.keys(self._changes))[:-_MOST]
            if keys:
                await records.items([records.put(self._changes, key, None) for key in keys])
