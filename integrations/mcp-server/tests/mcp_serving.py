"""`memagent mcp` as a user starts it, with the official client connected to it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import httpx
import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from servers.redis_server import free_port, wait_until

COMMAND = [sys.executable, "-m", "memagent_graph", "mcp"]


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MEMAGENT")}
    return {**kept, **more}


@contextmanager
def http_server(log, *options, **env):
    """Serves on a free port; yields the URL."""
    port = free_port()
    command = [*COMMAND, *map(str, options), "--port", str(port)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=environment(**env), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )

    def answers():
        assert process.poll() is None, log.read_text()
        try:
            httpx.get(f"http://127.0.0.1:{port}/")
        except httpx.HTTPError:
            return False
        return True

    try:
        wait_until(answers, "memagent mcp", seconds=60)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


@asynccontextmanager
async def connected(transport, mode, log, *options, token=None, **env):
    """A client; what the SDK's types did not accept of the server's messages is an error.

    Args:
        transport: "stdio" or "http".
        mode: "auto" for the newest protocol, "legacy" for the one with a handshake.
        log: file for the server's standard error.
        options: of the command.
        token: what the client sends.
        env: of the server.
    """
    rejected = []

    async def look(message):
        if isinstance(message, Exception):
            rejected.append(message)

    async with AsyncExitStack() as stack:
        if transport == "stdio":
            parameters = StdioServerParameters(
                command=COMMAND[0],
                args=[*COMMAND[1:], *map(str, options)],
                env=environment(**env),
            )
            served = stdio_client(parameters, stack.enter_context(log.open("a")))
        else:
            url = stack.enter_context(http_server(log, *options, **env))
            headers = {"authorization": f"Bearer {token}"} if token else {}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60))
            served = streamable_http_client(url, http_client=http)
        client = Client(served, mode=mode, message_handler=look)
        yield await stack.enter_async_context(client)
    assert not rejected
