"""A LangGraph store on plain Redis or Valkey, with compare-and-put."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from langgraph.store.base import BaseStore, SearchOp

from memagent_graph.errors import StoreRefusedError
from memagent_graph.memory.redis import layout, operations
from memagent_graph.memory.redis.connection import MAX_CONNECTIONS, GivenClient, OwnClients, connect
from memagent_graph.memory.redis.layout import Codec, Names, Wire, run_script
from memagent_graph.memory.redis.operations import batch, list_roots
from memagent_graph.memory.store import arrange
from memagent_graph.text.cache import keep_no_plain_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
    from typing import Self

    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.store.base import IndexConfig, Op, PutOp, Result, TTLConfig

    from memagent_graph.memory.redis.layout import Reply, Steps
    from memagent_graph.memory.store import Given

_IN_INFO = {"maxmemory": "maxmemory", "maxmemory_policy": "maxmemory-policy"}


def _read_settings(save: Reply, info: Reply) -> dict[str, str]:
    """Return the settings in the replies to CONFIG GET and INFO, which may be forbidden."""
    settings: dict[str, str] = {}
    if isinstance(info, dict):  # redis-py has parsed it
        settings |= {name: str(info[known]) for known, name in _IN_INFO.items() if known in info}
        if "aof_enabled" in info:
            settings["appendonly"] = "yes" if info["aof_enabled"] else "no"
    if isinstance(save, Exception):
        return settings
    # A list or a dictionary, depending on the protocol version.
    pairs = save.items() if isinstance(save, dict) else zip(save[::2], save[1::2], strict=True)
    return settings | {_text(name): _text(value) for name, value in pairs}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


ITEMS_PER_TRIP = 1_000  # limits the memory that a large batch takes in client and server


async def carry_out(steps: Steps[T], send: Callable[[Sequence[Wire]], Awaitable[list[Reply]]]) -> T:
    """Send the commands of an operation, in several trips if they are many, and return its result.

    Errors that are replies are raised.
    """
    try:
        commands = next(steps)
        while True:
            replies: list[Reply] = []
            for some in _split(commands):
                replies += await send(some)
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


def sweep(names: Names) -> Steps[int]:
    """Remove expired items from all indexes."""
    total = 0
    for root in (yield from list_roots(names)):
        index = names.index(root)
        swept = layout.SWEPT_BY_READS
        while swept == layout.SWEPT_BY_READS:
            (swept,) = yield [run_script(layout.SWEEP, (index, names.expiry(root)))]
            total += swept
    return total


T = TypeVar("T")
Namespace = tuple[str, ...]


class RedisStore(BaseStore):
    """A complete `BaseStore` on Redis 6.2 or later, or Valkey, without modules.

    Namespaces and keys may have any characters that LangGraph allows. Values are JSON: tuples are
    read back as lists. A search returns items ordered by name. With a `query`, it returns those
    with words of it, the best first, or, with `index`, all, ranked by embeddings. They are compared
    in this process: a query may look at 10,000 items.
    In a batch, reads see the state before the batch's writes, as in `InMemoryStore`.

    In a cluster, everything with the same first label of its namespace is on one node: begin
    namespaces with something that has many values, such as the user.

    With a `ttl` in minutes (`TTLConfig`, or `put`), an item disappears when it has been neither
    written nor read for that long; `omit_expired` is not needed. `sweep_ttl` frees the memory of
    expired items in indexes that are not read.

    Args:
        client: a client or connection pool of redis-py, synchronous or asynchronous, without
            `decode_responses`. The caller closes it. `from_url` opens its own.
        prefix: beginning of all keys in Redis. Stores with different prefixes are independent.
        ttl: times to live, in minutes; without it, items stay.
        serializer: wraps the JSON of values, such as LangGraph's `EncryptedSerializer`.
            Namespaces and keys stay readable in Redis.
        index: LangGraph's configuration of embeddings, which are stored with the items. Items that
            were put without it come last in a search, without a score.

    Examples:
        >>> from memagent_graph import RedisStore
        >>> with RedisStore.from_url("redis://localhost:6379/0") as store:
        ...     store.put(("alice", "prefs"), "theme", {"dark": True})
        ...     store.get(("alice", "prefs"), "theme").value
        {'dark': True}
    """

    supports_ttl = True

    def __init__(
        self,
        client: object,
        *,
        prefix: str = "memagent",
        ttl: TTLConfig | None = None,
        serializer: SerializerProtocol | None = None,
        index: IndexConfig | None = None,
    ) -> None:
        self.ttl_config = ttl
        self._embedder = None
        if index is not None:
            from memagent_graph.memory.redis.rank import Embedder

            self._embedder = Embedder(index)
        self._names = Names(prefix)
        self._codec = Codec(serializer)
        if serializer is not None:  # what it hides must not lie in a cache for all to see
            keep_no_plain_text()
        self._connection = client if isinstance(client, OwnClients) else GivenClient(client)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "memagent",
        ttl: TTLConfig | None = None,
        serializer: SerializerProtocol | None = None,
        index: IndexConfig | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> RedisStore:
        """Return a store that opens its own connections, and repeats calls that were cut off.

        Args:
            url: redis:// or rediss:// (TLS; also valkey:// and valkeys://), unix:///path/to/socket,
                redis+cluster://host:port,host:port, or
                redis+sentinel://host:port,host:port/service/database; cluster and sentinel also
                with rediss+. Options of redis-py may follow as a query:
                `rediss://host:6380/0?ssl_ca_certs=ca.pem`. A sentinel's own password goes into
                `sentinel_password`.
            prefix: see `RedisStore`.
            ttl: see `RedisStore`.
            serializer: see `RedisStore`.
            index: see `RedisStore`.
            max_connections: most connections to a server, for all threads together and for each
                event loop; further calls wait. A cluster's layout is read on one more.

        Raises:
            ConfigurationError: The URL is none of these.
        """
        client = connect(url, max_connections)
        return cls(client, prefix=prefix, ttl=ttl, serializer=serializer, index=index)

    @property
    def retries(self) -> int:
        """Number of repeats so far; 0 with a given client, which does not report them."""
        return self._connection.retries

    def server_settings(self) -> dict[str, str]:
        """Return the server's maxmemory, maxmemory-policy, save and appendonly.

        For a cluster, these are the settings of one node. Settings that the user may not read are
        missing.

        Raises:
            StoreError: Redis cannot be reached.
        """
        key = self._names.roots
        questions = [Wire(key, ("CONFIG", "GET", "save")), Wire(key, ("INFO",))]
        return _read_settings(*self._connection.send(questions))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations, and return their results in order.

        All gets and puts take one round trip, each search its own before it. A batch is not a
        transaction: other clients may see part of it.

        Raises:
            StoreError: Redis cannot be reached, or refused.
            BadRecordError: A get or a search found something that is not an item.
            ConfigurationError: A search with a query has too many items to look at.
            TypeError: A value is not representable in JSON.
            InvalidNamespaceError: LangGraph does not allow a namespace.
        """
        vectors = None
        if self._embedder is not None:
            ops, vectors = self._embedder.prepare([*ops])
        return self._run(batch(self._names, self._codec, ops, vectors))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """See `batch`."""
        ops, vectors = [*ops], None
        if self._embedder is not None:
            ops, vectors = await self._embedder.aprepare(ops)
        steps = batch(self._names, self._codec, ops, vectors)
        if (
            any(isinstance(op, SearchOp) and op.query for op in ops)
            and not self._connection.is_async
        ):
            return await asyncio.to_thread(self._run, steps)
        return await carry_out(steps, self._connection.asend)

    async def acommit(self, puts: Sequence[PutOp], *, given: Given) -> bool:
        """See `AtomicStore`. One round trip; two if a value is stored in another form."""
        ops = arrange(puts, (namespace for namespace, _ in given), self.ttl_config)
        steps = operations.commit(self._names, self._codec, ops, given)
        return await carry_out(steps, self._connection.asend)

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """See `AtomicStore`."""
        steps = operations.list_places(self._names, namespace)
        return await carry_out(steps, self._connection.asend)

    def sweep_ttl(self) -> int:
        """Remove expired items from the indexes, and return their number.

        Reads never return expired items, so this only frees memory, of indexes that are not
        searched, listed, or written to with a time to live.
        """
        return self._run(sweep(self._names))

    async def asweep_ttl(self) -> int:
        """See `sweep_ttl`."""
        return await carry_out(sweep(self._names), self._connection.asend)

    def close(self) -> None:
        """Close the connections that the store opened. A later call opens them again."""
        self._connection.close()

    async def aclose(self) -> None:
        """See `close`. Connections of other running event loops are closed as well."""
        await self._connection.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _run(self, steps: Steps[T]) -> T:
        async def send(commands: Sequence[Wire]) -> list[Reply]:
            return self._connection.send(commands)

        try:
            carry_out(steps, send).send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        raise AssertionError  # it waits for nothing
