"""A LangGraph store on plain Redis or Valkey."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    PutOp,
)

from memagent_graph.memory.atomic import Announcement, Present, arrange
from memagent_graph.memory.redis import settings, streams, writes
from memagent_graph.memory.redis.address import MAX_CONNECTIONS, connect
from memagent_graph.memory.redis.batch import batch
from memagent_graph.memory.redis.codec import Codec
from memagent_graph.memory.redis.connection import OwnClients, given
from memagent_graph.memory.redis.keys import Names, decode, root_of
from memagent_graph.memory.redis.roots import KnownRoots
from memagent_graph.memory.redis.steps import wire
from memagent_graph.memory.redis.sweeper import Sweeper, sweep
from memagent_graph.text.user_cache import keep_no_plain_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.store.base import Op, Result, TTLConfig

    from memagent_graph.memory.atomic import Given
    from memagent_graph.memory.redis.steps import Steps

T = TypeVar("T")
Namespace = tuple[str, ...]

_MINUTES_BETWEEN_SWEEPS = 5  # as in LangGraph's stores
_SECONDS_TO_STOP = 1.0  # that closing waits for a sweep to end


class RedisStore(BaseStore):
    """A complete `BaseStore` on Redis 6.2 or later, or Valkey, without modules.

    Namespaces and keys may have any characters that LangGraph lets through. Values are JSON:
    tuples come back as lists. A search returns items ordered by name. There is no vector index: a
    search with a `query`, and a put with fields to `index`, are refused.
    In a batch, reads see what was there before the batch's writes, as in `InMemoryStore`.

    In a cluster, everything under one first label of a namespace lives on one node: begin
    namespaces with what there are many of, such as a user.

    With a `ttl` in minutes (`TTLConfig`, or `put`), an item disappears when it has been neither
    written nor read for so long; `omit_expired` is not needed. `start_ttl_sweeper` frees the memory
    of what expired in indexes that nobody reads.

    Args:
        client: a client or connection pool of redis-py, synchronous or asynchronous, without
            `decode_responses`. It stays the caller's to close. `from_url` opens its own.
        prefix: what all keys in Redis begin with. Stores with different prefixes see nothing of
            each other.
        ttl: times to live; without one, items stay.
        serializer: wraps the JSON of values, such as LangGraph's `EncryptedSerializer`.
            Namespaces and keys stay readable in Redis.

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
    ) -> None:
        self.ttl_config = ttl
        self._names = Names(prefix)
        self._codec = Codec(serializer)
        if serializer is not None:  # what it hides must not lie in a cache for all to see
            keep_no_plain_text()
        self._connection = client if isinstance(client, OwnClients) else given(client)
        self._sweeper = Sweeper(self.sweep_ttl, self.asweep_ttl)
        self._known = KnownRoots(self._connection)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "memagent",
        ttl: TTLConfig | None = None,
        serializer: SerializerProtocol | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> RedisStore:
        """A store that opens its own connections when first used, and repeats what is cut off.

        Args:
            url: redis:// or rediss:// (TLS), unix:///path/to/socket,
                redis+cluster://host:port,host:port, or
                redis+sentinel://host:port,host:port/service/database; cluster and sentinel also
                with rediss+. Options of redis-py may follow as a query:
                `rediss://host:6380/0?ssl_ca_certs=ca.pem`. A sentinel's own password goes into
                `sentinel_password`.
            prefix: see `RedisStore`.
            ttl: see `RedisStore`.
            serializer: see `RedisStore`.
            max_connections: how many connections threads, and each event loop, open to a server;
                what is sent beyond them waits its turn. `watch` has as many again: more watchers
                than that take turns of up to a second. A cluster's layout is asked for on one more.

        Raises:
            ConfigurationError: The URL is none of these.
        """
        return cls(connect(url, max_connections), prefix=prefix, ttl=ttl, serializer=serializer)

    @property
    def retries(self) -> int:
        """How often something was sent again; 0 with a given client, whose repeats are its own."""
        return self._connection.retries or 0

    def server_settings(self) -> dict[str, str]:
        """The server's maxmemory, maxmemory-policy, save and appendonly, as far as it tells.

        Of a cluster, those of one node. What the user may not ask for is left out.

        Raises:
            StoreError: Redis cannot be reached.
        """
        return settings.read(self._connection.send(settings.ask(self._names.roots)))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations; results come in their order.

        Gets and puts take one round trip together, searches their own before it. A batch is no
        transaction: other clients may see part of it.

        Raises:
            StoreError: Redis cannot be reached, or refused.
            BadRecordError: A get or a search met something that is not an item.
            ConfigurationError: A search has a query, or a put has fields to index.
            TypeError: A value is not JSON.
            InvalidNamespaceError: LangGraph does not allow a namespace.
        """
        return self._run(batch(self._names, self._codec, self._known, ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`."""
        return await self._arun(batch(self._names, self._codec, self._known, ops))

    async def aput_if_absent(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, object],
        *,
        topic: str | None = None,
        also: Sequence[PutOp] = (),
        beside: tuple[Namespace, str] | None = None,
        ttl: float | None = None,
    ) -> Present:
        """See `AtomicStore`. One round trip."""
        put = PutOp(namespace, key, value, ttl=ttl)
        return await self._arun(self._put_if_absent(put, also, beside, topic))

    async def acommit(
        self, puts: Sequence[PutOp], *, given: Given, topic: str | None = None
    ) -> bool:
        """See `AtomicStore`. One round trip; two when a value is stored in another form."""
        return await self._arun(self._commit(puts, given, topic))

    async def watch(
        self, namespace: Namespace, topic: str, *, after: str = "$"
    ) -> AsyncIterator[Announcement]:
        """See `AtomicStore`. The last 1,000 or so announcements are kept, for a week."""
        stream = self._names.stream(namespace, topic)
        if after == "$":
            after = await self._arun(streams.last_id(stream))
        while True:
            news = await self._arun(streams.entries_after(stream, after))
            keys = [decode(root_of(namespace), member)[1] for _, member in news]
            refresh = bool((self.ttl_config or {}).get("refresh_on_read", True))
            items = await self.abatch([GetOp(namespace, key, refresh) for key in keys])
            for (position, _), item in zip(news, items, strict=True):
                after = position
                if isinstance(item, Item):
                    yield Announcement(position, item)

    async def aforget_topic(self, namespace: Namespace, topic: str) -> None:
        """See `AtomicStore`."""
        await self._arun(streams.delete(self._names.stream(namespace, topic)))

    def sweep_ttl(self) -> int:
        """Take expired items out of the indexes; returns how many.

        Reads never see them, so that this only frees memory: of indexes that nobody searches,
        lists or writes to with a time to live.
        """
        return self._run(sweep(self._names))

    async def asweep_ttl(self) -> int:
        """As `sweep_ttl`."""
        return await self._arun(sweep(self._names))

    def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Future[None]:
        """Call `sweep_ttl` every few minutes in a thread, until `stop_ttl_sweeper` or `close`.

        Args:
            sweep_interval_minutes: by default what `ttl` says, or else 5. Without a `ttl`, nothing
                is started.
        """
        if not self.ttl_config:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._sweeper.start(self._interval(sweep_interval_minutes))

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop sweeping; returns whether the thread ended within `timeout` seconds."""
        return self._sweeper.stop(timeout)

    async def astart_ttl_sweeper(
        self, sweep_interval_minutes: float | None = None
    ) -> asyncio.Task[None]:
        """As `start_ttl_sweeper`, in a task of this event loop."""
        if not self.ttl_config:
            return asyncio.create_task(asyncio.sleep(0))
        return self._sweeper.astart(self._interval(sweep_interval_minutes))

    async def astop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109 - LangGraph's name
        """Stop the task; returns whether it ended within `timeout` seconds."""
        return await self._sweeper.astop(timeout)

    def close(self) -> None:
        """Close the connections that the store opened itself. A later call opens them again."""
        self._sweeper.stop(_SECONDS_TO_STOP)
        self._connection.close()

    async def aclose(self) -> None:
        """As `close`. Connections of other event loops that still run are closed as well."""
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

    def _put_if_absent(
        self,
        put: PutOp,
        also: Sequence[PutOp],
        beside: tuple[Namespace, str] | None,
        topic: str | None,
    ) -> Steps[Present]:
        (op,) = arrange([put], (), self.ttl_config)
        rest = arrange(also, [put.namespace], self.ttl_config)
        other = None if beside is None else GetOp(*beside, refresh_ttl=False)
        return writes.put_if_absent(self._names, self._codec, self._known, op, rest, other, topic)

    def _commit(self, puts: Sequence[PutOp], given: Given, topic: str | None) -> Steps[bool]:
        ops = arrange(puts, (namespace for namespace, _ in given), self.ttl_config)
        news = None if topic is None or not puts else (puts[0], topic)
        return writes.commit(self._names, self._codec, self._known, ops, given, news)

    def _interval(self, minutes: float | None) -> float:
        configured = (self.ttl_config or {}).get("sweep_interval_minutes")
        return minutes or configured or _MINUTES_BETWEEN_SWEEPS

    def _run(self, steps: Steps[T]) -> T:
        trips = wire(steps)
        try:
            commands = next(trips)
            while True:
                commands = trips.send(self._connection.send(commands))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            trips.close()

    async def _arun(self, steps: Steps[T]) -> T:
        trips = wire(steps)
        try:
            commands = next(trips)
            while True:
                commands = trips.send(await self._connection.asend(commands))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            trips.close()
