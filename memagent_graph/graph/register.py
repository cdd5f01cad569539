"""Register: the folds of a reading among those that are under way, and edits of their memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memagent_graph.evidence.places import Memory, to_plain
from memagent_graph.graph.state import VERSIONS, count_covered, fold_name, mark_taken
from memagent_graph.memory import leases
from memagent_graph.memory.leases import UnderWay
from memagent_graph.memory.lookup import edit_of, newest_edit, versions
from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from memagent_graph.graph.state import Fold, Progress
    from memagent_graph.memory.items import Records
    from memagent_graph.memory.leases import Lease


class EditedError(Exception):
    """The memory of a fold was edited: it continues from there before it takes a step."""


class Entry:
    """One fold among those under way.

    Args:
        records: of the bank.
        memory: the memory's name, or the reading's key.
        root: the id before the fold's first chunk.
        shares: whether the work is shared with others that read the same.
        whole: of a segment, the entry of the fold that it is merged into.

    Attributes:
        due: whether its version may have been edited while nothing was noted: before this call, or
            when it was not listed.
        resumed: whether what is listed may be of the call that this one resumes.
        since: when the reading began, ISO 8601, UTC.
        leases: those of all folds of the reading.
    """

    def __init__(
        self,
        records: Records,
        memory: str,
        root: str,
        *,
        shares: bool,
        whole: Entry | None = None,
    ) -> None:
        self.memory = memory
        self.due = self.resumed = False
        self._records, self._root, self._shares = records, root, shares
        self.since: str = datetime.now(UTC).isoformat() if whole is None else whole.since
        self.leases: list[Lease] = [] if whole is None else whole.leases
        self._lease: Lease | None = None
        self._not_ours: str | None = None  # an edit of another lineage

    async def end(self) -> None:
        """Let others read on, and let nobody see a reading that is over, with all its folds."""
        await asyncio.gather(*(lease.release() for lease in self.leases))

    def lease(self, fold: Fold) -> Lease:
        """Return the lease of the fold: that of the head at which it began, until it moves."""
        if self._lease is None:
            self._lease = leases.Lease(self._records, self._key(fold))
            self.leases.append(self._lease)
        return self._lease

    async def move(self, fold: Fold) -> None:
        """Free the lease: the fold begins anew at another head."""
        await self.lease(fold).move(self._key(fold))

    def _key(self, fold: Fold) -> str | None:
        return lease_key(fold, self._root) if self._shares else None

    @property
    def noted(self) -> UnderWay | None:
        """Return the record in which the last edit of the memory is noted; None without one."""
        seen = None if self._lease is None else leases.make_record(self._lease.seen)
        return seen if seen and seen.edit and seen.memory == self.memory else None

    def get_pending(self, fold: Fold) -> UnderWay | None:
        """Return the record with the edit that is noted, if the fold has not continued from it."""
        noted, taken = self.noted, fold["layers"].get(VERSIONS, {}).get("edit")
        return None if noted is None or noted.edit in {taken, self._not_ours} else noted

    async def check(self, fold: Fold, stored: object) -> None:
        """Look whether the fold has yet to continue from an edit, and raise `EditedError` if so.

        `stored` is the record of its version, if that is known.
        """
        at = str(fold["progress"]["version"])
        if at != fold["scope"]["head"] and edit_of(stored, self.memory):
            self.due = await newest_edit(self._records, at, self.memory) is not None
        if self.due or self.get_pending(fold) is not None:
            raise EditedError

    async def find_edit(self, fold: Fold) -> tuple[MemoryVersion, str] | None:
        """Return the edit to continue from, and the id of the version that was edited, if any."""
        head, at = fold["scope"]["head"], str(fold["progress"]["version"])
        if self.due:
            await self.lease(fold).look()
            edit = None if at == head else await newest_edit(self._records, at, self.memory)
            self.due = edit is not None  # it is found again if this attempt fails
            if edit is not None:
                return edit, at
        if (noted := self.get_pending(fold)) is None:
            return None
        (found,) = await versions(self._records, [noted.edit])
        if isinstance(found, MemoryVersion) and (found.root == self._root or noted.of == head):
            return found, noted.of
        self._not_ours = noted.edit
        return None

    async def leave(self, fold: Fold, ended: str | None) -> bool:
        """Remove the entry, unless the fold has yet to continue from an edit; say whether.

        A reading without a name that ends with the version `ended` is listed in the same step.
        """
        lease = self.lease(fold)
        if not lease.held:
            await lease.look()
        if self.get_pending(fold) is not None:
            return False
        if lease.foreign and not (lease.is_free or self.resumed):
            return True  # another reading of the same is listed
        if ended is None:
            return await lease.drop()
        records = self._records
        put = records.put(records.readings, self.memory, {"version": ended})
        return await lease.drop(put, given={(records.versions, ended): ...})

    def describe(self, fold: Fold) -> UnderWay:
        """Return what others are to see of the fold."""
        source, scope, progress = fold["source"], fold["scope"], fold["progress"]
        start, end, state = scope["start"], scope["end"], fold["layers"].get(VERSIONS, {})
        passed = progress["position"] - start
        return UnderWay(
            memory=self.memory,
            question=fold["question"],
            source=source["digest"],
            source_name=source["name"],
            fold=fold_name(scope),
            step=progress["step"],
            position=count_covered(progress, start, end) if progress["again"] else passed,
            length=end - start,
            version=None if progress["version"] == self._root else progress["version"],
            since=self.since,
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
    """Return a fold at the beginning of its span, at the head of a named memory or the root."""
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
