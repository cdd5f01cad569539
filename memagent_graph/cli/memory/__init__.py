"""`memagent memory`: look at stored memories, edit, move and forget them."""

from __future__ import annotations

import typer

from memagent_graph.cli.memory import edit, show

app = typer.Typer(
    help="Look at stored memories, edit, move and forget them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("list")(show.list_memories)
app.command("users")(show.list_users)
app.command()(show.show)
app.command()(show.history)
app.command()(show.readings)
app.command()(edit.edit)
app.command()(edit.forget)
app.command()(edit.check)
app.command()(edit.export)
app.command("import")(edit.import_lines)
