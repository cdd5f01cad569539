"""Readings under way: their list; one as it happens, with its folds as lanes and its memory."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain, groupby, zip_longest
from typing import TYPE_CHECKING, Any, Literal

from memagent_graph.errors import MemoryNotFoundError, StoreError
from memagent_graph.memory.items import find_versions
from memagent_graph.memory.version import MemoryVersion, TextEdit, VersionMerge
from memagent_graph.templates import plural
from memagent_inspector.door import fields_of
from memagent_inspector.history import Coverage, changes, describe
from memagent_inspector.listing import find
from memagent_inspector.pages import is_partial, needed, nothing_new, state_of
from memagent_inspector.rendering import page

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.lease import UnderWay

WIDTH = 1000
_MOST_LANES = 16
"""Lanes of folds; more than that share one."""
_THINNEST = 2.0
"""Width of a mark, at least."""
_SEAM = 1.5
"""Left free between two marks."""
_KEPT = 20_000
"""Steps that are remembered: where they were, and nothing of their text."""

Deed = Literal["read", "unchanged", "again", "edited", "skimmed", "merged"]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that was done with a span of the document, in thousandths of its length."""

    deed: Deed
    start: float
    width: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One fold, or several that are side by side."""

    title: str
    summary: str
    marks: list[Mark]


@dataclass(frozen=True, slots=True)
class _Fact:
    id: str
    root: str
    start: int
    end: int
    length: int
    deed: Deed
    at: str
    skipped: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Lanes:
    """A reading along its document; where there are many folds, they share a lane."""

    lanes: list[Lane]
    versions: int
    newest: str

    @property
    def deeds(self) -> list[Deed]:
        """All that was done, for a legend."""
        return [*dict.fromkeys(mark.deed for lane in self.lanes for mark in lane.marks)]


class Tracks:
    """Knows where the steps of readings were. Versions never change, so each is read once."""

    def __init__(self, bank: MemoryBank) -> None:
        self._bank = bank
        self._facts: OrderedDict[str, _Fact] = OrderedDict()

    async def lanes(self, reference: str) -> Lanes:
        """The lanes of a memory; all its versions count, also those that were left behind."""
        records = self._bank
        ids = await records.keys(records.members(reference))
        new = [key for key in ids if key not in self._facts]
        for one in await find_versions(records, new, refresh=False):
            if isinstance(one, MemoryVersion):
                self._facts[one.id] = _fact(one)
        facts = sorted(
            (self._facts[key] for key in ids if key in self._facts), key=lambda fact: fact.at
        )
        while len(self._facts) > _KEPT:
            self._facts.popitem(last=False)
        return _arrange(facts)


def _fact(version: MemoryVersion) -> _Fact:
    """Return what a version says of its step."""
    document, made_by = version.document, version.made_by
    deed: Deed = "read"
    if isinstance(made_by, VersionMerge):
        deed = "merged"
    elif isinstance(made_by, TextEdit):
        deed = "edited"
    elif version.unchanged:
        deed = "unchanged"
    elif document.again:
        deed = "again"
    length, at = max(document.length, 1), version.created_at
    return _Fact(version.id, version.root, *version.span, length, deed, at, document.skipped)


def _arrange(facts: Sequence[_Fact]) -> Lanes:
    merges = [fact for fact in facts if fact.deed == "merged"]
    folds: dict[str, list[_Fact]] = {}
    for fact in facts:
        if fact.deed != "merged":
            folds.setdefault(fact.root, []).append(fact)

    ordered = sorted(folds.values(), key=lambda fold: (fold[0].start, fold[0].at))
    merge = merges[-1] if merges else None
    skims = [_skims(fold, after, merge) for fold, after in zip_longest(ordered, ordered[1:])]
    if len(ordered) > _MOST_LANES:
        lanes = [_lane(f"{len(ordered)} folds", [*chain(*ordered)], [*chain(*skims)])]
    else:
        lanes = [
            _lane(f"Fold {place}" if len(ordered) > 1 else "Fold", fold, skimmed)
            for place, (fold, skimmed) in enumerate(zip(ordered, skims, strict=True), 1)
        ]
    if merge is not None:
        lanes.append(_lane("Merges", merges, merge.skipped))
    return Lanes(lanes, len(facts), facts[-1].id if facts else "")


def _skims(
    fold: Sequence[_Fact], after: Sequence[_Fact] | None, merge: _Fact | None
) -> list[tuple[int, int]]:
    """Return what a fold skimmed. After its last section, no version but the merge's has it.

    Args:
        fold: the fold's steps.
        after: those of the fold after it in the document; None for the last one.
        merge: the last one; None if it is not there yet.
    """
    last = fold[-1]
    if merge is None or last.deed == "again":
        return [*last.skipped]
    begins = last.length
    if after is not None:
        begins = min([after[0].start, *(start for start, _ in after[0].skipped)])
    return [
        *last.skipped,
        *(
            (last.end, min(end, begins))
            for start, end in merge.skipped
            if start <= last.end < min(end, begins)
        ),
    ]


def _lane(title: str, facts: Sequence[_Fact], skipped: Iterable[tuple[int, int]]) -> Lane:
    skims = [_mark("skimmed", *span, facts[-1].length) for span in dict.fromkeys(skipped)]
    done = [_mark(fact.deed, fact.start, fact.end, fact.length) for fact in facts]
    # A merge spans all of the document: what was skimmed of it is drawn over it.
    marks = done + skims if facts[-1].deed == "merged" else skims + done
    counts: dict[Deed, int] = {}
    for mark in marks:
        counts[mark.deed] = counts.get(mark.deed, 0) + 1
    said = [(count, *_DEEDS[deed]) for deed, count in counts.items()]
    summary = ", ".join(f"{plural(count, noun)}{what}" for count, noun, what in said)
    return Lane(title, summary, marks)


_DEEDS: dict[Deed, tuple[str, str]] = {
    "read": ("section", " read"),
    "unchanged": ("section", " without news"),
    "again": ("section", " read after a skim"),
    "edited": ("edit", ""),
    "skimmed": ("span", " skimmed"),
    "merged": ("merge", ""),
}
"""What is counted of each, and what is said of it."""


def _mark(deed: Deed, start: int, end: int, length: int) -> Mark:
    begin = WIDTH * min(max(start / length, 0.0), 1.0)
    width = WIDTH * min(max((end - start) / length, 0.0), 1.0)
    seam = _SEAM if width > 4 * _SEAM else 0.0
    return Mark(deed, round(begin, 2), round(max(width - seam, _THINNEST), 2))


@dataclass(frozen=True, slots=True)
class FoldsOf:
    """The readings into a memory that are under way."""

    memory: str
    folds: list[UnderWay]

    @property
    def state(self) -> str:
        """Another one whenever something would be shown differently."""
        return "-".join(
            f"{fold.fold}.{fold.step}.{fold.version}.{fold.taken}" for fold in self.folds
        )


async def list_readings(bank: MemoryBank) -> list[FoldsOf]:
    """All readings under way, each with its folds."""
    folds = sorted(await bank.aunder_way(), key=lambda fold: fold.memory)
    return [
        FoldsOf(memory, [*members]) for memory, members in groupby(folds, lambda fold: fold.memory)
    ]


async def show_reading(request: Request) -> Response:
    """A reading with all that is stored of it so far."""
    reference = needed(fields_of(request), "of")
    controls = FoldsOf(reference, await state_of(request).bank.aunder_way(reference))
    try:
        values = await _news(request, reference)
    except MemoryNotFoundError:
        if not controls.folds:
            raise
        values = {"subject": None}  # its first section is being read
    return page("reading.html", {**values, "controls": controls})


async def show_news(request: Request) -> Response:
    """Send what is new of a reading since a version; nothing while the store is unreachable."""
    fields = fields_of(request)
    try:
        values = await _news(request, needed(fields, "of"), fields.get("seen"))
    except (MemoryNotFoundError, StoreError):  # the page says so itself
        return nothing_new()
    if values["lanes"].newest == fields.get("seen"):
        return nothing_new()
    return page("news.html", values)


async def show_folds(request: Request) -> Response:
    """Send where the folds of a reading are, if that has changed."""
    fields = fields_of(request)
    reference = needed(fields, "of")
    try:
        controls = FoldsOf(reference, await state_of(request).bank.aunder_way(reference))
    except StoreError:
        return nothing_new()
    if controls.state == fields.get("state"):
        return nothing_new()
    return page("controls.html", {"controls": controls})


async def show_under_way(request: Request) -> Response:
    """The readings that are under way."""
    partial = is_partial(request)
    try:
        readings = await list_readings(state_of(request).bank)
    except StoreError:
        if not partial:
            raise
        return nothing_new()
    state = " ".join(reading.memory + reading.state for reading in readings)
    if partial and fields_of(request).get("state") == state:
        return nothing_new()
    name = "under_way_rows.html" if partial else "under_way.html"
    return page(name, {"readings": readings, "state": state})


async def show_status(request: Request) -> Response:
    """Whether the store answers, if that has changed since the page heard of it."""
    bank, was = state_of(request).bank, fields_of(request).get("was", "here")
    try:
        await bank.values([(bank.forgotten, "sources")], refresh=False)
        now = "here"
    except StoreError:
        now = "away"
    if now == was:
        return nothing_new()
    response = page("status.html", {"now": now})
    if now == "here":
        response.headers["hx-trigger"] = "store-back"
    return response


async def _news(request: Request, reference: str, seen: str | None = None) -> dict[str, Any]:
    bank = state_of(request).bank
    lanes = await state_of(request).tracks.lanes(reference)
    if lanes.newest and lanes.newest == seen:
        return {"lanes": lanes}
    subject = await find(bank, reference)
    newest = await bank.aget(lanes.newest) if lanes.newest else subject.version
    before = None
    if newest.parent != newest.root:
        try:
            before = await bank.aget(newest.parent)
        except MemoryNotFoundError:  # it was thinned out
            before = newest
    return {
        "subject": subject,
        "lanes": lanes,
        "newest": newest,
        "what": describe(newest),
        "coverage": Coverage.of(newest),
        "runs": changes(before, newest),
    }
