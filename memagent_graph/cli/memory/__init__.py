"""`memagent memory`: look at stored memories, edit, move and forget them."""

from __future__ import annotations

import typer

from memagent_graph.cli.catch_up import catch_up
from memagent_graph.cli.memory import changing, forgetting, holding, looking

app = typer.Typer(
    help="Look at stored memories, edit, move and forget them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command("list")(looking.list_memories)
app.command("users")(looking.list_users)
app.command()(looking.show)
app.command(no_args_is_help=True)(looking.search)
app.command()(looking.history)
app.command("diff")(looking.show_diff)
app.command()(looking.watch)
app.command()(holding.readings)
app.command()(holding.hold)
app.command()(holding.release)
app.command()(changing.edit)
app.command()(changing.delete)
app.command()(forgetting.forget)
app.command()(changing.prune)
app.command()(changing.check)
app.command()(changing.export)
app.command("import")(changing.import_lines)
app.command("catch-up")(catch_up)
