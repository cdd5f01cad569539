"""Connections to Redis: from a URL or a given client, for threads and event loops."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from contextlib import AsyncExitStack
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import redis
from redis import exceptions
from redis.asyncio import connection as aconnection
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from memagent_graph.errors import ConfigurationError, StoreError, StoreRefusedError
from memagent_graph.memory.store import FAILING
from memagent_graph.sync import find_loop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from memagent_graph.memory.redis.layout import Reply, Wire

T = TypeVar("T")
Client = Any  # of redis-py, for one server or a cluster, synchronous or not: few methods are typed
logger = logging.getLogger(__name__)

_BUSY_REPEATS = 60  # half a minute: enough for a long script, or for loading the data
_GIVEN = "the given client's address"

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
    refuses = isinstance(reply, exceptions.ResponseError) and str(reply).startswith("BUSY ")
    return refuses or isinstance(reply, exceptions.BusyLoadingError)


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


class Repeats(NamedTuple):
    """Most repeats of a call that fails in passing: before any was answered, and from then on.

    Before, the address may be wrong.
    """

    unknown: int
    known: int
    passing: tuple[type[Exception], ...]


class GivenClient:
    """A client or pool that the caller created and closes; repeating calls is its own affair."""

    retries = 0

    def __init__(self, client: Client) -> None:
        if isinstance(client, redis.ConnectionPool):
            client = redis.Redis(connection_pool=client)
        elif isinstance(client, redis.asyncio.ConnectionPool):
            client = redis.asyncio.Redis(connection_pool=client)
        is_async = isinstance(client, redis.asyncio.Redis | redis.asyncio.RedisCluster)
        if not is_async and not isinstance(client, redis.Redis | redis.RedisCluster):
            message = (
                f"RedisStore needs a client or pool of redis-py, not {type(client).__name__}. "
                "For a URL, use RedisStore.from_url(url)."
            )
            raise ConfigurationError(message)
        if client.get_connection_kwargs().get("decode_responses"):
            message = "RedisStore stores bytes: give it a client without decode_responses=True."
            raise ConfigurationError(message)
        self._client, self.is_async = client, is_async

    def send(self, commands: Sequence[Wire]) -> list[Reply]:
        """See `OwnClients`."""
        if self.is_async:
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
        """See `OwnClients`."""
        if not self.is_async:
            return await asyncio.to_thread(self.send, commands)
        try:
            return await asend(self._client, commands)
        except ERRORS as error:
            raise failure(_GIVEN, error) from error

    def close(self) -> None:
        """Nothing: the client is the caller's."""

    async def aclose(self) -> None:
        """Nothing: the client is the caller's."""


class _Loop(NamedTuple):
    client: Client
    turns: asyncio.Semaphore
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
        repeats: most repeats of a call. A server that is busy or loading is asked for half a
            minute.
        max_connections: most calls under way at once, for all threads together and for each event
            loop; others wait.
    """

    def __init__(
        self,
        connect: Callable[[], list[Client]],
        connect_async: Callable[[], list[Client]],
        *,
        address: str,
        repeats: Repeats,
        max_connections: int,
    ) -> None:
        self.retries: int = 0
        self.is_async = False
        self._answered = False
        self._connect = connect
        self._connect_async = connect_async
        self._address = address
        self._repeats = repeats
        self._max_connections = max_connections
        self._turns = threading.BoundedSemaphore(max_connections)
        self._lock = threading.Lock()
        self._clients: list[Client] = []
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}

    def send(self, commands: Sequence[Wire]) -> list[Reply]:
        """Send commands, and return their replies in order; an error of one is its reply."""
        tries = 0
        while True:
            try:
                with self._turns:
                    replies = send(self._client(), commands)
            except ERRORS as error:
                tries += 1
                time.sleep(self._pause_after(error, tries))
            else:
                self._answered = True
                return replies

    async def asend(self, commands: Sequence[Wire]) -> list[Reply]:
        """See `send`."""
        tries = 0
        while True:
            here = await self._here()
            try:
                async with here.turns:
                    replies = await asend(here.client, commands)
            except ERRORS as error:
                tries += 1
                await asyncio.sleep(self._pause_after(error, tries))
            else:
                self._answered = True
                return replies

    def _pause_after(self, error: Exception, tries: int) -> float:
        """Return the seconds to wait before the next try; raise the error to give up."""
        refused = isinstance(error, redis.AuthenticationError)  # for redis-py, one of connecting
        if is_busy(error):
            most = _BUSY_REPEATS
        elif isinstance(error, self._repeats.passing) and not refused:
            most = self._repeats.known if self._answered else self._repeats.unknown
        else:
            most = 0
        if tries > most:
            raise failure(self._address, error) from error
        pause = random.uniform(0, FAILING.after(tries))  # noqa: S311 - no secret
        with self._lock:
            self.retries += 1
        logger.debug("Redis at %s: %s. Sending again in %.2f s.", self._address, error, pause)
        return pause

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
            if loop.is_running() and loop is not find_loop():
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
            self._loops[loop] = _Loop(clients[0], asyncio.Semaphore(self._max_connections), keeper)
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


_CONNECTIONS = {
    "redis": (redis.Connection, aconnection.Connection),
    "rediss": (redis.SSLConnection, aconnection.SSLConnection),
    "unix": (redis.UnixDomainSocketConnection, aconnection.UnixDomainSocketConnection),
}
_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
_OF_SENTINELS = {"sentinel_username", "sentinel_password"}
_NOT_TEXT = {"self", "args", "kwargs"}


def _check_options(scheme: str, query: str) -> None:
    """Refuse options that redis-py does not have: it reports them late, or never."""
    kind, _, deployment = scheme.partition("+")
    makers = [*_CONNECTIONS[kind], *(_CLUSTERS if deployment == "cluster" else ())]
    bases = {base for maker in makers for base in maker.__mro__ if base is not object}
    known = {name for base in bases for name in inspect.signature(base).parameters}
    known |= _OF_SENTINELS if deployment == "sentinel" else set()
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in known - _NOT_TEXT:
            similar = get_close_matches(name, known, n=1)
            hint = f"Did you mean {similar[0]!r}?" if similar else "See redis-py's documentation."
            message = f"{scheme}:// has no option {name!r}. {hint}"
            raise ConfigurationError(message)


MAX_CONNECTIONS = 50  # of threads, and of each event loop, to one server

_Retry = type[Retry] | type[AsyncRetry]

_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SENTINEL_PORT = 26379
_TIMEOUT = 10.0  # seconds, for connecting and for each reply
# Connections in a pool, as a multiple of the calls sent at once: a cluster's client also asks for
# the layout. A full pool raises.
_POOL = 2
_FEW_TRIPS: dict[str, Any] = {"protocol": 2}  # version 3 has two round trips more to connect
# At most 2.5 seconds of waiting, half on average: a restart. A replica that refuses stays one.
_REPEATS = Repeats(5, 5, UNREACHABLE)
_FAILOVER_REPEATS = Repeats(15, 30, PASSING)  # 12.5 and 27.5: an election, or a second one after it
_REDIRECTIONS = 3  # times that a cluster's client looks for a slot again


def connect(url: str, max_connections: int = MAX_CONNECTIONS) -> OwnClients:
    """Return a connection to the server of `url`, opened at the first use.

    Options of redis-py may follow as a query (`?socket_timeout=3&ssl_ca_certs=ca.pem`); a
    `max_connections` among them overrides the argument. `valkey` may stand for `redis`.

    Raises:
        ConfigurationError: It is not a Redis URL, or has an option that redis-py does not have.
    """
    if url.startswith("valkey"):
        url = "redis" + url.removeprefix("valkey")
    try:
        address, _, query = url.partition("?")
        options = dict(parse_qsl(query))
        bound = int(options.pop("max_connections", max_connections))
        url = f"{address}?{urlencode(options)}" if options else address
        return _connect(url, urlsplit(url), bound)
    except ConfigurationError:
        raise
    except ValueError:
        # The original message is dropped: it can quote a password.
        message = (
            "The Redis URL cannot be read. Check that its port and options are numbers, and that "
            "its password is percent-encoded."
        )
        raise ConfigurationError(message) from None


def _connect(url: str, parts: SplitResult, bound: int) -> OwnClients:
    if bound < 1:
        message = f"max_connections must be at least 1, not {bound}."
        raise ConfigurationError(message)
    if parts.scheme not in (*_SCHEMES, *_SENTINEL_SCHEMES):
        message = (
            f"{parts.scheme!r} is not the scheme of a Redis URL. Use one of "
            + ", ".join(f"{scheme}://" for scheme in (*_SCHEMES, *_SENTINEL_SCHEMES))
            + "."
        )
        raise ConfigurationError(message)
    _check_options(parts.scheme, parts.query)
    if parts.scheme.endswith("+cluster"):
        return _connect_cluster(parts, bound)
    if parts.scheme.endswith("+sentinel"):
        return _connect_sentinel(parts, bound)
    _parse_url(url)
    return OwnClients(
        lambda: [redis.Redis.from_url(url, **_FEW_TRIPS, **_options(Retry, bound))],
        lambda: [redis.asyncio.Redis.from_url(url, **_FEW_TRIPS, **_options(AsyncRetry, bound))],
        address=_address(parts),
        repeats=_REPEATS,
        max_connections=bound,
    )


def _connect_cluster(parts: SplitResult, bound: int) -> OwnClients:
    hosts = _hosts(parts, 6379)
    url = _single(parts, hosts[0])
    _parse_url(url)

    def open_with(cluster: Any, node: Any, retry: _Retry) -> list[Client]:
        others = [node(*host) for host in hosts[1:]]
        options = _options(retry, bound, _REDIRECTIONS)
        return [cluster.from_url(url, startup_nodes=others, **options)]

    return OwnClients(
        lambda: open_with(redis.RedisCluster, ClusterNode, Retry),
        lambda: open_with(redis.asyncio.RedisCluster, AsyncClusterNode, AsyncRetry),
        address=_address(parts),
        repeats=_FAILOVER_REPEATS,
        max_connections=bound,
    )


def _connect_sentinel(parts: SplitResult, bound: int) -> OwnClients:
    hosts = _hosts(parts, _SENTINEL_PORT)
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        message = (
            "The sentinel URL has no service: write it as "
            "redis+sentinel://host:26379,host:26379/service/0."
        )
        raise ConfigurationError(message)
    query = dict(parse_qsl(parts.query))
    secrets = {
        name.removeprefix("sentinel_"): query.pop(name)
        for name in ("sentinel_username", "sentinel_password")
        if name in query
    }
    server = parts._replace(path=f"/{database or 0}", query=urlencode(query))
    given = _parse_url(_single(server, hosts[0]))
    for name in ("host", "port", "connection_class"):
        given.pop(name, None)
    given["ssl"] = parts.scheme.startswith("rediss")
    encryption = {name: value for name, value in given.items() if name.startswith("ssl")}

    def open_with(sentinels: Any, retry: _Retry) -> list[Client]:
        asked = {**_options(retry, bound), **secrets, **encryption}
        found = sentinels(hosts, sentinel_kwargs=asked)
        options = {**_options(retry, bound), **given}
        return [found.master_for(service, **options), *found.sentinels]

    return OwnClients(
        lambda: open_with(Sentinel, Retry),
        lambda: open_with(AsyncSentinel, AsyncRetry),
        address=_address(parts),
        repeats=_FAILOVER_REPEATS,
        max_connections=bound,
    )


def _options(retry: _Retry, bound: int, repeats: int = 0) -> dict[str, Any]:
    return {
        "retry": retry(NoBackoff(), repeats),
        "socket_timeout": _TIMEOUT,
        "socket_connect_timeout": _TIMEOUT,
        "max_connections": _POOL * bound,
    }


def _parse_url(url: str) -> dict[str, object]:
    options: dict[str, object] = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py's
    return options


def _hosts(parts: SplitResult, default_port: int) -> list[tuple[str, int]]:
    split = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    return [(host.hostname or "localhost", host.port or default_port) for host in split]


def _single(parts: SplitResult, host: tuple[str, int]) -> str:
    """The URL with one host, in redis-py's format."""
    user, at, _ = parts.netloc.rpartition("@")
    name = f"[{host[0]}]" if ":" in host[0] else host[0]
    scheme = parts.scheme.partition("+")[0]
    return parts._replace(scheme=scheme, netloc=f"{user}{at}{name}:{host[1]}").geturl()


def _address(parts: SplitResult) -> str:
    hosts = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{hosts}{parts.path}"
