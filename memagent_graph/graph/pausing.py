"""One fold where its memory is held: others see how far it is, it waits, and finds edits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memagent_graph.errors import StoreError
from memagent_graph.graph.events import HeldEvent, PausedFold, ReleasedEvent
from memagent_graph.graph.records import noted, round_of, segment_name, span_of
from memagent_graph.graph.skimming import covered
from memagent_graph.graph.telling import about
from memagent_graph.memory import sharing
from memagent_graph.memory.lookup import edit_of, newest_edit
from memagent_graph.memory.sharing import UnderWay

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from langgraph.store.base import PutOp

    from memagent_graph.graph.holding import Holding
    from memagent_graph.graph.reading import Reading
    from memagent_graph.graph.records import Fold, Progress, SourceRecord
    from memagent_graph.graph.state import Run
    from memagent_graph.memory.sharing import Hold
    from memagent_graph.memory.version import MemoryVersion

_IDS_AT_ONCE = 100
"""Versions to look at in one round trip."""

_MISSED = (
    "Memory {memory!r} was edited while it was read, and this reading does not have version {ids}: "
    "the edit came too late, the store was away, or another reading moved the memory on first. "
    "Read again, or merge it by hand."
)
_UNKNOWN = "Whether memory {memory!r} was edited while it was held is not known: {error}"


@dataclass(slots=True)
class Pauses:
    """What one fold has to do with who holds its memory.

    Attributes:
        reading: whose fold it is.
        run: the call of the graph.
        holding: what it shares with the other folds of its question.
        root: the id before the first chunk.
        shares: whether it shares its work with others that read the same.
        edits: what persons made of versions of this fold, by the ids of these.
        looked: whether it was looked, as the fold began, if its memory is held or was edited.
        listed: whether others can see this fold.
    """

    reading: Reading
    run: Run
    holding: Holding
    root: str
    shares: bool
    edits: dict[str, MemoryVersion] = field(default_factory=dict)
    looked: bool = False
    listed: bool = False
    _waits: int = 0  # up to which edits were looked for
    _doubtful: set[str] = field(default_factory=set)  # versions of which there may be edits
    _heads: set[str] = field(default_factory=set)  # versions to begin anew at

    def note(self, fold: Fold, *, held: bool = False) -> PutOp:
        """What lets others see how far the fold is."""
        there = self._there(fold, held=held)
        self.holding.listed[there.fold] = sharing.forget_reading(self.holding.records, there)
        return sharing.note_reading(self.holding.records, there)

    def _there(self, fold: Fold, *, held: bool = False) -> UnderWay:
        source, progress = fold["source"], fold["progress"]
        name, start, end = span_of(source)
        passed = progress["position"] - start
        return UnderWay(
            memory=self.holding.memory,
            question=fold["question"],
            source=source["digest"],
            source_name=source["name"],
            fold=name,
            round=round_of(source),
            step=progress["step"],
            position=covered(progress, start, end) if progress["again"] else passed,
            length=end - start,
            version=self._version(fold),
            since=self.holding.since,
            holder=self.holding.holder,
            held=held,
            lease=lease_key(source, self.root) if self.shares else "",
        )

    async def enter(self, fold: Fold) -> None:
        """List the fold, and only then look whether its memory is held, or was edited.

        Edits need a hold, and are refused while a fold is listed that does not wait at the version
        that was edited. So of an edit that was accepted before the fold was listed, either the edit
        or its hold is seen here.
        """
        self.listed = True
        there = self._there(fold)
        for name in _siblings(fold["source"]):
            left = sharing.forget_reading(self.holding.records, replace(there, fold=name))
            self.holding.left[name] = left
        with suppress(StoreError):
            await self.holding.records.items([self.note(fold)])
        await self.look(fold)

    async def look(self, fold: Fold) -> None:
        """Look whether the fold's memory is held, or its version was edited."""
        self.looked = True
        records, version = self.holding.records, fold["progress"]["version"] or self.root
        try:
            places = [self.holding.place, (records.versions, version)]
            hold, stored = await records.values(places, refresh=False)
            self.holding.saw(hold)
            if edit_of(stored, self.holding.memory):
                await self.find_edit(fold)
        except StoreError:
            self._doubtful.add(version)

    async def look_at(self, versions: Sequence[str]) -> None:
        """Look whether versions were edited that the fold has passed, so that it misses the edits.

        Another reading had stored them, and this one was not listed while it took them over.
        """
        records, memory = self.holding.records, self.holding.memory
        for first in range(0, len(versions), _IDS_AT_ONCE):
            ids = versions[first:][:_IDS_AT_ONCE]
            try:
                places = [(records.versions, version) for version in ids]
                values = await records.values(places, refresh=False)
            except StoreError:
                self._doubtful.update(ids)
                continue
            found = zip(ids, values, strict=True)
            edited = {version for version, value in found if edit_of(value, memory)}
            self._doubtful |= edited - {*self.edits}

    def begin_anew(self, head: str) -> None:
        """Begin at another reading's version, which has no edits of what was read here."""
        self._doubtful |= {*self.edits}
        self.edits.clear()
        self._heads.add(head)
        self.listed = False

    async def wait(self, fold: Fold, beating: AbstractAsyncContextManager[object]) -> None:
        """Wait until the memory is let go, and look for edits.

        Args:
            fold: all of which is stored.
            beating: shows that this run lives.
        """

        def tell(hold: Hold) -> None:
            told = self._told(fold)
            self.run.emit(HeldEvent(event="held", by=hold.by, since=hold.since, **told))

        async with beating:
            while self.holding.asked is not None and not self.holding.is_late:
                waited = await self.holding.wait(self.note(fold, held=True), tell)
                self._waits = self.holding.waits
                self._doubtful.add(fold["progress"]["version"] or self.root)
                await self.enter(fold)  # somebody may hold and edit it again already
                after = self.edited(fold)
                if waited:
                    told, edited = self._told(after), after is not fold
                    self.run.emit(ReleasedEvent(event="released", edited=edited, **told))
                if after is not fold:
                    with suppress(StoreError):
                        await self.holding.records.items([self.note(after)])
                fold = after

    async def look_for_edits(self, fold: Fold) -> None:
        """Look whether the fold's version was edited while it, or another fold, waited."""
        if self._waits != self.holding.waits:
            self._waits = self.holding.waits
            await self.find_edit(fold)

    async def find_edit(self, fold: Fold) -> None:
        """Find what a person made of the fold's version."""
        records, memory = self.holding.records, self.holding.memory
        version = fold["progress"]["version"] or self.root
        self._doubtful.add(version)
        with suppress(StoreError):
            edit = await newest_edit(records, version, memory)
            if edit is None:
                return
            if _begins_at_head(fold):  # it may have been moved back since that edit
                (head,) = await records.values([(records.heads, memory)])
                if head != {"version": edit.id}:
                    self._doubtful.discard(version)
                    return
            self.edits[version] = edit

    async def missed(self) -> str | None:
        """Say which edits the fold did not go on from: too late, or the store was away."""
        records, memory = self.holding.records, self.holding.memory
        known = {edit.id for edit in self.edits.values()} | self._heads
        try:
            found = [await newest_edit(records, one, memory) for one in self._doubtful]
        except StoreError as error:
            return _UNKNOWN.format(memory=memory, error=error)
        lost = sorted({edit.id for edit in found if edit is not None} - known)
        return _MISSED.format(memory=memory, ids=", ".join(lost)) if lost else None

    def edited(self, fold: Fold) -> Fold:
        """The fold with what a person made of its memory; the fold itself if nobody did."""
        source, version = fold["source"], fold["progress"]["version"] or self.root
        if version not in self.edits:
            return fold
        edit = self.edits[version]
        while edit.id in self.edits:
            edit = self.edits[edit.id]
        if _begins_at_head(fold):
            source = {**source, "head": edit.id}  # it was moved in one step with the edit
        progress: Progress = {**fold["progress"], "version": edit.id}
        return {**fold, **noted(edit.memory), "source": source, "progress": progress}

    def _version(self, fold: Fold) -> str | None:
        version = fold["progress"]["version"]
        return None if version == self.root else version

    def _told(self, fold: Fold) -> PausedFold:
        _, start, end = span_of(fold["source"])
        return PausedFold(
            **about(self.reading, self.run, fold, fold["source"]["name"]),
            memory=self.holding.memory,
            version=self._version(fold),
            position=fold["progress"]["position"] - start,
            length=end - start,
        )


def _siblings(source: SourceRecord) -> list[str]:
    """The folds of all segments of a document that is read in some."""
    if "whole" not in source:
        return []
    return [segment_name(source["whole"], number) for number in range(source["segments"])]


def _begins_at_head(fold: Fold) -> bool:
    """Whether nothing has been read since a named memory's head."""
    source = fold["source"]
    return "memory_name" in source and source.get("head") == fold["progress"]["version"]


def lease_key(source: SourceRecord, root: str) -> str:
    """The key of the lease of those who read the same from the same beginning."""
    return f"{source.get('head') or ''}-{root}-{source['digest']}"
