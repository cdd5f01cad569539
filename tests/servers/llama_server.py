"""llama.cpp's server in a process of its own: LLAMA_SERVER names the program."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.http_process import is_healthy
from servers.redis_server import free_port, wait_until

PROGRAM = os.environ.get("LLAMA_SERVER")
_LONGEST_START = 120.0
"""Seconds; a busy machine reads a file of 0.5 GB slowly."""


@contextmanager
def llama_server(gguf: Path, log: Path, *options: str) -> Iterator[str]:
    port = free_port()
    command = [str(PROGRAM), "--model", str(gguf), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as out:
        process = subprocess.Popen([*command, *options], stdout=out, stderr=out)

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        return is_healthy(f"http://127.0.0.1:{port}/health")

    try:
        wait_until(is_ready, "llama-server", _LONGEST_START)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()
