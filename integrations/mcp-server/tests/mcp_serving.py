"""`memagent mcp` as a user starts it, with the official client connected to it."""

import os
import socket
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import anyio
import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from servers.http_process import http_process
from servers.redis_server import wait_until
from servers.warm_python import COMMAND_LINE, warm_python

from memagent_http.server import listen
from memagent_mcp_server.http import HTTPServer, create_app

PYTHON = warm_python(*COMMAND_LINE)
COMMAND = [sys.executable, "-m", "memagent_graph", "mcp"]
PING = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
CLIENT = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
BEGIN = {"protocolVersion": "2025-06-18", **CLIENT}
INITIALIZE = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": BEGIN}
ACCEPT = {"accept": "application/json, text/event-stream"}


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MEMAGENT")}
    return {**kept, **more}


@contextmanager
def http_server(log, *options, command=COMMAND, **env):
    words = [*command[1:], *options]
    with http_process(*words, log=log, env=environment(**env)) as (url, process):
        yield f"{url}/mcp", process


class Running:
    """A server under uvicorn, in a thread of its own, on a free port."""

    def __init__(self, server, **options):
        options = {"host": "127.0.0.1", "token": None, **options}
        application = create_app(server, **options)
        self._server = HTTPServer(application, stop=server.reading.stop)
        listening = listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._server.run, args=([listening],))

    def __enter__(self):
        self._thread.start()
        wait_until(lambda: self._server.started, "uvicorn", seconds=120)
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        return self

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=240)

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join()


class _Relay:
    """A forked process for the official client, which starts two `cat` in its place.

    The process ends when the client leaves, and the client sees its end, as if it had started it.
    """

    def __init__(self, log, command, output):
        self._places = [log.with_suffix(name) for name in (".in", ".out")]
        for place in self._places:
            place.unlink(missing_ok=True)
            os.mkfifo(place)
        self._start = partial(PYTHON.start, command, stderr=output, env=environment())

    @asynccontextmanager
    async def connect(self):
        given, answered = map(str, self._places)
        # A shell gives what it starts in the background no standard input: that is for the other.
        cats = ["-c", 'cat "$1" & exec cat > "$0"', given, answered]
        async with stdio_client(StdioServerParameters(command="sh", args=cats)) as streams:
            self.process = await anyio.to_thread.run_sync(self._open)
            yield streams

    def _open(self):
        given, answered = self._places
        with given.open("rb") as stdin, answered.open("wb") as stdout:
            return self._start(stdin=stdin, stdout=stdout)


@asynccontextmanager
async def served(transport, log, *options, headers=None, command=COMMAND):
    """What the official client connects to, and the id of the process that answers."""
    if transport == "http":
        with http_server(log, *options, command=command) as (url, process):
            async with httpx2.AsyncClient(headers=headers, timeout=240) as http:
                yield streamable_http_client(url, http_client=http), lambda: process.pid
        return
    with log.open("a") as output:
        relay = _Relay(log, [*command, *map(str, options)], output)
        yield relay.connect(), lambda: relay.process.pid
    assert relay.process.wait(120) is not None


def note(found):
    """A callback for progress, whose values it appends."""

    async def progress(*values):
        found.append(values)

    return progress


@asynccontextmanager
async def connected(transport, mode, log, *options, headers=None, list_roots_callback=None):
    """A client; what the SDK's types did not accept of the server's messages is an error."""
    rejected = []

    async def look(message):
        if isinstance(message, Exception):
            rejected.append(message)

    async with served(transport, log, *options, headers=headers) as (found, _):
        client = Client(
            found, mode=mode, message_handler=look, list_roots_callback=list_roots_callback
        )
        async with client:
            yield client
    assert not rejected
