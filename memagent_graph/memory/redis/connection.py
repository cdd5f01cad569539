"""Ways to Redis that last: a client that was given, or those opened for threads and loops."""

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
    """A way to a Redis server, from any thread and any event loop."""

    @property
    def retries(self) -> int | None:
        """How often something was sent again; None if that cannot be seen."""
        ...

    def send(self, commands: Sequence[Wire]) -> list[Reply]:
        """Replies to `commands`, in order; an error that concerns one of them is its reply.

        Raises:
            StoreError: The server cannot be reached, after repeats.
        """
        ...

    async def asend(self, commands: Sequence[Wire]) -> list[Reply]:
        """As `send`."""
        ...

    def close(self) -> None:
        """Close what was opened here. Later sends open it again."""
        ...

    async def aclose(self) -> None:
        """As `close`."""
        ...


class GivenClient:
    """A client that the caller made, keeps, and closes; repeats are its own affair.

    Args:
        client: from redis-py, for one server, sentinels or a cluster.
        asynchronous: whether it is one of `redis.asyncio`.
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
    """A connection over what the caller of `RedisStore` passed.

    Raises:
        ConfigurationError: It is not a client or pool of redis-py, or it decodes replies.
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
    """Who may send at this moment: pools of redis-py raise when they are empty, or open more.

    Attributes:
        short: of calls that are answered at once.
        blocking: of calls that wait for news, which must not keep the others from their turn.
    """

    short: T
    blocking: T

    def of(self, commands: Sequence[Wire]) -> T:
        """The semaphore to hold while `commands` are on their way."""
        return self.blocking if any(command.blocks for command in commands) else self.short


class _Loop(NamedTuple):
    client: Client
    turns: _Turns[asyncio.Semaphore]
    keeper: AsyncGenerator[None, None]


class OwnClients:
    """One client for all threads and one for each event loop, opened when first needed.

    What fails is repeated here, as a whole and on a connection that the pool hands out anew:
    clients that repeat by themselves go back to the address of a master that is gone, and
    multiply their repeats with those of connecting. All that is sent may be repeated.

    Args:
        connect: opens a synchronous client, first in a list of all that must be closed. Its pool
            must hold more connections than `max_connections`.
        connect_async: the same for an asynchronous one.
        address: where to, for messages, without secrets.
        repeats: how often to try again, see `Patience`.
        max_connections: how many calls are on their way at once, by threads and by each event
            loop; the others wait. Blocking reads are as many again.

    Attributes:
        retries: how often something was sent again.
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
        """Close the synchronous client, and those of loops that run in other threads."""
        with self._lock:
            clients, self._clients = self._clients, []
        for client in clients:
            if isinstance(client, redis.RedisCluster):
                # Its own close leaves them open.
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
    # A generator that has begun is closed by its loop when asyncio.run, or the owner of the
    # loop, shuts it down: so connections end with the loop that they belong to.
    async with AsyncExitStack() as stack:
        for client in clients:
            stack.push_async_callback(client.aclose)
        yield


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
