"""The items of memories: their places in a store, and reading them when some are damaged.

| namespace, below the bank's | key | value |
|---|---|---|
| versions | a version's id | its record, and `owners`: the memories that it belongs to |
| heads | a memory's name | `version`: where the memory is now |
| readings | the key of a reading without a name | the same |
| members, a digest of a memory's name | a version's id | nothing: the versions of that memory |
| underway | what is being read, or who reads | the fold's progress: see `Lease`, `UnderWay` |
| runs | a digest of a memory's name | `runs`: readings that moved its head; see `EndedRun` |
| forgotten | "sources", "last" | documents that were forgotten last, and how often; see `Fence` |
| forgotten, users | digest of a user's id | when they were forgotten and by whom; see `changes` |
| proposals | an id | what a fold would change in a user's memory: see `Proposal` |
| threads | a thread's id | `messages`: those that were folded last; see `UserMemory` |
| changes | a time and a version's id | who changed a user's memory, and how; see `changes` |

A version may have `edits`: ids of the versions by which a person replaced it, by memory's name. It
has `answer` if an answer was written from it: see `KeptAnswer`. It is `thinned` if a version that
it follows was thinned out.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import BadRecordError, ConfigurationError
from memagent_graph.memory.atomic import AtomicStore, ListsPlaces, Namespace, agrees, arrange
from memagent_graph.memory.circuit import guard_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import EllipsisType
    from typing import Self

    from langgraph.store.base import BaseStore, Op

    from memagent_graph.memory.atomic import Given, Value

    Stored = Value | BadRecordError | None


def atomic(store: BaseStore) -> AtomicStore:
    """Return the store itself if it is atomic, an adapter for a SQLite store, or a substitute.

    The substitute reads, and then writes. On an `InMemoryStore`, nothing is lost; on other stores,
    a write of another process in between can be lost, which a warning says.
    """
    if isinstance(store, AtomicStore):
        return store
    try:
        from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

        from memagent_graph.memory.sqlite import AtomicSqlite
    except ImportError:
        return GetThenPut(store)
    if isinstance(store, SqliteStore | AsyncSqliteStore):
        return AtomicSqlite(store)
    return GetThenPut(store)


class GetThenPut:
    """The substitute of `atomic`: a get, followed by a put."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store
        self._alone: AbstractContextManager[object] = nullcontext()
        if isinstance(store, InMemoryStore):
            self._alone = guard_of(store).alone
        else:
            message = (
                f"{type(store).__name__} has no compare-and-put: if two writers update the same "
                "named memory at once, one update can be lost. Use RedisStore or SQLite for "
                "several writers."
            )
            warnings.warn(message, RuntimeWarning, stacklevel=3)

    async def acommit(self, puts: Sequence[PutOp], *, given: Given) -> bool:
        """See `AtomicStore`."""
        ops = arrange(puts, (namespace for namespace, _ in given), self._store.ttl_config)
        with self._alone:
            items = await self._batch([GetOp(*place) for place in given])
            values = [item.value if isinstance(item, Item) else None for item in items]
            if not all(map(agrees, values, given.values())):
                return False
            await self._batch(ops)
            return True

    async def abatch(self, ops: Sequence[Op]) -> list[Any]:
        """See `AtomicStore`."""
        try:
            return await self._store.abatch(ops)
        except NotImplementedError:  # some stores are only synchronous
            return await asyncio.to_thread(self._store.batch, ops)

    async def _batch(self, ops: Sequence[Op]) -> list[Any]:
        if isinstance(self._store, InMemoryStore):  # never waits, so the lock is held only briefly
            return self._store.batch(ops)
        return await self.abatch(ops)


T = TypeVar("T")
Place = tuple[Namespace, str]

NAMESPACE = ("memagent",)
"""Default namespace of memories."""

UNKNOWN = "?"
"""Key of an unreadable item, in stores that do not report its key."""

_PAGE = 2_000
_BAD = (BadRecordError, ValueError)
"""Errors of stores for an item that they cannot read: our own, and those of JSON."""


def check_namespace(namespace: Sequence[str]) -> tuple[str, ...]:
    """Check that LangGraph allows a namespace, and return its labels."""
    labels = tuple(namespace)
    whole = all(isinstance(label, str) and label and not {*label} & {".", "\0"} for label in labels)
    if isinstance(namespace, str) or not labels or not whole or labels[0] == "langgraph":
        message = (
            f"The namespace {namespace!r} cannot be used: give labels such as "
            '("ann", "memagent"), none of them empty or with a period, the first not "langgraph".'
        )
        raise ConfigurationError(message)
    return labels


_MOST_NAMES = 10_000
"""Names of which a process knows where they led last, at most."""


class Records:
    """The items below one namespace of a store.

    Args:
        store: any LangGraph store.
        namespace: the namespace.
        ttl: minutes after which an item that is neither written nor read expires; None for the
            store's default.
        patience: returns the time limit of an operation in seconds, and is called for each; None
            for no limit. With it, no operation waits for an unreachable store.
    """

    def __init__(
        self,
        store: BaseStore,
        namespace: Sequence[str] = NAMESPACE,
        *,
        ttl: float | None = None,
        patience: Callable[[], float] | None = None,
    ) -> None:
        self.store = store
        self.atomic = atomic(store)
        self.namespace = namespace = check_namespace(namespace)
        self.versions = (*namespace, "versions")
        self.heads = (*namespace, "heads")
        self.readings = (*namespace, "readings")
        self.all_members = (*namespace, "members")
        self.leases = (*namespace, "underway")
        self.runs = (*namespace, "runs")
        self.threads = (*namespace, "threads")
        self.proposals = (*namespace, "proposals")
        self.forgotten = (*namespace, "forgotten")
        self.ttl = ttl
        self.guard = guard_of(store)
        self._patience = patience
        self._refresh = bool((store.ttl_config or {}).get("refresh_on_read", True))

    @property
    def records(self) -> Self:
        """These, for those who have a bank."""
        return self

    @property
    def lives(self) -> float | None:
        """Minutes after which an item that is neither written nor read expires; None for never."""
        return (self.store.ttl_config or {}).get("default_ttl") if self.ttl is None else self.ttl

    def members(self, name: str) -> Namespace:
        """Return the namespace that lists the ids of a memory's versions."""
        return (*self.all_members, label(name))

    def led_to(self, name: str) -> str | None:
        """Return the id of the version that a name led to when this process looked last."""
        return self.guard.led_to.get((self.heads, name))

    def note(self, name: str, version: str) -> None:
        """Note where a name leads: a guess that saves a reader one round trip."""
        if len(self.guard.led_to) > _MOST_NAMES:
            self.guard.led_to.clear()
        self.guard.led_to[self.heads, name] = version

    def put(self, namespace: Namespace, key: str, value: Mapping[str, object] | None) -> PutOp:
        """Return the operation that sets an item, or deletes it if the value is None."""
        plain = None if value is None else dict(value)
        return PutOp(namespace, key, plain, index=False, ttl=self.lives)

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Carry out an operation within the time limit, and return its result."""
        if self._patience is None:
            return await operation()
        return await self.guard.call(operation, patience=self._patience())

    async def items(self, ops: Sequence[Op]) -> list[Any]:
        """Carry out operations, asynchronous or not as the store supports, and return results."""
        return await self.call(partial(self.atomic.abatch, ops))

    async def commit(
        self,
        puts: Sequence[PutOp],
        given: Mapping[Place, Mapping[str, object] | EllipsisType | None],
    ) -> bool:
        """Carry out `puts` in one step if items are as `given`; see `AtomicStore.acommit`."""
        return await self.call(partial(self.atomic.acommit, puts, given=given))

    async def values(
        self, places: Sequence[Place], *, refresh: bool = True
    ) -> list[Value | BadRecordError | None]:
        """Return the values in some places: None for no item, an error for an unreadable one.

        With `refresh`, times to live begin again, if the store does so at reads.
        """
        found = await self._items_or_errors(places, refresh=refresh and self._refresh)
        return [item.value if isinstance(item, Item) else item for item in found]

    async def _items_or_errors(
        self, places: Sequence[Place], *, refresh: bool
    ) -> list[Item | BadRecordError | None]:
        if not places:
            return []
        try:
            return await self.items([GetOp(*place, refresh) for place in places])
        except _BAD as error:
            if len(places) == 1:
                return [_bad(places[0][1], error)]
            middle = len(places) // 2
            first, last = places[:middle], places[middle:]
            return [
                *await self._items_or_errors(first, refresh=refresh),
                *await self._items_or_errors(last, refresh=refresh),
            ]

    async def by_id(self, ids: Sequence[str]) -> list[tuple[str, Value | BadRecordError | None]]:
        """Return ids of versions with their records."""
        found = await self.values([(self.versions, key) for key in ids])
        return [*zip(ids, found, strict=True)]

    async def pointers(self, name: str) -> dict[Place, Value | BadRecordError | None]:
        """Return the pointers of a memory; see `places_of`."""
        places = self.places_of(name)
        return dict(zip(places, await self.values(places), strict=True))

    def places_of(self, name: str) -> list[Place]:
        """Return where the pointers of a memory are: as a name, and as a reading without one."""
        return [(self.heads, name), (self.readings, name)]

    def changes(
        self, before: Mapping[str, Stored], after: Mapping[str, Stored]
    ) -> tuple[list[PutOp], dict[Place, Value | None]]:
        """Return the puts that change versions' records, and the lists of their memories with them.

        And the records that they depend on, which are those from before that can be read.
        """
        puts: list[PutOp] = []
        for key, value in after.items():
            if value != before[key] and not isinstance(value, BadRecordError):
                puts.append(self.put(self.versions, key, value))
                old, new = {*owners_of(before[key])}, {*owners_of(value)}
                puts += [self.put(self.members(name), key, None) for name in old - new]
                puts += [self.put(self.members(name), key, {}) for name in new - old]
        values = {(self.versions, key): before[key] for key in after}
        return puts, {at: one for at, one in values.items() if not isinstance(one, BadRecordError)}

    async def scan(self, namespace: Namespace) -> AsyncIterator[Item | BadRecordError]:
        """Yield all items in and below a namespace; for an unreadable one, an error.

        Times to live are not restarted, since a scan does not count as use.
        """
        if namespace and isinstance(self.atomic, ListsPlaces):
            places = await self.call(partial(self.atomic.aplaces, namespace))
            for start in range(0, len(places), _PAGE):
                for stored in await self._items_or_errors(
                    places[start : start + _PAGE], refresh=False
                ):
                    if stored is not None:  # deleted since
                        yield stored
        else:
            async for found in self._scan_pages(namespace):
                yield found

    async def _scan_pages(self, namespace: Namespace) -> AsyncIterator[Item | BadRecordError]:
        # In memory, one page holds all: a second would miss what moved up as others were deleted.
        most = sys.maxsize if isinstance(self.store, InMemoryStore) else _PAGE
        offset, size = 0, most
        while True:
            try:
                search = SearchOp(namespace, None, size, offset, None, refresh_ttl=False)
                found = await self.items([search])
            except _BAD as error:
                if size == 1:
                    yield _bad(UNKNOWN, error)
                    offset += 1
                size = max(1, size // 2)
                continue
            for item in found[0]:
                if tuple(item.namespace)[: len(namespace)] == namespace:
                    yield item  # some stores compare prefixes as strings
            if len(found[0]) < size:
                return
            offset, size = offset + size, min(most, 2 * size)

    async def keys(self, namespace: Namespace) -> list[str]:
        """Return the keys that are listed for a namespace, without reading its items.

        Some of them may have been evicted, or have expired.
        """
        if not isinstance(self.atomic, ListsPlaces):
            return [item.key async for item in self.scan(namespace)]
        return [key for _, key in await self.call(partial(self.atomic.aplaces, namespace))]

    async def forget_label(self) -> None:
        """Let a store that lists first labels drop this one, if nothing is left below it."""
        if not isinstance(self.store, AtomicStore):
            return  # others find labels by looking at every item
        below = MatchCondition("prefix", self.namespace[:1])
        await self.items([ListNamespacesOp((below,), max_depth=1, limit=1)])


def owners_of(value: object) -> list[str]:
    """Return the memories that a stored version belongs to; [] for an unreadable record."""
    owners = value.get("owners") if isinstance(value, dict) else None
    return [name for name in owners if isinstance(name, str)] if isinstance(owners, list) else []


def label(name: str) -> str:
    """Return a label, or a key, for a text that may be of any length and have any characters."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _bad(key: str, error: Exception) -> BadRecordError:
    if isinstance(error, BadRecordError):
        return error
    return BadRecordError(f"The item stored under {key!r} cannot be read: {error}", key=key)
