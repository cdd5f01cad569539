"""A progress bar on the terminal while a document is read."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from memagent_graph.cli.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LONGEST_NAME = 24


@contextmanager
def progress_bar() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a bar on stderr that is gone at the end; yields what takes the reading's events."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("chunk {task.fields[chunk]} of {task.fields[chunks]}"),
        TextColumn("[dim]{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=None, chunk=0, chunks="?", rate="")
        begun: list[tuple[float, int]] = []

        def show(event: dict[str, Any]) -> None:
            if event["event"] == "opened":
                progress.update(task, description=_reading(event), total=event["length"])
            elif event["event"] == "chunk":
                begun.append((progress.get_time(), event["tokens"]))
                (since, first), (now, tokens) = begun[0], begun[-1]
                rate = f"{(tokens - first) / (now - since):,.0f} tokens/s" if now > since else ""
                progress.update(
                    task,
                    description=_reading(event),  # a resumed run does not open its document anew
                    total=event["length"],
                    completed=event["position"],
                    chunk=event["chunk"],
                    chunks=f"about {event['chunks']}",
                    rate=rate,
                )

        yield show


def _reading(event: dict[str, Any]) -> str:
    name = Path(event["source"]).name or event["source"]
    if len(name) > _LONGEST_NAME:  # the bar must stay on one line
        name = name[: _LONGEST_NAME - 1] + "…"
    return f"reading {escape(shown(name, sys.stderr))}"
