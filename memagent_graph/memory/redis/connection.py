"""Connections to Redis: a client given by the caller, or clients for threads and event loops."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import redis
import redis.asyncio

from memagent_graph.errors import ConfigurationError, StoreError
from memagent_graph.memory.redis.patience import Patience
from memagent_graph.memory.redis.pipeline import ERRORS, asend, failure, send

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from memagent_graph.memory.redis.pipeline import Client, Reply, Wire

T = TypeVar("T")

logger = logging.getLogger(__name__)

_GIVEN = "the given client's address"


class Connection(Protocol):
    """A connection to a Redis server, for any thread and event loop."""

    @property
    def retries(self) -> int | None:
        """Number of repeats; None if the client does not report them."""
        ...

    def send(self, commands: Sequence[Wire]) -> list[Reply]:
        """Send commands, and return their replies in order; an error of one is its reply.

        Raises:
            StoreError: The server cannot be reached, even after repeats.
        """
        ...

    async def asend(self, commands: Sequence[Wire]) -> list[Reply]:
        """See `send`."""
        ...

    def close(self) -> None:
        """Close what this object opened. Later sends open it again."""
        ...

    async def aclose(self) -> None:
        """See `close`."""
        ...


class GivenClient:
    """A client that the caller created and closes; it repeats failed calls itself, or not.

    Args:
        client: a client of redis-py, for one server, sentinels or a cluster.
        asynchronous: whether it is from `redis.asyncio`.
    """

    retries = None

    def __init__(self, client: Client, *, asynchronous: bool) -> None:
        self._client = client
        self._asynchronous = asynchronous

    def send(self, commands: Sequence[Wire]) -> list[Reply]:
        """See `Connection`."""
        if self._asynchronous:
            message = (
                "This store was given an asynchronous client, which synchronous calls cannot "
                "use. Call the methods whose names begin with 'a', or use RedisStore.from_url."
            )
            raise StoreError(message)
        try:
            return send(self._client, commands)
        except ERRORS as error:
            raise failure(_GIVEN, error) from error

    async def asend(self, commands: Sequence[Wire]) -> list[Reply]:
        """See `Connection`."""
        if not self._asynchronous:
            return await asyncio.to_thread(self.send, commands)
        try:
            return await asend(self._client, commands)
        except ERRORS as error:
            raise failure(_GIVEN, error) from error

    def close(self) -> None:
        """Nothing: the client is the caller's."""

    async def aclose(self) -> None:
        """Nothing: the client is the caller's."""


def given(client: Client) -> Connection:
    """Return a connection over the client or pool that the caller passed to `RedisStore`.

    Raises:
        ConfigurationError: It is not a client or pool of redis-py, or has `decode_responses`.
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


class _Turns(NamedTuple, Generic[T]):
    """Semaphores for sending, because redis-py's pools raise or grow when they are empty.

    Attributes:
        short: semaphore of calls that are answered immediately.
        blocking: semaphore of calls that wait for news, so that they do not delay the others.
    """

    short: T
    blocking: T

    def of(self, commands: Sequence[Wire]) -> T:
        """Return the semaphore to hold while `commands` are under way."""
        return self.blocking if any(command.blocks for command in commands) else self.short


class _Loop(NamedTuple):
    client: Client
    turns: _Turns[asyncio.Semaphore]
    keeper: AsyncGenerator[None, None]


class OwnClients:
    """One client for all threads and one for each event loop, opened at the first use.

    Failed calls are repeated here, as a whole and on a new connection of the pool: clients that
    repeat by themselves return to the address of a lost master, and multiply their repeats with
    those of connecting. Everything sent through here must be repeatable.

    Args:
        connect: opens a synchronous client, and returns it first in a list of all that must be
            closed. Its pool must hold more connections than `max_connections`.
        connect_async: the same for an asynchronous client.
        address: address without secrets, for messages.
        repeats: most repeats of a call; see `Patience`.
        max_connections: most calls under way at once, for all threads together and for each event
            loop; others wait. The same number of blocking reads is allowed in addition.

    Attributes:
        retries: number of repeats so far.
    """

    def __init__(
        self,
        connect: Callable[[], list[Client]],
        connect_async: Callable[[], list[Client]],
        *,
        address: str,
        repeats: int,
        max_connections: int,
    ) -> None:
        self.retries: int = 0
        self._connect = connect
        self._connect_async = connect_async
        self._address = address
        self._repeats = repeats
        self._max_connections = max_connections
        self._turns = self._turns_of(threading.BoundedSemaphore)
        self._lock = threading.Lock()
        self._clients: list[Client] = []
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    def send(self, commands: Sequence[Wire]) -> list[Reply]:
        """See `Connection`."""
        patience = Patience(self._repeats)
        while True:
            try:
                with self._turns.of(commands):
                    return send(self._client(), commands)
            except ERRORS as error:
                time.sleep(self._pause_after(error, patience))

    async def asend(self, commands: Sequence[Wire]) -> list[Reply]:
        """See `Connection`."""
        patience = Patience(self._repeats)
        while True:
            here = await self._here()
            try:
                async with here.turns.of(commands):
                    return await asend(here.client, commands)
            except ERRORS as error:
                await asyncio.sleep(self._pause_after(error, patience))

    def _pause_after(self, error: Exception, patience: Patience) -> float:
        pause = patience.pause_after(error)
        if pause is None:
            raise failure(self._address, error) from error
        with self._lock:
            self.retries += 1
        logger.debug("Redis at %s: %s. Sending again in %.2f s.", self._address, error, pause)
        return pause

    def _turns_of(self, semaphore: Callable[[int], T]) -> _Turns[T]:
        return _Turns(semaphore(self._max_connections), semaphore(self._max_connections))

    def close(self) -> None:
        """Close the synchronous client, and the clients of loops running in other threads."""
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            if isinstance(client, redis.RedisCluster):
                # Its `close` leaves the pools open.
                client.disconnect_connection_pools()  # type: ignore[no-untyped-call]
            client.close()
        for loop in list(self._loops):
            if loop.is_running() and loop is not _running_loop():
                closing = asyncio.run_coroutine_threadsafe(self._aclose_here(), loop)
                closing.result()

    async def aclose(self) -> None:
        """Close everything."""
        await self._aclose_here()
        await asyncio.to_thread(self.close)

    def _client(self) -> Client:
        with self._lock:
            if not self._clients:
                self._clients = self._connect()
            return self._clients[0]

    async def _here(self) -> _Loop:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            for known in [known for known in self._loops if known.is_closed()]:
                del self._loops[known]
            clients = self._connect_async()
            keeper = _keep(clients)
            self._loops[loop] = _Loop(clients[0], self._turns_of(asyncio.Semaphore), keeper)
            await keeper.__anext__()
        return self._loops[loop]

    async def _aclose_here(self) -> None:
        here = self._loops.pop(asyncio.get_running_loop(), None)
        if here is not None:
            await here.keeper.aclose()


async def _keep(clients: list[Client]) -> AsyncGenerator[None, None]:
    # A generator that has begun is closed when its loop is shut down, by asyncio.run or by the
    # loop's owner: so connections end with their loop.
    async with AsyncExitStack() as stack:
        for client in clients:
            stack.push_async_callback(client.aclose)
        yield


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
