from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from servers.openai_server import OpenAIServer


@pytest.fixture
def openai_server():
    """A scripted server whose completion is a hash of the prompt, so that order shows.

    It is one number: a text of several words that nobody has read would be no notes.
    """

    def reply(body):
        prompt = body["messages"][-1]["content"]
        return f"memory {int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % 10**16:016}"

    server = OpenAIServer(reply)
    yield server
    server.close()


@pytest.fixture
def data():
    """The folder of real texts."""
    folder = os.environ.get("MEMAGENT_DATA")
    if not folder:
        pytest.skip("MEMAGENT_DATA names no folder of texts")
    return Path(folder)
