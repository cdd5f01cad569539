"""`memagent memory forget`: a memory, a document in all memories, or all that is of a user."""

from __future__ import annotations

import string
import sys
from contextlib import nullcontext
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.memory.opening import Store, bank_of, open_users, operator
from memagent_graph.cli.options import Namespace
from memagent_graph.cli.resuming import open_saver
from memagent_graph.cli.shown import row, shown
from memagent_graph.counted import counted

if TYPE_CHECKING:
    from memagent_graph.memory.bank import Forgotten, ForgottenSource
    from memagent_graph.memory.users import Users

_DIGEST = 64
"""Digits of a document's digest."""


def forget(
    name: Annotated[
        str | None, typer.Argument(help="A memory's name, or the key of a reading without one.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--source", help="A file, folder or glob; a document's name, or its digest."),
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", help="The user of a chatbot to forget.")
    ] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="With --user: the SQLite file of the chatbot's checkpointer, in which the "
            "user's threads are deleted too.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be forgotten.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Forget a memory (NAME), a document (--source), or a user of a chatbot (--user).

    A memory: its name and its versions are deleted, except those that other memories have or need.

    A document: all that came from it is deleted, in all memories and in the cache. Statements that
    came from elsewhere stay: a named memory that has some is rewritten.

    A user: all that is stored of them is deleted, also from the free pages and the log of an SQLite
    file. One line stays, under a digest of the user's id: when they were forgotten, and by whom.
    """
    from memagent_graph.errors import ConfigurationError

    with open_users(store, namespace) as users:
        if [name, source, user].count(None) != 2:  # noqa: PLR2004 - one of the three
            message = "Say what to forget: a NAME, a document with --source, or a --user."
            raise ConfigurationError(message)
        if name is not None:
            _forget_memory(users, name, dry_run=dry_run, yes=yes)
        elif source is not None:
            _forget_source(users, source, dry_run=dry_run, yes=yes)
        elif user is not None:
            _forget_user(users, user, checkpoints, dry_run=dry_run, yes=yes)


def _forget_memory(users: Users, name: str, *, dry_run: bool, yes: bool) -> None:
    bank = bank_of(users, None)
    _print_forgotten(name, bank.forget(name, preview=True))
    if dry_run:
        return
    if not yes:
        typer.confirm("Forget it?", abort=True)
    done = bank.forget(name)
    print(f"memagent: {counted(done.versions, 'version')} forgotten.", file=sys.stderr)


def _forget_source(users: Users, source: str, *, dry_run: bool, yes: bool) -> None:
    from memagent_graph.errors import MemoryNotFoundError

    bank = bank_of(users, None)
    documents = [*_digests(source), *bank.digests_of(source)]
    if not documents:
        message = f"There is no file {source}, and no memory of a document of that name."
        raise MemoryNotFoundError(message)
    found = bank.forget_source(*documents, preview=True)
    _print_forgotten_source(found)
    if dry_run or not (found.versions or found.cached):
        return
    if not yes:
        typer.confirm("Forget it?", abort=True)
    done = bank.forget_source(*documents)
    print(f"memagent: {counted(done.versions, 'version')} forgotten.", file=sys.stderr)


def _forget_user(
    users: Users, user: str, checkpoints: Path | None, *, dry_run: bool, yes: bool
) -> None:
    from memagent_graph.conversation.threads import aforget, athreads_of
    from memagent_graph.sync import wait_for

    held = users.held(user)
    items, versions = counted(held.items, "item"), counted(held.versions, "version")
    print(row(user, f"{items} stored, among them {versions}"))
    with nullcontext() if checkpoints is None else open_saver(checkpoints) as saver:
        if saver is not None:
            found = wait_for(athreads_of(saver, user, held.threads))
            threads = counted(len(found.own), "thread")
            print(row(str(checkpoints), threads, *found.own))
        if dry_run:
            return
        if not yes:
            typer.confirm("Forget this user?", abort=True)
        done = wait_for(aforget(users.of(user), by=operator(), checkpointer=saver))
    items, threads = counted(done.items, "item"), counted(len(done.deleted), "thread")
    print(f"{items} and {threads} deleted")
    if done.threads and saver is None:
        print(
            shown(
                f"A checkpointer may still hold the threads {', '.join(done.threads)}. Delete them "
                "with checkpointer.delete_thread(id), or run this again with --checkpoints FILE: "
                "until then they may be folded again."
            )
        )
    elif done.threads:
        print(
            shown(
                f"Others spoke in the threads {', '.join(done.threads)}, which stay. Delete them "
                "with checkpointer.delete_thread(id) if you may."
            )
        )
    if done.left:
        print(f"memagent: {done.left}", file=sys.stderr)


def _digests(document: str) -> list[str]:
    """Of a document that is there, and of all that it is joined from; a digest is its own."""
    from memagent_graph.errors import SourceError
    from memagent_graph.text.opening import open_source
    from memagent_graph.text.source import digests_of

    if len(document) == _DIGEST and not document.strip(string.hexdigits):
        return [document.lower()]
    if Path(document).is_file():  # which need not be converted for it
        with Path(document).open("rb") as file:
            return [file_digest(file, "sha256").hexdigest()]
    try:
        return digests_of(open_source(Path(document)))
    except SourceError:
        return []


def _print_forgotten(name: str, found: Forgotten) -> None:
    print(row(name, f"{counted(found.versions, 'version')} that no other memory has"))
    for other, count in found.shared.items():
        print(row(other, f"{counted(count, 'version')} that it has as well and keeps"))


def _print_forgotten_source(found: ForgottenSource) -> None:
    versions, texts = counted(found.versions, "version"), counted(found.cached, "kept text")
    print(f"{versions} and {texts} came from it")
    for name in found.rewritten:
        print(shown(f"{name}\tis rewritten without it"))
    for name in found.forgotten:
        print(shown(f"{name}\thas nothing else and goes"))
    for key in found.unreadable:
        print(shown(f"{key}\tcannot be read and stays (memagent memory check --repair)"))
