"""`memagent mcp`: serve on standard input and output, or over HTTP."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from collections.abc import Iterator

    from langgraph.store.base import BaseStore
    from mcp.server.mcpserver import MCPServer

TOKEN = "MEMAGENT_MCP_TOKEN"  # noqa: S105 - the variable's name

app = typer.Typer(invoke_without_command=True)


@app.callback()
def mcp(
    root: Annotated[
        list[str], typer.Option(help="A file or folder that clients may read; several times.")
    ],
    model: Model = None,
    base_url: BaseUrl = None,
    chunk_tokens: ChunkTokens = 5000,
    memory_tokens: MemoryTokens = 1024,
    answer_tokens: AnswerTokens = 1024,
    tokenizer: TokenizerFile = None,
    prompts: PromptsFile = None,
    store: Store = None,
    port: Annotated[
        int | None, typer.Option(help="Serve streamable HTTP there, not standard input and output.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
) -> None:
    """Let MCP clients read documents of any length.

    Over HTTP, clients have to send what MEMAGENT_MCP_TOKEN holds as a bearer token.
    """
    from memagent_graph.config import ReadingConfig
    from memagent_mcp_server.roots import Roots
    from memagent_mcp_server.server import create_server

    with reporting("memagent: stopped."), _store(store) as kept_in:
        config = ReadingConfig(
            chunk_tokens=chunk_tokens, memory_tokens=memory_tokens, answer_tokens=answer_tokens
        )
        reader = chosen_reader(model, base_url, prompts, tokenizer, config)
        server = create_server(reader, roots=Roots(root), store=kept_in, config=config)
        if port is not None:
            _serve_http(server, host, port)
            return
        _stop_at_once()
        server.run()


def _serve_http(server: MCPServer[Any], host: str, port: int) -> None:
    import uvicorn

    from memagent_mcp_server.http import create_app

    application = create_app(server, host=host, token=os.environ.get(TOKEN))
    print(f"memagent: serving MCP at http://{host}:{port}/mcp", file=sys.stderr)
    uvicorn.run(application, host=host, port=port, log_level="warning", timeout_graceful_shutdown=5)


def _stop_at_once() -> None:
    """Let an interrupt end the process, not wait for the client's next line.

    The thread that waits for that line cannot be stopped. What was read is in the store, which
    can be left at any time. Nothing is raised: where that came up, in the loop or in one of its
    tasks, would decide what else is printed.
    """

    def stop(*_: object) -> None:
        with suppress(OSError):  # nobody may be left to tell
            os.write(2, b"memagent: stopped.\n")
        os._exit(130)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


@contextmanager
def _store(where: str | None) -> Iterator[BaseStore]:
    """The store that the option names; memories have to be somewhere while the server runs."""
    from langgraph.store.memory import InMemoryStore

    from memagent_graph.memory.stores import open_store

    with open_store(where) as found:
        yield found or InMemoryStore()
