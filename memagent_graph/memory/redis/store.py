"""A LangGraph store on plain Redis or Valkey."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    PutOp,
    validate_op_namespace,
)

from memagent_graph.memory.atomic import Announcement
from memagent_graph.memory.redis import streams, writes
from memagent_graph.memory.redis.address import connect
from memagent_graph.memory.redis.batch import batch
from memagent_graph.memory.redis.codec import Codec
from memagent_graph.memory.redis.connection import OwnClients, given
from memagent_graph.memory.redis.keys import Names, decode, root_of
from memagent_graph.memory.redis.steps import wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from types import TracebackType

    from langgraph.checkpoint.serde.base import SerializerProtocol
    from langgraph.store.base import Op, Result, TTLConfig
    from typing_extensions import Self

    from memagent_graph.memory.redis.steps import Steps

T = TypeVar("T")
Namespace = tuple[str, ...]


class RedisStore(BaseStore):
    """A complete `BaseStore` on Redis 6.2 or later, or Valkey, without modules.

    Namespaces and keys may have any characters that LangGraph lets through. Values are JSON:
    tuples come back as lists. A search returns items ordered by name; a `query` is ignored, as
    LangGraph's other stores ignore it when they have no index of embeddings, and so is `index`.
    In a batch, reads see what was there before the batch's writes, as in `InMemoryStore`.

    In a cluster, everything under one first label of a namespace lives on one node: begin
    namespaces with what there are many of, such as a user.

    With a `ttl` in minutes (`TTLConfig`, or `put`), an item disappears when it has been neither
    written nor read for so long; `sweep_interval_minutes` and `omit_expired` are not needed.

    Example:
        >>> with RedisStore.from_url("redis://localhost:6379/0") as store:
        ...     store.put(("alice", "prefs"), "theme", {"dark": True})
        ...     store.get(("alice", "prefs"), "theme").value
        {'dark': True}

    Args:
        client: a client or connection pool of redis-py, synchronous or asynchronous, without
            `decode_responses`. It stays the caller's to close. `from_url` opens its own.
        prefix: what all keys in Redis begin with. Stores with different prefixes see nothing of
            each other.
        ttl: times to live; without one, items stay.
        serializer: wraps the JSON of values, such as LangGraph's `EncryptedSerializer`.
            Namespaces and keys stay readable in Redis.
    """

    supports_ttl = True

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "memagent",
        ttl: TTLConfig | None = None,
        serializer: SerializerProtocol | None = None,
    ) -> None:
        self.ttl_config = ttl
        self._names = Names(prefix)
        self._codec = Codec(serializer)
        self._connection = client if isinstance(client, OwnClients) else given(client)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "memagent",
        ttl: TTLConfig | None = None,
        serializer: SerializerProtocol | None = None,
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

        Raises:
            ConfigurationError: The URL is none of these.
        """
        return cls(connect(url), prefix=prefix, ttl=ttl, serializer=serializer)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations; results come in their order.

        Gets and puts take one round trip together, searches their own before it. A batch is no
        transaction: other clients may see part of it.

        Raises:
            StoreError: Redis cannot be reached, or refused.
            TypeError: A value is not JSON.
            InvalidNamespaceError: LangGraph does not allow a namespace.
        """
        return self._run(batch(self._names, self._codec, ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`."""
        return await self._arun(batch(self._names, self._codec, ops))

    def put_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, topic: str | None = None
    ) -> dict[str, Any]:
        """See `AtomicStore`. One round trip."""
        return self._run(self._put_if_absent(namespace, key, value, topic))

    async def aput_if_absent(
        self, namespace: Namespace, key: str, value: Mapping[str, Any], *, topic: str | None = None
    ) -> dict[str, Any]:
        """As `put_if_absent`."""
        return await self._arun(self._put_if_absent(namespace, key, value, topic))

    def compare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """See `AtomicStore`. One round trip; two when `expected` is stored in another form."""
        return self._run(self._compare_and_put(namespace, key, value, expected))

    async def acompare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        *,
        expected: Mapping[str, Any] | None,
    ) -> bool:
        """As `compare_and_put`."""
        return await self._arun(self._compare_and_put(namespace, key, value, expected))

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
            items = await self.abatch([GetOp(namespace, key) for key in keys])
            for (position, _), item in zip(news, items, strict=True):
                after = position
                if isinstance(item, Item):
                    yield Announcement(position, item)

    def close(self) -> None:
        """Close the connections that the store opened itself. A later call opens them again."""
        self._connection.close()

    async def aclose(self) -> None:
        """As `close`. Connections of other event loops that still run are closed as well."""
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
        self, namespace: Namespace, key: str, value: Mapping[str, Any], topic: str | None
    ) -> Steps[dict[str, Any]]:
        op = self._put_op(namespace, key, value)
        return writes.put_if_absent(self._names, self._codec, op, topic)

    def _compare_and_put(
        self,
        namespace: Namespace,
        key: str,
        value: Mapping[str, Any] | None,
        expected: Mapping[str, Any] | None,
    ) -> Steps[bool]:
        op = self._put_op(namespace, key, value)
        return writes.compare_and_put(self._names, self._codec, op, expected)

    def _put_op(self, namespace: Namespace, key: str, value: Mapping[str, Any] | None) -> PutOp:
        op = PutOp(namespace, key, value, ttl=(self.ttl_config or {}).get("default_ttl"))
        validate_op_namespace(op)
        return op

    def _run(self, steps: Steps[T]) -> T:
        trips = wire(steps)
        try:
            commands = next(trips)
            while True:
                commands = trips.send(self._connection.send(commands))
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _arun(self, steps: Steps[T]) -> T:
        trips = wire(steps)
        try:
            commands = next(trips)
            while True:
                commands = trips.send(await self._connection.asend(commands))
        except StopIteration as stop:
            result: T = stop.value
            return result
