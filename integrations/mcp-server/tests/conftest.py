from __future__ import annotations

import threading

import pytest
from servers.openai_server import OpenAIServer


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
