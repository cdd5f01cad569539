from uuid import uuid4

import pytest
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
from servers.redis_server import RedisServer

from memagent_graph import MemoryBank
from memagent_graph.memory.redis import RedisStore


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def own_redis_server(tmp_path):
    server = RedisServer(tmp_path)
    yield server
    server.kill()


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


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


@pytest.fixture
async def async_redis_store(redis_server, prefix):
    async with RedisStore.from_url(redis_server.url, prefix=prefix) as store:
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


@pytest.fixture(params=["in memory", "sqlite", "redis"])
async def async_store(request, tmp_path, redis_server, prefix):
    """The same, for event loops."""
    if request.param == "in memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        file = str(tmp_path / "memories.sqlite")
        async with AsyncSqliteStore.from_conn_string(file) as found:
            await found.setup()
            yield found
    else:
        async with RedisStore.from_url(redis_server.url, prefix=prefix) as found:
            yield found


@pytest.fixture
def bank(store):
    return MemoryBank(store)


@pytest.fixture
def redis_content(redis_client, prefix):
    """All that Redis holds of the test, as one text; receipts name the tenant alone."""
    read = {
        b"string": redis_client.get,
        b"zset": lambda key: redis_client.zrange(key, 0, -1),
        b"set": redis_client.smembers,
        b"stream": redis_client.xrange,
    }

    def scan():
        keys = [key for key in redis_client.scan_iter(f"{prefix}*") if b"#receipt/" not in key]
        return repr([(key, read[redis_client.type(key)](key)) for key in keys]) if keys else ""

    return scan


@pytest.fixture
def content(request, store, tmp_path):
    """All that the store holds as one text, with the free pages and the log of its file."""

    def scan():
        if isinstance(store, InMemoryStore):
            return repr([store._data, store._vectors])
        if isinstance(store, RedisStore):
            return request.getfixturevalue("redis_content")()
        return "".join(file.read_text("latin-1") for file in tmp_path.glob("memories.sqlite*"))

    return scan
