"""Memories in a store: append, find, walk, branch, edit and forget versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import BadRecordError, MemoryConflictError
from memagent_graph.memory import forget as removal
from memagent_graph.memory import lookup, maintenance, owners
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.forget import Forgotten, ForgottenSource
from memagent_graph.memory.items import NAMESPACE, Records, check_namespace
from memagent_graph.memory.leases import continues_from, find_readings, note_edit
from memagent_graph.memory.lookup import EDITS
from memagent_graph.memory.owners import owners_of, pointer_to
from memagent_graph.memory.version import (
    History,
    MemoryVersion,
    diff,
    edit_version,
    make_reading_key,
)
from memagent_graph.memory.writer import append_version, append_versions
from memagent_graph.sync import to_sync, to_thread
from memagent_graph.text.source import digests_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from datetime import datetime, timedelta
    from types import EllipsisType

    from langgraph.store.base import BaseStore, Op, PutOp

    from memagent_graph.memory.atomic import Given, Value
    from memagent_graph.memory.items import Place
    from memagent_graph.memory.leases import UnderWay
    from memagent_graph.text.source import Source


async def _open_digests(document: Path | Source) -> list[str]:
    """Return the digests of a document, opened if it is a file."""
    if isinstance(document, Path):
        from memagent_graph.text.files import open_source

        file = document
        document = await to_thread(lambda: open_source(file))
    return digests_of(document)


async def replace_for(
    records: Records, memory: str, before: MemoryVersion, after: MemoryVersion
) -> None:
    """Store an edit of a version, for readings that write to a memory and have that version.

    If the memory points to the version, it points to the edit afterwards. Readings under way that
    are at the version, or have read on from it, continue from the edit.

    Args:
        records: the bank's records.
        memory: its name, or the key of a reading without one.
        before: the version that was edited.
        after: the edit.

    Raises:
        MemoryConflictError: Somebody else edited it first, or the memory has moved on from it and
            is not being read.
        MemoryNotFoundError: The version is gone.
    """
    own, new = (records.versions, before.id), (records.versions, after.id)
    heads: list[Place] = [(records.heads, memory), (records.readings, memory)]
    topic = after.root if memory == make_reading_key(after.root, after.document.digest) else memory
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        reading = await find_readings(records, memory, gone=True)
        noted = [
            place
            for place, fold in reading.items()
            if await continues_from(records, fold, before.id)
        ]
        places = [own, new, *heads, *noted]
        stored = dict(zip(places, await records.values(places), strict=True))
        value = stored[own]
        if not isinstance(value, dict):
            raise owners.no_such_version(before.id)
        moved = [place for place in heads if stored[place] == {"version": before.id}]
        broken_off = not reading and all(stored[place] is None for place in heads)
        is_edited = lookup.edit_of(value, memory) not in (None, after.id)
        if not moved and (is_edited or not (noted or broken_off)):
            raise was_changed(memory)
        edits = {**(value.get(EDITS) or {}), memory: after.id}
        names = sorted({*owners_of(stored[new]), memory})
        notes = {
            place: note_edit(found, before.id, after.id)
            for place in noted
            if isinstance(found := stored[place], dict)  # else the commit fails: it has ended
        }
        puts = [
            records.put(*new, {**after.to_record(), "owners": names}),
            records.put(records.members(memory), after.id, {}),
            records.put(*own, {**value, EDITS: edits}),
            *(records.put(*place, {"version": after.id}) for place in moved),
            *(records.put(*place, note) for place, note in notes.items()),
        ]
        given: dict[Place, Value | EllipsisType | None] = {
            place: found for place, found in stored.items() if not isinstance(found, BadRecordError)
        }
        given |= {place: ... for place in noted if place not in notes}
        if await records.commit(puts, given, topic=topic):
            return
    raise was_changed(memory)


def was_changed(reference: str) -> MemoryConflictError:
    """The error for the second of two concurrent edits."""
    message = f"{reference!r} was changed meanwhile: read the new text, and edit it again."
    return MemoryConflictError(message)


__all__ = ["Forgotten", "ForgottenSource", "History", "MemoryBank", "diff"]


class MemoryBank:
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

    def __init__(
        self,
        store: BaseStore,
        namespace: Sequence[str] = NAMESPACE,
        *,
        ttl: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self.store = store
        self.namespace = check_namespace(namespace)
        self.records = Records(store, self.namespace, ttl, patience)

    async def items(self, ops: Sequence[Op]) -> list[Any]:
        """Carry out operations of the store, and return their results."""
        return await self.records.items(ops)

    async def aappend(
        self, version: MemoryVersion, *, owner: str | None = None, topic: str | None = None
    ) -> MemoryVersion:
        """Store a version unless its id exists, and return the stored one.

        A record that cannot be read is replaced.

        Args:
            version: the version.
            owner: the memory that it belongs to; `collect` deletes versions without an owner.
            topic: topic whose watchers are notified; the version's root by default.
        """
        return await append_version(self.records, version, owner, topic)

    async def aadvance(
        self,
        name: str,
        version: MemoryVersion,
        *,
        expected: str | None,
        also: Sequence[PutOp] = (),
        given: Given | None = None,
    ) -> bool:
        """Store a version and point a name to it in one step, unless the name has moved.

        Args:
            name: the memory's name.
            version: its new head.
            expected: id of the current head; None if the name does not exist.
            also: further puts in the same step.
            given: further conditions; see `AtomicStore.acommit`.

        Returns:
            Whether it was done.
        """
        records = self.records
        head = (records.heads, name)
        done = await append_versions(
            records,
            [version],
            name,
            name,
            also=[records.put(*head, {"version": version.id}), *also],
            given={**(given or {}), head: pointer_to(expected)},
        )
        if done is not None:
            records.note(name, version.id)
        return done is not None

    async def aget(self, reference: str) -> MemoryVersion:
        """Return the version of a reference.

        Raises:
            MemoryNotFoundError: It is neither a name, nor the key of a reading or a version's id.
            BadRecordError: Its record cannot be read.
        """
        return await lookup.get(self.records, reference)

    async def ahead(self, name: str) -> MemoryVersion | None:
        """Return the newest version of a named memory; None if there is no such name."""
        return await lookup.head(self.records, name)

    async def amove_head(
        self, name: str, to: str, *, expected: str | None, also: Sequence[PutOp] = ()
    ) -> bool:
        """Point a name to another version, unless the name has moved.

        Args:
            name: the memory's name.
            to: id of its new head.
            expected: id of the current head; None if the name does not exist.
            also: further puts in the same step.

        Returns:
            Whether the name points to the version now.

        Raises:
            MemoryNotFoundError: There is no such version.
        """
        return await owners.move_head(self.records, name, to, expected=expected, also=also)

    async def ahistory(self, reference: str) -> History:
        """Return all versions that led to a memory, newest first, and the gaps between them."""
        return await lookup.history(self.records, reference)

    async def abranch(self, reference: str, name: str) -> MemoryVersion:
        """Give a memory another name; from now on, the two are independent.

        Raises:
            MemoryConflictError: The name is taken.
        """
        version = await self.aget(reference)
        (taken,) = await self.records.values([(self.records.heads, name)])
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
        await replace_for(self.records, reference, edited, after)
        return after

    async def aunder_way(self, memory: str | None = None) -> list[UnderWay]:
        """Return the readings under way, one entry per fold, without those known to have ended.

        A reading whose process was killed on another machine stays listed; its
        `UnderWay.seen` shows its age.

        Args:
            memory: only readings that write to this memory.
        """
        found = await find_readings(self.records, memory)
        return sorted(found.values(), key=lambda fold: (fold.since, fold.memory, fold.fold))

    async def adelete(self, name: str) -> None:
        """Delete a name; its versions stay until `collect` finds that no name leads to them.

        Raises:
            MemoryNotFoundError: There is no such name.
        """
        await removal.delete_name(self.records, name)

    async def aforget(self, name: str, *, preview: bool = False) -> Forgotten:
        """Delete a name, its news, and those of its versions that no other memory has or needs.

        Args:
            name: the memory's.
            preview: whether to say only what would go.

        Raises:
            MemoryNotFoundError: There is no such name.
            MemoryConflictError: Other writers kept changing it.
        """
        return await removal.forget_memory(self.records, name, preview=preview)

    async def aforget_source(
        self, *documents: str | Path | Source, preview: bool = False
    ) -> ForgottenSource:
        """Delete all that came from documents: versions, news, and what was cached.

        Versions of readings that had a document, also among others, are deleted with all that
        followed them. A named memory falls back to what it was before; `unread` of the result says
        which other documents to read into it again. A reading that is under way removes what it
        writes when it ends. When it was broken off, forget again: it continues where it was.

        Args:
            documents: their digests; or the documents, of which each joined part counts, as files
                or as sources.
            preview: whether to say only what would go.

        Raises:
            ConfigurationError: What is given is not a digest.
            MemoryConflictError: Somebody writes it again and again meanwhile.
            OSError: An entry of the user's cache cannot be removed.
        """
        digests = [
            digest
            for document in documents
            for digest in (
                [document] if isinstance(document, str) else await _open_digests(document)
            )
        ]
        return await removal.forget_source(self.records, digests, preview=preview)

    async def adigests_of(self, name: str) -> list[str]:
        """Return the digests of the documents of this name that memories were made from."""
        return await removal.digests_of(self.records, name)

    async def athin(
        self,
        name: str,
        keep: int | None,
        *,
        replaced: datetime | None = None,
        preview: bool = False,
    ) -> int:
        """Delete all but the newest versions of a memory, and return their number.

        Args:
            name: the memory's name.
            keep: number of versions to keep, at least 1; None for all.
            replaced: versions that were replaced before this time are deleted; None for none.
            preview: whether only to return how many would be deleted.
        """
        return await removal.thin(self.records, name, keep, replaced, preview=preview)

    async def acollect(self, older_than: timedelta | None = None) -> int:
        """Delete old versions that no name leads to, and return their number.

        Args:
            older_than: least age of a version to delete; 30 days by default.
        """
        return await maintenance.collect(self.records, older_than)

    async def acheck(
        self, *, repair: bool = False, spare: Iterable[MemoryVersion] = ()
    ) -> list[maintenance.Finding]:
        """Find defects: heads that point to nothing, gaps in histories, unreadable records.

        Args:
            repair: whether to repair them; the findings then say how, and what is lost.
            spare: versions with which `repair` fills gaps, as `versions_in` of
                `memagent_graph.graph.ids` finds them in a checkpointer.
        """
        return await maintenance.check(self.records, repair=repair, spare=spare)

    async def aclear(self) -> int:
        """Delete everything below this namespace, and return the number of items."""
        return await removal.clear(self.records)

    async def arecord_reading(self, version: MemoryVersion) -> bool:
        """List a reading without a name, under its key, with its newest version; return whether."""
        records = self.records
        key = make_reading_key(version.root, version.document.digest)
        newest = await lookup.newest_edit(records, version.id, key) or version
        put = records.put(records.readings, key, {"version": newest.id})
        return await records.commit([put], {(records.versions, newest.id): ...})

    async def alist(
        self, *, question: str | None = None, source: str | None = None
    ) -> list[tuple[str, MemoryVersion]]:
        """Return names with their newest versions: named memories first, then readings.

        A memory that cannot be read is skipped, and a warning that names it is logged.

        Args:
            question: only memories of this question.
            source: only memories of the document with this digest.
        """
        return await lookup.list_memories(self.records, question=question, source=source)

    async def aexport(self, names: Iterable[str] | None = None) -> list[str]:
        """Return memories as JSON lines: versions, oldest first, and then names.

        Args:
            names: names of the memories; all that can be read by default.
        """
        return await maintenance.export(self.records, names)

    async def aimport(self, lines: Iterable[str]) -> int:
        """Store the lines of an `export`, and return the number of versions.

        Raises:
            StoreError: A line is not from `export`, or the version of a name is missing.
        """
        return await maintenance.import_lines(self.records, lines)

    async def watch(self, name: str, *, after: str = "$") -> AsyncIterator[MemoryVersion]:
        """Yield a memory's new versions, without end.

        Args:
            name: name of the memory, or root id of a reading.
            after: "0" for all that the store still has, "$" for new ones.
        """
        records = self.records
        async for found in records.atomic.watch(records.versions, name, after=after):
            yield await lookup.readable(records, found.item.key, found.item.value)

    append = to_sync(aappend)
    advance = to_sync(aadvance)
    get = to_sync(aget)
    head = to_sync(ahead)
    move_head = to_sync(amove_head)
    history = to_sync(ahistory)
    branch = to_sync(abranch)
    edit = to_sync(aedit)
    under_way = to_sync(aunder_way)
    delete = to_sync(adelete)
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
