"""A progress bar on the terminal while a document is read."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from memagent_graph.cli.terminal import mask_controls, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memagent_graph.graph.events import ChunkEvent, Event

_LONGEST_NAME = 24
_SUMMED: tuple[Literal["chunk", "chunks", "position", "length", "tokens"], ...]
_SUMMED = ("chunk", "chunks", "position", "length", "tokens")
"""Counts that are summed over the segments of a document."""


@contextmanager
def progress_bar() -> Iterator[Callable[[Event], None]]:
    """Show a bar on stderr that is gone at the end; yields what takes the reading's events."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("chunk {task.fields[chunk]} of {task.fields[chunks]}"),
        TextColumn("[dim]{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(file=unwrap(sys.stderr)), transient=True) as progress:
        task = progress.add_task("reading", total=None, chunk=0, chunks="?", rate="")
        begun: list[tuple[float, int]] = []
        folds: dict[str, ChunkEvent] = {}  # the last event of each

        def show(event: Event) -> None:
            if event["event"] == "opened":
                progress.update(task, description=_describe_reading(event), total=event["length"])
            elif event["event"] == "chunk":
                if any(fold["round"] < event["round"] for fold in folds.values()):
                    folds.clear()
                folds[event["fold"]] = event
                read = {key: sum(fold[key] for fold in folds.values()) for key in _SUMMED}
                begun.append((progress.get_time(), read["tokens"]))
                (since, first), (now, tokens) = begun[0], begun[-1]
                rate = f"{(tokens - first) / (now - since):,.0f} tokens/s" if now > since else ""
                known = progress.tasks[0].total  # a resumed run does not open its document anew
                total = known or read["length"]
                progress.update(
                    task,
                    description=_describe_reading(event),
                    total=total,
                    completed=read["position"],
                    chunk=read["chunk"],
                    chunks=f"about {read['chunks'] * total / read['length']:.0f}",
                    rate=rate,
                )

        yield show


def _describe_reading(event: Event) -> str:
    name = Path(event["source"]).name or event["source"]
    if len(name) > _LONGEST_NAME:  # the bar must stay on one line
        name = name[: _LONGEST_NAME - 1] + "…"
    return f"reading {escape(mask_controls(name))}"
