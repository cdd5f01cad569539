from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest
from servers.openai_server import OpenAIServer

from memagent_graph.sync import wait_for


@pytest.fixture(autouse=True)
def nothing_waits_to_be_folded_behind_a_test():
    """What runs in the background of the next test may break it: hypothesis sees each random."""
    yield
    background = sys.modules.get("memagent_graph.conversation.backlog")
    if background is not None:
        for users in [*background._backlogs.values()]:
            for backlog in [*users.values()]:
                wait_for(backlog.drop())


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
