"""Versions: a stored version is taken, one that another reading makes is awaited, or it is read."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import MemoryNotFoundError, StoreError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.events import edit_event
from memagent_graph.graph.lineage import Lineage, begin_anew, move_to, relocate, version_of
from memagent_graph.graph.reading import FoldUpdate, fold_name, memory_of
from memagent_graph.graph.segments import Merged
from memagent_graph.graph.state import (
    VERSIONS,
    Fold,
    cost_of,
    count_covered,
    is_segmented,
    mark_taken,
)
from memagent_graph.memory.bank import MemoryBank, keep_answer
from memagent_graph.memory.chain import VersionWriter, adopt
from memagent_graph.memory.lease import EditedError, Lease, UnderWay, can_lease
from memagent_graph.memory.store import Tries
from memagent_graph.memory.version import (
    ChunkRead,
    MemoryVersion,
    ReadDocument,
    VersionMerge,
    child_id,
    edit_version,
    make_fingerprint,
    make_reading_key,
    merge_id,
)
from memagent_graph.readers.base import Usage
from memagent_graph.templates import plural
from memagent_graph.text.source import JoinedSource, parts_with_offsets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from memagent_graph.graph.reading import FoldStep, Reading
    from memagent_graph.graph.state import Run
    from memagent_graph.memory.store import Value
    from memagent_graph.text.chunks import Chunk, Cutter


_FORGOTTEN = (
    "A document was forgotten while this was read: nothing that this reading made of it is stored. "
    "Read again to keep memories of what there is now."
)
_BEYOND = 0.2
"""Seconds that it has for each operation after the deadline."""
_SLOW = 0.75
"""Seconds beyond which a store that takes longer than the reader is not waited for."""
_NOTHING = 0.01
"""Share of the time of a call that waiting for the store may add."""


class Chain:
    """The versions of one fold, as one call of the graph reads and stores them.

    Attributes:
        lineage: where they begin.
        bank: has those that are stored.
        lease: the fold's record among those under way.
        writer: writes the versions of the reading, with all its folds.
        parent: id of the version that the chunk is read from.
        at: that version; None for the root, or if it is not known.
    """

    def __init__(self, reading: Reading, run: Run, fold: Fold, whole: Chain | None = None) -> None:
        assert run.store is not None  # noqa: S101 - `chains` looked
        self._reading, self._run, self.parent = reading, run, ""
        self._whole = whole
        self.at: MemoryVersion | None = None
        reuses = run.config.get("configurable", {}).get("memagent_reuse", True)
        made, above = version_of(fold), None if whole is None else whole.lineage
        # The question of a resumed run may have been changed: its notes so far are another's.
        reuses &= reading.config.reuse and (made is None or made.question == fold["question"])
        if whole is None:
            self.bank: MemoryBank = MemoryBank(
                run.store,
                run.namespace,
                ttl=reading.config.ttl,
                patience=lambda: self._patience(self.bank.guard.seconds),
            )
            self.writer = VersionWriter(self.bank)
        else:
            self.bank, self.writer = whole.bank, whole.writer
        stored = self.bank, self.writer.fence
        self.lineage: Lineage = Lineage(reading, fold, *stored, reuses=reuses, whole=above)
        shares = reuses and reading.config.lease and can_lease(self.bank)
        self.lease: Lease = Lease(self.bank, self.lineage.key(fold) if shares else None)
        self.writer.leases.append(self.lease)
        self._missed: str | None = None  # an edit that a lost race took away
        # Whether the store is asked for each chunk: until it does not know one.
        self._replays = self.lineage.reuses and not self.lineage.is_listed
        self._writes = False  # whether this call has read anything
        self._seen: Value | None = None  # the record of the end of a reading without a name
        self._races: Tries | None = None  # for a head
        self._unstored = 0  # versions that could not be stored
        self._unmoved: str | None = None  # why a named memory's head is where it was
        self._begun_at, self._took = 0.0, 0.0  # the last chunk, in seconds
        self.ending: asyncio.Future[None] | None = None  # an event loop's references are weak

    async def begin(self, cutter: Cutter, new: Fold, name: str | None) -> Fold:
        """Return where to begin: at a named memory's head, or nowhere, past all that is stored."""
        fold = await self.lineage.begin(cutter, new, name)
        await self.lease.move_to(self.lineage.key(fold))
        return fold

    async def open(self, fold: Fold) -> Memory:
        """Return the memory to read from; set `parent`.

        A memory that a person edited in the state first becomes a version of its own: otherwise
        the stored child of the unedited one would overtake the edit.
        """
        memory, version = memory_of(fold), fold["progress"]["version"]
        self.parent = version or self.lineage.root
        begun = [self.at, self.lineage.begun, None if self._whole is None else self._whole.at]
        known = {(one.id, one.text): one for one in begun if one is not None}
        at = (self.parent, memory.text)
        if at in known or at == (self.lineage.root, ""):
            self.at = known.get(at)
            return memory
        made = version_of(fold)
        try:
            stored: MemoryVersion | None = await self.bank.aget(self.parent)
        except MemoryNotFoundError:  # the root, or a version that was never written
            stored = made
            if made is not None:  # by a run that was killed after its checkpoint
                self._write(fold, made)
        except StoreError as error:  # not known: take it for the one that was stored
            self.lineage.missed, self.at = str(error), made
            if made is not None and not made.edited:
                self._write(fold, made)
            return memory
        if stored is None and not (fold["progress"]["step"] or fold["scope"]["head"]):
            self.parent = self.lineage.root  # of a resumed run that reuses nothing, it is another
        if stored is None and self.parent == self.lineage.root:
            stored = self._make_root(fold)
        if stored is not None and stored.text != memory.text:
            stored = edit_version(stored, memory.text)
            self.parent = stored.id
            self._write(fold, stored)
        self.at = stored
        return memory

    async def take_edit(self, fold: Fold, *, last: bool = False) -> Fold:
        """Return the fold, from a user's edit of its memory if there is one that it has not.

        What was read since the edited version is to be read again. If it is the `last` call, all is
        stored, and the fold has what another stored first in the place of its last version. It
        leaves the list of those under way, and no edit is accepted for it any more.
        """
        if not (self._writes or self.lease.due):  # it has read nothing that could be edited
            return fold
        late = self._seconds_left() <= 0
        taken, stopped = fold, fold["progress"]["stopped"]
        if last and not self._writes and version_of(fold) is not None:  # of a run that was killed
            await self.open(fold)
            self._writes |= not (stopped == "deadline" or fold["scope"]["memory_name"])
        with suppress(StoreError):  # the next reading of the same takes it
            most = _NOTHING * self._took
            if last or (self._writes and not late and self.writer.seconds <= most):
                await self.writer.settle(None if last else most)
            if last and self._whole is None and self._unmoved is None:
                self._unstored = await self._flush()  # others may have stored something else
            # Whom it followed may have left the list.
            self.lease.due |= last and not (self.lease.held or self.lease.gone)
            taken = await self._take(fold)
            while last and not late and taken["progress"]["stopped"] == stopped:
                if await self.lease.leave(self.describe(taken)):
                    break
                taken = await self._take(taken)
        return taken

    async def _take(self, fold: Fold) -> Fold:
        """The fold, from an edit that it has not taken, or from what others stored in its place."""
        lease, at = self.lease, fold["progress"]["version"]
        if lease.turn is not None:
            edit, lease.turn = lease.turn, None
            edited, lease.due = edit.id, True
            self._replays = self.lineage.reuses  # the others may have read on
        elif (found := await lease.find_edit(self.describe(fold))) is not None:
            edit, edited = found
        else:
            return fold
        self.at, lease.ends, lease.gone = edit, None, False
        if self._whole is not None and edit.document.digest != fold["source"]["digest"]:
            edit = relocate(edit, fold, self._reading.find_cutter(self._run, fold).source)
        after = move_to(fold, edit, edited)
        after = mark_taken(after, edit.id) if edited != edit.id else after
        if lease.held:
            await lease.acquire(self.describe(after))
        if edited != edit.id:
            self._run.emit(edit_event(self._reading, self._run, after, self._memory(fold)))
        if edited != at and after["progress"]["stopped"]:
            return await self.end(after)
        return after

    async def follow(self, fold: Fold, chunk: Chunk) -> FoldUpdate | None:
        """Return the update that another reading makes of a chunk; None to read it here.

        Raises:
            TimeoutError: The deadline came first.
            EditedError: The memory was edited.
        """
        self._begun_at = asyncio.get_running_loop().time()
        ids = child_id(self.parent, chunk.digest, self.lineage.root), self.parent
        unread = self.parent == self.lineage.root and ids[0] == self.lineage.absent
        found = await self.lease.follow(
            self.describe(fold), ids, self._seconds_left, replays=self._replays, unread=unread
        )
        if found is None:
            self._replays = False
            return None
        memory = None if found.unchanged else relocate(found, fold, chunk.source).memory
        return FoldUpdate(memory, unfinished=found.cut, tokens=found.tokens)

    async def abandon(self) -> None:
        """Let others read on from what a fold that failed has stored; no more of it is written."""
        await self._flush()
        await self._let_go()

    async def _let_go(self) -> None:
        """Let others read on, and let nobody see a reading that is over, with all its folds."""
        await asyncio.gather(*(lease.release() for lease in self.writer.leases))

    async def expect_no_other(self) -> None:
        """Wait until the memory that was read from is stored.

        A slow store that takes longer than the reader is not waited for: it would set the pace. If
        such a run is killed, versions are lost between the last that was stored and the checkpoint.

        Raises:
            EditedError: Another agent had stored another one first.
        """
        is_slow = self.writer.seconds > max(_SLOW, self._took)
        await self.writer.settle(0 if is_slow else self.bank.guard.seconds)
        if self.lease.turn is not None:
            raise EditedError

    def keep(self, fold: Fold, step: FoldStep, update: FoldUpdate) -> Fold:
        """Begin to store the memory after a chunk, and return the fold with its version."""
        chunk, digest = step.chunk, fold["source"]["digest"]
        others = () if self.at is None else self.at.documents
        version = self._make(
            fold,
            chunk.end,
            id=child_id(self.parent, chunk.digest, self.lineage.root),
            parent=self.parent,
            made_by=_read_of(chunk),
            sources=tuple(dict.fromkeys(row for row in others if row[0] != digest)),
            tokens=update.tokens,
            unchanged=step.update_gate and update.memory is None,
        )
        self._took = asyncio.get_running_loop().time() - self._begun_at
        return self._store(fold, version)

    def _make_root(self, fold: Fold) -> MemoryVersion:
        """The root, which is not stored, as a version that an edit follows."""
        begin, root = fold["scope"]["start"], self.lineage.root
        version = self._make(fold, begin, id=root, parent="", tokens=0, made_by=ChunkRead(begin))
        return replace(version, step=0, memory=Memory())

    def _make(self, fold: Fold, end: int, **made: Any) -> MemoryVersion:
        """The version of a fold that has read up to `end`; `made` are further fields."""
        source, progress, lineage = fold["source"], fold["progress"], self.lineage
        about = source["digest"], source["name"], source["length"]
        skipped = tuple((first, last) for first, last in progress["skipped"])
        return MemoryVersion(
            root=lineage.root,
            question=lineage.question,
            fingerprint=lineage.fingerprint,
            step=progress["step"],
            document=ReadDocument(*about, end, skipped, progress["again"], fold["scope"]["start"]),
            memory=memory_of(fold),
            cut=progress["cut"],
            **made,
        )

    def _store(self, fold: Fold, version: MemoryVersion) -> Fold:
        """Begin to store a version; the fold that ends with it, which `version_of` makes again."""
        self.at = version
        progress = {**fold["progress"], "version": version.id}
        state = {**fold["layers"].get(VERSIONS, {}), "made": version.to_stub()}
        layers = {**fold["layers"], VERSIONS: state}
        fold = {**fold, "progress": progress, "layers": layers}  # type: ignore[typeddict-item]
        self._write(fold, version)
        return fold

    async def end(self, fold: Fold) -> Fold:
        """End a fold with its last version; move a named memory's head to it.

        If the race for the head was lost, return the fold begun anew at the winner's head.
        """
        self._writes = True
        if fold["scope"]["memory_name"]:
            return await self._move_head(fold)
        if self._whole is None and self.at is not None:
            pointer = {"version": self.at.id}
            key = self._memory(fold)
            self.lease.ends = self.bank.put(self.bank.readings, key, pointer)
        return fold

    async def find_merge(self, fold: Fold, parts: Sequence[Fold]) -> Merged | None:
        """Return what these segments were merged to, if that is stored."""
        key = self._id_of_merge(parts)
        if key is not None and self.lineage.reuses:
            with suppress(StoreError):
                ((_, value),) = await self.bank.by_id([key])
                found = MemoryVersion.from_record(value, key)
                await adopt(self.bank, self._memory(fold), key, value)
                return Merged([found.memory], Usage(), found.cut)
        return None

    async def store_merge(self, fold: Fold, parts: Sequence[Fold]) -> Fold:
        """Begin to store what was merged from segments; the fold with what was stored first."""
        key = self._id_of_merge(parts)
        if key is None:  # the deadline came before the first chunk
            return fold
        version = self._make(
            fold,
            fold["progress"]["position"],
            id=key,
            parent=self.lineage.root,
            tokens=self._reading.count(fold["memory"]),
            made_by=VersionMerge(_read_versions(parts)),
        )
        return self._store(fold, version)

    def _id_of_merge(self, parts: Sequence[Fold]) -> str | None:
        """The id of what is merged from segments; None if nothing was read of them."""
        ids, starts = _read_versions(parts), (part["scope"]["start"] for part in parts)
        return merge_id(ids, make_fingerprint(self.lineage.fingerprint, *starts)) if ids else None

    async def close(self, fold: Fold) -> list[str]:
        """List what was stored, and let others read on; return warnings of what went wrong."""
        if not (self._writes or self._unstored):
            await self._let_go()
            missed = self.lineage.missed
            return [] if missed is None else [f"Nothing stored was used: {missed}"]
        message = self._unmoved or (
            str(self._store_error(self._unstored)) if self._unstored else None
        )
        # Not before: who took the lease would read the last chunk again.
        message, _ = await asyncio.gather(self._list(fold, message), self._let_go())
        if message is not None and self._reading.config.strict:
            raise StoreError(message)
        forgotten = _FORGOTTEN if self.writer.fence.forgotten else None
        return [said for said in (message, self._missed, forgotten) if said is not None]

    async def _list(self, fold: Fold, message: str | None) -> str | None:
        """List the reading, and thin its versions out; return what went wrong, also before."""
        keep, scope = self._reading.config.keep_versions, fold["scope"]
        is_whole = is_segmented(scope) or fold["progress"]["stopped"] != "deadline"
        try:
            if self.at is not None and is_whole and not scope["memory_name"] and message is None:
                if self.lease.gone:
                    self._seen = self.at.to_record([self._memory(fold)])
                else:
                    self._seen = await self.bank.arecord_reading(self.at)
            if keep is not None and message is None:
                await self.bank.athin(self._memory(fold), keep)
        except StoreError as error:
            return f"The memory is stored, and could not be listed: {error}"
        return message

    async def mark_answered(self, fold: Fold, answer: str) -> None:
        """Keep the answer with its version; the next reading of the same into a name is another."""
        version, usage = str(fold["progress"]["version"]), cost_of(fold["progress"])
        seen = self._seen if self._writes else self.lineage.record
        with suppress(StoreError):
            await keep_answer(self.bank, version, answer, usage, seen)

    async def _move_head(self, fold: Fold) -> Fold:
        scope, fence = fold["scope"], self.writer.fence
        name, version = scope["memory_name"], fold["progress"]["version"]
        assert name is not None and version is not None  # noqa: S101, PT018 - `keep` stored it
        await self.writer.settle()
        left = await self._flush()
        try:
            if left:  # a head must not lead to what is not stored
                raise self._store_error(left)
            with suppress(MemoryNotFoundError):  # a document that it is made from was forgotten
                if await self.lineage.move_head(fold, name, scope["head"]):
                    return {**fold, "scope": {**scope, "head": version}}
            await fence.look()
        except StoreError as error:
            self._unmoved = f"Memory {name!r} is still what it was before this reading: {error}"
            return fold
        if fence.forgotten & fence.own:
            return fold
        fence.forgotten.clear()
        fence.read.clear()
        self.bank.guard.count(lost_races=1)
        self._races = self._races or Tries(f"What was read is kept, but {name!r}")
        await anext(self._races)
        head = await self.bank.ahead(name)  # None: it was deleted meanwhile, as if never been
        await self.lease.look()
        taken = fold["layers"].get(VERSIONS, {}).get("edit")
        noted = self.lease.get_noted(self.describe(fold)) or taken
        history = [] if head is None or not noted else await self.bank.ahistory(head.id)
        if noted and noted not in {one.id for one in history}:
            self._missed = (
                f"Memory {name!r} was edited while it was read, and another reading moved it on "
                f"first without the edit, version {noted}: merge it by hand."
            )
        after = begin_anew(fold, head, self.lineage.root if head is None else head.id)
        await self.lease.move_to(self.lineage.key(after))
        return mark_taken(after, noted) if noted else after

    def _write(self, fold: Fold, version: MemoryVersion) -> None:
        self._writes = True
        self.writer.add(version, self.describe(fold), self.lease)

    def _memory(self, fold: Fold) -> str:
        """The memory that the versions belong to: its name, or the reading's key."""
        key = make_reading_key(self.lineage.whole_root, fold["source"]["digest"])
        return fold["scope"]["memory_name"] or key

    def describe(self, fold: Fold) -> UnderWay:
        """Return what others are to see of the fold."""
        source, scope, progress = fold["source"], fold["scope"], fold["progress"]
        start, end, state = scope["start"], scope["end"], fold["layers"].get(VERSIONS, {})
        passed = progress["position"] - start
        return UnderWay(
            memory=self._memory(fold),
            question=fold["question"],
            source=source["digest"],
            source_name=source["name"],
            fold=fold_name(scope),
            step=progress["step"],
            position=count_covered(progress, start, end) if progress["again"] else passed,
            length=end - start,
            version=None if progress["version"] == self.lineage.root else progress["version"],
            since=self.writer.since,
            head=scope["head"] or "",
            edit=state.get("edit") or "",
            taken=state.get("taken", ""),
        )

    async def _flush(self) -> int:
        most = 2 * self.bank.guard.seconds  # for all that the store has not taken yet
        patience = self._patience(most)
        return await self.writer.flush(patience, strictly=patience < most)

    def _store_error(self, left: int) -> StoreError:
        error = self.writer.error or self.bank.guard.refusal or "The store took too long."
        return StoreError(f"{plural(left, 'memory version')} could not be stored: {error}")

    def _patience(self, most: float) -> float:
        """Seconds to wait for the store: `most`, and hardly any beyond the deadline."""
        return min(most, max(self._seconds_left(), 0.0) + _BEYOND)

    def _seconds_left(self) -> float:
        left = self._reading.seconds_left(self._run)
        return inf if left is None else left


@asynccontextmanager
async def abandon_at_error(chain: Chain) -> AsyncIterator[None]:
    """Abandon a reading whose step fails; if it is cancelled, in the background."""
    try:
        yield
    except EditedError:
        raise
    except BaseException as error:
        chain.ending = asyncio.ensure_future(chain.abandon())
        if isinstance(error, Exception):
            await asyncio.shield(chain.ending)
        raise


def _read_of(chunk: Chunk) -> ChunkRead:
    """The record of a chunk for its version."""
    source, found = chunk.source, parts_with_offsets(chunk.source, chunk.start, chunk.end)
    parts = ((part.digest, part.name) for part, _ in found if isinstance(source, JoinedSource))
    return ChunkRead(chunk.start, tuple(dict.fromkeys(parts)))


def _read_versions(parts: Sequence[Fold]) -> tuple[str, ...]:
    """The last versions of those segments of which anything was read."""
    read = [part["progress"] for part in parts if part["progress"]["step"]]
    return tuple(progress["version"] for progress in read if progress["version"])
