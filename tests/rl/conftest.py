import pytest
from tiny_model import tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("model")
    return tiny_model(place, width=64, layers=1, vocabulary=300, max_length=640, spread=0.05)
