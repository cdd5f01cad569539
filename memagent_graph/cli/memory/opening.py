"""Whose memories a command is about: the store, the namespace, and one user or none."""

from __future__ import annotations

import getpass
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from memagent_graph.cli.options import chosen_namespace
from memagent_graph.cli.reporting import reporting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.users import Users

Reference: TypeAlias = Annotated[str, typer.Argument(help="A memory's name or a version's id.")]
Named: TypeAlias = Annotated[
    str | None,
    typer.Argument(help="A memory's name or a version's id; not needed with --user."),
]
User: TypeAlias = Annotated[
    str | None,
    typer.Option("--user", help="User of a chatbot: the memory of this user."),
]
Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="MEMAGENT_STORE",
        help="A Redis URL or an SQLite file; by default a file in your data folder.",
    ),
]


@contextmanager
def open_users(store: str | None, namespace: str | None) -> Iterator[Users]:
    """The users of a chatbot."""
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.stores import open_store
    from memagent_graph.memory.users import Users

    with reporting("memagent: stopped."), open_store(store) as found:
        if found is None:
            message = "There are no memories in the store 'none': name another with --store."
            raise ConfigurationError(message)
        yield Users(found, chosen_namespace(namespace))


def bank_of(users: Users, user: str | None) -> MemoryBank:
    """The memories of a namespace, or of one user of a chatbot there."""
    from memagent_graph.memory.bank import MemoryBank

    return MemoryBank(users.store, users.namespace) if user is None else users.of(user).bank


def named(reference: str | None, user: str | None) -> str:
    """The reference that a command was given; a user's own memory needs none.

    Raises:
        ConfigurationError: There is neither.
    """
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.personal import MEMORY

    if reference is None and user is None:
        message = (
            "Which memory? Name one (`memagent memory list` lists them), or a user with --user "
            "(`memagent memory users` lists them)."
        )
        raise ConfigurationError(message)
    return reference or MEMORY


def operator() -> str:
    """Who runs this command, for the line of what they change."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # this user has no name
        return f"uid {os.getuid()}"
