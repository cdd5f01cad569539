"""Commands that show memories and their readings: list, show, history, readings."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING

from memagent_graph.cli.options import (
    MemoryStore,
    Named,
    Namespace,
    User,
    bank_of,
    name_for,
    open_users,
)
from memagent_graph.cli.terminal import print_in_style, row
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from memagent_graph.conversation.user_memory import MemoryChange
    from memagent_graph.memory.sharing import UnderWay
    from memagent_graph.memory.version import History, MemoryVersion

_COLOURS = {"+": "green", "-": "red"}


def day(time: str) -> str:
    """A time in ISO 8601 as a person reads it, in UTC."""
    return time[:16].replace("T", " ")


def print_diff(lines: Iterable[str]) -> None:
    """Print lines that begin with +, - or a space."""
    for line in lines:
        print_in_style(f"  {line}", fg=_COLOURS.get(line[:1]))


def print_versions(versions: History) -> None:
    """Print the versions of a document's memory, newest first, and what each changed."""
    for version, before in _pairs(versions):
        span = "{}-{} of {}".format(*version.span, version.document.name)
        _print_version(f"{version.id}  {_describe(version)}, {span}", version, before)
        _print_gap(versions.gaps, version)


def _describe(version: MemoryVersion) -> str:
    """Return what made a version."""
    from memagent_graph.memory.version import VersionMerge

    if isinstance(version.made_by, VersionMerge):
        return f"merge of {plural(len(version.made_by.merged), 'memory')}"
    return "edited" if version.edited else f"chunk {version.step}"


def print_changes(versions: History, changes: Sequence[MemoryChange]) -> None:
    """Print what was done to a user's memory, newest first, and what each version changed.

    Versions that were stored without a line of changes have one that says so.
    """
    kept = {version.id: (version, before) for version, before in _pairs(versions)}
    lined = {change.version for change in changes}
    gaps = {*versions.gaps} - lined
    old = [version for version in versions if version.id not in lined]
    entries = chain(
        ((change.at, change.version, _describe_change(change)) for change in changes),
        ((version.created_at, version.id, "nobody noted by whom") for version in old),
    )
    for at, key, summary in sorted(entries, reverse=True):
        if key in kept:
            version, before = kept[key]
            _print_version(f"{day(at)}  {key}  {summary}", version, before)
            _print_gap(gaps, version)
        elif key:
            print_in_style(f"{day(at)}  {key}  {summary}", bold=True)
            print_in_style("  this version is gone: it was thinned out, or it expired", fg="yellow")
        else:
            print_in_style(f"{day(at)}  {summary}", bold=True)


def _describe_change(change: MemoryChange) -> str:
    """Return what was done, by whom, from which messages, with which model."""
    summary = f"{change.what} by {change.by or 'somebody'}"
    if change.messages:
        summary += f", thread {change.thread}, messages {' '.join(change.messages)}"
    return f"{summary}, model {change.model}" if change.model else summary


def _print_version(head: str, version: MemoryVersion, before: MemoryVersion | None) -> None:
    from memagent_graph.memory.bank import diff

    cut = ", cut to its budget" if version.cut else ""
    print_in_style(f"{head}, {plural(version.tokens, 'token')}{cut}", bold=True)
    print_diff(diff(before, version) if before else (f"+ {s}" for s in version.text.splitlines()))


def _print_gap(gaps: Collection[str], version: MemoryVersion) -> None:
    if version.parent in gaps:
        gap = f"{version.parent}  is gone: it expired, was evicted, thinned out or forgotten"
        print_in_style(gap, fg="yellow")


def _pairs(versions: History) -> list[tuple[MemoryVersion, MemoryVersion | None]]:
    """Each version with the one before it."""
    return [*zip(versions, [*versions[1:], *[None] * bool(versions)], strict=True)]


def list_users(store: MemoryStore = None, namespace: Namespace = None) -> None:
    """List the users of a chatbot: id, size of the memory, when it changed last."""
    with open_users(store, namespace) as users:
        for user, version in users.list():
            size = "no memory yet" if version is None else plural(version.tokens, "token")
            print(row(user, size, "" if version is None else day(version.created_at)))


def list_memories(store: MemoryStore = None, namespace: Namespace = None) -> None:
    """List memories of documents: name, size, what was asked, what was read.

    The memories of a chatbot's users are listed by `memagent memory users`.
    """
    with open_users(store, namespace) as users:
        for name, version in bank_of(users, None).list():
            read = f"{version.document.share:.0%} of {version.document.name}"
            print(row(name, plural(version.tokens, "token"), version.question, read))


def show(
    reference: Named = None,
    user: User = None,
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Print a memory."""
    with open_users(store, namespace) as users:
        if user is not None and reference is None:
            version = users.get(user)
        else:
            version = bank_of(users, user).get(name_for(reference, user))
        print(version.text)


def history(
    reference: Named = None,
    user: User = None,
    store: MemoryStore = None,
    namespace: Namespace = None,
) -> None:
    """Print every version of a memory, newest first, and what each changed.

    With --user, each line says who made the change, when, from which messages and with which
    model, also of versions that are gone. Of a user who was forgotten, it says only that.
    """
    with open_users(store, namespace) as users:
        if user is not None and reference is None:
            versions, changes = users.history(user)
            print_changes(versions, changes)
        else:
            print_versions(bank_of(users, user).history(name_for(reference, user)))


def readings(store: MemoryStore = None, namespace: Namespace = None) -> None:
    """List readings under way: memory, progress, question, document, start, and its last edit."""
    with open_users(store, namespace) as users:
        folds = bank_of(users, None).under_way()
    for fold in folds:
        chunks = f"chunk {fold.step} of about {fold.chunks}" if fold.step else "chunk 0"
        since = f"since {day(fold.since)}"
        print(row(fold.memory, chunks, fold.question, fold.source_name, since, _state(fold)))
    if not folds:
        print("memagent: nothing is being read now.", file=sys.stderr)


def _state(fold: UnderWay) -> str:
    if not fold.edit:
        return ""
    return f"edited, taken {day(fold.taken)}" if fold.taken else "edited, taken at the next chunk"
