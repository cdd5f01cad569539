"""`memagent cache`: texts of converted documents and indexes, kept for the next time."""

from __future__ import annotations

import typer

from memagent_graph.cli.reporting import reporting
from memagent_graph.counted import counted

app = typer.Typer(help="Show or clear the cache of converted texts and indexes.")


@app.callback(invoke_without_command=True)
def show(context: typer.Context) -> None:
    """Show the folder and the size of the cache of converted texts and indexes."""
    from memagent_graph.text.user_cache import folder_of_converted, size_of_converted

    if context.invoked_subcommand is None:
        with reporting():
            place = folder_of_converted() or "There is no folder"
            print(f"{place}: {size_of_converted() / 1e6:,.1f} MB")


@app.command()
def clear() -> None:
    """Remove all cached texts and indexes."""
    from memagent_graph.text.user_cache import clear_converted

    with reporting():
        removed = clear_converted()
        print(f"Removed {counted(removed, 'text')}.")
