"""A tenant's ledger: its memories and responses, with their sizes and times of last use."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.errors import BadRecordError, MemoryConflictError
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from memagent_graph.memory.items import Records

_FRESH = 60.0
"""Time in which another use is not recorded, in seconds."""
_OVERHEAD = 250
"""Bytes of an entry itself, and of the keys of what it describes."""


class Entry(NamedTuple):
    """A memory, a response, or a response with the memory that was read for it.

    Attributes:
        name: name of the memory, or "response" and the response's id.
        used: Unix time of the last use; for a response, of its creation.
        bytes: size of the response's own record.
        read: estimated size of the memory's versions, in bytes.
        held: whether the response was deleted, but a later one still needs its messages.
    """

    name: str
    used: float
    bytes: int = 0
    read: int = 0
    held: bool = False

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return self.bytes + self.read + _OVERHEAD

    @property
    def value(self) -> dict[str, Any]:
        """The entry as it is stored."""
        found = {"used": round(self.used, 3), "bytes": self.bytes, "read": self.read}
        return {**found, "held": True} if self.held else found


class Ledger:
    """The entries of one tenant.

    Items that are not in it were stored by others, and are never deleted.

    Args:
        records: records of the tenant's bank.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._place = (*records.namespace, "kept")

    async def get(self, name: str) -> Entry | None:
        """Return an entry; None if there is none."""
        (value,) = await self._records.values([(self._place, name)])
        return _entry(name, value)

    async def entries(self) -> list[Entry]:
        """Return all entries, the least recently used first."""
        found = [item async for item in self._records.scan(self._place)]
        entries = [
            _entry(item.key, item if isinstance(item, BadRecordError) else item.value)
            for item in found
        ]
        return sorted(filter(None, entries), key=lambda entry: entry.used)

    async def add(self, name: str, *, own: int = 0, read: int = 0, most: int | None = None) -> None:
        """Record a use of something, and the bytes added to it.

        Args:
            name: name of the entry.
            own: bytes added to a response's own record.
            read: bytes of versions added to a memory.
            most: most bytes of versions to count; None for no limit.
        """

        def add(before: Entry | None) -> Entry | None:
            before = before or Entry(name, 0.0)
            if not (own or read) and time() - before.used < _FRESH:
                return None
            size = before.read + read if most is None else min(before.read + read, most)
            return before._replace(used=time(), bytes=before.bytes + own, read=size)

        await self._change(name, add)

    async def inherit(self, name: str, read: int) -> bool:
        """Add the bytes of versions shared with another memory; return whether the entry exists."""

        def add(before: Entry | None) -> Entry | None:
            return before and before._replace(read=before.read + read)

        return await self._change(name, add)

    async def hold(self, entry: Entry) -> None:
        """Mark a response as deleted while later ones need its messages."""
        held = entry._replace(read=0, held=True)
        await self._records.items([self._records.put(self._place, held.name, held.value)])

    async def drop(self, names: Iterable[str]) -> None:
        """Delete entries."""
        puts = [self._records.put(self._place, name, None) for name in names]
        if puts:
            await self._records.items(puts)

    async def _change(self, name: str, change: Callable[[Entry | None], Entry | None]) -> bool:
        """Change an entry unless the change is None, and return whether it was changed."""
        place = (self._place, name)
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            (stored,) = await self._records.values([place])
            after = change(_entry(name, stored))
            if after is None:
                return False
            put = self._records.put(*place, after.value)
            if isinstance(stored, BadRecordError):
                await self._records.items([put])
                return True
            if await self._records.commit([put], {place: stored}):
                return True
        message = f"The entry of {name!r} changed {MOST_LOST_RACES} times meanwhile: try again."
        raise MemoryConflictError(message)


def _entry(name: str, value: Any) -> Entry | None:
    """The entry of a record; an old and empty one if it cannot be read."""
    if value is None:
        return None
    if not isinstance(value, dict):
        return Entry(name, 0.0)
    numbers = [value.get(field) for field in ("used", "bytes", "read")]
    used, own, read = (number if isinstance(number, int | float) else 0 for number in numbers)
    return Entry(name, used, int(own), int(read), bool(value.get("held")))
