"""How a fold meets the store as it reads: versions followed, stored, and heads moved."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from memagent_graph.errors import (
    MemoryConflictError,
    MemoryNotFoundError,
    StoreError,
)
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.company import Company
from memagent_graph.graph.holding import Holding
from memagent_graph.graph.known import Known
from memagent_graph.graph.lineage import Lineage
from memagent_graph.graph.records import (
    Fold,
    SourceRecord,
    looks_of,
    memory_of,
    noted,
    span_of,
)
from memagent_graph.memory import forget
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.circuit import store_seconds
from memagent_graph.memory.forget import remove_strays
from memagent_graph.memory.version import MemoryVersion, edit_version
from memagent_graph.memory.writer import VersionWriter
from memagent_graph.readers.base import Update
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from memagent_graph.evidence.places import Recalled
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Progress
    from memagent_graph.graph.state import Run
    from memagent_graph.text.chunks import Chunk

_BEYOND = 0.2
"""Seconds that it has for each operation after the deadline."""
_LONG = 0.1
"""Seconds that a call of the reader takes, beside which waiting for the store is nothing."""

_FORGOTTEN = (
    "A document was forgotten while this was read: what this reading stored of it is deleted. Read "
    "again to keep memories of what there is now."
)


class Chain:
    """The versions of one fold, as one call of the graph reads and stores them.

    Args:
        reading: the reading's settings.
        run: the call of the graph; it has a store.
        question: the fold's question.
        record: its document, or its segment of one.
        whole: for a segment, the chain that it is merged into.

    Attributes:
        lineage: which versions these are.
        known: begins the fold after those that are stored.
        bank: has those that are stored.
        holding: the fold's memory, which others may hold.
        parent: id of the version that the chunk is read from.
    """

    def __init__(
        self,
        reading: Reading,
        run: Run,
        question: str,
        record: SourceRecord,
        *,
        whole: Chain | None = None,
    ) -> None:
        assert run.store is not None  # noqa: S101 - `chains` looked
        self._reading, self._run, self.parent = reading, run, ""
        self.bank = MemoryBank(
            run.store,
            run.namespace,
            ttl=reading.config.ttl,
            patience=lambda: self._patience(store_seconds()),
        )
        self._whole = whole
        reuses = run.config.get("configurable", {}).get("memagent_reuse", True)
        self.lineage: Lineage = Lineage(
            reading,
            question,
            record,
            reuses=reading.config.reuse and reuses,
            whole=None if self._whole is None else self._whole.lineage,
        )
        left = partial(reading.seconds_left, run)
        self.holding: Holding = (
            self._whole.holding
            if self._whole
            else Holding(self.bank.records, self.lineage.memory(record), left)
        )
        self.known = Known(self.lineage, self.bank, self.holding)
        self._company = Company(
            reading,
            run,
            self.lineage,
            self.known,
            self.bank,
            self.holding,
            all_stored=self._all_stored,
        )
        self._writer: VersionWriter | None = None
        self._stored_last: tuple[str, str] | None = None  # its id and text
        self._holder: str | None = None  # the version that has the text of `parent`
        self._finished: MemoryVersion | None = None
        self._last: MemoryVersion | None = None
        self._lost = 0
        self._unmoved: str | None = None  # why a named memory's head is where it was
        self._read: set[str] = set()  # digests of what was read here
        self._begun_at, self._takes_long = 0.0, False

    async def before(self, fold: Fold) -> Memory:
        """The memory to read on from; sets `parent`.

        A memory that a person edited in the state first becomes a version of its own: otherwise
        the stored child of the unedited one would overtake the edit.
        """
        memory, version = memory_of(fold), fold["progress"]["version"]
        self.parent = version or self.lineage.root
        if (version, memory.text) in {self._stored_last, self.known.given}:
            return memory
        try:
            stored: MemoryVersion | None = await self.bank.aget(self.parent)
        except MemoryNotFoundError:  # the root, or a version that was never written
            stored = None
        except StoreError as error:  # not known: take it for the one that was stored
            self.known.missed, self._holder = str(error), None
            return memory
        self._holder = None if stored is None else stored.unchanged or stored.id
        if stored is None and self.parent == self.lineage.root:
            stored = self.lineage.nothing(fold["source"])
        if stored is not None and stored.text != memory.text:
            after = edit_version(stored, memory.text)
            self.parent = self._holder = after.id
            self._writes(fold).add(after)
        return memory

    async def held(self, fold: Fold, *, reads: bool = True) -> Fold:
        """Wait while the memory is held, up to the deadline; the fold to go on from.

        If a person edited its version meanwhile, it goes on from the edit.

        Args:
            fold: as it is.
            reads: whether a chunk is to be read next.
        """
        other, version = None, fold["progress"]["version"] or self.lineage.root
        if self._writer is not None and (self._takes_long or not reads):
            other = await self._writer.settle()
        if other is not None and other.edited:
            self._company.edits[version] = other
        after = await self._company.wait(fold, reads=reads)
        if after is not fold:
            key = after["progress"]["version"] or ""
            self._stored_last, self._holder = (key, after["memory"]), key
            if self._finished is not None and self._finished.id == version:
                self._finished = self._company.edits[version]
        self._begun_at = monotonic()
        return after

    async def _all_stored(self) -> bool:
        """Wait for what is being written: what is not stored cannot be edited."""
        if self._writer is not None:
            await self._writer.settle()
        return self._writer is None or self._writer.idle

    async def followed(
        self, fold: Fold, chunk: Chunk, recalled: Sequence[Recalled] = ()
    ) -> Update | None:
        """What another agent, which reads the same, made of a chunk; None to read it here.

        Args:
            fold: before the chunk.
            chunk: to read.
            recalled: what is shown again with it.

        Raises:
            TimeoutError: The deadline came first.
            HeldUpError: The memory is held, or the version to read on from was edited.
        """
        found = await self._company.followed(fold, self.parent, chunk, recalled)
        if found is None:
            return None
        return Update(
            None if found.unchanged else found.memory,
            done=found.enough is not None,
            answer=found.enough or "",
            recall=found.recall,
            unfinished=found.cut,
        )

    def beating(self) -> AbstractAsyncContextManager[object]:
        """Shows who follows that this run lives while it waits for its model."""
        return self._company.beating()

    async def abandon(self) -> None:
        """Let others read on from what a fold that failed has stored, unless it was forgotten."""
        if self._writer is not None:
            await self._writer.settle()
            await self._without_forgotten(self._writer.written)
        await self._company.leave()

    async def overtaken(self) -> Memory | None:
        """What another agent stored first as the memory that was read from, if it differs."""
        other = None if self._writer is None else await self._writer.settle()
        if other is None or (other.id != self.parent and not other.edited):
            return None
        self.parent, self._holder = other.id, other.unchanged or other.id
        return other.memory

    async def named(self, name: str) -> MemoryVersion | None:
        """Another memory, as it is now; None if there is none to be read."""
        try:
            return await self.bank.ahead(name)
        except (StoreError, MemoryNotFoundError) as error:
            self.known.missed = str(error)
            return None

    async def earlier(self, which: int | str) -> MemoryVersion | None:
        """An earlier memory of this reading; None if there is none to be read.

        Args:
            which: number of a step, or a version's id.
        """
        if self._writer is not None:
            await self._writer.settle()
        try:
            history = await self.bank.ahistory(self.parent)
        except MemoryNotFoundError:  # nothing was read yet
            return None
        except StoreError as error:
            self.known.missed = str(error)
            return None
        own = (version for version in history if version.root == self.lineage.root)
        return next((one for one in own if which in {one.id, one.step}), None)

    async def keep(
        self,
        fold: Fold,
        chunk: Chunk,
        tokens: int,
        *,
        gated: bool = False,
        recalled: Sequence[Recalled] = (),
    ) -> Fold:
        """Begin to store the memory after `chunk`; at the end move a named memory's head to it.

        Args:
            fold: after the chunk.
            chunk: what was read.
            tokens: of the memory.
            gated: whether it is the one that the chunk was read from.
            recalled: what was shown again with it.

        Returns:
            The fold, begun anew at the winner's head if a race for the head was lost.
        """
        progress, writer = fold["progress"], self._writes(fold)
        # A memory that a reading ends with is whole, since heads lead there. So is one after
        # something that is not written yet, in the place of which another may be stored.
        ends = progress["stopped"] or chunk.end >= span_of(fold["source"]).end
        shares = gated and not ends and writer.idle
        version = self.lineage.after_chunk(
            self.parent,
            fold,
            chunk,
            tokens,
            recalled=recalled,
            unchanged=self._holder if shares else None,
        )
        self._last = version
        self._read |= {version.source, *(digest for digest, _ in version.parts)}
        self._takes_long = monotonic() - self._begun_at >= _LONG
        self._stored_last = (version.id, version.text)
        self._holder = version.unchanged or version.id
        fold = {**fold, "progress": {**progress, "version": version.id}}
        writer.add(version, *self._company.notes(fold))
        if not progress["stopped"]:
            return fold
        if fold["source"].get("memory_name"):
            return await self._move_head(fold)
        self._finished = version
        return fold

    async def end(self, fold: Fold) -> Fold:
        """End a fold that has skipped its last chunk: its last version is that of the document.

        Returns:
            As `keep`.
        """
        version = fold["progress"]["version"]
        if self._last is None and version not in {None, self.lineage.root}:  # of a resumed run
            with suppress(StoreError, MemoryNotFoundError):
                self._last = await self.bank.aget(str(version))
        if self._last is None:  # nothing was read
            return fold
        self._writes(fold)
        if fold["source"].get("memory_name"):
            return await self._move_head(fold)
        self._finished = self._last
        return fold

    async def merge_of(self, fold: Fold, parts: Sequence[Fold]) -> MemoryVersion | None:
        """What the store has as merged from these segments."""
        key = self.lineage.merged_id(parts)
        if key is None or not self.lineage.reuses:
            return None
        try:
            found = await self.bank.aget(key)
            await self.bank.aadopt(self.lineage.memory(fold["source"]), found.id)
        except (StoreError, MemoryNotFoundError):
            return None
        return found

    async def merged(self, fold: Fold, parts: Sequence[Fold], query: str | None) -> Fold:
        """Begin to store what was merged from segments; the fold with what was stored first.

        Args:
            fold: after the merge.
            parts: the segments' folds.
            query: what the next round looks for.
        """
        version = self.lineage.after_merge(fold, parts, query)
        if version is None:
            return fold
        self._writes(fold).add(version)
        fold = {**fold, "progress": {**fold["progress"], "version": version.id}}
        if query is not None and (other := await self._writes(fold).settle()) is not None:
            at: Progress = {**fold["progress"], "version": other.id}
            version, fold = other, {**fold, **noted(other.memory), "progress": at}
        self._stored_last, self._finished = (version.id, version.text), version
        return fold

    async def finish(self, fold: Fold) -> tuple[Memory | None, list[str]]:
        """Wait until all is stored; say what another agent stored first, and what went wrong.

        Raises:
            StoreError: Strict, and something could not be stored.
        """
        if self._writer is None:
            missed = (
                None
                if self.known.missed is None
                else f"Nothing stored was used: {self.known.missed}"
            )
            if missed is None:
                missed = await self._company.missed()
            await self._leave()
            return None, [] if missed is None else [missed]
        await self._writer.settle()
        left = 0
        if self._unmoved is None:  # else it was waited for already
            left = await self._flush(self._writer)
        other = await self._writer.settle()
        edited = other is not None and other.id != fold["progress"]["version"]
        away = left or self._unmoved is not None  # it would be asked in vain, and that is said
        edits = None if away else await self._company.missed()
        await self._leave()  # not before: who took the lease would read the last chunk again
        message = self._unmoved
        if left and message is None:
            message = str(_unstored(left, self._writer.error))
        elif message is None and self._whole is None:
            try:
                if self._finished is not None:
                    await self.bank.arecord_reading(self._finished)
                if self._reading.config.keep_versions is not None:
                    await self.bank.athin(
                        self.lineage.memory(fold["source"]), self._reading.config.keep_versions
                    )
            except StoreError as error:
                message = f"The memory is stored, and could not be listed: {error}"
        if message is not None and self._reading.config.strict:
            raise StoreError(message)
        memory = None if other is None or edited else other.memory
        forgotten = None if away else await self._without_forgotten(self._writer.written)
        return memory, [said for said in (message, edits, forgotten) if said is not None]

    async def _leave(self) -> None:
        """Let others read on, and let nobody see a reading that is over."""
        await (self._company.leave() if self._whole is None else self._company.release())

    async def _without_forgotten(self, written: Sequence[str]) -> str | None:
        """Delete what was written of a document that was forgotten meanwhile; say so."""
        if self.known.noticed is None:
            return None
        try:
            late = await forget.notices_since(self.bank.records, self.known.noticed)
            read = sorted(self._read & late)
            for digest in read:
                await self.bank.aforget_source(digest)
            strays = await remove_strays(self.bank.records, written) if late else 0
        except (StoreError, OSError) as error:
            return f"Whether a document was forgotten meanwhile is not known: {error}"
        return _FORGOTTEN if read or strays else None

    async def _move_head(self, fold: Fold) -> Fold:
        record, progress = fold["source"], fold["progress"]
        name, version = record["memory_name"], progress["version"]
        assert version is not None  # noqa: S101 - `keep` stored it
        writer = self._writes(fold)
        await writer.settle()
        left = await self._flush(writer)
        try:
            if left:  # a head must not lead to what is not stored
                raise _unstored(left, writer.error)
            if await self.bank.amove_head(name, version, expected=record["head"]):
                return fold
        except MemoryNotFoundError:
            pass  # somebody forgot this memory meanwhile: read it again, from its beginning
        except StoreError as error:
            self._unmoved = f"Memory {name!r} is still what it was before this reading: {error}"
            return fold
        self._lost += 1
        self.bank.records.guard.count(lost_races=1)
        if self._lost > MOST_LOST_RACES:
            message = (
                f"Other writers moved {name!r} on {self._lost} times. What was read is kept as "
                f"version {version}: branch it, or read again."
            )
            raise MemoryConflictError(message)
        await pause(self._lost)
        head = await self.bank.ahead(name)  # None: it was deleted meanwhile, as if never been
        at = self.lineage.root if head is None else head.id
        await self._company.begin_anew(at)
        return {
            **fold,
            **noted(Memory() if head is None else head.memory),
            "source": {**record, "head": None if head is None else head.id},
            "progress": {
                **progress,
                "position": 0,
                "stopped": None,
                "version": at,
                "skipped": [],
                "again": False,
                "looks": {**looks_of(progress), "wanted": None, "after": 0},
            },
        }

    def _writes(self, fold: Fold) -> VersionWriter:
        if self._writer is None:
            name = fold["source"].get("memory_name")
            self._writer = VersionWriter(
                self.bank,
                self.lineage.memory(fold["source"]),
                name,
                beside=self.holding.place,
                saw=self.holding.saw,
            )
        return self._writer

    async def _flush(self, writer: VersionWriter) -> int:
        most = 2 * store_seconds()  # for all that the store has not taken yet
        patience = self._patience(most)
        return await writer.flush(patience, strictly=patience < most)

    def _patience(self, most: float) -> float:
        """Seconds to wait for the store: `most`, and hardly any beyond the deadline."""
        left = self._reading.seconds_left(self._run)
        return most if left is None else min(most, max(left, 0.0) + _BEYOND)


def _unstored(left: int, error: Exception | None) -> StoreError:
    return StoreError(f"{plural(left, 'memory version')} could not be stored: {error}")
