from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from servers.redis_server import RedisServer


@pytest.fixture
def redis(tmp_path):
    """A real server that the test may kill."""
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def start():
    """Start a script of this folder as a process of its own; none outlives the test."""
    started: list[subprocess.Popen[str]] = []

    def run(script: str, *arguments: object) -> subprocess.Popen[str]:
        here = Path(__file__).parent
        paths = [str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(here / script), *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
