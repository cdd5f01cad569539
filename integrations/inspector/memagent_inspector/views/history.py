"""The versions that led to a memory, newest first, some at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from memagent_graph.memory.version import TextEdit, VersionMerge
from memagent_graph.templates import plural
from memagent_inspector.views.words import Run, compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion

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
    """Some versions of a memory.

    Attributes:
        steps: the newest first.
        total: how many versions there are.
        next: id of the version with which the next page begins; None at the end.
    """

    steps: list[Step]
    total: int
    next: str | None


async def list_steps(bank: MemoryBank, reference: str, first: str | None = None) -> Steps:
    """Versions of a memory, newest first; those in a row that added nothing are one step.

    Args:
        bank: where it is.
        reference: of the memory.
        first: id of the version to begin with; None for the newest.

    Raises:
        MemoryNotFoundError: There is no such memory.
    """
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
