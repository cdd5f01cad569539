"""`memagent serve`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path  # noqa: TC003 - typer reads annotations when the program runs
from typing import Annotated

import typer

from memagent_graph.cli.options import (
    AnswerTokens,
    BaseUrl,
    ChunkTokens,
    MemoryTokens,
    Model,
    PromptsFile,
    Store,
    TokenizerFile,
    chosen_reader,
)
from memagent_graph.cli.reporting import reporting

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]}, rich_markup_mode="markdown"
)

_LOCAL = ("127.0.0.1", "localhost", "[::1]", "::1")
_HELP = """Serve the OpenAI API, with a context without end, in front of any model.

**Examples**

    memagent serve

    memagent serve --model openai:Qwen/Qwen2.5-7B-Instruct --base-url http://localhost:8000/v1

    memagent serve --model openai:gpt-4o --keys keys.txt --host 0.0.0.0 --store redis://redis:6379/0

Keys are lines of a name and a key, in the file that --keys names or in MEMAGENT_API_KEYS, where
commas may stand between them. Each name has memories of its own. Without keys, only this machine is
served.
"""


@app.callback(invoke_without_command=True, help=_HELP)
def serve(
    model: Model = None,
    base_url: BaseUrl = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8080,
    keys: Annotated[
        Path | None, typer.Option(help="File with a name and a key on each line.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="A site whose pages may call this server from a browser."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Context of the model in tokens, where its server does not tell."),
    ] = None,
    requests_per_minute: Annotated[
        int, typer.Option(help="Of one key, or of one address; 0: any number.")
    ] = 0,
    readings: Annotated[int, typer.Option(help="Readings at once; more wait.")] = 64,
    body_megabytes: Annotated[int, typer.Option(help="Longest body of a request.")] = 32,
    chunk_tokens: ChunkTokens = 5000,
    memory_tokens: MemoryTokens = 1024,
    answer_tokens: AnswerTokens = 1024,
    tokenizer: TokenizerFile = None,
    prompts: PromptsFile = None,
    store: Store = None,
) -> None:
    """Replaced by `_HELP` above."""
    from memagent_graph.config import ReadingConfig
    from memagent_graph.errors import ConfigurationError
    from memagent_graph.memory.stores import open_store
    from memagent_graph.models.resolve import EXTRACTIVE
    from memagent_graph.prompts import Prompts
    from memagent_openai_server.app import create_app
    from memagent_openai_server.door import keys_from_file, load_keys
    from memagent_openai_server.limits import Limits
    from memagent_openai_server.running import run

    with reporting():
        found = load_keys(os.environ.get("MEMAGENT_API_KEYS", ""), where="MEMAGENT_API_KEYS")
        if keys is not None:
            found |= keys_from_file(keys)
        if not found and host not in _LOCAL:
            message = f"Without keys, anybody could use {host}:{port}: name some with --keys."
            raise ConfigurationError(message)
        config = ReadingConfig(
            chunk_tokens=chunk_tokens, memory_tokens=memory_tokens, answer_tokens=answer_tokens
        )
        if model is None:
            chosen_reader(model, base_url, prompts, tokenizer, config)  # says which it is
        if base_url and model in (None, EXTRACTIVE):
            raise ConfigurationError("--base-url needs a model: --model openai:MODEL.")
        with open_store(store) as kept_in:
            application = create_app(
                model,
                base_url=base_url,
                store=kept_in,
                config=config,
                prompts=Prompts.from_file(prompts) if prompts else None,
                tokenizer=tokenizer,
                window=window,
                keys=found,
                hosts=() if found else _LOCAL,
                origins=cors_origin or (),
                limits=Limits(
                    body_bytes=body_megabytes * 2**20,
                    requests_per_minute=requests_per_minute,
                    readings=readings,
                ),
            )
            asyncio.run(application.state.service.check())
            run(application, host=host, port=port)
