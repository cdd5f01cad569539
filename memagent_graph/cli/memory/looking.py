"""Commands that only look: users, list, show, history, diff, search and watch."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.memory.opening import (
    Named,
    Reference,
    Store,
    User,
    bank_of,
    named,
    open_users,
)
from memagent_graph.cli.memory.printing import day, print_changes, print_diff, print_versions
from memagent_graph.cli.options import Namespace
from memagent_graph.cli.shown import row, shown
from memagent_graph.counted import counted

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.users import Users
    from memagent_graph.memory.version import MemoryVersion


def list_users(store: Store = None, namespace: Namespace = None) -> None:
    """List the users of a chatbot: id, size of the memory, when it changed last."""
    with open_users(store, namespace) as users:
        for user, version in users.list():
            size = "no memory yet" if version is None else counted(version.tokens, "token")
            print(row(user, size, "" if version is None else day(version.created_at)))


def list_memories(store: Store = None, namespace: Namespace = None) -> None:
    """List memories of documents: name, size, what was asked, what was read.

    The memories of a chatbot's users are listed by `memagent memory users`.
    """
    with open_users(store, namespace) as users:
        for name, version in bank_of(users, None).list():
            read = f"{version.end / version.length:.0%} of {version.source_name}"
            print(row(name, counted(version.tokens, "token"), version.question, read))


def show(
    reference: Named = None,
    user: User = None,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Print a memory."""
    with open_users(store, namespace) as users:
        print(shown(_get(users, reference, user).text))


def history(
    reference: Named = None,
    user: User = None,
    store: Store = None,
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
            print_versions(bank_of(users, user).history(named(reference, user)))


def show_diff(
    before: Reference,
    after: Reference,
    user: User = None,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Print what changed from one version to another."""
    from memagent_graph.memory.bank import diff

    with open_users(store, namespace) as users:
        bank = bank_of(users, user)
        print_diff(diff(bank.get(before), bank.get(after)))


def search(
    words: Annotated[list[str], typer.Argument(help="Words that a line must all contain.")],
    user: User = None,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Search users and their memories by words: print each user and line that has them all.

    A user whose id has the words is found with every line. Messages that were kept are searched
    too. Exit code 1 if nothing was found.
    """
    with open_users(store, namespace) as users:
        found = users.search(" ".join(words), None if user is None else [user])
    for name, line in found:
        print(row(name, line))
    if not found:
        raise typer.Exit(1)


def watch(
    reference: Named = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Begin with the existing versions.")
    ] = False,
    user: User = None,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Follow a memory live: print each new version's changes until you stop it."""
    from memagent_graph.memory.bank import diff

    async def follow(bank: MemoryBank) -> None:
        topic = await _topic(bank, named(reference, user))
        before: MemoryVersion | None = None
        async for version in bank.watch(topic, after="0" if everything else "$"):
            typer.secho(f"{version.id}  chunk {version.step}", bold=True)
            print_diff(diff(before or version, version))
            before = version
            sys.stdout.flush()

    with open_users(store, namespace) as users:
        asyncio.run(follow(bank_of(users, user)))


def _get(users: Users, reference: str | None, user: str | None) -> MemoryVersion:
    """The memory that a command names.

    Raises:
        MemoryNotFoundError: There is none.
    """
    if user is not None and reference is None:
        return users.get(user)
    return bank_of(users, user).get(named(reference, user))


async def _topic(bank: MemoryBank, reference: str) -> str:
    """What a memory's versions are announced under; a name may come to be later."""
    from memagent_graph.errors import MemoryNotFoundError

    if await bank.ahead(reference) is not None:
        return reference
    try:
        return (await bank.aget(reference)).root
    except MemoryNotFoundError:
        return reference
