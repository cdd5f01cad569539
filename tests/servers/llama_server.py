"""llama.cpp's server in a process of its own: LLAMA_SERVER names the program."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from servers.redis_server import free_port

PROGRAM = os.environ.get("LLAMA_SERVER")
_LONGEST_START = 120.0
"""Seconds; a busy machine reads a file of 0.5 GB slowly."""


@contextmanager
def llama_server(gguf: Path, log: Path, *options: str) -> Iterator[str]:
    """Start the server with a model, yield its base URL, and end it."""
    port = free_port()
    command = [str(PROGRAM), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as out:
        process = subprocess.Popen([*command, *options], stdout=out, stderr=out)
    try:
        give_up = time.monotonic() + _LONGEST_START
        while not _is_healthy(port):
            if process.poll() is not None or time.monotonic() > give_up:
                message = f"llama-server did not start: {log.read_text()[-4000:]}"
                raise RuntimeError(message)
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def _is_healthy(port: int) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
