"""One round trip: commands go out together, replies come back in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import redis
import redis.asyncio
from redis import exceptions

from memagent_graph.errors import StoreError, StoreRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence


Client = Any
"""A client of redis-py, for one server or a cluster, synchronous or not; few methods are typed."""
Reply = Any
"""A reply, whose shape depends on the command; an error is a reply too."""


class Wire(NamedTuple):
    """A command in the form that is sent.

    Attributes:
        key: one of its keys, whose node it is sent to in a cluster.
        arguments: the command's name and arguments.
    """

    key: bytes
    arguments: tuple[bytes | str | int, ...]

    @property
    def blocks(self) -> bool:
        """Whether the server may wait before it replies."""
        return "BLOCK" in self.arguments[:5]


_UNREACHABLE: tuple[type[Exception], ...] = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.RedisClusterException,
    OSError,
)
PASSING: tuple[type[Exception], ...] = (  # errors that pass, such as those during a failover
    *_UNREACHABLE,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)
ERRORS: tuple[type[Exception], ...] = (exceptions.RedisError, *_UNREACHABLE)


def send(client: Client, commands: Sequence[Wire]) -> list[Reply]:
    """Send commands, and return their replies; an error of only one of them is its reply.

    Raises:
        Exception: One of `ERRORS`.
    """
    with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command.arguments, **_node(client, command))
        return _checked(pipeline.execute(raise_on_error=False))


async def asend(client: Client, commands: Sequence[Wire]) -> list[Reply]:
    """See `send`."""
    async with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command.arguments, **_node(client, command))
        return _checked(await pipeline.execute(raise_on_error=False))


def _node(client: Client, command: Wire) -> dict[str, object]:
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        # By default, redis-py asks the server for the keys of every script that is called.
        return {"target_nodes": client.get_node_from_key(command.key)}  # type: ignore[arg-type]  # or bytes
    return {}


def _checked(replies: list[Reply]) -> list[Reply]:
    for reply in replies:
        if isinstance(reply, PASSING) or is_busy(reply):
            raise reply
    return replies


def is_busy(reply: object) -> bool:
    """Whether the server reports that it runs a script, or still loads its data."""
    if isinstance(reply, exceptions.BusyLoadingError):
        return True
    return isinstance(reply, exceptions.ResponseError) and str(reply).startswith("BUSY ")


def failure(address: str, error: Exception) -> StoreError:
    """Return our error for one of `ERRORS`."""
    reason = str(error).rstrip(".")
    if isinstance(error, exceptions.AuthenticationError):
        return StoreError(
            f"Redis at {address} refused the user name or password: {reason}. "
            "Put them into the URL, percent-encoded: redis://user:password@host:6379/0."
        )
    if isinstance(error, _UNREACHABLE):
        return StoreError(
            f"Redis at {address} cannot be reached: {reason}. Check that it is running, and that "
            "the address is right."
        )
    return StoreRefusedError(f"Redis at {address} refused: {reason}.")
