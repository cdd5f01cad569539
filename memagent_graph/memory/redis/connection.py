"""Round trips to Redis: commands go out in one pipeline, replies come back in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from redis.exceptions import AuthenticationError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from memagent_graph.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

Wire = tuple[bytes | str | int, ...]


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
        self._clients: list[Any] = []
        self._keepers: WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[Any, None]]
        ] = WeakKeyDictionary()

    def send(self, commands: Sequence[Wire]) -> list[Any]:
        """See `Connection`."""
        if not self._clients:
            try:
                self._clients = self._connect()  # a cluster's client asks for the slots here
            except (RedisError, OSError) as error:
                raise _unreachable(self._address, error) from error
        return _send(self._clients[0], commands, self._address)

    async def asend(self, commands: Sequence[Wire]) -> list[Any]:
        """See `Connection`."""
        loop = asyncio.get_running_loop()
        if loop not in self._keepers:
            clients = self._connect_async()
            keeper = _keep(clients)
            self._keepers[loop] = (clients[0], keeper)
            await keeper.__anext__()
        return await _asend(self._keepers[loop][0], commands, self._address)

    def close(self) -> None:
        """Close the synchronous client, and those of loops that run in other threads."""
        clients, self._clients = self._clients, []
        for client in clients:
            client.close()
        for loop in list(self._keepers):
            if loop.is_running() and loop is not _running_loop():
                closing = asyncio.run_coroutine_threadsafe(self._aclose_here(), loop)
                closing.result()

    async def aclose(self) -> None:
        """Close everything."""
        await self._aclose_here()
        await asyncio.to_thread(self.close)

    async def _aclose_here(self) -> None:
        _, keeper = self._keepers.pop(asyncio.get_running_loop(), (None, None))
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
    except (RedisError, OSError) as error:
        raise _unreachable(address, error) from error


async def _asend(client: Any, commands: Sequence[Wire], address: str) -> list[Any]:
    try:
        async with client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return list(await pipeline.execute(raise_on_error=False))
    except (RedisError, OSError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> StoreError:
    if isinstance(error, AuthenticationError):
        return StoreError(
            f"Redis at {address} refused the user name or password: {error}. "
            "They belong into the URL, percent-encoded: redis://user:password@host:6379/0."
        )
    if isinstance(error, RedisConnectionError | RedisTimeoutError | OSError):
        return StoreError(
            f"Redis at {address} cannot be reached: {error}. Is it running, and is the address "
            "right?"
        )
    return StoreError(f"Redis at {address} refused: {error}")


def refused(error: Exception) -> StoreError:
    """The error for a command that the server would not carry out."""
    return StoreError(f"Redis refused a command: {error}")
