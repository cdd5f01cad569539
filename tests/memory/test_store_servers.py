"""Redis as it is deployed: clusters, sentinels, TLS, encrypted values."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl

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
from redis.backoff import NoBackoff
from servers.redis_server import (
    RedisCluster,
    RedisPair,
    RedisServer,
    executable_with_tls,
    free_port,
)
from servers.tcp_proxy import TCPProxy

from memagent_graph.errors import StoreError
from memagent_graph.memory.redis import RedisStore

AT = ("tenant", "things")


# Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.kill()


@pytest.fixture(params=["synchronously", "asynchronously"])
def batch(request, cluster, prefix):
    store = RedisStore.from_url(cluster.url, prefix=prefix)

    def call(ops):
        if request.param == "synchronously":
            return store.batch(ops)
        return asyncio.run(store.abatch(ops))

    call.store = store
    yield call
    store.close()


def test_a_cluster_holds_a_store_whole(cluster, batch):
    puts = [PutOp((f"root{n}", "x"), f"{m}", {"n": n}) for n in range(30) for m in range(3)]
    batch(puts)

    found = batch([GetOp(op.namespace, op.key) for op in puts])
    nodes_used = [node for node in cluster.nodes if node.client().dbsize()]

    store = batch.store
    assert [item.value["n"] for item in found] == [op.value["n"] for op in puts]
    assert len(nodes_used) == 3
    assert len(store.search((), limit=100)) == 90
    assert len(store.search((), filter={"n": {"$lt": 5}}, limit=100)) == 15
    assert len(store.search(("root7",))) == 3
    assert store.search(("root",)) == []
    assert len(store.list_namespaces()) == 30
    assert store.list_namespaces(prefix=("root7",)) == [("root7", "x")]


def test_a_cluster_compares_and_puts(batch):
    store = batch.store

    assert atomically.compare_and_put(store, AT, "h", {"v": 1}, expected=None)
    assert not atomically.compare_and_put(store, AT, "h", {"v": 2}, expected=None)
    assert atomically.compare_and_put(store, AT, "h", {"v": 2}, expected={"v": 1})
    assert atomically.compare_and_put(store, AT, "h", None, expected={"v": 2})
    assert store.list_namespaces() == []


def test_a_cluster_commits_several_items_at_once(batch):
    store = batch.store
    puts = [PutOp(AT, "a", {"v": 1}), PutOp((AT[0],), "b", {"v": 1})]

    assert atomically.commit(store, puts, given={(AT, "a"): None})
    assert not atomically.commit(store, puts, given={(AT, "a"): ..., ((AT[0], "other"), "c"): ...})
    assert atomically.commit(store, [PutOp(AT, "a", None)], given={((AT[0],), "b"): {"v": 1}})
    assert [item.key for item in store.search(())] == ["b"]


def test_items_of_a_cluster_expire_from_its_indexes(batch):
    store = batch.store
    store.put(AT, "k", {}, ttl=0.0001)
    while store.get(AT, "k", refresh_ttl=False) is not None:
        pass

    assert store.search(()) == []
    assert store.list_namespaces() == []


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


@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
def test_a_failover_loses_nothing_that_was_replicated_and_writing_goes_on(pair, half):
    async def use(store):
        for n in range(20):
            await store.aput(AT, f"{n:02}", {"n": n})
        with pair.master.client() as client:
            client.wait(1, 5000)
        pair.master.kill()
        for n in range(20, 40):
            await store.aput(AT, f"{n:02}", {"n": n})
        return [item.value["n"] for item in await store.asearch(AT, limit=100)]

    if half == "asynchronously":
        found = asyncio.run(use(RedisStore.from_url(pair.url)))
    else:
        with RedisStore.from_url(pair.url) as store:
            found = asyncio.run(use(SynchronousHalf(store)))

    assert found == list(range(40))


@pytest.mark.parametrize("half", ["synchronously", "asynchronously"])
def test_a_deployment_that_answered_is_waited_for_twice_as_long(pair, monkeypatch, half):
    """An election takes seconds; a wrong address is told soon."""
    monkeypatch.setattr("memagent_graph.memory.redis.connection._BACKOFF", NoBackoff())

    async def use(known, unknown):
        await known.aput(AT, "k", {})
        pair.kill()
        for store in (known, unknown):
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.aput(AT, "k", {})

    known, unknown = RedisStore.from_url(pair.url), RedisStore.from_url(pair.url)
    with known, unknown:
        if half == "asynchronously":
            asyncio.run(use(known, unknown))
        else:
            asyncio.run(use(SynchronousHalf(known), SynchronousHalf(unknown)))

    assert (known.retries, unknown.retries) == (30, 15)


class SynchronousHalf:
    def __init__(self, store):
        self._store = store

    async def aput(self, *arguments):
        self._store.put(*arguments)

    async def asearch(self, *arguments, **options):
        return self._store.search(*arguments, **options)


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A folder with a certificate for loopback that signed itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return folder


@pytest.fixture(params=["in front of the server", "by the server"])
def tls_port(request, certificate, tmp_path, redis_server):
    files = [str(certificate / name) for name in ("cert.pem", "key.pem")]
    if request.param == "in front of the server":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        proxy = TCPProxy(redis_server.port, context)
        yield proxy.port
        proxy.close()
        return
    executable = executable_with_tls()
    if executable is None:
        pytest.skip("no redis-server or valkey-server on the path that can speak TLS")
    port = free_port()
    tls = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    tls += ["--tls-cert-file", files[0], "--tls-key-file", files[1]]
    server = RedisServer(tmp_path, *tls, executable=executable)
    yield port
    server.kill()


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


def test_encrypted_values_are_unreadable_in_what_the_server_keeps(tmp_path, serializer):
    server = RedisServer(tmp_path)
    with RedisStore.from_url(server.url, serializer=serializer) as store:
        store.put(AT, "k", {"field": "the treasure is under the oak"})
        atomically.put_if_absent(store, AT, "v", {"text": "the treasure is under the oak"})
        atomically.compare_and_put(
            store, AT, "h", {"text": "the treasure is under the oak"}, expected=None
        )
        with server.client() as client:
            client.save()
        assert store.get(AT, "k").value == {"field": "the treasure is under the oak"}
    server.kill()

    kept = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert any(b"things//k" in content for content in kept)
    assert not any(b"treasure" in content or b"field" in content for content in kept)


def test_filters_see_decrypted_values(encrypted):
    encrypted.put(AT, "1", {"n": 1})
    encrypted.put(AT, "2", {"n": 2})

    assert [item.key for item in encrypted.search((), filter={"n": {"$gt": 1}})] == ["2"]


def test_encrypted_values_are_compared_as_values(encrypted):
    encrypted.put(AT, "h", {"n": 1})

    assert not atomically.compare_and_put(encrypted, AT, "h", {"n": 3}, expected={"n": 2})
    assert atomically.compare_and_put(encrypted, AT, "h", {"n": 2}, expected={"n": 1})
    assert encrypted.get(AT, "h").value == {"n": 2}


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
