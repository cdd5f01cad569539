"""What a page is about: a named memory, a reading, or one version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from memagent_graph.errors import MemoryNotFoundError
from memagent_graph.memory import lookup
from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from memagent_graph.memory.bank import MemoryBank

_LOOKED_AT = 200
"""Versions of a reading under way of which the newest is taken, where nothing points to it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A memory with its newest version.

    Attributes:
        reference: a name, a reading's key, or a version's id.
        kind: which of these it is; "unfinished" for a reading that has not ended.
        version: the newest.
    """

    reference: str
    kind: Literal["memory", "reading", "version", "unfinished"]
    version: MemoryVersion


async def find(bank: MemoryBank, reference: str) -> Subject:
    """Return what a reference leads to.

    Raises:
        MemoryNotFoundError: There is nothing.
        BadRecordError: It cannot be read.
    """
    records = bank.records
    named, read = (await records.pointers(reference)).values()
    if named is not None or read is not None:
        kind: Literal["memory", "reading"] = "reading" if named is None else "memory"
        return Subject(reference, kind, await bank.aget(reference))
    ids = await records.keys(records.members(reference))
    if not ids:
        return Subject(reference, "version", await bank.aget(reference))
    found = await lookup.versions(records, ids[-_LOOKED_AT:], refresh=False)
    known = [version for version in found if isinstance(version, MemoryVersion)]
    if not known:
        message = f"No version of {reference!r} can be read."
        raise MemoryNotFoundError(message)
    newest = max(known, key=lambda version: version.created_at)
    return Subject(reference, "unfinished", newest)
