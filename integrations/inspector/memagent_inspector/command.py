"""`memagent inspect`: show the memories of a store in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated

import typer

from memagent_graph.cli.options import Keeps, takes_options
from memagent_graph.cli.terminal import report_errors

TOKEN = "MEMAGENT_INSPECT_TOKEN"  # noqa: S105 - the variable's name
_GRACE = 5
"""Time for requests to end after a signal, in seconds."""
_HELP = """Look at memories in a browser, edit and forget them.

Readings can be followed as they happen, and versions compared. Documents below --root are opened,
so that a statement can be seen where it came from.

Visitors have to give what MEMAGENT_INSPECT_TOKEN holds, which is needed on an address that others
can reach.

Examples:

\b
  memagent inspect
  memagent inspect --store redis://localhost:6379/0 --root contracts
"""

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None)


@app.callback(invoke_without_command=True, help=_HELP)
@takes_options
def inspect(
    *,
    keeps: Keeps,
    root: Annotated[
        list[str] | None,
        typer.Option(
            help="File or folder with documents that were read; the working folder by default. "
            "Repeat it for more."
        ),
    ] = None,
    calls: Annotated[
        list[str] | None,
        typer.Option(
            help="File or folder of calls that a TraceRecorder wrote. Repeat it for more."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8765,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Replaced by `_HELP` above."""
    from uvicorn import Server

    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.stores import open_store
    from memagent_http.access import LOCAL
    from memagent_http.server import config, listen, serve, url_of
    from memagent_inspector.app import create_app

    with report_errors("memagent: stopped."), open_store(keeps.store) as found:
        token = os.environ.get(TOKEN)
        if found is None:
            message = "There are no memories in the store 'none': name another with --store."
            raise ConfigurationError(message)
        if host not in LOCAL and not token:
            message = (
                f"Others could reach {host} and change all memories: set {TOKEN}, which visitors "
                "then have to give (openssl rand -hex 24)."
            )
            raise ConfigurationError(message)
        application = create_app(
            found,
            namespace=keeps.place,
            roots=root or ["."],
            recorded=calls or [],
            token=token,
        )
        listening = listen(host, port)
        place = url_of(listening, host)
        print(f"memagent: the inspector is at {place}", file=sys.stderr)
        if browse:
            webbrowser.open(place)
        serve(Server(config(application, grace=_GRACE)), listening)
