"""The application: its own commands, and those that other packages add."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from memagent_graph.cli import memory
from memagent_graph.cli.ask import ask, batch
from memagent_graph.cli.doctor import doctor
from memagent_graph.cli.evaluate import evaluate, train
from memagent_graph.cli.terminal import flush_output, mask_output

_HELP = """Read documents of any length through a small memory, and answer from it.

Try `memagent ask "Who signed the lease?" lease.pdf`, or `memagent doctor`.
"""


class _Group(TyperGroup):
    """The commands; what they and their help print is masked, and lost only with an error."""

    def main(self, *args: Any, **options: Any) -> Any:
        with mask_output():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> Any:
        with flush_output():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any) -> Any:
        with flush_output():
            return super().invoke(*args)


app = typer.Typer(
    name="memagent",
    cls=_Group,
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(no_args_is_help=True)(ask)
app.command(no_args_is_help=True)(batch)
app.command("eval", no_args_is_help=True)(evaluate)
app.command(no_args_is_help=True)(train)
app.command()(doctor)
app.add_typer(memory.app, name="memory")


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - typer's signature
    if wanted:
        from memagent_graph import __version__

        typer.echo(f"memagent {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


_OPTIONAL = ("inspect", "mcp", "serve")
"""Commands that come with an extra of the same name."""


def _add_plugins() -> None:
    """Add the `typer.Typer` of each entry point in `memagent_graph.commands` under its name."""
    found = entry_points(group="memagent_graph.commands")
    for name in _OPTIONAL:
        if name not in found.names:
            _add_missing(name)
    for entry in found:
        try:
            app.add_typer(_load(entry), name=entry.name)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a broken plugin breaks no command
            message = f"memagent: the command {entry.name!r} cannot be loaded: {error}"
            print(message, file=sys.stderr)


def _add_missing(name: str) -> None:
    install = f'pip install "memagent-graph[{name}]"'

    @app.command(
        name,
        short_help=f"Not installed: {install}",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def refuse() -> None:
        print(f"memagent: error: the command {name!r} needs: {install}", file=sys.stderr)
        raise typer.Exit(1)


def _load(entry: EntryPoint) -> typer.Typer:
    plugin = entry.load()
    if not isinstance(plugin, typer.Typer):
        message = f"{entry.value} is not a typer.Typer"
        raise TypeError(message)
    typer.main.get_group(plugin)  # a command that cannot be built would break the whole app later
    return plugin


_add_plugins()
