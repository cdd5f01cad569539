"""The fold's history in a store: versions found again, walked, branched, edited and forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memagent_graph.errors import MemoryConflictError
from memagent_graph.memory import holding, lookup, owners, removal, sources, upkeep
from memagent_graph.memory.appending import append
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.editing import replace_for, was_changed
from memagent_graph.memory.history import History, diff
from memagent_graph.memory.holding import HOLD_SECONDS
from memagent_graph.memory.owners import owners_of
from memagent_graph.memory.records import NAMESPACE, Records, check_namespace
from memagent_graph.memory.removal import Forgotten
from memagent_graph.memory.sources import ForgottenSource
from memagent_graph.memory.version import MemoryVersion, edited, reading_key
from memagent_graph.sync import blocking
from memagent_graph.text.source import digests_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from datetime import datetime, timedelta

    from langgraph.store.base import BaseStore, Op, PutOp

    from memagent_graph.memory.atomic import Given, Value
    from memagent_graph.memory.holding import Hold, UnderWay
    from memagent_graph.text.source import Source

__all__ = ["Forgotten", "ForgottenSource", "History", "MemoryBank", "diff"]


class MemoryBank:
    """Memories in a LangGraph store, for every agent that shares it.

    A *reference* is the name of a memory, which points to a version, its head; the key under which
    a reading without a name is listed; or a version's id. Each method has an async twin whose name
    begins with an a.

    Every version says which memories it belongs to, its owners, and every memory lists its
    versions. A head moves in one step with the check that its version exists, and a version is
    deleted in one step with the check that no memory needs it, so a head never leads to nothing.

    Args:
        store: any LangGraph store. `RedisStore` and the SQLite stores never lose a write.
        namespace: labels of the memories in the store.
        ttl: minutes that a memory lives on without being read; None for the store's default.
        patience: function that returns the seconds that one operation may take; None for no bound.

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
        """The results of a store's operations, whichever of its two sides works."""
        return await self.records.items(ops)

    async def aappend(
        self, version: MemoryVersion, *, owner: str | None = None, topic: str | None = None
    ) -> MemoryVersion:
        """Store a version unless its id is known; return the one that is stored.

        A record that cannot be read is replaced.

        Args:
            version: what to store.
            owner: the memory that it belongs to; what no memory has is collected some day.
            topic: name whose watchers are notified.
        """
        return (await append(self.records, version, owner, topic)).version

    async def aadvance(
        self,
        name: str,
        version: MemoryVersion,
        *,
        expected: str | None,
        also: Sequence[PutOp] = (),
        given: Given | None = None,
    ) -> bool:
        """Store a version and point a name to it in one step, unless somebody moved the name.

        Args:
            name: the memory's name.
            version: its new head.
            expected: the id that the head had; None if the name was free.
            also: what else is to be written in that step.
            given: what else must be stored for that; see `AtomicStore.acommit`.
        """
        records = self.records
        head, place = (records.heads, name), (records.versions, version.id)
        stored: Value | None = None
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            value = stored or version.to_record()
            names = {*owners_of(stored), name}
            puts = [
                records.put(*place, {**value, "owners": sorted(names)}),
                records.put(records.members(name), version.id, {}),
                records.put(*head, {"version": version.id}),
                *also,
            ]
            all_given = {**(given or {}), head: _pointer(expected), place: stored}
            if await records.commit(puts, all_given, topic=name):
                return True
            now, known = await records.values([head, place])
            if now != _pointer(expected) or (given and known == stored):
                break
            stored = known if isinstance(known, dict) else None  # somebody stored it before
        return False

    async def aadopt(self, owner: str, key: str) -> None:
        """Let a version, and all that led to it, belong to a memory besides those that have it.

        Args:
            owner: the memory's name.
            key: the version's id.
        """
        await owners.adopt(self.records, owner, key)

    async def afind(self, ids: Iterable[str]) -> MemoryVersion | None:
        """The last version of the longest prefix of `ids` that is known.

        Looks at 1, 2, 4, ... ids at once, so that nothing known costs one round trip and a
        thousand chunks cost ten; no more of `ids` is asked for than that, and in a thread, since
        each may take the cutting of a chunk.
        """
        return await lookup.find(self.records, ids)

    async def aget(self, reference: str) -> MemoryVersion:
        """The version that a reference leads to.

        Raises:
            MemoryNotFoundError: It is neither a name nor the id of a version.
            BadRecordError: What is stored of it cannot be read.
        """
        return await lookup.get(self.records, reference)

    async def ahead(self, name: str) -> MemoryVersion | None:
        """The newest version of a named memory, or None if there is no such name."""
        return await lookup.head(self.records, name)

    async def areading(self, key: str) -> MemoryVersion | None:
        """The newest version of a reading without a name, None if there is none to be read."""
        return await lookup.reading(self.records, key)

    async def amove_head(self, name: str, to: str, *, expected: str | None) -> bool:
        """Point a name to another version, unless somebody moved it since it was read.

        Args:
            name: the memory's name.
            to: the id of its new head.
            expected: the id that the head had; None if the name was free.

        Raises:
            MemoryNotFoundError: There is no such version.
        """
        records = self.records
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            stored = await self._stored(to)
            if stored is None:
                raise lookup.gone(to)
            given = {(records.heads, name): _pointer(expected), (records.versions, to): stored}
            puts = [records.put(records.heads, name, {"version": to})]
            if name not in owners_of(stored):
                puts += owners.adopting(records, name, to, stored)
            if await records.commit(puts, given):
                return True
            (now,) = await records.values([(records.heads, name)])
            if now != _pointer(expected):
                return now == {"version": to}  # the first to move it has read the same
        return False

    async def ahistory(self, reference: str) -> History:
        """All versions that led to a memory, newest first, and where some are gone."""
        return await lookup.history(self.records, reference)

    async def abranch(self, reference: str, name: str) -> MemoryVersion:
        """Give a memory another name, which from here on goes its own way.

        Raises:
            MemoryConflictError: The name is taken.
        """
        version = await self.aget(reference)
        (taken,) = await self.records.values([(self.records.heads, name)])
        if taken is not None or not await self.amove_head(name, version.id, expected=None):
            message = f"The name {name!r} is taken: choose another, or delete that memory."
            raise MemoryConflictError(message)
        return version

    async def aedit(self, reference: str, text: str, *, hold: Hold | None = None) -> MemoryVersion:
        """Store another text for a memory, as a version that follows the one it replaces.

        What was made of a reading without a name is what the next one who asks the same goes on
        from, with what is left of the document.

        Args:
            reference: of the memory; of one that is held, the `version` that `under_way` says.
            text: the memory from now on.
            hold: that of the memory: those who read into it go on from the edit when it is let go.

        Raises:
            MemoryNotFoundError: There is no such memory.
            MemoryConflictError: The memory was changed meanwhile, or it is no longer held.
        """
        before = await self.aget(reference)
        after = edited(before, text)
        key = reading_key(before.root, before.source)
        if hold is not None:
            await replace_for(self.records, hold.memory, before, after, hold)
        elif reference == before.id:
            return await self.aappend(after)
        elif reference == key:
            await replace_for(self.records, key, before, after)
        elif not await self.aadvance(reference, after, expected=before.id):
            raise was_changed(reference)
        return after

    async def ahold(self, memory: str, by: str, *, seconds: float = HOLD_SECONDS) -> Hold:
        """Let those who read into a memory pause, in whatever process they run.

        A reading pauses before its next chunk, merge or answer; `under_way` says when it does.
        It goes on when the memory is released, or the hold was not renewed for `seconds`.

        Args:
            memory: its name, or the key of a reading without one; it need not exist yet.
            by: who asks, for others to see.
            seconds: how long it holds without being renewed.

        Raises:
            MemoryConflictError: Somebody holds it already.
        """
        return await holding.hold(self.records, memory, by, seconds)

    async def arenew(self, hold: Hold) -> Hold:
        """Hold a memory for as many seconds more; returns the hold from now on.

        Raises:
            MemoryConflictError: It is no longer held.
        """
        return await holding.renew(self.records, hold)

    async def arelease(self, memory: str, *, hold: Hold | None = None) -> bool:
        """Let a memory go; say whether it was held.

        Args:
            memory: which.
            hold: let go only this one; without it, anybody's.
        """
        return await holding.release(self.records, memory, hold)

    async def aheld(self, memory: str) -> Hold | None:
        """Who holds a memory; one that lapsed stays in some stores until a reading meets it."""
        return await holding.held(self.records, memory)

    async def aunder_way(self, memory: str | None = None) -> list[UnderWay]:
        """The readings that are under way, a fold each, without those known to have ended.

        One whose process was killed on another machine stays: `UnderWay.seen` grows old.

        Args:
            memory: only those that read into it.
        """
        return await holding.under_way(self.records, memory)

    async def adelete(self, name: str) -> None:
        """Take a name away; its versions stay until `collect` finds nothing that leads to them.

        Raises:
            MemoryNotFoundError: There is no such name.
        """
        await removal.delete(self.records, name)

    async def aforget(self, name: str, *, preview: bool = False) -> Forgotten:
        """Delete a name, its news, and those of its versions that no other memory has or needs.

        Args:
            name: the memory's.
            preview: whether to say only what would go.

        Raises:
            MemoryNotFoundError: There is no such name.
            MemoryConflictError: Somebody writes it again and again meanwhile.
        """
        return await removal.forget(self.records, name, preview=preview)

    async def aforget_source(
        self, *documents: str | Source, preview: bool = False
    ) -> ForgottenSource:
        """Delete all that came from documents: versions, statements, news, and what was cached.

        Versions of readings that had a document, also among others, are deleted with all that
        followed them. A named memory that has statements from elsewhere is rewritten: an edited
        version without them is its new head, and its history has a gap where the old one was.
        Statements without evidence go too. A reading that is under way removes what it writes
        when it ends. When it was broken off, forget again: it goes on where it was.

        Args:
            documents: their digests; or the documents, of which each joined part counts.
            preview: whether to say only what would go.

        Raises:
            ConfigurationError: What is given is not a digest.
            MemoryConflictError: Somebody writes it again and again meanwhile.
            OSError: An entry of the user's cache cannot be removed.
        """
        digests = [
            digest
            for document in documents
            for digest in ([document] if isinstance(document, str) else digests_of(document))
        ]
        return await sources.forget(self.records, digests, preview=preview)

    async def adigests_of(self, name: str) -> list[str]:
        """The digests of the documents of that name that memories were made from."""
        return await sources.digests_of(self.records, name)

    async def athin(
        self,
        name: str,
        keep: int | None,
        *,
        replaced: datetime | None = None,
        preview: bool = False,
    ) -> int:
        """Delete all but the newest versions of a memory; say how many.

        Args:
            name: the memory's.
            keep: how many stay, at least 1; None for all.
            replaced: when a version must have been replaced to stay, at the earliest.
            preview: whether to say only how many would go.
        """
        return await removal.thin(self.records, name, keep, replaced, preview=preview)

    async def acollect(self, older_than: timedelta | None = None) -> int:
        """Delete versions that nothing leads to and that are older than that; say how many.

        Args:
            older_than: 30 days by default.
        """
        return await upkeep.collect(self, older_than)

    async def acheck(self, *, repair: bool = False) -> list[upkeep.Finding]:
        """Look for what is not as it should be: heads that lead nowhere, gaps, bad records.

        Args:
            repair: mend what can be mended; the findings say how, and what is lost.
        """
        return await upkeep.check(self, repair=repair)

    async def aclear(self) -> int:
        """Delete everything below this namespace, by all writers; say how many items."""
        return await removal.clear(self.records)

    async def arecord_reading(self, version: MemoryVersion) -> bool:
        """Remember a reading without a name by its newest version, so that it can be listed."""
        records = self.records
        key = reading_key(version.root, version.source)
        newest = await lookup.newest_edit(records, version.id, key) or version
        put = records.put(records.readings, key, {"version": newest.id})
        return await records.commit([put], {(records.versions, newest.id): ...})

    async def alist(
        self, *, question: str | None = None, source: str | None = None
    ) -> list[tuple[str, MemoryVersion]]:
        """Names with their newest versions: named memories first, then readings.

        A memory that cannot be read is left out, and a warning logged that names it.

        Args:
            question: only memories of this question.
            source: only memories of the document with this digest.
        """
        return await lookup.list_memories(self.records, question=question, source=source)

    async def aexport(self, names: Iterable[str] | None = None) -> list[str]:
        """Memories as JSON lines: their versions, oldest first, and then the names.

        Args:
            names: of which memories; all that can be read by default.
        """
        return await upkeep.export(self, names)

    async def aimport(self, lines: Iterable[str]) -> int:
        """Store what `export` gave; say how many versions. Names that exist stay as they are.

        Raises:
            StoreError: A line is none of `export`'s, or a name's version is not there.
        """
        return await upkeep.import_lines(self, lines)

    async def watch(self, name: str, *, after: str = "$") -> AsyncIterator[MemoryVersion]:
        """Follow a memory's new versions, without end.

        Args:
            name: of a named memory, or a reading's root id.
            after: "0" for all that the store still knows of, "$" for new ones.
        """
        records = self.records
        async for found in records.atomic.watch(records.versions, name, after=after):
            yield await lookup.readable(records, found.item.key, found.item.value)

    async def _stored(self, key: str) -> Value | None:
        (value,) = await self.records.values([(self.records.versions, key)])
        return value if isinstance(value, dict) else None

    append = blocking(aappend)
    advance = blocking(aadvance)
    find = blocking(afind)
    get = blocking(aget)
    head = blocking(ahead)
    move_head = blocking(amove_head)
    history = blocking(ahistory)
    branch = blocking(abranch)
    edit = blocking(aedit)
    hold = blocking(ahold)
    renew = blocking(arenew)
    release = blocking(arelease)
    held = blocking(aheld)
    under_way = blocking(aunder_way)
    delete = blocking(adelete)
    forget = blocking(aforget)
    forget_source = blocking(aforget_source)
    digests_of = blocking(adigests_of)
    thin = blocking(athin)
    collect = blocking(acollect)
    check = blocking(acheck)
    clear = blocking(aclear)
    list = blocking(alist)
    export = blocking(aexport)
    import_ = blocking(aimport)


def _pointer(version: str | None) -> Value | None:
    return None if version is None else {"version": version}
