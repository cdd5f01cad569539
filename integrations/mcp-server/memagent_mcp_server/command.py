"""`memagent mcp`: serve on standard input and output, or over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import traceback
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from memagent_graph.cli.options import Keeps, Reads, takes_options
from memagent_graph.cli.terminal import report_errors
from memagent_mcp_server.exit import UNENDED, end, end_within

if TYPE_CHECKING:
    from memagent_mcp_server.server import Server

_LONGEST = 500
"""Most characters of a message."""


class Lines(logging.Formatter):
    """Formats a record as one line of printable characters.

    Errors are logged with type and place only, because their messages may have a client's text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = f"memagent: {record.levelname.lower()}: {record.name}: "
        line += _printable(record.getMessage()[:_LONGEST])
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)[-1:]
            where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in frames)
            line += f" ({kind.__name__}{where})"
        return line


def log_to_stderr() -> None:
    """Write the warnings of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _printable(text: str) -> str:
    """The text with escapes for unprintable characters, such as controls and direction marks."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


TOKEN = "MEMAGENT_MCP_TOKEN"  # noqa: S105 - the variable's name
_ANSWER_SECONDS = 0.5
"""Time for the answers of stopped readings to be written, in seconds."""
_GRACE = 10
"""Time after which a stopping process ends, even if something hangs, in seconds."""
_NO_ANSWERS = "error: an answer could not be written to the client: start it again."

app = typer.Typer(invoke_without_command=True)


@app.callback()
@takes_options
def mcp(
    *,
    root: Annotated[
        list[str], typer.Option(help="File or folder that clients may read. Repeat it for more.")
    ],
    reads: Reads,
    chunk_tokens: Annotated[int, typer.Option(help="Longest chunk, in tokens.")] = 5000,
    memory_tokens: Annotated[int, typer.Option(help="Longest memory, in tokens.")] = 1024,
    answer_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 1024,
    keeps: Keeps,
    users: Annotated[
        bool,
        typer.Option(
            "--users",
            help="Let clients remember users, and see, edit and forget those memories.",
        ),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Port for streamable HTTP. Without it, serve on standard input/output."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Site whose pages may call this server from a browser."),
    ] = None,
) -> None:
    """Let MCP clients read documents of any length.

    Over HTTP, clients must send the value of MEMAGENT_MCP_TOKEN, if set, as a bearer token.
    """
    from langgraph.store.memory import InMemoryStore

    from memagent_graph.memory.stores import open_store
    from memagent_mcp_server.roots import Roots
    from memagent_mcp_server.server import create_server

    log_to_stderr()
    with report_errors("memagent: stopped."), open_store(keeps.store) as found:
        config = reads.make_config(
            chunk_tokens=chunk_tokens, memory_tokens=memory_tokens, answer_tokens=answer_tokens
        )
        server = create_server(
            reads.make_reader(config),
            roots=Roots(root),
            store=found or InMemoryStore(),
            namespace=keeps.place,
            config=config,
            users=users,
        )
        if port is not None:
            _serve_http(server, host, port, cors_origin or [])
            return
        asyncio.run(_serve_stdio(server))


def _serve_http(server: Server, host: str, port: int, origins: list[str]) -> None:
    from memagent_http.server import listen, url_of
    from memagent_mcp_server.http import HTTPServer, create_app

    application = create_app(server, host=host, token=os.environ.get(TOKEN), origins=origins)
    listening = listen(host, port)
    print(f"memagent: serving MCP at {url_of(listening, host)}/mcp", file=sys.stderr)
    HTTPServer(application, stop=server.reading.stop).run([listening])


async def _serve_stdio(server: Server) -> None:
    """Serve until the client leaves or a signal comes.

    An interrupt ends the process without waiting for the client's next line, because the thread
    that waits for it cannot be stopped. Nothing is raised, since the place of an exception, in the
    loop or in a task, would decide what else is printed.
    """
    loop = asyncio.get_running_loop()
    stopping: list[asyncio.Task[None]] = []

    async def end_readings() -> None:
        await server.reading.stop()
        await asyncio.sleep(_ANSWER_SECONDS)
        end()

    def stop(*_: object) -> None:
        end_within(_GRACE, UNENDED)
        loop.call_soon_threadsafe(lambda: stopping.append(loop.create_task(end_readings())))

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    try:
        await server.run_stdio_async(partial(end_within, _ANSWER_SECONDS, _NO_ANSWERS, 1))
    except ExceptionGroup as errors:
        if errors.split(OSError)[1] is not None:
            raise
        end(_NO_ANSWERS, 1)
