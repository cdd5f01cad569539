from memory.conftest import (  # noqa: F401
    content,
    prefix,
    redis_client,
    redis_content,
    redis_server,
    redis_store,
    store,
)
