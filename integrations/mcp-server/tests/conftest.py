import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from servers.openai_server import OpenAIServer

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["stdio", "http"])
def transport(request):
    return request.param


@pytest.fixture
def mode(transport):
    """The newest protocol, or the one with a handshake: each has one transport."""
    return {"stdio": "auto", "http": "legacy"}[transport]


@pytest.fixture
def books(tmp_path):
    folder = tmp_path / "books"
    folder.mkdir()
    (folder / "a.txt").write_text("The vault opens at 6:40.")
    return folder


@pytest.fixture
def options(books):
    return ["--root", books, "--store", "none", "--model", "extractive"]


@pytest.fixture
def connect(transport, mode, options, tmp_path):
    """Connect the official client to a server with these options."""
    from mcp_serving import connected

    return partial(connected, transport, mode, tmp_path / "log", *options)


@pytest.fixture
def gated():
    """A model whose fourth reply waits until the gate opens."""
    gate, reached = threading.Event(), threading.Event()

    def reply(body):
        if len(server.requests) == 4:
            reached.set()
            gate.wait()
        return f"after {len(server.requests)} requests"

    server = OpenAIServer(reply)
    server.gate, server.reached = gate, reached
    yield server
    gate.set()
    server.close()
