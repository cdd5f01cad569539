import os
from pathlib import Path

import pytest
from servers.openai_server import OpenAIServer, hash_of_prompt


@pytest.fixture
def openai_server():
    """A scripted server whose completion is a hash of the prompt, so that order shows."""
    server = OpenAIServer(hash_of_prompt)
    yield server
    server.close()


@pytest.fixture(params=["redis", "sqlite"])
def where(request, tmp_path):
    """A store as an operator names it."""
    if request.param == "redis":
        return request.getfixturevalue("redis").url
    return str(tmp_path / "memories.sqlite")


@pytest.fixture
def data():
    """The folder of real texts."""
    folder = os.environ.get("MEMAGENT_DATA")
    if not folder:
        pytest.skip("MEMAGENT_DATA names no folder of texts")
    return Path(folder)
