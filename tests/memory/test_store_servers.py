"""Redis as it is deployed: clusters, sentinels, TLS, encryption, settings, busy servers."""

import asyncio
import contextlib
import datetime as dt
import ipaddress
import logging
import socket
import ssl
import threading

import atomically
import pytest
import redis
import redis.asyncio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.store.base import GetOp, PutOp
from servers.redis_server import (
    RedisCluster,
    RedisPair,
    RedisServer,
    executable_with_tls,
    free_port,
    wait_until,
)
from servers.tcp_proxy import TCPProxy

from memagent_graph.cli import doctor
from memagent_graph.errors import StoreError
from memagent_graph.memory.redis import RedisStore
from memagent_graph.memory.store import Pauses

AT = ("tenant", "things")


# Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.kill()


@pytest.fixture
def start(tmp_path):
    servers = []

    def start(*options, **more):
        servers.append(RedisServer(tmp_path, *options, **more))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


@pytest.fixture(params=["synchronously", "asynchronously"])
def half(request):
    """A method of a store in either way, to be awaited."""

    async def call(store, name, *arguments, **options):
        if request.param == "synchronously":
            return getattr(store, name)(*arguments, **options)
        return await getattr(store, f"a{name}")(*arguments, **options)

    return call


@pytest.fixture
def cluster_store(cluster, prefix):
    with RedisStore.from_url(cluster.url, prefix=prefix) as store:
        yield store


def test_a_cluster_holds_a_store_whole(cluster, cluster_store, half):
    store = cluster_store
    puts = [PutOp((f"root{n}", "x"), f"{m}", {"n": n}) for n in range(30) for m in range(3)]
    asyncio.run(half(store, "batch", puts))

    found = asyncio.run(half(store, "batch", [GetOp(op.namespace, op.key) for op in puts]))

    assert [item.value["n"] for item in found] == [op.value["n"] for op in puts]
    assert len([node for node in cluster.nodes if node.client().dbsize()]) == 3
    few = {"filter": {"n": {"$lt": 5}}, "limit": 100}
    searches = store.search((), limit=100), store.search((), **few), store.search(("root7",))
    assert [*map(len, searches), len(store.list_namespaces())] == [90, 15, 3, 30]
    assert store.search(("root",)) == []
    assert store.list_namespaces(prefix=("root7",)) == [("root7", "x")]


def test_a_cluster_commits_several_items_at_once(cluster_store):
    store = cluster_store
    puts = [PutOp(AT, "a", {"v": 1}), PutOp((AT[0],), "b", {"v": 1})]

    assert atomically.commit(store, puts, given={(AT, "a"): None})
    assert not atomically.commit(store, puts, given={(AT, "a"): ..., ((AT[0], "other"), "c"): ...})
    assert atomically.commit(store, [PutOp(AT, "a", None)], given={((AT[0],), "b"): {"v": 1}})
    assert [item.key for item in store.search(())] == ["b"]


def test_a_client_of_a_cluster_may_be_given(cluster, prefix):
    client = redis.RedisCluster.from_url(f"redis://127.0.0.1:{cluster.nodes[0].port}")

    RedisStore(client, prefix=prefix).put(AT, "k", {"n": 1})

    async def read():
        url = f"redis://127.0.0.1:{cluster.nodes[1].port}"
        async with redis.asyncio.RedisCluster.from_url(url) as client:
            return (await RedisStore(client, prefix=prefix).aget(AT, "k")).value

    assert asyncio.run(read()) == {"n": 1}
    client.close()


# Sentinel


@pytest.fixture
def pair(tmp_path):
    pair = RedisPair(tmp_path)
    yield pair
    pair.kill()


def test_a_failover_loses_nothing_that_was_replicated_and_writing_goes_on(pair, half):
    async def put(store, numbers):
        for n in numbers:
            await half(store, "put", AT, f"{n:02}", {"n": n})

    async def use(store):
        await put(store, range(20))
        with pair.master.client() as client:
            client.wait(1, 5000)
        pair.master.kill()
        await put(store, range(20, 40))
        return [item.value["n"] for item in await half(store, "search", AT, limit=100)]

    with RedisStore.from_url(pair.url) as store:
        assert asyncio.run(use(store)) == list(range(40))


def test_a_deployment_that_answered_is_waited_for_twice_as_long(pair, monkeypatch, half):
    """An election takes seconds; a wrong address is told soon."""
    monkeypatch.setattr("memagent_graph.memory.redis.connection.FAILING", Pauses(0, 0))

    async def use(known, unknown):
        await half(known, "put", AT, "k", {})
        pair.kill()
        for store in (known, unknown):
            with pytest.raises(StoreError, match="cannot be reached"):
                await half(store, "put", AT, "k", {})

    with RedisStore.from_url(pair.url) as known, RedisStore.from_url(pair.url) as unknown:
        asyncio.run(use(known, unknown))

    assert (known.retries, unknown.retries) == (30, 15)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A folder with a certificate for loopback that signed itself, and its key."""
    folder, now = tmp_path_factory.mktemp("tls"), dt.datetime.now(dt.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(signed.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    (folder / "key.pem").write_bytes(key.private_bytes(pem, form, plain))
    return folder


@pytest.fixture(params=["in front of the server", "by the server"])
def tls_port(request, certificate, start, redis_server):
    files = [str(certificate / name) for name in ("cert.pem", "key.pem")]
    if request.param == "in front of the server":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        proxy = TCPProxy(redis_server.port, context)
        yield proxy.port
        proxy.close()
    elif executable := executable_with_tls():
        port = free_port()
        tls = ["--tls-port", str(port), "--tls-auth-clients", "no"]
        tls += ["--tls-cert-file", files[0], "--tls-key-file", files[1]]
        start(*tls, executable=executable)
        yield port
    else:
        pytest.skip("no redis-server or valkey-server on the path that can speak TLS")


def test_tls_is_spoken_and_the_certificate_checked(tls_port, certificate, prefix):
    url = f"rediss://127.0.0.1:{tls_port}/0"
    trusted = f"{url}?ssl_ca_certs={certificate / 'cert.pem'}"
    with RedisStore.from_url(trusted, prefix=prefix) as store:
        store.put(AT, "k", {"n": 1})
        assert asyncio.run(store.aget(AT, "k")).value == {"n": 1}

    with RedisStore.from_url(url, prefix=prefix) as store:
        with pytest.raises(StoreError, match="certificate verify failed"):
            store.get(AT, "k")


# Encryption


@pytest.fixture
def serializer():
    pytest.importorskip("Crypto", reason="EncryptedSerializer needs pycryptodome")
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


@pytest.fixture
def encrypted(redis_server, prefix, serializer):
    with RedisStore.from_url(redis_server.url, prefix=prefix, serializer=serializer) as store:
        yield store


def test_encrypted_values_are_unreadable_in_what_the_server_keeps(tmp_path, serializer, start):
    server, value = start(), {"field": "the treasure is under the oak"}
    with RedisStore.from_url(server.url, serializer=serializer) as store:
        store.put(AT, "k", value)
        assert atomically.compare_and_put(store, AT, "h", value, expected=None)
        assert not atomically.compare_and_put(store, AT, "h", None, expected={"field": "oak"})
        with server.client() as client:
            client.save()
        assert store.get(AT, "k").value == store.get(AT, "h").value == value
        assert len(store.search((), filter=value)) == 2
    server.kill()

    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert [word in kept for word in (b"things//k", b"treasure", b"field")] == [True, False, False]


def test_a_wrong_key_is_said_to_be_one(redis_server, prefix, encrypted):
    encrypted.put(AT, "k", {"n": 1})
    wrong = EncryptedSerializer.from_pycryptodome_aes(key=b"fedcba9876543210")

    with RedisStore.from_url(redis_server.url, prefix=prefix, serializer=wrong) as store:
        with pytest.raises(StoreError, match="another encryption key"):
            store.get(AT, "k")


def test_plain_values_are_not_accepted_for_encrypted_ones(redis_store, encrypted):
    """Otherwise a writer to Redis could pass for one who has the key."""
    redis_store.put(AT, "k", {"n": 1})

    with pytest.raises(StoreError, match="serializer"):
        encrypted.get(AT, "k")


# Settings


LIMIT = ("--maxmemory", str(64 << 20))
EVICTS = (*LIMIT, "--maxmemory-policy", "allkeys-lru")


def test_a_store_knows_the_settings_of_its_server(start, cluster_store):
    expected = {"maxmemory": LIMIT[1], "maxmemory-policy": "allkeys-lru"}

    with RedisStore.from_url(start(*EVICTS).url) as store:
        assert store.server_settings() == {**expected, "save": "", "appendonly": "yes"}
    assert cluster_store.server_settings()["maxmemory-policy"] == "noeviction"


@pytest.mark.parametrize(
    ("options", "status", "found", "cure"),
    [
        (EVICTS, "warn", "allkeys-lru", "noeviction"),
        (("--appendonly", "no"), "warn", "no persistence", "appendonly yes"),
        (("--appendonly", "no", "--save", "60", "1"), "ok", "", ""),
        (LIMIT, "ok", "", ""),
        ((*LIMIT, "--maxmemory-policy", "volatile-lru"), "ok", "", ""),
        (("--maxmemory-policy", "allkeys-lru"), "ok", "", ""),
    ],
    ids=["eviction", "no persistence", "snapshots", "noeviction", "volatile", "no limit"],
)
def test_the_doctor_warns_of_a_server_that_loses_memories(start, options, status, found, cure):
    check = doctor.check_store(start(*options).url, ("memagent",))

    assert check.status == status
    assert found in check.text
    assert cure in check.fix


@pytest.mark.parametrize("rules", [("-config",), ("-config", "-info")], ids=repr)
def test_the_doctor_does_without_what_it_may_not_ask(start, rules):
    server = start(*EVICTS, "--appendonly", "no")
    with server.client() as client:
        user = "ACL", "SETUSER", "me", "on", ">secret", "allkeys", "allcommands"
        client.execute_command(*user, *rules)

    check = doctor.check_store(f"redis://me:secret@127.0.0.1:{server.port}", ("memagent",))

    assert check.status == ("ok" if "-info" in rules else "warn")
    assert "persistence" not in check.text


# Busy, or loading
BEGUN = pytest.mark.parametrize("begun", [False, True], ids=["at the start", "later"])


def say_ping(port):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(100)
    except OSError:
        return b""


@contextlib.contextmanager
def busy(server, seconds):
    with server.client() as client:
        client.config_set("lua-time-limit", 10)

    def run():
        with server.client(socket_timeout=60) as client, contextlib.suppress(redis.ResponseError):
            client.eval("while true do end", 0)

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


@pytest.fixture
def write_and_read(half):
    async def use(store):
        await half(store, "put", AT, "k", {"n": 1})
        return (await half(store, "get", AT, "k")).value

    return lambda store: asyncio.run(use(store))


@BEGUN
def test_a_server_that_runs_a_script_is_waited_for(own_redis_server, caplog, write_and_read, begun):
    caplog.set_level(logging.DEBUG, "memagent_graph.memory.redis")
    with RedisStore.from_url(own_redis_server.url) as store:
        if begun:
            store.get(AT, "k")
        with busy(own_redis_server, seconds=0.5):
            assert write_and_read(store) == {"n": 1}

        assert store.retries > 0
        assert f"127.0.0.1:{own_redis_server.port}/0: BUSY" in caplog.text


@BEGUN
def test_a_server_that_loads_its_data_is_waited_for(tmp_path, write_and_read, begun):
    # While it loads, it looks at its connections after each 2 MB.
    slowly = ("--key-load-delay", "1000", "--rdbcompression", "no")
    server = RedisServer(tmp_path, "--appendonly", "no", *slowly)
    with server.client() as client, RedisStore.from_url(server.url) as store:
        if begun:
            write_and_read(store)
        client.mset({f"key{n}": "x" * 10_000 for n in range(2_000)})
        client.save()
        server.kill()
        start = threading.Thread(target=server.start)
        start.start()
        wait_until(lambda: say_ping(server.port).startswith(b"-LOADING"), "a loading server")

        assert write_and_read(store) == {"n": 1}
        assert store.retries > 0
        start.join()
    server.kill()
