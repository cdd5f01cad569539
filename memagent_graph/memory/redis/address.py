"""Open connections from a URL: one server, a unix socket, a cluster, or sentinels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from memagent_graph.errors import ConfigurationError
from memagent_graph.memory.redis.connection import OwnClients
from memagent_graph.memory.redis.options import check_options, take_bound

if TYPE_CHECKING:
    from memagent_graph.memory.redis.pipeline import Client

MAX_CONNECTIONS = 50  # of threads, and of each event loop, to one server

_Retry = type[Retry] | type[AsyncRetry]

_SCHEMES = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster")
_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
_SENTINEL_PORT = 26379
_TIMEOUT = 10.0  # seconds, for connecting and for each reply
# Connections in a pool, as a multiple of the calls sent at once: short calls, blocking calls, and
# those of a cluster's client that asks for the layout. A full pool raises.
_POOL = 3
_REPEATS = 5  # at most 1.6 seconds of waiting: enough for a restart of the server
_FAILOVER_REPEATS = 15  # at most 11.6 seconds: enough for the election of a new master
_REDIRECTIONS = 3  # times that a cluster's client looks for a slot again


def connect(url: str, max_connections: int = MAX_CONNECTIONS) -> OwnClients:
    """Return a connection to the server of `url`, opened at the first use.

    Options of redis-py may follow as a query (`?socket_timeout=3&ssl_ca_certs=ca.pem`); a
    `max_connections` among them overrides the argument.

    Raises:
        ConfigurationError: It is not a Redis URL, or has an option that redis-py does not have.
    """
    try:
        url, bound = take_bound(url, max_connections)
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
    if parts.scheme not in (*_SCHEMES, *_SENTINEL_SCHEMES):
        message = (
            f"{parts.scheme!r} is not the scheme of a Redis URL. Use one of "
            + ", ".join(f"{scheme}://" for scheme in (*_SCHEMES, *_SENTINEL_SCHEMES))
            + "."
        )
        raise ConfigurationError(message)
    check_options(parts.scheme, parts.query)
    if parts.scheme.endswith("+cluster"):
        return _connect_cluster(parts, bound)
    if parts.scheme.endswith("+sentinel"):
        return _connect_sentinel(parts, bound)
    _parsed(url)
    return OwnClients(
        lambda: [redis.Redis.from_url(url, **_options(Retry, bound))],
        lambda: [redis.asyncio.Redis.from_url(url, **_options(AsyncRetry, bound))],
        address=_address(parts),
        repeats=_REPEATS,
        max_connections=bound,
    )


def _connect_cluster(parts: SplitResult, bound: int) -> OwnClients:
    hosts = _hosts(parts, 6379)
    url = _single(parts, hosts[0])
    _parsed(url)

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
    given = _parsed(_single(server, hosts[0]))
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


def _parsed(url: str) -> dict[str, object]:
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
