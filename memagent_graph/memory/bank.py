"""The fold's history in a store: versions found again, walked, branched, edited and forgotten."""

from __future__ import annotations

import asyncio
import difflib
import json
from datetime import datetime, timedelta, timezone
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from langgraph.store.base import GetOp, PutOp, SearchOp

from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError, StoreError
from memagent_graph.memory.atomic import atomic
from memagent_graph.memory.version import MemoryVersion, edited_id
from memagent_graph.sync import wait_for
from memagent_graph.text.tokens import EstimatingTokenizer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence

    from langgraph.store.base import BaseStore, Item, Op

P = ParamSpec("P")
T = TypeVar("T")

_PAGE = 100


def _blocking(
    method: Callable[Concatenate[MemoryBank, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[MemoryBank, P], T]:
    """The synchronous face of a coroutine method, with its docstring."""

    @wraps(method)
    def wait(self: MemoryBank, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return wait_for(method(self, *args, **kwargs))

    return wait


class MemoryBank:
    """Memories in a LangGraph store, for every agent that shares it.

    A *reference* is the name of a memory, which points to a version, its head; or the key under
    which a reading without a name is listed; or a version's id. Each method has a twin for async
    code whose name begins with an a.

    Args:
        store: any LangGraph store. `RedisStore` and the SQLite stores never lose a write.
        namespace: where in the store; others can share it.
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str] = ("memagent",)) -> None:
        self.store = store
        self.namespace = tuple(namespace)
        self._atomic = atomic(store)
        self._versions = (*self.namespace, "versions")
        self._heads = (*self.namespace, "heads")
        self._readings = (*self.namespace, "readings")

    async def aappend(self, version: MemoryVersion, *, topic: str | None = None) -> MemoryVersion:
        """Store a version unless its id is known; return the one that is stored.

        Args:
            version: what to store.
            topic: who `watch`es this name hears of it.
        """
        record = await self._atomic.aput_if_absent(
            self._versions, version.id, version.to_record(), topic=topic or version.root
        )
        return MemoryVersion.from_record(record)

    async def afind(self, ids: Iterable[str]) -> MemoryVersion | None:
        """The last version of the longest prefix of `ids` that is known.

        Looks at 1, 2, 4, ... ids at once, so that nothing known costs one round trip and a
        thousand chunks cost ten; no more of `ids` is asked for than that.
        """
        found: MemoryVersion | None = None
        ids, size = iter(ids), 1
        while batch := [*islice(ids, size)]:
            items = await self.items([GetOp(self._versions, key) for key in batch])
            for item in items:
                if item is None:
                    return found
                found = MemoryVersion.from_record(item.value)
            size *= 2
        return found

    async def aget(self, reference: str) -> MemoryVersion:
        """The version that a reference leads to.

        Raises:
            MemoryNotFoundError: It is neither a name nor the id of a version.
        """
        places = (self._heads, self._readings, self._versions)
        head, reading, version = await self.items([GetOp(place, reference) for place in places])
        pointer = head or reading
        if pointer is not None:
            return await self._version(pointer.value["version"])
        if version is None:
            message = f"There is no memory {reference!r}: neither a name nor a version's id."
            raise MemoryNotFoundError(message)
        return MemoryVersion.from_record(version.value)

    async def ahead(self, name: str) -> MemoryVersion | None:
        """The newest version of a named memory, or None if there is no such name."""
        (item,) = await self.items([GetOp(self._heads, name)])
        return None if item is None else await self._version(item.value["version"])

    async def amove_head(self, name: str, to: str, *, expected: str | None) -> bool:
        """Point a name to another version, unless somebody moved it since it was read.

        Args:
            name: the memory's name.
            to: the id of its new head.
            expected: the id that the head had; None if the name was free.

        Returns:
            Whether it was moved. If not, read the head again and decide anew.
        """
        before = None if expected is None else {"version": expected}
        return await self._atomic.acompare_and_put(
            self._heads, name, {"version": to}, expected=before
        )

    async def ahistory(self, reference: str) -> list[MemoryVersion]:
        """All versions that led to a memory, newest first."""
        history = [await self.aget(reference)]
        while version := await self.before(history[-1]):
            history.append(version)
        return history

    async def before(self, version: MemoryVersion) -> MemoryVersion | None:
        """The version that this one follows, None for the first."""
        (item,) = await self.items([GetOp(self._versions, version.parent)])
        return None if item is None else MemoryVersion.from_record(item.value)

    async def abranch(self, reference: str, name: str) -> MemoryVersion:
        """Give a memory another name, which from here on goes its own way.

        Raises:
            MemoryConflictError: The name is taken.
        """
        version = await self.aget(reference)
        if not await self.amove_head(name, version.id, expected=None):
            message = f"The name {name!r} is taken: choose another, or delete that memory."
            raise MemoryConflictError(message)
        return version

    async def aedit(self, reference: str, text: str) -> MemoryVersion:
        """Store another text for a memory, as a version that follows the one it replaces.

        Raises:
            MemoryConflictError: The named memory was moved meanwhile.
        """
        before = await self.aget(reference)
        after = await self.aappend(edited(before, text), topic=reference)
        if reference == before.id:
            return after
        if reference == reading_key(before):
            await self.arecord_reading(after)
        elif not await self.amove_head(reference, after.id, expected=before.id):
            message = f"{reference!r} was changed meanwhile: look at it and edit it again."
            raise MemoryConflictError(message)
        return after

    async def adelete(self, name: str) -> None:
        """Take a name away; its versions stay until `collect` finds nothing that leads to them.

        Raises:
            MemoryNotFoundError: There is no such name.
        """
        items = await self.items([GetOp(self._heads, name), GetOp(self._readings, name)])
        if items == [None, None]:
            message = f"There is no memory named {name!r}."
            raise MemoryNotFoundError(message)
        await self.items([PutOp(self._heads, name, None), PutOp(self._readings, name, None)])

    async def aforget(self, name: str) -> int:
        """Delete a name and those of its versions that no other memory has; say how many."""
        own = {version.id for version in await self.ahistory(name)}
        await self.adelete(name)
        shared = await self._reachable()
        gone = sorted(own - shared)
        await self.items([PutOp(self._versions, key, None) for key in gone])
        return len(gone)

    async def acollect(self, older_than: timedelta = timedelta(days=30)) -> int:
        """Delete versions that nothing leads to and that are older than that; say how many."""
        kept = await self._reachable()
        limit = (datetime.now(timezone.utc) - older_than).isoformat()
        gone = [
            item.key
            async for item in self._items(self._versions)
            if item.key not in kept and item.value["created_at"] < limit
        ]
        await self.items([PutOp(self._versions, key, None) for key in gone])
        return len(gone)

    async def aclear(self) -> int:
        """Delete everything below this namespace, whoever put it there; say how many items."""
        count = 0
        while found := [item async for item in self._items(self.namespace, below=True)]:
            await self.items([PutOp(tuple(item.namespace), item.key, None) for item in found])
            count += len(found)
        return count

    async def arecord_reading(self, version: MemoryVersion) -> None:
        """Remember a reading without a name by its newest version, so that it can be listed."""
        key = reading_key(version)
        await self.items([PutOp(self._readings, key, {"version": version.id})])

    async def alist(
        self, *, question: str | None = None, source: str | None = None
    ) -> list[tuple[str, MemoryVersion]]:
        """Names with their newest versions: named memories first, then readings.

        Args:
            question: only memories of this question.
            source: only memories of the document with this digest.
        """
        found = []
        for namespace in (self._heads, self._readings):
            async for item in self._items(namespace):
                version = await self._version(item.value["version"])
                found.append((item.key, version))
        return [
            (name, version)
            for name, version in found
            if question in (None, version.question) and source in (None, version.source)
        ]

    async def aexport(self, names: Iterable[str] | None = None) -> list[str]:
        """Memories as JSON lines: their versions, oldest first, and then the names.

        Args:
            names: of which memories; all by default.
        """
        lines: dict[str, None] = {}
        for name in names if names is not None else [name for name, _ in await self.alist()]:
            history = await self.ahistory(name)
            for version in reversed(history):
                lines[json.dumps({"version": version.to_record()})] = None
            lines[json.dumps({"name": name, "head": history[0].id})] = None
        return [*lines]

    async def aimport(self, lines: Iterable[str]) -> int:
        """Store what `export` gave; say how many versions. Names that exist stay as they are."""
        count = 0
        for line in filter(str.strip, lines):
            try:
                record = json.loads(line)
                if "version" in record:
                    await self.aappend(MemoryVersion.from_record(record["version"]))
                    count += 1
                else:
                    await self.amove_head(record["name"], record["head"], expected=None)
            except (KeyError, TypeError, ValueError) as error:
                message = f"Not a line that `memagent memory export` writes: {line[:60]!r}"
                raise StoreError(message) from error
        return count

    async def watch(self, name: str, *, after: str = "$") -> AsyncIterator[MemoryVersion]:
        """Follow a memory's new versions, without end.

        Args:
            name: of a named memory, or a reading's root id.
            after: "0" for all that the store still knows of, "$" for new ones.
        """
        async for found in self._atomic.watch(self._versions, name, after=after):
            yield MemoryVersion.from_record(found.item.value)

    async def _version(self, key: str) -> MemoryVersion:
        (item,) = await self.items([GetOp(self._versions, key)])
        if item is None:
            message = f"Version {key} is gone: it expired or was deleted in the store."
            raise MemoryNotFoundError(message)
        return MemoryVersion.from_record(item.value)

    async def _reachable(self) -> set[str]:
        reached: set[str] = set()
        for _, version in await self.alist():
            current: MemoryVersion | None = version
            while current is not None and current.id not in reached:
                reached.add(current.id)
                current = await self.before(current)
        return reached

    async def _items(
        self, namespace: tuple[str, ...], *, below: bool = False
    ) -> AsyncIterator[Item]:
        offset = 0
        while True:
            (page,) = await self.items([SearchOp(namespace, None, _PAGE, offset)])
            for item in page:
                found = tuple(item.namespace)[: len(namespace) if below else None]
                if found == namespace:  # some stores take a prefix for the beginning of a string
                    yield item
            if len(page) < _PAGE:
                return
            offset += _PAGE

    async def items(self, ops: Sequence[Op]) -> list[Any]:
        """The results of a store's operations, whichever of its two sides works."""
        try:
            return await self.store.abatch(ops)
        except NotImplementedError:  # LangGraph's SqliteStore has only its sync side
            return await asyncio.to_thread(self.store.batch, ops)

    append = _blocking(aappend)
    find = _blocking(afind)
    get = _blocking(aget)
    head = _blocking(ahead)
    move_head = _blocking(amove_head)
    history = _blocking(ahistory)
    branch = _blocking(abranch)
    edit = _blocking(aedit)
    delete = _blocking(adelete)
    forget = _blocking(aforget)
    collect = _blocking(acollect)
    clear = _blocking(aclear)
    list = _blocking(alist)
    export = _blocking(aexport)
    import_ = _blocking(aimport)


def edited(before: MemoryVersion, text: str) -> MemoryVersion:
    """The version that follows `before` when a person made its text `text`."""
    from dataclasses import replace

    return replace(
        before,
        id=edited_id(before.id, text, before.fingerprint),
        parent=before.id,
        text=text,
        tokens=EstimatingTokenizer().count(text),
        start=before.end,
        evidence=tuple(item for item in before.evidence if item.text in text),
        cut=False,
        edited=True,
        messages=(),
        created_at=datetime.now(timezone.utc).isoformat(),
    )


def reading_key(version: MemoryVersion) -> str:
    """The name under which a reading without one is listed."""
    return f"{version.root[:8]}-{version.source[:8]}"


def diff(before: MemoryVersion, after: MemoryVersion) -> Iterator[str]:
    """What changed from one memory to another: lines that begin with +, - or a space."""
    old, new = before.text.splitlines(), after.text.splitlines()
    for line in difflib.ndiff(old, new):
        if not line.startswith("?"):
            yield line
