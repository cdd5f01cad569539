"""Hold: a fold waits while its memory is held, and continues from what is stored for it then."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.errors import StoreError
from memagent_graph.evidence.places import to_plain
from memagent_graph.graph.events import HeldEvent, PausedFold, ReleasedEvent, about
from memagent_graph.graph.reading import Layer
from memagent_graph.graph.state import count_covered, fold_name, memory_of
from memagent_graph.memory import sharing
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.lookup import edit_of, newest_edit
from memagent_graph.memory.sharing import LAPSE, UnderWay, enlist, holder_of, is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from langgraph.store.base import PutOp

    from memagent_graph.graph.reading import Advance, FoldStep, FoldUpdate, Reading
    from memagent_graph.graph.state import Fold, Progress, Run, Scope
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.sharing import Hold
    from memagent_graph.memory.version import MemoryVersion


class HoldLayer(Layer):
    """Wait before a step while the memory is held."""

    name = "hold"
    needs_store = True

    async def __call__(self, step: FoldStep, read: Advance) -> FoldUpdate:
        """Take the step when nobody holds the memory, from an edit of it if there is one."""
        chain, given = step.call.chain, step.fold
        assert chain is not None  # noqa: S101 - the layer needs a store
        while True:
            left = step.call.seconds_left()
            late = left is not None and left <= 0
            fold = step.fold if late else await chain.wait_while_held(step.fold)
            if fold is not step.fold:
                step = replace(step, fold=fold, memory=memory_of(fold))
            try:
                update = await read(step)
            except HeldUpError:
                continue
            return update if fold is given else replace(update, fold=fold)


_FIRST_WAIT = 0.02
_LONGEST_WAIT = 0.25
"""Seconds between looks at whether a memory is still held."""
_IDS_AT_ONCE = 100
"""Versions to look at in one round trip."""

_MISSED = (
    "Memory {memory!r} was edited while it was read, and this reading does not have version {ids}: "
    "the edit came too late, the store was unreachable, or another reading moved the memory on "
    "first. Read again, or merge it by hand."
)
_UNKNOWN = "Whether memory {memory!r} was edited while it was held is not known: {error}"


class HeldUpError(Exception):
    """A fold must wait, or continue from an edit, before it takes its step."""


class Holding:
    """All folds of a reading, and the holds of its memory.

    Args:
        records: of the bank.
        memory: its name, or the reading's key.
        left: seconds until the deadline, None without one.

    Attributes:
        asked: the hold that was there at the last look.
        waits: how often a fold has waited: others' versions may have been edited as well.
        since: when the reading began, ISO 8601, UTC.
        listed: what takes each fold out of the list of those that are under way.
        left: what does so with folds that an earlier run may have left in it.
    """

    def __init__(self, records: Records, memory: str, left: Callable[[], float | None]) -> None:
        self.records = records
        self.memory = memory
        self.asked: Hold | None = None
        self.waits = 0
        self.since = datetime.now(UTC).isoformat()
        self.listed: dict[str, PutOp] = {}
        self.left: dict[str, PutOp] = {}
        self._seconds_left = left
        self._nonce = enlist(self)

    @property
    def place(self) -> Place:
        """Where a hold would be."""
        return sharing.hold_place(self.records, self.memory)

    @property
    def holder(self) -> str:
        """Names this reading to others."""
        return holder_of(self._nonce)

    def see(self, value: object) -> None:
        """Note what is at `place`."""
        self.asked = sharing.hold_of(value)

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        left = self._seconds_left()
        return left is not None and left <= 0

    async def end(self) -> None:
        """Take this reading's folds out of the list, but none that another one lists by now."""
        with suppress(Exception):  # of a run that is cancelled, the store may be closed
            for lost in range(MOST_LOST_RACES if self.listed else 0):
                await pause(lost)
                gone = {(op.namespace, op.key): op for op in (self.left | self.listed).values()}
                values = await self.records.values([*gone], refresh=False)
                given = {
                    place: value
                    for place, value in zip(gone, values, strict=True)
                    if isinstance(value, dict) and self._may_forget(place, value)
                }
                if not given or await self.records.commit([gone[it] for it in given], given):
                    return

    def _may_forget(self, place: Place, value: Mapping[str, object]) -> bool:
        holder = str(value.get("holder"))
        ours = place in {(op.namespace, op.key) for op in self.listed.values()}
        return holder == self.holder or (not ours and not is_alive(holder))

    async def wait(self, note: PutOp, report: Callable[[Hold], object]) -> bool:
        """Wait until nobody holds the memory, and return whether anybody did.

        It does not wait beyond the deadline, nor longer for an unreachable store than for the
        holder of a lease.

        Args:
            note: what lists a fold as one that waits. It is put again if another reading, which
                lists the same fold, has overwritten it.
            report: is called once, if anybody holds the memory.
        """
        loop = asyncio.get_running_loop()
        seen, since, answered, seconds = None, loop.time(), loop.time(), _FIRST_WAIT
        places = [self.place, (note.namespace, note.key)]
        while self.asked is not None:
            try:
                held, listed = await self.records.values(places, refresh=False)
                there, answered = sharing.hold_of(held), loop.time()
                if there is not None and not (seen and sharing.is_held(listed)):
                    await self.records.items([note])
            except StoreError:
                there = (seen or self.asked) if loop.time() - answered < LAPSE else None
            if there is None:
                self.asked = None
                break
            if seen is None:
                self.waits += 1
                report(there)
            if there != seen:
                seen, since = there, loop.time()
            elif loop.time() - since >= there.seconds:
                with suppress(StoreError):  # an edit under it is refused from now on
                    await sharing.release_hold(self.records, there)
            if self.is_late:
                break
            left = self._seconds_left()
            await asyncio.sleep(seconds if left is None else min(seconds, left))
            seconds = min(2 * seconds, _LONGEST_WAIT)
        return seen is not None


@dataclass(slots=True)
class Pauses:
    """One fold, and the holds of its memory.

    Attributes:
        reading: whose fold it is.
        run: the call of the graph.
        holding: what it shares with the other folds of its question.
        root: the id before the first chunk.
        shares: whether it shares its work with others that read the same.
        due: whether its memory may be held, or its version edited.
        listed: whether others can see this fold: a version is not edited while a fold is listed
            that does not wait there.
        passed: versions that the fold was at while it was not listed, or that were edited.
        edit: the last edit that the fold took.
    """

    reading: Reading
    run: Run
    holding: Holding
    root: str
    shares: bool
    due: bool = False
    listed: bool = False
    passed: list[str] = field(default_factory=list)
    edit: MemoryVersion | None = None
    _waits: int = 0  # of all folds, up to which it has looked
    _known: set[str] = field(default_factory=set)  # edits that the fold has or must not have

    async def wait(self, fold: Fold, beating: AbstractAsyncContextManager[object] | None) -> Fold:
        """Wait while the memory is held; return the fold with what is then stored for it.

        Args:
            fold: the fold, all of which is stored.
            beating: shows others that this run lives; None for a fold that does not wait, since it
                follows one that does.
        """
        if self.due or self._waits != self.holding.waits:
            fold = await self.look(fold, lists=beating is not None)
        if beating is None or self.holding.asked is None:
            return fold
        async with beating:
            while self.holding.asked is not None and not self.holding.is_late:
                note = self.note(fold, held=True)
                waited = await self.holding.wait(note, partial(self._report, fold))
                after = await self.look(fold, lists=True)  # somebody may hold and edit it again
                if waited:
                    about_fold, edited = self._describe(after), after is not fold
                    self.run.emit(ReleasedEvent(event="released", edited=edited, **about_fold))
                fold = after
        return fold

    async def look(self, fold: Fold, *, lists: bool) -> Fold:
        """Look whether the memory is held; return the fold with what is stored for its version.

        A fold that reads is listed first. Edits need a hold, and are refused while a fold is listed
        that does not wait at the version that is edited. So of an edit that was accepted before the
        fold was listed, either the edit or its hold is seen here.
        """
        self.due, self._waits = False, self.holding.waits
        records, version = self.holding.records, fold["progress"]["version"] or self.root
        try:
            if lists:
                self.listed = True
                await records.items([self.list_as(fold)])
            places = [self.holding.place, (records.versions, version)]
            hold, stored = await records.values(places, refresh=False)
            self.holding.see(hold)
            if edit_of(stored, self.holding.memory) is None:
                return fold
            after = await self.take_edit(fold)
        except StoreError:
            self.passed.append(version)
            return fold
        if self.listed and after is not fold:
            with suppress(StoreError):
                await records.items([self.note(after)])
        return after

    def list_as(self, fold: Fold) -> PutOp:
        """Return the write that lists a fold, and note what takes it out of the list again."""
        there = self._there(fold)
        for name in _siblings(fold["scope"]):
            left = sharing.forget_reading(self.holding.records, replace(there, fold=name))
            self.holding.left[name] = left
        return self.note(fold)

    async def take_edit(self, fold: Fold) -> Fold:
        """Return the fold with what a user made of its version; the fold itself if nobody did.

        Raises:
            StoreError: The edit cannot be read.
        """
        records, memory = self.holding.records, self.holding.memory
        scope, version = fold["scope"], fold["progress"]["version"] or self.root
        edit = await newest_edit(records, version, memory)
        if edit is None:
            return fold
        self.passed.append(version)
        if scope["memory_name"] and scope["head"] == version:  # nothing was read since
            (head,) = await records.values([(records.heads, memory)])
            if head != {"version": edit.id}:  # the name was moved back since that edit
                self._known.add(edit.id)
                return fold
            scope = {**scope, "head": edit.id}  # it was moved in one step with the edit
        self._known.add(edit.id)
        self.edit = edit
        progress: Progress = {**fold["progress"], "version": edit.id}
        return {**fold, **to_plain(edit.memory), "scope": scope, "progress": progress}

    def begin_anew(self, head: str) -> None:
        """Begin at another reading's version, which has no edits of what was read here."""
        self._known, self.listed = {head}, False

    async def find_missed(self) -> str | None:
        """Return a warning with the edits that the fold does not have; None if it has all."""
        records, memory, ids = self.holding.records, self.holding.memory, [*{*self.passed}]
        found = []
        try:
            for first in range(0, len(ids), _IDS_AT_ONCE):
                some = ids[first:][:_IDS_AT_ONCE]
                values = await records.values([(records.versions, one) for one in some])
                edited = zip(some, values, strict=True)
                found += [
                    await newest_edit(records, one, memory)
                    for one, value in edited
                    if edit_of(value, memory)
                ]
        except StoreError as error:
            return _UNKNOWN.format(memory=memory, error=error)
        lost = sorted({edit.id for edit in found if edit is not None} - self._known)
        return _MISSED.format(memory=memory, ids=", ".join(lost)) if lost else None

    def note(self, fold: Fold, *, held: bool = False) -> PutOp:
        """Return the write that lets others see how far the fold is."""
        there = self._there(fold, held=held)
        self.holding.listed[there.fold] = sharing.forget_reading(self.holding.records, there)
        return sharing.note_reading(self.holding.records, there)

    def _there(self, fold: Fold, *, held: bool = False) -> UnderWay:
        source, scope, progress = fold["source"], fold["scope"], fold["progress"]
        start, end = scope["start"], scope["end"]
        passed = progress["position"] - start
        return UnderWay(
            memory=self.holding.memory,
            question=fold["question"],
            source=source["digest"],
            source_name=source["name"],
            fold=fold_name(scope),
            round=scope["round"],
            step=progress["step"],
            position=count_covered(progress, start, end) if progress["again"] else passed,
            length=end - start,
            version=self._version(fold),
            since=self.holding.since,
            holder=self.holding.holder,
            held=held,
            lease=lease_key(fold, self.root) if self.shares else "",
        )

    def _version(self, fold: Fold) -> str | None:
        version = fold["progress"]["version"]
        return None if version == self.root else version

    def _report(self, fold: Fold, hold: Hold) -> None:
        described = self._describe(fold)
        self.run.emit(HeldEvent(event="held", by=hold.by, since=hold.since, **described))

    def _describe(self, fold: Fold) -> PausedFold:
        start, end = fold["scope"]["start"], fold["scope"]["end"]
        return PausedFold(
            **about(self.reading, self.run, fold, fold["source"]["name"]),
            memory=self.holding.memory,
            version=self._version(fold),
            position=fold["progress"]["position"] - start,
            length=end - start,
        )


def _siblings(scope: Scope) -> list[str]:
    """The folds of all segments of a document that is read in some."""
    if not scope["segment"]:
        return []
    numbers = range(1, scope["segments"] + 1)
    return [fold_name({**scope, "segment": number}) for number in numbers]


def lease_key(fold: Fold, root: str) -> str:
    """Return the key of the lease that readings of the same text from the same version share."""
    return f"{fold['scope']['head'] or ''}-{root}-{fold['source']['digest']}"
