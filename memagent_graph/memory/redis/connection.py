"""Round trips to Redis: commands go out in one pipeline, replies come back in order."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Protocol

import redis
import redis.asyncio
from redis.exceptions import AuthenticationError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from memagent_graph.errors import ConfigurationError, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

Wire = tuple[bytes | str | int, ...]

_UNREACHABLE = (RedisConnectionError, RedisTimeoutError, RedisClusterException, OSError)
_ERRORS = (RedisError, *_UNREACHABLE)


class Connection(Protocol):
    """A way to a Redis server, from any thread and any event loop."""

    def send(self, commands: Sequence[Wire]) -> list[Any]:
        """Replies to `commands`, in order; an error that concerns one of them is its reply.

        Raises:
            StoreError: The server cannot be reached, after repeats.
        """
        ...

    async def asend(self, commands: Sequence[Wire]) -> list[Any]:
        """As `send`."""
        ...

    def close(self) -> None:
        """Close what was opened here. Later sends open it again."""
        ...

    async def aclose(self) -> None:
        """As `close`."""
        ...


class GivenClient:
    """A client that the caller made, keeps, and closes.

    Args:
        client: from redis-py, for one server, sentinels or a cluster.
        asynchronous: whether it is one of `redis.asyncio`.
    """

    def __init__(self, client: Any, *, asynchronous: bool) -> None:
        self._client = client
        self._asynchronous = asynchronous

    def send(self, commands: Sequence[Wire]) -> list[Any]:
        """See `Connection`."""
        if self._asynchronous:
            message = (
                "This store was given an asynchronous client, which synchronous calls cannot "
                "use. Call the methods whose names begin with 'a', or use RedisStore.from_url."
            )
            raise StoreError(message)
        return _send(self._client, commands, "the given address")

    async def asend(self, commands: Sequence[Wire]) -> list[Any]:
        """See `Connection`."""
        if self._asynchronous:
            return await _asend(self._client, commands, "the given address")
        return await asyncio.to_thread(self.send, commands)

    def close(self) -> None:
        """Nothing: the client is the caller's."""

    async def aclose(self) -> None:
        """Nothing: the client is the caller's."""


def given(client: Any) -> Connection:
    """A connection over what the caller of `RedisStore` passed.

    Raises:
        ConfigurationError: It is no client or pool of redis-py, or it decodes replies.
    """
    if isinstance(client, redis.ConnectionPool):
        client = redis.Redis(connection_pool=client)
    elif isinstance(client, redis.asyncio.ConnectionPool):
        client = redis.asyncio.Redis(connection_pool=client)
    asynchronous = isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster)
    if not asynchronous and not isinstance(client, redis.Redis | redis.RedisCluster):
        message = (
            f"RedisStore needs a client or pool of redis-py, not {type(client).__name__}. "
            "For a URL, use RedisStore.from_url(url)."
        )
        raise ConfigurationError(message)
    if client.get_connection_kwargs().get("decode_responses"):
        message = "RedisStore stores bytes: give it a client without decode_responses=True."
        raise ConfigurationError(message)
    return GivenClient(client, asynchronous=asynchronous)


class OwnClients:
    """One client for all threads and one for each event loop, opened when first needed.

    Args:
        connect: opens a synchronous client, first in a list of all that must be closed.
        connect_async: the same for an asynchronous one.
        address: where to, for messages, without secrets.
    """

    def __init__(
        self, connect: Callable[[], list[Any]], connect_async: Callable[[], list[Any]], address: str
    ) -> None:
        self._connect = connect
        self._connect_async = connect_async
        self._address = address
        self._lock = threading.Lock()
        self._clients: list[Any] = []
        self._loops: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[None, None]]] = {}

    def send(self, commands: Sequence[Wire]) -> list[Any]:
        """See `Connection`."""
        with self._lock:
            if not self._clients:
                self._clients = self._open()
            client = self._clients[0]
        return _send(client, commands, self._address)

    async def asend(self, commands: Sequence[Wire]) -> list[Any]:
        """See `Connection`."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops = {
                known: kept for known, kept in self._loops.items() if not known.is_closed()
            }
            clients = self._connect_async()
            keeper = _keep(clients)
            self._loops[loop] = (clients[0], keeper)
            await keeper.__anext__()
        return await _asend(self._loops[loop][0], commands, self._address)

    def close(self) -> None:
        """Close the synchronous client, and those of loops that run in other threads."""
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            client.close()
        for loop in list(self._loops):
            if loop.is_running() and loop is not _running_loop():
                closing = asyncio.run_coroutine_threadsafe(self._aclose_here(), loop)
                closing.result()

    async def aclose(self) -> None:
        """Close everything."""
        await self._aclose_here()
        await asyncio.to_thread(self.close)

    def _open(self) -> list[Any]:
        try:
            return self._connect()  # a cluster's client asks for the slots here
        except _ERRORS as error:
            raise _unreachable(self._address, error) from error

    async def _aclose_here(self) -> None:
        _, keeper = self._loops.pop(asyncio.get_running_loop(), (None, None))
        if keeper is not None:
            await keeper.aclose()


async def _keep(clients: list[Any]) -> AsyncGenerator[None, None]:
    # A generator that has begun is closed by its loop when asyncio.run, or whoever owns the
    # loop, shuts it down: so connections end with the loop that they belong to.
    try:
        yield
    finally:
        for client in clients:
            await client.aclose()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _send(client: Any, commands: Sequence[Wire], address: str) -> list[Any]:
    try:
        with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(pipeline.execute(raise_on_error=False))
    except _ERRORS as error:
        raise _unreachable(address, error) from error


async def _asend(client: Any, commands: Sequence[Wire], address: str) -> list[Any]:
    try:
        async with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute(raise_on_error=False))
    except _ERRORS as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> StoreError:
    reason = str(error).rstrip(".")
    if isinstance(error, AuthenticationError):
        return StoreError(
            f"Redis at {address} refused the user name or password: {reason}. "
            "They belong into the URL, percent-encoded: redis://user:password@host:6379/0."
        )
    if isinstance(error, _UNREACHABLE):
        return StoreError(
            f"Redis at {address} cannot be reached: {reason}. Is it running, and is the address "
            "right?"
        )
    return StoreError(f"Redis at {address} refused: {reason}.")


def refused(error: Exception) -> StoreError:
    """The error for a command that the server would not carry out."""
    return StoreError(f"Redis refused a command: {error}")
