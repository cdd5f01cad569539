import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from inspecting import visitor

from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.stores import open_store
from memagent_inspector import create_app


@pytest.fixture
def store(tmp_path):
    with open_store(str(tmp_path / "memories.sqlite")) as store:
        yield store


@pytest.fixture
def bank(store):
    return MemoryBank(store)


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "documents"
    folder.mkdir()
    return folder


@pytest.fixture
def page(store, documents):
    """A visitor of the inspector, without a token."""
    with visitor(create_app(store, roots=[documents])) as client:
        yield client
