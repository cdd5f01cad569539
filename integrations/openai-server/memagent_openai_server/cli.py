"""`memagent serve`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path  # noqa: TC003 - typer reads annotations when the program runs
from typing import Annotated

import typer

from memagent_graph.cli.options import Keeps, Reads, takes_options
from memagent_graph.cli.terminal import report_errors

app = typer.Typer(context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode=None)

_HELP = """Serve the OpenAI API with an unlimited context.

Examples:

\b
  memagent serve
  memagent serve --model openai:MODEL --base-url http://localhost:8000/v1
  memagent serve --model openai:gpt-4o --keys keys.txt --host 0.0.0.0
  memagent serve --models models.toml
  memagent serve --remember --store redis://localhost:6379/0

Give keys as lines of a name and a key, in the file of --keys or in MEMAGENT_API_KEYS, where commas
also separate them. Each name has its own memories. Without keys, only this machine is served.
"""


@app.callback(invoke_without_command=True, help=_HELP)
@takes_options
def serve(
    *,
    reads: Reads,
    models: Annotated[
        Path | None, typer.Option(help="TOML file with a table for each model, to serve several.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
    keys: Annotated[
        Path | None, typer.Option(help="File of callers, a name and a key on each line.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Site whose pages may call this server from a browser."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Context of the model in tokens, if its server does not report it."),
    ] = None,
    requests_per_minute: Annotated[
        int, typer.Option(help="Most requests of one key, or of one address; 0 sets no limit.")
    ] = 0,
    readings: Annotated[
        int, typer.Option(help="Most calls of readings to the model at once, over all callers.")
    ] = 64,
    body_megabytes: Annotated[int, typer.Option(help="Largest body of a request.")] = 32,
    keep_days: Annotated[
        float,
        typer.Option(
            help="Days after which the store deletes what is not used, if it can; 0 keeps it.",
            min=0,
        ),
    ] = 30,
    remember: Annotated[
        bool,
        typer.Option(
            "--remember",
            help="Remember what each `user` says, and show it to the model in later chats.",
        ),
    ] = False,
    chunk_tokens: Annotated[int, typer.Option(help="Longest chunk, in tokens.")] = 5000,
    memory_tokens: Annotated[int, typer.Option(help="Longest memory, in tokens.")] = 1024,
    answer_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 1024,
    keeps: Keeps,
) -> None:
    """Replaced by `_HELP` above."""
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.stores import open_store
    from memagent_graph.prompts import Prompts
    from memagent_graph.readers.resolve import EXTRACTIVE
    from memagent_http.access import LOCAL
    from memagent_http.server import listen
    from memagent_openai_server.access import Limits, keys_from_file, load_keys, log_to_stderr
    from memagent_openai_server.app import create_app, run
    from memagent_openai_server.models import models_from_file

    with report_errors():
        found = load_keys(os.environ.get("MEMAGENT_API_KEYS", ""), where="MEMAGENT_API_KEYS")
        if keys is not None:
            found |= keys_from_file(keys)
        if not found and host.strip("[]") not in LOCAL:
            message = f"Without keys, anyone could use {host}:{port}: give some with --keys."
            raise ConfigurationError(message)
        config = reads.make_config(
            chunk_tokens=chunk_tokens,
            memory_tokens=memory_tokens,
            answer_tokens=answer_tokens,
            ttl=keep_days * 24 * 60 or None,
        )
        if models is None and reads.model in (None, EXTRACTIVE):
            reads.make_reader(config)  # reports the choice, or that it needs no --base-url
        limits = Limits(
            body_bytes=body_megabytes * 2**20,
            requests_per_minute=requests_per_minute,
            readings=readings,
        )
        with open_store(keeps.store) as kept_in:
            application = create_app(
                reads.model if models is None else models_from_file(models),
                base_url=reads.base_url,
                store=kept_in,
                namespace=keeps.place,
                config=config,
                prompts=Prompts.from_file(reads.prompts) if reads.prompts else None,
                tokenizer=reads.tokenizer,
                window=window,
                keys=found,
                hosts=() if found else LOCAL,
                origins=cors_origin or (),
                remember=remember,
                limits=limits,
            )
            log_to_stderr()
            asyncio.run(application.state.models.check())
            run(application, listen(host, port), host)
