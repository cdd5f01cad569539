"""Options in the query of a Redis URL."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from urllib.parse import parse_qsl, urlencode

import redis
import redis.asyncio
from redis.asyncio import connection as aconnection

from memagent_graph.errors import ConfigurationError

_CONNECTIONS = {
    "redis": (redis.Connection, aconnection.Connection),
    "rediss": (redis.SSLConnection, aconnection.SSLConnection),
    "unix": (redis.UnixDomainSocketConnection, aconnection.UnixDomainSocketConnection),
}
_CLUSTERS = (redis.RedisCluster, redis.asyncio.RedisCluster)
_OF_SENTINELS = {"sentinel_username", "sentinel_password"}
_NOT_TEXT = {"self", "args", "kwargs"}


def take_bound(url: str, bound: int) -> tuple[str, int]:
    """Return the URL without `max_connections`, and its value, or `bound` without one.

    Raises:
        ConfigurationError: It is less than 1.
        ValueError: It is not a number.
    """
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    bound = int(options.pop("max_connections", bound))
    if bound < 1:
        message = f"max_connections must be at least 1, not {bound}."
        raise ConfigurationError(message)
    return (f"{address}?{urlencode(options)}" if options else address), bound


def check_options(scheme: str, query: str) -> None:
    """Refuse options that redis-py does not have: it reports them late, or never.

    Raises:
        ConfigurationError: Connections of this scheme have no such option.
    """
    known = _known(scheme)
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            similar = get_close_matches(name, known, n=1)
            hint = f"Did you mean {similar[0]!r}?" if similar else "See redis-py's documentation."
            message = f"{scheme}:// has no option {name!r}. {hint}"
            raise ConfigurationError(message)


def _known(scheme: str) -> set[str]:
    kind, _, deployment = scheme.partition("+")
    makers = [*_CONNECTIONS[kind], *(_CLUSTERS if deployment == "cluster" else ())]
    bases = {base for maker in makers for base in maker.__mro__ if base is not object}
    names = {name for base in bases for name in inspect.signature(base).parameters}
    return (names | (_OF_SENTINELS if deployment == "sentinel" else set())) - _NOT_TEXT
