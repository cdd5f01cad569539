"""Commands for memories that are being read: readings, hold and release."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.memory.opening import Reference, Store, bank_of, open_users, operator
from memagent_graph.cli.memory.printing import day
from memagent_graph.cli.options import Namespace
from memagent_graph.cli.shown import row
from memagent_graph.counted import counted

if TYPE_CHECKING:
    from memagent_graph.memory.holding import UnderWay

_MINUTE = 60.0


def readings(store: Store = None, namespace: Namespace = None) -> None:
    """List readings under way: memory, progress, question, document, start, and who holds it."""
    with open_users(store, namespace) as users:
        folds = bank_of(users, None).under_way()
    for fold in folds:
        chunks = f"chunk {fold.step} of about {fold.chunks}" if fold.step else "chunk 0"
        since = f"since {day(fold.since)}"
        print(row(fold.memory, chunks, fold.question, fold.source_name, since, _state(fold)))
    if not folds:
        print("memagent: nothing is being read now.", file=sys.stderr)


def hold(
    memory: Reference,
    minutes: Annotated[
        float, typer.Option(min=0.01, help="Minutes after which the readings continue anyway.")
    ] = 10.0,
    store: Store = None,
    namespace: Namespace = None,
) -> None:
    """Pause the readings into a memory before their next chunk, so that you can edit it.

    MEMORY is a name, or a key that `memagent memory readings` prints. While it is held,
    `memagent memory edit MEMORY` edits what the reading continues from.
    """
    with open_users(store, namespace) as users:
        bank = bank_of(users, None)
        bank.hold(memory, operator(), seconds=minutes * _MINUTE)
        count = len(bank.under_way(memory))
    print(row(memory, f"held for {counted(minutes, 'minute')}"))
    if not count:
        print("memagent: nothing is reading into this memory now.", file=sys.stderr)


def release(memory: Reference, store: Store = None, namespace: Namespace = None) -> None:
    """Let the readings into a memory continue. Exit code 1 when it was not held."""
    with open_users(store, namespace) as users:
        released = bank_of(users, None).release(memory)
    if not released:
        print(f"memagent: {memory!r} was not held.", file=sys.stderr)
        raise typer.Exit(1)


def _state(fold: UnderWay) -> str:
    if fold.hold is None:
        return ""
    return f"{'paused' if fold.held else 'will pause'}: held by {fold.hold.by}"
