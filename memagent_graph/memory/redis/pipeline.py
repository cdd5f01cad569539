"""Round trips: operations yield commands that go out together, and are sent the replies.

So the same code serves synchronous and asynchronous callers, and an operation takes as many round
trips as it has `yield`s.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import redis
from redis import exceptions

from memagent_graph.errors import StoreError, StoreRefusedError

Client = Any
"""A client of redis-py, for one server or a cluster, synchronous or not; few methods are typed."""
Reply = Any
"""A reply, whose shape depends on the command; an error is a reply too."""


class Wire(NamedTuple):
    """A command in the form that is sent.

    Attributes:
        key: one of its keys, whose node it is sent to in a cluster.
        arguments: the command's name and arguments.
        items: number of items that it reads or writes.
    """

    key: bytes
    arguments: tuple[bytes | str | int, ...]
    items: int = 1


def run_script(
    script: str, keys: Sequence[bytes], *arguments: bytes | str | int, items: int = 1
) -> Wire:
    """Return the command that runs a script; its keys, one at least, have the same hash tag."""
    return Wire(keys[0], ("EVAL", script, len(keys), *keys, *arguments), items)


UNREACHABLE: tuple[type[Exception], ...] = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.RedisClusterException,
    OSError,
)
PASSING: tuple[type[Exception], ...] = (  # errors that pass, such as those during a failover
    *UNREACHABLE,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)
ERRORS: tuple[type[Exception], ...] = (exceptions.RedisError, *UNREACHABLE)


def send(client: Client, commands: Sequence[Wire]) -> list[Reply]:
    """Send commands, and return their replies; an error of only one of them is its reply."""
    with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command.arguments, **_node(client, command))
        return _check_replies(pipeline.execute(raise_on_error=False))


async def asend(client: Client, commands: Sequence[Wire]) -> list[Reply]:
    """See `send`."""
    async with client.pipeline(transaction=False) as pipeline:
        for command in commands:
            pipeline.execute_command(*command.arguments, **_node(client, command))
        return _check_replies(await pipeline.execute(raise_on_error=False))


def _node(client: Client, command: Wire) -> dict[str, object]:
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        # By default, redis-py asks the server for the keys of every script that is called.
        return {"target_nodes": client.get_node_from_key(command.key)}  # type: ignore[arg-type]  # or bytes
    return {}


def _check_replies(replies: list[Reply]) -> list[Reply]:
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
        return StoreRefusedError(
            f"Redis at {address} refused the user name or password: {reason}. "
            "Put them into the URL, percent-encoded: redis://user:password@host:6379/0."
        )
    if isinstance(error, UNREACHABLE):
        reason = reason.partition(" : ")[0]  # sentinels that are away follow, as objects
        return StoreError(
            f"Redis at {address} cannot be reached: {reason}. Check that it is running, and that "
            "the address is right."
        )
    return StoreRefusedError(f"Redis at {address} refused: {reason}.")


T = TypeVar("T")

ITEMS_PER_TRIP = 1_000  # limits the memory that a large batch takes in client and server


Steps = Generator[Sequence[Wire], list[Reply], T]


def in_trips(steps: Steps[T]) -> Generator[list[Wire], list[Reply], T]:
    """Split large trips, and raise errors that are replies."""
    try:
        commands = next(steps)
        while True:
            replies: list[Reply] = []
            for some in _split(commands):
                replies += yield some
            for command, reply in zip(commands, replies, strict=True):
                if isinstance(reply, Exception):
                    message = f"Redis refused a command for {command.key!r}: {reply}"
                    raise StoreRefusedError(message) from reply
            commands = steps.send(replies)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()  # now, not when a traceback that holds it is freed


def _split(commands: Sequence[Wire]) -> Iterator[list[Wire]]:
    some, items = list[Wire](), 0
    for command in commands:
        if some and items + command.items > ITEMS_PER_TRIP:
            yield some
            some, items = [], 0
        some.append(command)
        items += command.items
    if some:
        yield some
