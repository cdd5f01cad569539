"""Register: the folds of a reading among those that are under way, and edits of their memory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memagent_graph.evidence.places import Memory, to_plain
from memagent_graph.graph.state import VERSIONS, count_covered, fold_name, mark_taken
from memagent_graph.memory import sharing
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.lookup import edit_of, newest_edit, versions
from memagent_graph.memory.sharing import Edit, UnderWay, enlist, holder_of
from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from types import EllipsisType

    from langgraph.store.base import PutOp

    from memagent_graph.graph.state import Fold, Progress
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records


class EditedError(Exception):
    """The memory of a fold was edited: it continues from there before it takes a step."""


class Register:
    """The entries of all folds that read for one question.

    Args:
        records: of the bank.
        memory: its name, or the reading's key.
        shares: whether the work is shared with others that read the same.

    Attributes:
        since: when the reading began, ISO 8601, UTC.
        places: where the entries are that this reading has made.
    """

    def __init__(self, records: Records, memory: str, *, shares: bool) -> None:
        self.records = records
        self.memory = memory
        self.shares = shares
        self.since = datetime.now(UTC).isoformat()
        self.places: set[Place] = set()
        self._nonce = enlist(self)

    @property
    def holder(self) -> str:
        """Names this reading to others."""
        return holder_of(self._nonce)

    async def end(self) -> None:
        """Remove this reading's entries, but none that another one has made since."""
        with suppress(Exception):  # of a run that is cancelled, the store may be closed
            for lost in range(MOST_LOST_RACES if self.places else 0):
                await pause(lost)
                places = [*self.places]
                values = await self.records.values(places, refresh=False)
                ours = {
                    place: value
                    for place, value in zip(places, values, strict=True)
                    if isinstance(value, dict) and value.get("holder") == self.holder
                }
                gone = [self.records.put(*place, None) for place in ours]
                if not gone or await self.records.commit(gone, ours):
                    self.places.clear()
                    return


class Entry:
    """One fold among those under way.

    Args:
        register: of its reading.
        root: the id before its first chunk.

    Attributes:
        noted: the edit of its memory that was last seen beside it.
        due: whether its version may have been edited while nothing was noted: before this call, or
            when it was not listed.
    """

    def __init__(self, register: Register, root: str) -> None:
        self.register = register
        self.noted: Edit | None = None
        self.due = False
        self._records, self._root = register.records, root
        self._not_ours: str | None = None  # an edit of another lineage

    def note(self, fold: Fold) -> PutOp:
        """Return the write that lets others see how far the fold is."""
        op = sharing.note_reading(self._records, self._describe(fold))
        self.register.places.add((op.namespace, op.key))
        return op

    def edit_place(self, fold: Fold) -> Place:
        """Return where an edit of the fold's memory is noted."""
        return sharing.edit_place(self._records, self._describe(fold))

    def see(self, value: object) -> None:
        """Take in what is at `edit_place`."""
        self.noted = sharing.edit_noted(value)

    async def look(self, fold: Fold) -> None:
        """Read what is at `edit_place`.

        Raises:
            StoreError: The store cannot be reached.
        """
        (value,) = await self._records.values([self.edit_place(fold)], refresh=False)
        self.see(value)

    def get_pending(self, fold: Fold) -> Edit | None:
        """Return the edit that is noted, if the fold has not continued from it."""
        noted, taken = self.noted, fold["layers"].get(VERSIONS, {}).get("edit")
        return None if noted is None or noted.edit in {taken, self._not_ours} else noted

    async def check(self, fold: Fold, stored: object) -> None:
        """Look whether the fold has yet to continue from an edit.

        Args:
            fold: the fold.
            stored: the record of its version, if that is known.

        Raises:
            EditedError: It has.
            StoreError: The store cannot be reached.
        """
        at = str(fold["progress"]["version"])
        if at != fold["scope"]["head"] and edit_of(stored, self.memory):
            self.due = await newest_edit(self._records, at, self.memory) is not None
        if self.due or self.get_pending(fold) is not None:
            raise EditedError

    async def find_edit(self, fold: Fold) -> tuple[MemoryVersion, str] | None:
        """Return the edit to continue from, and the id of the version that was edited, if any.

        Raises:
            StoreError: The store cannot be reached.
        """
        head, at = fold["scope"]["head"], str(fold["progress"]["version"])
        if self.due:
            self.due = False
            await self.look(fold)
            edit = None if at == head else await newest_edit(self._records, at, self.memory)
            if edit is not None:  # it is noted, for another attempt if this one fails
                self.noted = Edit(at, edit.id, fold["source"]["digest"])
                return edit, at
        if (noted := self.get_pending(fold)) is None:
            return None
        (found,) = await versions(self._records, [noted.edit])
        if isinstance(found, MemoryVersion) and (found.root == self._root or noted.of == head):
            return found, noted.of
        self._not_ours = noted.edit
        return None

    async def leave(self, fold: Fold, ended: str | None) -> bool:
        """Remove the entry, unless the memory has been edited since `noted`; say whether.

        Args:
            fold: the fold.
            ended: id of the version with which a reading without a name ends: it is listed as one
                that has ended in the same step. None for another fold.
        """
        described = self._describe(fold)
        place = sharing.place_of(self._records, described)
        edited = sharing.edit_place(self._records, described)
        if place not in self.register.places:  # another reading of the same is listed
            (value,) = await self._records.values([edited], refresh=False)
            return sharing.edit_noted(value) == self.noted
        puts = [self._records.put(*one, None) for one in (place, edited)]
        given: dict[Place, Value | EllipsisType | None]
        given = {edited: None if self.noted is None else asdict(self.noted)}
        if ended is not None:
            puts.append(self._records.put(self._records.readings, self.memory, {"version": ended}))
            given[self._records.versions, ended] = ...
        left = await self._records.commit(puts, given)
        if left:
            self.register.places.discard(place)
        return left

    @property
    def memory(self) -> str:
        """Return the memory's name, or the reading's key."""
        return self.register.memory

    def _describe(self, fold: Fold) -> UnderWay:
        source, scope, progress = fold["source"], fold["scope"], fold["progress"]
        start, end, state = scope["start"], scope["end"], fold["layers"].get(VERSIONS, {})
        passed = progress["position"] - start
        return UnderWay(
            memory=self.memory,
            question=fold["question"],
            source=source["digest"],
            source_name=source["name"],
            fold=fold_name(scope),
            round=scope["round"],
            step=progress["step"],
            position=count_covered(progress, start, end) if progress["again"] else passed,
            length=end - start,
            version=None if progress["version"] == self._root else progress["version"],
            since=self.register.since,
            holder=self.register.holder,
            lease=lease_key(fold, self._root) if self.register.shares else "",
            edit=state.get("edit") or "",
            taken=state.get("taken", ""),
        )


def lease_key(fold: Fold, root: str) -> str:
    """Return the key of the lease that readings of the same text from the same version share."""
    return f"{fold['scope']['head'] or ''}-{root}-{fold['source']['digest']}"


def move_to_edit(fold: Fold, edit: MemoryVersion, edited: str) -> Fold:
    """Return a fold at an edit of the version `edited`, which it is at or has read on from."""
    scope, progress = fold["scope"], fold["progress"]
    at, stopped = progress["version"], progress["stopped"]
    if edited == at:
        named = scope["memory_name"] and scope["head"] == at
        after: Fold = {
            **fold,
            **to_plain(edit.memory),
            "scope": {**scope, "head": edit.id} if named else scope,
            "progress": {**progress, "version": edit.id},
        }
    elif edited == scope["head"]:
        after = begin_anew(fold, edit, edit.id)
    else:
        document = edit.document
        skipped = [[*span] for span in document.skipped]
        position = skipped[0][0] if document.again and skipped else document.end
        if stopped in {"end", None}:
            stopped = "end" if position >= scope["end"] else None
        back: Progress = {
            **progress,
            "position": position,
            "step": edit.step,
            "skipped": skipped,
            "again": document.again,
            "stopped": stopped,
            "version": edit.id,
        }
        after = {**fold, **to_plain(edit.memory), "progress": back}
    return mark_taken(after, edit.id)


def begin_anew(fold: Fold, head: MemoryVersion | None, at: str) -> Fold:
    """Return a fold at the beginning of its span, with a named memory's head.

    Args:
        fold: the fold.
        head: the head; None if the name is gone.
        at: its id, or the root's.
    """
    return {
        **fold,
        **to_plain(Memory() if head is None else head.memory),
        "scope": {**fold["scope"], "head": None if head is None else head.id},
        "progress": {
            **fold["progress"],
            "position": fold["scope"]["start"],
            "stopped": None,
            "version": at,
            "skipped": [],
            "again": False,
        },
    }
