"""A store that hangs: what needs no memory does not wait for it, and the rest is told at once."""

import httpx
import pytest
from servers.redis_server import wait_until
from servers.tcp_proxy import TCPProxy

from memagent_graph.memory.redis import RedisStore

pytestmark = pytest.mark.usefixtures("impatient")

HI = [{"role": "user", "content": "Who is there?"}]


@pytest.fixture
def frozen(redis):
    """A store whose server takes connections and never answers, once `stall` was called."""
    proxy = TCPProxy(redis.port, pause=0)
    with RedisStore.from_url(f"redis://127.0.0.1:{proxy.port}/0") as store:
        yield store, proxy
        proxy.resume()
    proxy.close()


def test_requests_that_need_no_memory_are_answered_while_the_store_hangs(serve, upstream, frozen):
    store, proxy = frozen
    server = serve("openai:small", base_url=upstream.base_url, store=store, remember=True)
    proxy.stall()

    short = server.post(json={"model": "small", "messages": HI})
    of_a_user = server.post(json={"model": "small", "messages": HI, "user": "joe"})
    made = server.post("/v1/responses", json={"model": "small", "input": "Who is there?"})

    assert [short.status_code, of_a_user.status_code, made.status_code] == [200, 200, 200]
    assert httpx.get(f"{server.url}/health").is_success
    assert httpx.get(f"{server.url}/v1/models").is_success


@pytest.mark.slow
def test_requests_that_need_a_memory_wait_for_the_store_to_be_back(
    serve, upstream, frozen, asked, small
):
    store, proxy = frozen
    server = serve("openai:small", base_url=upstream.base_url, store=store, config=small)
    first = server.post(json={"model": "small", "messages": asked()}).json()
    known = {"memory": first["memagent"]["memory"]}
    follow_up = {"model": "small", "messages": HI, "memagent": known}
    proxy.stall()

    refused = server.post(json=follow_up)
    long = server.post(json={"model": "small", "messages": asked(900)})

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "store_failed"
    assert str(proxy.port) not in refused.text
    assert long.status_code == 200
    proxy.resume()
    wait_until(lambda: server.post(json=follow_up).is_success, "the store", seconds=240)
