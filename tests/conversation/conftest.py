import pytest
from memory.conftest import prefix, redis_client, redis_server, redis_store, store  # noqa: F401


@pytest.fixture
def redis_content(redis_client, prefix):  # noqa: F811 - fixtures, as above
    """Return the keys of the test's store and all that they hold, as one text.

    Receipts, which name a tenant and hold nothing, are gone after a minute.
    """
    read = {
        b"string": redis_client.get,
        b"set": redis_client.smembers,
        b"zset": lambda key: redis_client.zrange(key, 0, -1),
        b"stream": redis_client.xrange,
    }

    def content():
        keys = [k for k in redis_client.scan_iter(f"{prefix}*") if b"#receipt/" not in k]
        return repr([(key, read[redis_client.type(key)](key)) for key in keys])

    return content
