"""How memories, their versions and their changes are printed."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import typer

from memagent_graph.cli.shown import shown
from memagent_graph.counted import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from memagent_graph.memory.changes import Change
    from memagent_graph.memory.history import History
    from memagent_graph.memory.version import MemoryVersion

_COLOURS = {"+": "green", "-": "red"}


def day(time: str) -> str:
    """A time in ISO 8601 as a person reads it, in UTC."""
    return time[:16].replace("T", " ")


def print_diff(lines: Iterable[str]) -> None:
    """Print lines that begin with +, - or a space."""
    for line in lines:
        typer.secho(f"  {shown(line)}", fg=_COLOURS.get(line[:1]))


def print_versions(versions: History) -> None:
    """Print the versions of a document's memory, newest first, and what each changed."""
    for version, before in _pairs(versions):
        span = f"{version.start}-{version.end} of {version.source_name}"
        what = "edited" if version.edited else f"chunk {version.step}"
        _print_version(f"{version.id}  {what}, {span}", version, before)
        _print_gap(versions.gaps, version)


def print_changes(versions: History, changes: Sequence[Change]) -> None:
    """Print what was done to a user's memory, newest first, and what each version changed.

    Versions that were stored without a line of changes have one that says so.
    """
    kept = {version.id: (version, before) for version, before in _pairs(versions)}
    lined = {change.version for change in changes}
    gaps = {*versions.gaps} - lined
    old = [version for version in versions if version.id not in lined]
    entries = chain(
        ((change.at, change.version, _told(change)) for change in changes),
        ((version.created_at, version.id, "nobody noted by whom") for version in old),
    )
    for at, key, told in sorted(entries, reverse=True):
        if key in kept:
            version, before = kept[key]
            _print_version(f"{day(at)}  {key}  {told}", version, before)
            _print_gap(gaps, version)
        elif key:
            typer.secho(shown(f"{day(at)}  {key}  {told}"), bold=True)
            typer.secho("  this version is gone: it was thinned out, or it expired", fg="yellow")
        else:
            typer.secho(shown(f"{day(at)}  {told}"), bold=True)


def _told(change: Change) -> str:
    """What was done, by whom, from which messages, with which model."""
    told = f"{change.what} by {change.by or 'somebody'}"
    if change.messages:
        told += f", thread {change.thread}, messages {' '.join(change.messages)}"
    return f"{told}, model {change.model}" if change.model else told


def _print_version(head: str, version: MemoryVersion, before: MemoryVersion | None) -> None:
    from memagent_graph.memory.bank import diff

    cut = ", cut to its budget" if version.cut else ""
    typer.secho(shown(f"{head}, {counted(version.tokens, 'token')}{cut}"), bold=True)
    print_diff(diff(before, version) if before else (f"+ {s}" for s in version.text.splitlines()))


def _print_gap(gaps: Collection[str], version: MemoryVersion) -> None:
    if version.parent in gaps:
        gap = f"{version.parent}  is gone: it expired, was evicted, thinned out or forgotten"
        typer.secho(gap, fg="yellow")


def _pairs(versions: History) -> list[tuple[MemoryVersion, MemoryVersion | None]]:
    """Each version with the one before it."""
    return [*zip(versions, [*versions[1:], *[None] * bool(versions)], strict=True)]
