"""The versions that led to a memory, what each changed, and how much of a document it knows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby
from typing import TYPE_CHECKING, Literal

from memagent_graph.memory.version import TextEdit, VersionMerge
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion

_WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")
_MOST_LINES = 2_000
_MOST_WORDS = 1_500
"""Of a changed run of lines; what is longer is marked as a whole."""


@dataclass(frozen=True, slots=True)
class Run:
    """Text that both have, or only one of them."""

    kind: Literal["same", "added", "removed"]
    text: str


def compare(before: str, after: str) -> list[Run]:
    """The runs of which both texts are made: what was removed comes before what was added."""
    if before == after:
        return [Run("same", before)] if before else []
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    if max(len(old), len(new)) > _MOST_LINES:
        return [*_differ(before, after)]
    runs: list[Run] = []
    for first, last, begin, end in _pairs(old, new):
        runs += _words("".join(old[first:last]), "".join(new[begin:end]))
    return runs


def side(runs: Sequence[Run], kind: Literal["added", "removed"]) -> list[Run]:
    """The runs of one of the two texts, `removed` for the older one."""
    return [run for run in runs if run.kind in ("same", kind)]


def _words(before: str, after: str) -> Iterator[Run]:
    old, new = _WORD.findall(before), _WORD.findall(after)
    if before == after or max(len(old), len(new)) > _MOST_WORDS:
        yield from _differ(before, after)
        return
    for first, last, begin, end in _pairs(old, new):
        yield from _differ("".join(old[first:last]), "".join(new[begin:end]))


def _pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return ((first, last, begin, end) for _, first, last, begin, end in matcher.get_opcodes())


def _differ(before: str, after: str) -> Iterator[Run]:
    if before == after:
        yield Run("same", before)
        return
    if before:
        yield Run("removed", before)
    if after:
        yield Run("added", after)


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of a document, in percent."""

    read: float
    skimmed: float

    @classmethod
    def of(cls, version: MemoryVersion) -> Coverage:
        """Of a version's document."""
        document = version.document
        length = max(document.length, 1)
        skimmed = 0 if document.again else sum(end - start for start, end in document.skipped)
        return cls(_percent((document.end - skimmed) / length), _percent(skimmed / length))

    @property
    def text(self) -> str:
        """The shares in words."""
        read = f"{self.read:.0f}% read"
        return f"{read}, {self.skimmed:.0f}% skimmed" if self.skimmed else read


def _percent(share: float) -> float:
    return round(100 * min(max(share, 0.0), 1.0), 1)


ROWS = 40
_CONTEXT = 60
"""Code points of unchanged text that are shown around what changed."""


@dataclass(frozen=True, slots=True)
class Step:
    """A version, and what it changed.

    Attributes:
        version: the version.
        what: what made it.
        runs: the lines that it changed, marked against the version before; others are left out.
        before: id of the version before; None for the first.
        gap: whether that one is gone.
    """

    version: MemoryVersion
    what: str
    runs: list[Run]
    before: str | None
    gap: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """Some of the `total` versions of a memory, newest first; the next page begins at `next`."""

    steps: list[Step]
    total: int
    next: str | None


async def list_steps(bank: MemoryBank, reference: str, first: str | None = None) -> Steps:
    """Versions of a memory, newest first; those in a row that added nothing are one step."""
    history = await bank.ahistory(reference)
    ids = [version.id for version in history]
    begin = ids.index(first) if first in ids else 0
    end = begin + ROWS
    known = {version.id: version for version in history}
    steps = []
    for same, group in groupby(history[begin:end], lambda version: _is_same(version, known)):
        first_of, *others = group
        made = [_step(version, known, {*history.gaps}) for version in (first_of, *others)]
        if same and others:
            what = f"Sections {others[-1].step} to {first_of.step}, nothing new"
            made = [replace(made[0], what=what, before=made[-1].before)]
        steps += made
    return Steps(steps, len(ids), ids[end] if end < len(ids) else None)


def describe(version: MemoryVersion) -> str:
    """Return what made a version."""
    match version.made_by:
        case TextEdit():
            return "Edited"
        case VersionMerge(merged=merged):
            return f"Merged from {plural(len(merged), 'memory')}"
    if version.unchanged:
        return f"Section {version.step}, nothing new"
    again = ", skimmed before" if version.document.again else ""
    return f"Section {version.step}{again}"


def changes(before: MemoryVersion | None, version: MemoryVersion) -> list[Run]:
    """The text of a version, marked against the one before; what was merged has no marks."""
    if isinstance(version.made_by, VersionMerge):
        return compare(version.text, version.text)
    return compare("" if before is None else before.text, version.text)


def _is_same(version: MemoryVersion, known: dict[str, MemoryVersion]) -> bool:
    """Whether a section added nothing, so that the version before says the same."""
    before = known.get(version.parent)
    if isinstance(version.made_by, VersionMerge) or version.edited or before is None:
        return False
    if version.unchanged:
        return True
    new, old = version.memory, before.memory
    return (new.text, new.evidence) == (old.text, old.evidence)


def _step(version: MemoryVersion, known: dict[str, MemoryVersion], gaps: set[str]) -> Step:
    before = known.get(version.parent)
    gap = version.parent in gaps
    # Against nothing, a version after a gap would seem to have added all of its text.
    marked = [] if gap else changes(before, version)
    if not isinstance(version.made_by, VersionMerge):
        marked = changed_lines(marked)
    runs = [*map(_shorten, marked)]
    return Step(version, describe(version), runs, None if before is None else before.id, gap)


def changed_lines(runs: Sequence[Run]) -> list[Run]:
    """The lines in which something changed; an ellipsis stands for lines between them."""
    lines: list[list[Run]] = [[]]
    for run in runs:
        for number, part in enumerate(run.text.split("\n")):
            if number:
                lines[-1].append(Run(run.kind, "\n"))
                lines.append([])
            if part:
                lines[-1].append(Run(run.kind, part))
    found: list[Run] = []
    if not any(map(_is_changed, lines)):
        return found
    for changed, group in groupby(lines, _is_changed):
        if changed:
            found += [run for line in group for run in line]
        elif any(run.text.strip() for line in group for run in line):
            found.append(Run("same", "…\n"))
    return [
        Run(kind, "".join(run.text for run in group))
        for kind, group in groupby(found, lambda run: run.kind)
    ]


def _is_changed(line: Sequence[Run]) -> bool:
    """Whether words of a line changed; that another line follows is no change of it."""
    return any(run.kind != "same" and run.text.strip() for run in line)


def _shorten(run: Run) -> Run:
    if run.kind != "same" or len(run.text) <= 2 * _CONTEXT:
        return run
    return Run("same", f"{run.text[:_CONTEXT]} … {run.text[-_CONTEXT:]}")
