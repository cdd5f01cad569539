"""Settings of the server that a store lives on."""

from __future__ import annotations

import pytest
from servers.redis_server import RedisCluster, RedisServer

from memagent_graph.cli import doctor
from memagent_graph.memory.redis import RedisStore

LIMIT = str(64 << 20)


@pytest.fixture
def start(tmp_path):
    servers = []

    def start(*options):
        servers.append(RedisServer(tmp_path, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def test_a_store_knows_the_settings_of_its_server(start):
    server = start("--maxmemory", LIMIT, "--maxmemory-policy", "allkeys-lru")
    expected = {
        "maxmemory": LIMIT,
        "maxmemory-policy": "allkeys-lru",
        "save": "",
        "appendonly": "yes",
    }

    with RedisStore.from_url(server.url) as store:
        assert store.server_settings() == expected


@pytest.mark.slow
def test_a_node_of_a_cluster_tells_too(tmp_path):
    cluster = RedisCluster(tmp_path)
    with RedisStore.from_url(cluster.url) as store:
        assert store.server_settings()["maxmemory-policy"] == "noeviction"
        assert store.server_settings()["appendonly"] == "yes"
    cluster.kill()


@pytest.mark.parametrize(
    ("options", "found", "cure"),
    [
        (["--maxmemory", LIMIT, "--maxmemory-policy", "allkeys-lru"], "allkeys-lru", "noeviction"),
        (["--appendonly", "no"], "no persistence", "appendonly yes"),
    ],
    ids=["eviction", "persistence"],
)
def test_the_doctor_warns_of_a_server_that_loses_memories(start, options, found, cure):
    check = doctor.check_store(start(*options).url, ("memagent",))

    assert check.status == "warn"
    assert found in check.text
    assert cure in check.fix


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--maxmemory", LIMIT],
        ["--maxmemory", LIMIT, "--maxmemory-policy", "volatile-lru"],
        ["--maxmemory-policy", "allkeys-lru"],
    ],
    ids=["default", "noeviction", "volatile", "no limit"],
)
def test_the_doctor_is_content_with_a_server_that_keeps_them(start, options):
    assert doctor.check_store(start(*options).url, ("memagent",)).status == "ok"


def test_the_doctor_is_content_with_snapshots(start):
    server = start("--appendonly", "no")
    with server.client() as client:
        client.config_set("save", "60 1")

    assert doctor.check_store(server.url, ("memagent",)).status == "ok"


FORBIDDEN = {
    "config": ("allkeys", "allcommands", "-config"),
    "config and info": ("allkeys", "allcommands", "-config", "-info"),
}


@pytest.mark.parametrize("rules", FORBIDDEN.values(), ids=FORBIDDEN)
def test_the_doctor_does_without_what_it_may_not_ask(start, rules):
    limit = ("--maxmemory", LIMIT, "--maxmemory-policy", "allkeys-lru")
    server = start(*limit, "--appendonly", "no")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "me", "on", ">secret", *rules)

    check = doctor.check_store(f"redis://me:secret@127.0.0.1:{server.port}", ("memagent",))

    assert check.status == ("ok" if "-info" in rules else "warn")
    assert "persistence" not in check.text
