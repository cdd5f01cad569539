"""Memories in a store: append, find, walk, branch, edit, answer from and forget versions."""

from __future__ import annotations

import asyncio
from dataclasses import astuple
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory import chain, items, maintenance
from memagent_graph.memory import forget as removal
from memagent_graph.memory.forget import Forgotten, ForgottenSource
from memagent_graph.memory.items import EDITS, Records
from memagent_graph.memory.lease import find_readings, is_gone
from memagent_graph.memory.store import Tries
from memagent_graph.memory.version import (
    SCHEMA,
    History,
    MemoryVersion,
    TextEdit,
    diff,
    edit_version,
    make_reading_key,
    read_version,
)
from memagent_graph.readers.base import Usage
from memagent_graph.sync import to_sync

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from memagent_graph.memory.items import Place, Stored
    from memagent_graph.memory.lease import UnderWay
    from memagent_graph.memory.store import Value


async def replace_for(
    records: Records, memory: str, before: MemoryVersion, after: MemoryVersion
) -> None:
    """Store an edit of a version, for readings that write to a memory and have that version.

    If the memory points to the version, it points to the edit afterwards. Readings under way that
    are at the version, or have read on from it, continue from the edit. `memory` is a name, or the
    key of a reading without one.
    """
    own = (records.versions, before.id)
    heads: list[Place] = [(records.heads, memory), (records.readings, memory)]
    async for _ in Tries(f"{memory!r}"):
        reading = {at: f for at, f in (await find_readings(records)).items() if f.memory == memory}
        noted = [
            place
            for place, fold in reading.items()
            if await _continues_from(records, fold, before.id)
        ]
        places = [own, *heads, *noted]
        stored = dict(zip(places, await records.values(places), strict=True))
        value, notes = stored[own], {}
        if not isinstance(value, dict):
            raise items.no_such_version(before.id)
        for place in noted:
            if isinstance(found := stored[place], dict):
                waits = found.get("edit") and not found.get("taken")  # one that it has yet to take
                of = str(found.get("of")) if waits else before.id
                edit = {"version": after.id, "of": of, "edit": after.id, "taken": ""}
                notes[place] = {**found, **edit}
        if len(notes) < len(noted):
            continue  # one has ended
        moved = [place for place in heads if stored[place] == {"version": before.id}]
        broken_off = not reading and all(stored[place] is None for place in heads)
        is_edited = items.edit_of(value, memory) not in (None, after.id)
        if not moved and (is_edited or not (noted or broken_off)):
            message = f"{memory!r} was changed meanwhile: read the new text, and edit it again."
            raise MemoryConflictError(message)
        edits = {**(value.get(EDITS) or {}), memory: after.id}
        puts = [
            records.put(*own, {**value, EDITS: edits}),
            *(records.put(*place, {"version": after.id}) for place in moved),
            *(records.put(*place, note) for place, note in notes.items()),
        ]
        given = items.readable(stored)
        if await chain.append_versions(records, [after], memory, also=puts, given=given):
            return


async def _continues_from(records: Records, fold: UnderWay, version: str) -> bool:
    """Whether a fold continues from an edit of a version: it is at it, or came from it."""
    if fold.version is None or fold.version == version or (fold.edit and not fold.taken):
        return fold.version == version
    try:
        known = {one.id: one for one in await items.read_history(records, fold.version)}
    except MemoryNotFoundError:
        return False
    at = known.get(fold.version)
    # Beyond its own versions, only that one counts which it began with.
    while at is not None and at.id != version:
        at = known.get(at.parent) if at.document.digest == fold.source else None
    return at is not None


_WATCH_SECONDS = 0.25

__all__ = ["Forgotten", "ForgottenSource", "History", "MemoryBank", "diff"]


class MemoryBank(Records):
    """Memories in a LangGraph store, shared by all agents that use it.

    A *reference* is the name of a memory, which points to a version, its head; the key of a reading
    without a name; or the id of a version. Each method has an async twin whose name begins with
    an a.

    Every version records the memories that it belongs to, its owners, and every memory lists its
    versions. Moving a head checks, in the same atomic step, that its version exists; deleting a
    version checks that no memory needs it. So a head never points to a missing version.

    Args:
        store: any LangGraph store. `RedisStore` and the SQLite stores never lose a write.
        namespace: labels of the memories in the store.
        ttl: minutes after which a memory that is not read expires; None for the store's default.
        patience: function that returns the time limit of one operation, in seconds; None for no
            limit.

    Examples:
        >>> from langgraph.store.memory import InMemoryStore
        >>> from memagent_graph import MemoryBank, create_memagent
        >>> store = InMemoryStore()  # or a RedisStore, a SqliteStore, ...
        >>> asked = {"question": "Who signed?", "document": "Ann signed.", "memory_name": "lease"}
        >>> out = create_memagent(store=store).invoke(asked)
        >>> bank = MemoryBank(store)
        >>> version = bank.edit("lease", "Ann Kestrel signed.")
        >>> [version.text for version in bank.history("lease")]
        ['Ann Kestrel signed.', 'Ann signed.']
    """

    aappend = chain.append_version
    aadvance = chain.advance_head
    aget = items.get_version
    ahead = items.head
    amove_head = chain.move_head
    ahistory = items.read_history
    aforget = removal.forget_memory
    aforget_source = removal.forget_source
    adigests_of = maintenance.find_digests
    athin = removal.thin
    acollect = maintenance.collect
    acheck = maintenance.check_bank
    aclear = removal.clear
    alist = maintenance.list_bank
    aexport = maintenance.export_lines
    aimport = maintenance.store_lines

    async def abranch(self, reference: str, name: str) -> MemoryVersion:
        """Give a memory another name; from now on, the two are independent.

        Raises:
            MemoryConflictError: The name is taken.
        """
        version = await self.aget(reference)
        (taken,) = await self.values([(self.heads, name)])
        if taken is not None or not await self.amove_head(name, version.id, expected=None):
            message = f"The name {name!r} is taken: choose another, or delete that memory."
            raise MemoryConflictError(message)
        return version

    async def aedit(self, reference: str, text: str, *, before: str | None = None) -> MemoryVersion:
        """Replace the text of a memory, as a new version that follows the current one.

        A reading that is under way continues from the edit at its next chunk, merge or answer, and
        reads again what it has read since the edited version. For one without a name that has
        ended, the next reading of the same question continues from the edit.

        Args:
            reference: the memory.
            text: the new text.
            before: id of the version that was edited, if it is not the memory's newest: for a
                reading under way, one that `under_way` reported.

        Raises:
            MemoryNotFoundError: There is no such memory.
            MemoryConflictError: The memory changed meanwhile.
        """
        edited = await self.aget(before or reference)
        after = edit_version(edited, text)
        if reference == edited.id:
            return await self.aappend(after)
        await replace_for(self, reference, edited, after)
        return after

    async def aunder_way(self, memory: str | None = None) -> list[UnderWay]:
        """Return the readings under way, one entry per fold, without those known to have ended.

        A reading whose process was killed on another machine stays listed; its
        `UnderWay.seen` shows its age.

        Args:
            memory: only readings that write to this memory.
        """
        folds = (await find_readings(self)).values()
        found = [f for f in folds if memory in (None, f.memory) and not is_gone(f.holder)]
        return sorted(found, key=lambda fold: (fold.since, fold.memory, fold.fold))

    async def arecord_reading(self, version: MemoryVersion) -> Value | None:
        """List a reading without a name, under its key, with its newest version.

        Return the version's record; None if it was edited, or is gone.
        """
        key = make_reading_key(version.root, version.document.digest)
        (value,) = await self.values([(self.versions, version.id)])
        edit = await items.newest_edit(self, version.id, key, value)
        newest = version.id if edit is None else edit.id
        put = self.put(self.readings, key, {"version": newest})
        done = await self.commit([put], {(self.versions, newest): ...})
        return value if done and edit is None and isinstance(value, dict) else None

    async def watch(self, name: str, *, after: str = "$") -> AsyncIterator[MemoryVersion]:
        """Yield a memory's new versions, the oldest first, without end; it looks 4 times a second.

        Args:
            name: name of the memory, or the key of a reading without one.
            after: "0" for all that the store has, "$" for new ones.
        """
        place = self.members(name)
        seen = {*(await self.keys(place) if after == "$" else ())}
        while True:
            listed = [key for key in await self.keys(place) if key not in seen]
            new = [one for one in await items.find_versions(self, listed) if one is not None]
            if bad := [one for one in new if isinstance(one, BadRecordError)]:
                raise bad[0]
            found = [one for one in new if isinstance(one, MemoryVersion)]
            for version in sorted(found, key=lambda one: one.created_at):
                seen.add(version.id)
                yield version
            await asyncio.sleep(_WATCH_SECONDS)

    append = to_sync(aappend)
    advance = to_sync(aadvance)
    get = to_sync(aget)
    head = to_sync(ahead)
    move_head = to_sync(amove_head)
    history = to_sync(ahistory)
    branch = to_sync(abranch)
    edit = to_sync(aedit)
    under_way = to_sync(aunder_way)
    forget = to_sync(aforget)
    forget_source = to_sync(aforget_source)
    digests_of = to_sync(adigests_of)
    thin = to_sync(athin)
    collect = to_sync(acollect)
    check = to_sync(acheck)
    clear = to_sync(aclear)
    list = to_sync(alist)
    export = to_sync(aexport)
    import_ = to_sync(aimport)


_ANSWER = "answer"
"""Field of a version's record with the answer that was written from it."""


_TRIES = 3
"""Times that an answer is stored upon a record which has changed meanwhile."""


_EDITS_BACK = 3
"""Most edits between a version and the answer to show with it."""


class KeptAnswer(NamedTuple):
    """An answer, stored with the version that it was written from.

    `usage` is the cost of all readings, `times` in number, that ended with it; the last at `at`
    (ISO 8601, UTC).
    """

    text: str
    at: str
    times: int
    usage: Usage


async def has_answer(records: Records, version: str) -> bool:
    """Whether an answer was written from a version; else its reading may have been killed."""
    ((_, value),) = await records.by_id([version])
    return _answer(value) is not None


async def keep_answer(
    records: Records, version: str, answer: str, usage: Usage, seen: Value | None = None
) -> None:
    """Store an answer with the version that it was written from, and add up what they cost.

    Nothing is stored if the version is gone, or a newer release wrote it. Its record as it was
    `seen` last saves a round trip if it still is.
    """
    place: Place = (records.versions, version)
    value: Stored = seen
    for _ in range(_TRIES):
        schema = value.get("schema") if isinstance(value, dict) else None
        if isinstance(value, dict) and isinstance(schema, int) and schema <= SCHEMA:
            old = _answer(value) or KeptAnswer("", "", 0, Usage())
            at, cost = datetime.now(UTC).isoformat(), astuple(old.usage + usage)
            put = records.put(*place, {**value, _ANSWER: [answer, at, old.times + 1, *cost]})
            if await records.commit([put], {place: value}):
                return
        (value,) = await records.values([place], refresh=False)


async def answers_of(records: Records, versions: Sequence[MemoryVersion]) -> dict[str, KeptAnswer]:
    """Return the answers kept with versions, by id; an edit has that of the version it edits."""
    found: dict[str, KeptAnswer] = {}
    wanted = {version.id: version.id for version in versions}
    for _ in range(_EDITS_BACK + 1):
        places = [(records.versions, key) for key in wanted.values()]
        values = dict(zip(wanted, await records.values(places, refresh=False), strict=True))
        found |= {key: kept for key, value in values.items() if (kept := _answer(value))}
        left = {key: read_version(value) for key, value in values.items() if key not in found}
        edits = ((key, one) for key, one in left.items() if one)
        wanted = {key: one.parent for key, one in edits if isinstance(one.made_by, TextEdit)}
    return found


def _answer(value: Stored) -> KeptAnswer | None:
    """The answer in a version's record; None without one."""
    match value:
        case {"answer": [text, at, times, calls, read, written, seconds]}:
            return KeptAnswer(text, at, times, Usage(calls, read, written, seconds))
    return None
