"""Register: the folds of a reading among those that are under way, and edits of their memory."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from memagent_graph.errors import StoreError
from memagent_graph.evidence.places import Memory, to_plain
from memagent_graph.graph.state import VERSIONS, count_covered, fold_name
from memagent_graph.memory.leases import Lease, UnderWay, make_record
from memagent_graph.memory.lookup import edit_of, newest_edit, versions
from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from memagent_graph.graph.state import Fold, Progress
    from memagent_graph.memory.items import Records


class EditedError(Exception):
    """The memory of a fold was edited: it continues from there before it takes a step."""


class Entry(Lease):
    """One fold among those under way.

    Args:
        records: of the bank.
        fold: the fold.
        memory: the memory's name, or the reading's key.
        root: the id before the fold's first chunk.
        shares: whether the work is shared with others that read the same.

    Attributes:
        due: whether its version may have been edited while nothing was noted: before this call, or
            when it was not listed.
        resumed: whether what is listed may be of the call that this one resumes.
        absent: id of a version that the store did not have a moment ago; None if it was not asked.
        since: when the reading began, ISO 8601, UTC.
    """

    def __init__(
        self, records: Records, fold: Fold, memory: str, root: str, *, shares: bool
    ) -> None:
        self.memory = memory
        self.due = self.resumed = False
        self.absent: str | None = None
        self._root, self._shares = root, shares
        self.since = datetime.now(UTC).isoformat()
        self._gone: str | None = None  # an edit that cannot be read
        super().__init__(records, self._key(fold))

    async def begin_at(self, fold: Fold) -> None:
        """Be listed at the head at which the fold begins, and no more where it was."""
        await self.release()
        self.held, self.seen = False, None
        self.place = (self.place[0], self._key(fold) or self.place[1])

    def _key(self, fold: Fold) -> str | None:
        """The key that readings of the same text from the same version share, if they do."""
        key = f"{fold['scope']['head'] or ''}-{self._root}-{fold['source']['digest']}"
        return key if self._shares else None

    def get_pending(self, fold: Fold) -> UnderWay | None:
        """Return the record with the edit that is noted, if the fold has not continued from it."""
        noted = make_record(self.seen)
        taken = fold["layers"].get(VERSIONS, {}).get("edit")
        if noted is None or noted.memory != self.memory:
            return None
        return None if noted.edit in {"", taken, self._gone} else noted

    async def check(self, fold: Fold, stored: object) -> None:
        """Look whether the fold has yet to continue from an edit, and raise `EditedError` if so.

        `stored` is the record of its version, if that is known.
        """
        at = str(fold["progress"]["version"])
        if at != fold["scope"]["head"] and edit_of(stored, self.memory):
            self.due = await newest_edit(self._records, at, self.memory) is not None
        if self.due or self.get_pending(fold) is not None:
            raise EditedError

    async def find_next(
        self, fold: Fold, ids: tuple[str, str], left: Callable[[], float | None], *, replays: bool
    ) -> MemoryVersion | None:
        """Return the version that another reading makes of the next chunk; see `Lease.follow`.

        `ids` are that version's and that of the one before. With `replays`, it may also have been
        stored by a reading that was broken off.
        """
        look, unread = partial(self._find_stored, fold, *ids), ids == (self.absent, self._root)
        found = await self.follow(self.describe(fold), look, left, unread=unread)
        return await look() if found is None and replays else found

    async def _find_stored(self, fold: Fold, key: str, parent: str) -> MemoryVersion | None:
        records = self._records
        places = [(records.versions, key), (records.versions, parent), self.place]
        with suppress(StoreError):  # the chunk is read without it
            child, before, noted = await records.values(places)
            self.see(noted)
            await self.check(fold, before if parent == fold["progress"]["version"] else None)
            return None if child is None else MemoryVersion.from_record(child, key)
        return None

    async def find_edit(self, fold: Fold) -> tuple[MemoryVersion, str] | None:
        """Return the edit to continue from, and the id of the version that was edited, if any."""
        head, at = fold["scope"]["head"], str(fold["progress"]["version"])
        if self.due:
            await self.look()
            edit = None if at == head else await newest_edit(self._records, at, self.memory)
            self.due = edit is not None  # it is found again if this attempt fails
            if edit is not None:
                return edit, at
        if (noted := self.get_pending(fold)) is None:
            return None
        (found,) = await versions(self._records, [noted.edit])
        if isinstance(found, MemoryVersion):
            return found, noted.of
        self._gone = noted.edit
        return None

    async def leave(self, fold: Fold) -> bool:
        """Remove the entry, unless the fold has yet to continue from an edit; say whether."""
        if self.is_gone:
            return True
        if not self.held:
            await self.look()
        if self.get_pending(fold) is not None:
            return False
        if self.foreign and not (self.is_free or self.resumed):
            return True  # another reading of the same is listed
        return await self.drop()

    @property
    def is_gone(self) -> bool:
        """Whether it went as the fold's last version was written."""
        return self.ends is not None and self.ended is self.ends

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


def move_to(fold: Fold, edit: MemoryVersion, edited: str) -> Fold:
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
        back = progress_at(edit, progress)
        if stopped in {"end", None}:
            back["stopped"] = "end" if back["position"] >= scope["end"] else None
        after = {**fold, **to_plain(edit.memory), "progress": back}
    return after


def progress_at(version: MemoryVersion, progress: Progress) -> Progress:
    """Return the progress of a fold that has read what a version has."""
    document = version.document
    skipped = [[*span] for span in document.skipped]
    return {
        **progress,
        "position": skipped[0][0] if document.again and skipped else document.end,
        "step": version.step,
        "skipped": skipped,
        "again": document.again,
        "version": version.id,
    }


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
