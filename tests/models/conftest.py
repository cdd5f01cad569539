import pytest

from memagent_graph.models.endpoint import ChatEndpoint


@pytest.fixture
def endpoint(openai_server):
    """Make models of the scripted server, with fields of theirs; all are closed at the end."""
    made = []

    def make(**fields):
        made.append(ChatEndpoint(model="small", base_url=openai_server.base_url, **fields))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def model(endpoint):
    return endpoint()
