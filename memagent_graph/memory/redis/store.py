"""A LangGraph store on plain Redis or Valkey."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from langgraph.store.base import BaseStore, GetOp, Item, PutOp, SearchOp

from memagent_graph.memory.atomic import Announcement, arrange
from memagent_graph.memory.redis import operations, scripts
from memagent_graph.memory.redis.codec import Codec
from memagent_graph.memory.redis.connection import (
    MAX_CONNECTIONS,
    OwnClients,
    connect,
    connection_over,
)
from memagent_graph.memory.redis.keys import Names, decode, list_roots, root_of
from memagent_graph.memory.redis.operations import batch
from memagent_graph.memory.redis.pipeline import Command, Wire, wire
from memagent_graph.text.cache import keep_no_plain_text

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Generator,
        Iterable,
        Sequence,
    )
    from types import TracebackType
    from typing import Self

    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.store.base import IndexConfig, Op, Result, TTLConfig

    from memagent_graph.memory.atomic import Given
    from memagent_graph.memory.redis.pipeline import Reply, Steps

_NAMES = ("maxmemory", "maxmemory-policy", "save", "appendonly")
_IN_INFO = {"maxmemory": "maxmemory", "maxmemory_policy": "maxmemory-policy"}


def ask_settings(key: bytes) -> list[Wire]:
    """Return the commands that ask the server of `key` for its settings."""
    questions = [Wire(key, ("CONFIG", "GET", name)) for name in _NAMES]
    return [*questions, Wire(key, ("INFO",))]


def read_settings(replies: Sequence[Reply]) -> dict[str, str]:
    """Return the settings in the replies to `ask`; only those of INFO if CONFIG is forbidden."""
    *configs, info = replies
    settings: dict[str, str] = {}
    if isinstance(info, dict):  # redis-py has parsed it
        settings |= {name: str(info[known]) for known, name in _IN_INFO.items() if known in info}
        if "aof_enabled" in info:
            settings["appendonly"] = "yes" if info["aof_enabled"] else "no"
    for reply in configs:
        if isinstance(reply, Exception):
            continue
        # A list or a dictionary, depending on the protocol version.
        pairs = (
            reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        )
        settings |= {_text(name): _text(value) for name, value in pairs}
    return settings


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


_WAIT_MILLISECONDS = 1_000  # shorter than any sensible socket timeout
_ENTRIES_AT_ONCE = 100


def last_id(stream: bytes) -> Steps[str]:
    """Return the id of the newest entry."""
    (entries,) = yield [Command(None, (stream,), ("XREVRANGE", "+", "-", "COUNT", 1))]
    return entries[0][0].decode() if entries else "0-0"


def entries_after(stream: bytes, after: str) -> Steps[list[tuple[str, bytes]]]:
    """Return ids and members of entries newer than `after`, waiting a second for the first."""
    words = f"XREAD COUNT {_ENTRIES_AT_ONCE} BLOCK {_WAIT_MILLISECONDS} STREAMS"
    (reply,) = yield [Command(None, (stream,), (words, after))]
    # A list or a dictionary, depending on the protocol version.
    found = dict(reply or ()).get(stream, [])
    entries = found[0] if found and isinstance(found[0], list) else found
    return [(position.decode(), fields[b"member"]) for position, fields in entries]


def delete_stream(stream: bytes) -> Steps[None]:
    """Delete all entries."""
    yield [Command(None, (stream,), ("DEL",))]


logger = logging.getLogger(__name__)


def sweep(names: Names) -> Steps[int]:
    """Remove expired items from all indexes.

    Returns:
        The number of items removed.
    """
    total = 0
    for root in (yield from list_roots(names)):
        index = names.index(root)
        swept = scripts.SWEPT_BY_READS
        while swept == scripts.SWEPT_BY_READS:
            (swept,) = yield [Command(scripts.SWEEP, (index, names.expiry(root)))]
            total += swept
    return total


class Sweeper:
    """A thread or task that sweeps every few minutes until it is stopped.

    Args:
        sweep: sweeps once.
        asweep: the same, for a task.
    """

    def __init__(self, sweep: Callable[[], int], asweep: Callable[[], Awaitable[int]]) -> None:
        self._sweep = sweep
        self._asweep = asweep
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._done: Future[None] = Future()
        self._task: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    def start(self, minutes: float) -> Future[None]:
        """Start the thread, if it does not run yet; the future is done when it has stopped."""
        if self._thread is not None and self._thread.is_alive():
            return self._done
        self._stopping, self._done = threading.Event(), Future()
        arguments = (minutes, self._stopping, self._done)
        self._thread = threading.Thread(
            target=self._run, args=arguments, daemon=True, name="ttl-sweeper"
        )
        stopping = self._stopping
        self._done.add_done_callback(lambda _: stopping.set())
        self._thread.start()
        return self._done

    def stop(self, seconds: float | None = None) -> bool:
        """Stop the thread, and return whether it ended within `seconds`."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def astart(self, minutes: float) -> asyncio.Task[None]:
        """Start a task of this loop, if it does not run yet."""
        if self._task is None or self._task.done():
            self._leaving = asyncio.Event()
            sweeping = self._arun(minutes, self._leaving)
            self._task = asyncio.create_task(sweeping, name="ttl_sweeper")
        return self._task

    async def astop(self, seconds: float | None = None) -> bool:
        """Stop the task, and return whether it ended within `seconds`."""
        if self._task is None:
            return True
        self._leaving.set()  # a client may take a cancellation for a lost connection
        self._task.cancel()
        await asyncio.wait([self._task], timeout=seconds)
        return self._task.done()

    def _run(self, minutes: float, stopping: threading.Event, done: Future[None]) -> None:
        while not stopping.wait(60 * minutes):
            try:
                logger.debug("The TTL sweeper swept %d items.", self._sweep())
            except Exception:
                logger.exception("The TTL sweeper failed, and will try again.")
        if not done.cancelled():
            done.set_result(None)

    async def _arun(self, minutes: float, leaving: asyncio.Event) -> None:
        while not leaving.is_set():
            await asyncio.sleep(60 * minutes)
            try:
                logger.debug("The TTL sweeper swept %d items.", await self._asweep())
            except Exception:
                logger.exception("The TTL sweeper failed, and will try again.")


T = TypeVar("T")
Namespace = tuple[str, ...]

_MINUTES_BETWEEN_SWEEPS = 5  # as in LangGraph's stores
_SECONDS_TO_STOP = 1.0  # for which closing waits for a sweep to end


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
    written nor read for that long; `omit_expired` is not needed. `start_ttl_sweeper` frees the
    memory of expired items in indexes that are not read.

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
        self._connection = client if isinstance(client, OwnClients) else connection_over(client)
        self._sweeper = Sweeper(self.sweep_ttl, self.asweep_ttl)
        self._cached: set[scripts.Script] = set()

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
                event loop; further calls wait. `watch` may use as many again: more watchers than
                that take turns of up to a second. A cluster's layout is read on one more.

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
        return read_settings(self._connection.send(ask_settings(self._names.roots)))

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
        heavy = any(isinstance(op, SearchOp) and op.query for op in ops)
        steps = batch(self._names, self._codec, ops, vectors)
        return await self._arun(steps, heavy=heavy)

    async def acommit(
        self, puts: Sequence[PutOp], *, given: Given, topic: str | None = None, news: int = 1
    ) -> bool:
        """See `AtomicStore`. One round trip; two if a value is stored in another form."""
        ops = arrange(puts, (namespace for namespace, _ in given), self.ttl_config)
        new = sum(put.value is not None for put in puts[:news])
        announced = None if topic is None else (ops[:new], topic)
        steps = operations.commit(self._names, self._codec, ops, given, announced)
        return await self._arun(steps)

    async def watch(
        self, namespace: Namespace, topic: str, *, after: str = "$"
    ) -> AsyncIterator[Announcement]:
        """See `AtomicStore`. About 1,000 announcements are kept, for a week."""
        stream = self._names.stream(namespace, topic)
        if after == "$":
            after = await self._arun(last_id(stream))
        while True:
            news = await self._arun(entries_after(stream, after))
            keys = [decode(root_of(namespace), member)[1] for _, member in news]
            refresh = bool((self.ttl_config or {}).get("refresh_on_read", True))
            items = await self.abatch([GetOp(namespace, key, refresh) for key in keys])
            for (position, _), item in zip(news, items, strict=True):
                after = position
                if isinstance(item, Item):
                    yield Announcement(position, item)

    async def aplaces(self, namespace: Namespace) -> list[tuple[Namespace, str]]:
        """See `ListsPlaces`."""
        return await self._arun(operations.list_places(self._names, namespace))

    async def aforget_topic(self, namespace: Namespace, topic: str) -> None:
        """See `AtomicStore`."""
        await self._arun(delete_stream(self._names.stream(namespace, topic)))

    def sweep_ttl(self) -> int:
        """Remove expired items from the indexes, and return their number.

        Reads never return expired items, so this only frees memory, of indexes that are not
        searched, listed, or written to with a time to live.
        """
        return self._run(sweep(self._names))

    async def asweep_ttl(self) -> int:
        """See `sweep_ttl`."""
        return await self._arun(sweep(self._names))

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Call `sweep_ttl` every few minutes in a thread, until `stop_ttl_sweeper` or `close`.

        Args:
            sweep_interval_minutes: interval in minutes; by default that of `ttl`, or else 5.
                Without a `ttl`, nothing is started.
        """
        if not self.ttl_config:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._sweeper.start(self._interval(sweep_interval_minutes))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop sweeping, and return whether the thread ended within `timeout` seconds."""
        return self._sweeper.stop(timeout)

    async def astart_ttl_sweeper(
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Task[None]:
        """See `start_ttl_sweeper`; this one runs in a task of this event loop."""
        if not self.ttl_config:
            return asyncio.create_task(asyncio.sleep(0))
        return self._sweeper.astart(self._interval(sweep_interval_minutes))

    async def astop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - LangGraph's name
        """Stop the task, and return whether it ended within `timeout` seconds."""
        return await self._sweeper.astop(timeout)

    def close(self) -> None:
        """Close the connections that the store opened. A later call opens them again."""
        self._sweeper.stop(_SECONDS_TO_STOP)
        self._connection.close()

    async def aclose(self) -> None:
        """See `close`. Connections of other running event loops are closed as well."""
        await asyncio.to_thread(self._sweeper.stop, _SECONDS_TO_STOP)
        await self._sweeper.astop(_SECONDS_TO_STOP)
        await self._connection.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _interval(self, minutes: float | None) -> float:
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        return minutes or configured or _MINUTES_BETWEEN_SWEEPS

    def _run(self, steps: Steps[T]) -> T:
        trips = wire(steps, self._cached)
        try:
            commands = next(trips)
            while True:
                commands = trips.send(self._connection.send(commands))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            trips.close()

    async def _arun(self, steps: Steps[T], *, heavy: bool = False) -> T:
        trips = wire(steps, self._cached)
        try:
            commands = next(trips)
            while True:
                replies = await self._connection.asend(commands)
                if heavy:  # the event loop does not wait while items are compared
                    commands, done = await asyncio.to_thread(_send, trips, replies)
                    if done is not None:
                        return done.value  # type: ignore[no-any-return]
                else:
                    commands = trips.send(replies)
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            trips.close()


def _send(
    trips: Generator[list[Wire], list[Reply], T], replies: list[Reply]
) -> tuple[list[Wire], StopIteration | None]:
    """Send replies to a generator in a thread, whose future cannot hold a StopIteration."""
    try:
        return trips.send(replies), None
    except StopIteration as stop:
        return [], stop
