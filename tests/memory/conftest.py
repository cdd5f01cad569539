from __future__ import annotations

from uuid import uuid4

import pytest
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore
from servers.redis_server import RedisServer

from memagent_graph.memory.redis import RedisStore


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A real server; tests keep apart by prefixes."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def own_redis_server(tmp_path):
    """A real server that the test may kill."""
    server = RedisServer(tmp_path)
    yield server
    server.kill()


@pytest.fixture
def redis_client(redis_server):
    with redis_server.client() as client:
        yield client


@pytest.fixture
def prefix():
    return f"test-{uuid4().hex}"


@pytest.fixture
def redis_store(redis_server, prefix):
    with RedisStore.from_url(redis_server.url, prefix=prefix) as store:
        yield store


@pytest.fixture(params=["in memory", "sqlite", "redis"])
def store(request, tmp_path):
    """A store of each kind that memories are kept in."""
    if request.param == "in memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        with SqliteStore.from_conn_string(str(tmp_path / "memories.sqlite")) as found:
            found.setup()
            yield found
    else:
        yield request.getfixturevalue("redis_store")
