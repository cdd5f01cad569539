"""The items of memories in a store: their places, and how versions are found, if some are damaged.

| namespace, below the bank's | key | value |
|---|---|---|
| versions | a version's id | its record, and `owners`: the memories that it belongs to |
| heads | a memory's name | `version`: where the memory is now |
| readings | the key of a reading without a name | the same |
| members, a digest of a memory's name | a version's id | nothing: the versions of that memory |
| underway | what is being read, or who reads | the fold's progress: see `memory.lease` |
| runs, a digest of a memory's name | what was read | how a reading that moved its head ended |
| forgotten | a document's digest, "last" | number of the notice that it went; see `Fence` |
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
import re
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from uuid import UUID

from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, PutOp

from memagent_graph.errors import (
    BadRecordError,
    ConfigurationError,
    MemoryNotFoundError,
    NewerRecordError,
)
from memagent_graph.memory.store import NOTHING, AtomicStore, Namespace, guard_of
from memagent_graph.memory.stores import atomic
from memagent_graph.memory.version import History, MemoryVersion, walk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
    from types import EllipsisType

    from langgraph.store.base import BaseStore, Op

    from memagent_graph.memory.store import Value

    Stored = Value | BadRecordError | None


_PAGE = 2_000
"""Items read in one step, at most."""

T = TypeVar("T")
Place = tuple[Namespace, str]

NAMESPACE = ("memagent",)
"""Default namespace of memories."""

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


UserId: TypeAlias = str | int | UUID
_PREFIX, _SUFFIX = "user-", "conversations"
_ESCAPES = str.maketrans({char: f"%{ord(char):02X}" for char in "%.\0"})
_ESCAPED = re.compile("%(25|2E|00)")


def name_user(user: object) -> str:
    """Return the id of a user as a text; raises `ConfigurationError` if it is empty or no id."""
    if user is None or user == "":
        raise ConfigurationError("The user is empty: give the id of the user.")
    if not isinstance(user, str | int | UUID):
        kind = type(user).__name__
        message = f"The user is of type {kind}: give an id that is a str, an int or a UUID."
        raise ConfigurationError(message)
    return user if isinstance(user, str) else str(user)


def place_of(user: UserId, namespace: Sequence[str]) -> tuple[str, ...]:
    """Return the namespace of a user's memory.

    LangGraph joins labels with periods, and refuses labels that are empty or have a NUL. The user
    comes first, since in a cluster the first label determines the node.
    """
    label = _PREFIX + name_user(user).translate(_ESCAPES)
    return (label, *namespace, _SUFFIX)


def user_of(place: Sequence[str], namespace: Sequence[str]) -> str | None:
    """Return the user of a namespace, the inverse of `place_of`; None if it is not a user's."""
    label = place[0] if place else ""
    if tuple(place[1:]) != (*namespace, _SUFFIX) or not label.startswith(_PREFIX):
        return None
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), label[len(_PREFIX) :]) or None


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
                return [_bad(places[0], error)]
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

    def runs_of(self, name: str) -> Namespace:
        """Return the namespace that lists the readings that moved a memory's head."""
        return (*self.runs, label(name))

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
        return puts, readable({(self.versions, key): before[key] for key in after})

    async def scan(self, namespace: Namespace) -> AsyncIterator[Item | BadRecordError]:
        """Yield all items in and below a namespace; for an unreadable one, an error.

        Times to live are not restarted, since a scan does not count as use.
        """
        places = await self.places(namespace)
        for start in range(0, len(places), _PAGE):
            page = places[start : start + _PAGE]
            for found in await self._items_or_errors(page, refresh=False):
                if found is not None:  # deleted since
                    yield found

    async def places(self, namespace: Namespace) -> list[Place]:
        """Return the places that are listed in and below a namespace, without reading the items.

        Some of those may have been evicted, or have expired.
        """
        return await self.call(partial(self.atomic.aplaces, namespace))

    async def keys(self, namespace: Namespace) -> list[str]:
        """Return the keys of `places`."""
        return [key for _, key in await self.places(namespace)]

    async def forget_label(self) -> None:
        """Let a store that lists first labels drop this one, if nothing is left below it."""
        if not isinstance(self.store, AtomicStore):
            return  # others find labels by looking at every item
        below = MatchCondition("prefix", self.namespace[:1])
        await self.items([ListNamespacesOp((below,), max_depth=1, limit=1)])


def readable(values: Mapping[Place, Stored]) -> dict[Place, Value | None]:
    """Return the values that can be read: what a write can depend on."""
    return {at: value for at, value in values.items() if not isinstance(value, BadRecordError)}


def owners_of(value: object) -> list[str]:
    """Return the memories that a stored version belongs to; [] for an unreadable record."""
    owners = value.get("owners") if isinstance(value, dict) else None
    return [name for name in owners if isinstance(name, str)] if isinstance(owners, list) else []


def label(name: str) -> str:
    """Return a label, or a key, for a text that may be of any length and have any characters."""
    return sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _bad(place: Place, error: Exception) -> BadRecordError:
    if isinstance(error, BadRecordError):
        return error
    namespace, key = place
    message = f"The item stored under {key!r} cannot be read: {error}"
    return BadRecordError(message, key=key, namespace=namespace)


EDITS = "edits"
"""Field of a version's record: ids of the versions that replace it, by memory's name."""


_MEND = "`memagent memory check --repair` restores what is left of it."


async def find_prefix(
    records: Records,
    first: Sequence[tuple[str, object]],
    ids: Iterator[str],
    memory: str,
    size: int,
) -> tuple[MemoryVersion, Value] | tuple[None, None]:
    """Return the last version of the longest prefix that is stored, and its record.

    It stops at a version that was edited in `memory`. The prefix begins with the `first` ids, which
    have their records. It asks for `size` of the other `ids`, then for twice as many, and so on;
    they are iterated in a thread and no further than needed, since each may need cutting a chunk.
    """
    found: tuple[MemoryVersion, Value] | tuple[None, None] = None, None
    known = first
    while known:
        for key, value in known:
            try:
                found = MemoryVersion.from_record(value, key), cast("Value", value)
            except BadRecordError:  # also where none is stored
                return found
            if edit_of(value, memory):
                return found
        known = await records.by_id(await asyncio.to_thread(list, islice(ids, size)))
        size *= 2
    return found


def edit_of(value: object, memory: str | None) -> str | None:
    """Return the id of the edit that replaces a stored version in a memory; None without one."""
    edits = value.get(EDITS) if isinstance(value, dict) else None
    found = edits.get(memory) if isinstance(edits, dict) else None
    return found if isinstance(found, str) else None


async def newest_edit(
    records: Records, key: str, memory: str, value: object = None
) -> MemoryVersion | None:
    """Return the edit that a reading into a memory continues from instead; None without one.

    `value` is the record of the version `key`, if it is known.
    """
    newest: MemoryVersion | None = None
    if value is None:
        ((_, value),) = await records.by_id([key])
    seen = {key}
    while (edit := edit_of(value, memory)) and edit not in seen:
        seen.add(edit)
        ((_, value),) = await records.by_id([edit])
        if value is None:  # it expired, or was evicted
            break
        newest = MemoryVersion.from_record(value, edit)
    return newest


async def get_version(records: Records, reference: str) -> MemoryVersion:
    """Return the version of a reference.

    Raises:
        MemoryNotFoundError: It is neither a name, nor the key of a reading or a version's id.
        BadRecordError: Its record cannot be read.
    """
    of_name, of_reading, version = await records.values(
        [(place, reference) for place in (records.heads, records.readings, records.versions)]
    )
    found = None
    if of_name is not None:
        found = await _follow(records, (records.heads, reference), of_name)
    elif of_reading is not None:
        found = await _follow(records, (records.readings, reference), of_reading)
    elif version is not None:
        found = MemoryVersion.from_record(version, reference)
    if found is None:
        message = (
            f"There is no memory {reference!r}: it is neither a name nor a version's id. "
            "`memagent memory list` lists all."
        )
        raise MemoryNotFoundError(message)
    return found


async def head(records: Records, name: str) -> MemoryVersion | None:
    """Return the newest version of a named memory; None if there is no such name."""
    return (await read_head(records, name))[0]


async def read_head(
    records: Records, name: str, *places: Place
) -> tuple[MemoryVersion | None, list[Stored]]:
    """Return what `head` does, and the values in other places, read just before."""
    place, likely = (records.heads, name), records.led_to(name)
    guess = [] if likely is None else [(records.versions, likely)]
    values = await records.values([*places, place, *guess])
    pointer, known = values[len(places)], {} if likely is None else {likely: values[-1]}
    found = await _follow(records, place, pointer, known)
    if found is not None:
        records.note(name, found.id)
    return found, values[: len(places)]


async def read_history(records: Records, reference: str) -> History:
    """Return all versions that led to a memory, newest first, and the gaps between them."""
    tip = await get_version(records, reference)
    known, found = {tip.id: tip}, History()
    names, asked, wanted = set[str](), set[str](), [tip.id]
    while wanted:
        asked.update(wanted)
        stored = await records.by_id(wanted)
        new = {name for _, value in stored for name in owners_of(value)} - names
        names |= new
        ids = dict.fromkeys(wanted)
        for name in new:  # earlier versions may be listed by other owners
            ids |= dict.fromkeys(await records.keys(records.members(name)))
        more = await find_versions(records, [key for key in ids if key not in known])
        known |= {version.id: version for version in more if isinstance(version, MemoryVersion)}
        found = walk(tip, known, known.values())
        wanted = [key for key in found.gaps if key not in asked]
    return found


async def find_versions(
    records: Records, keys: Sequence[str], *, refresh: bool = True
) -> list[MemoryVersion | BadRecordError | None]:
    """Return versions by id: an error for one that cannot be read, None for one that is gone."""
    places = [(records.versions, key) for key in keys]
    found: list[MemoryVersion | BadRecordError | None] = []
    for key, value in zip(keys, await records.values(places, refresh=refresh), strict=True):
        try:
            found.append(None if value is None else MemoryVersion.from_record(value, key))
        except BadRecordError as error:
            found.append(error)
    return found


async def _follow(
    records: Records, place: Place, pointer: Stored, known: Mapping[str, Stored] = NOTHING
) -> MemoryVersion | None:
    """The version that a pointer leads to, or that it leads to by now; None if it is gone by now.

    `known` are records of versions.

    Raises:
        BadRecordError: The version cannot be read.
        MemoryNotFoundError: The version is gone, and the pointer is there.
    """
    name = place[1]
    while pointer is not None:
        try:
            key = _target(pointer, name)
            value = known.get(key) or (await records.by_id([key]))[0][1]
            if value is not None:
                return MemoryVersion.from_record(value, key)
            raise no_such_version(key)
        except (BadRecordError, MemoryNotFoundError) as error:
            mend = "" if isinstance(error, NewerRecordError) else f" {_MEND}"
            message = f"Memory {name!r} cannot be read: {error}{mend}"
            if isinstance(error, BadRecordError):
                raise type(error)(message, key=name) from error
            seen, (pointer,) = pointer, await records.values([place])
            if pointer == seen:
                raise MemoryNotFoundError(message) from error
    return None  # forgotten meanwhile


def _target(pointer: Value | BadRecordError, name: str) -> str:
    """The id of the version that a name points to."""
    if isinstance(pointer, BadRecordError):
        raise pointer
    if not isinstance(key := pointer.get("version"), str):
        raise BadRecordError("It points to no version.", key=name)
    return key


def no_such_version(key: str) -> MemoryNotFoundError:
    """Return the error for a version that does not exist."""
    return MemoryNotFoundError(f"Version {key} is gone: it expired, or was deleted in the store.")
