"""A server that says it is busy, or still loads its data, is waited for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading

import pytest
import redis
from servers.redis_server import RedisCluster, RedisServer, wait_until

from memagent_graph.memory.redis import RedisStore

AT = ("tenant", "things")
FOREVER = "while true do end"


def say_ping(port):
    """The answer to a bare PING, empty if none comes."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100)
    except OSError:
        return b""


@contextlib.contextmanager
def busy(server, seconds=1.0):
    """A server that runs a script for a while, and says so."""
    with server.client() as client:
        client.config_set("lua-time-limit", 10)

    def run():
        with server.client(socket_timeout=60) as client, contextlib.suppress(redis.ResponseError):
            client.eval(FOREVER, 0)

    def kill():
        with server.client() as client:
            client.script_kill()

    script, end = threading.Thread(target=run), threading.Timer(seconds, kill)
    script.start()
    wait_until(lambda: say_ping(server.port).startswith(b"-BUSY"), "a busy server")
    end.start()
    yield
    end.join()
    script.join()


def write_and_read(store, half):
    if half == "synchronously":
        store.put(AT, "k", {"n": 1})
        return store.get(AT, "k").value

    async def use():
        await store.aput(AT, "k", {"n": 1})
        return (await store.aget(AT, "k")).value

    return asyncio.run(use())


@pytest.mark.slow
@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
@pytest.mark.parametrize("begun", [False, True], ids=["at the start", "later"])
def test_a_server_that_runs_a_script_is_waited_for(own_redis_server, caplog, half, begun):
    caplog.set_level(logging.DEBUG, "memagent_graph.memory.redis")
    with RedisStore.from_url(own_redis_server.url) as store:
        if begun:
            store.get(AT, "k")
        with busy(own_redis_server):
            assert write_and_read(store, half) == {"n": 1}

        assert store.retries > 0
        assert f"127.0.0.1:{own_redis_server.port}/0: BUSY" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
def test_a_busy_node_of_a_cluster_is_waited_for(tmp_path, half):
    cluster = RedisCluster(tmp_path)
    with cluster.nodes[0].client() as client:
        slot = client.execute_command("CLUSTER", "KEYSLOT", "{tenant}")
    with RedisStore.from_url(cluster.url) as store:
        with busy(cluster.nodes[slot * 3 // 16384], seconds=0.5):
            assert write_and_read(store, half) == {"n": 1}
    cluster.kill()


@pytest.mark.slow
@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
@pytest.mark.parametrize("begun", [False, True], ids=["at the start", "later"])
def test_a_server_that_loads_its_data_is_waited_for(tmp_path, half, begun):
    # While it loads, it looks at its connections after each 2 MB.
    slowly = ("--key-load-delay", "1000", "--rdbcompression", "no")
    server = RedisServer(tmp_path, "--appendonly", "no", *slowly)
    with server.client() as client, RedisStore.from_url(server.url) as store:
        if begun:
            write_and_read(store, half)
        client.mset({f"key{n}": "x" * 10_000 for n in range(2_000)})
        client.save()
        server.kill()
        start = threading.Thread(target=server.start)
        start.start()
        wait_until(lambda: say_ping(server.port).startswith(b"-LOADING"), "a loading server")

        assert write_and_read(store, half) == {"n": 1}
        assert store.retries > 0
        start.join()
    server.kill()
