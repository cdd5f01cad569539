"""Listing: the folds of a reading in the list of those that are under way."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memagent_graph.graph.state import VERSIONS, count_covered, fold_name
from memagent_graph.memory import sharing
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.sharing import UnderWay, enlist, holder_of

if TYPE_CHECKING:
    from types import EllipsisType

    from langgraph.store.base import PutOp

    from memagent_graph.graph.state import Fold
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records


class Listing:
    """The entries of all folds that read for one question.

    Args:
        records: of the bank.
        memory: its name, or the reading's key.
        shares: whether the work is shared with others that read the same.

    Attributes:
        since: when the reading began, ISO 8601, UTC.
        listed: where the entries are that this reading has put there.
    """

    def __init__(self, records: Records, memory: str, *, shares: bool) -> None:
        self.records = records
        self.memory = memory
        self.since = datetime.now(UTC).isoformat()
        self.listed: set[Place] = set()
        self._shares = shares
        self._nonce = enlist(self)

    def note(self, fold: Fold, root: str) -> PutOp:
        """Return the write that lets others see how far a fold is."""
        op = sharing.note_reading(self.records, self._entry(fold, root))
        self.listed.add((op.namespace, op.key))
        return op

    def edit_place(self, fold: Fold, root: str) -> Place:
        """Return where an edit of a fold's memory is noted."""
        return sharing.edit_place(self.records, self._entry(fold, root))

    async def leave(
        self, fold: Fold, root: str, noted: sharing.Edit | None, ended: str | None
    ) -> bool:
        """Take a fold out of the list, unless its memory has been edited since `noted`.

        Args:
            fold: the fold.
            root: the id before its first chunk.
            noted: the edit that was seen last beside the fold.
            ended: id of the version with which a reading without a name ends: it is listed as one
                that has ended in the same step. None for another fold.
        """
        place = sharing.reading_place(self.records, self._entry(fold, root))
        edited = self.edit_place(fold, root)
        if place not in self.listed:  # another one, which reads the same, is listed
            (value,) = await self.records.values([edited], refresh=False)
            return sharing.edit_noted(value) == noted
        puts = [self.records.put(*one, None) for one in (place, edited)]
        given: dict[Place, Value | EllipsisType | None]
        given = {edited: None if noted is None else sharing.to_value(noted)}
        if ended is not None:
            puts.append(self.records.put(self.records.readings, self.memory, {"version": ended}))
            given[self.records.versions, ended] = ...
        left = await self.records.commit(puts, given)
        if left:
            self.listed.discard(place)
        return left

    async def end(self) -> None:
        """Take this reading's folds out of the list, but none that another one lists by now."""
        with suppress(Exception):  # of a run that is cancelled, the store may be closed
            for lost in range(MOST_LOST_RACES if self.listed else 0):
                await pause(lost)
                places = [*self.listed]
                values = await self.records.values(places, refresh=False)
                ours = {
                    place: value
                    for place, value in zip(places, values, strict=True)
                    if isinstance(value, dict) and value.get("holder") == holder_of(self._nonce)
                }
                gone = [self.records.put(*place, None) for place in ours]
                if not gone or await self.records.commit(gone, ours):
                    self.listed.clear()
                    return

    def _entry(self, fold: Fold, root: str) -> UnderWay:
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
            version=None if progress["version"] == root else progress["version"],
            since=self.since,
            holder=holder_of(self._nonce),
            lease=lease_key(fold, root) if self._shares else "",
            edit=state.get("edit") or "",
            taken=state.get("taken", ""),
        )


def lease_key(fold: Fold, root: str) -> str:
    """Return the key of the lease that readings of the same text from the same version share."""
    return f"{fold['scope']['head'] or ''}-{root}-{fold['source']['digest']}"
