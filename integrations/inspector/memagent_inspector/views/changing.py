"""Changes that happen only if nobody was there first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory.version import edited

if TYPE_CHECKING:
    from memagent_graph.memory.atomic import Given
    from memagent_graph.memory.bank import MemoryBank
    from memagent_graph.memory.version import MemoryVersion
    from memagent_inspector.views.subject import Subject


class ChangedMeanwhileError(MemoryConflictError):
    """Somebody changed the memory since the page was made.

    Attributes:
        now: what it is now.
    """

    def __init__(self, now: MemoryVersion) -> None:
        super().__init__("Somebody changed this memory while you looked at it.")
        self.now = now


async def edit(bank: MemoryBank, subject: Subject, seen: str, text: str) -> MemoryVersion:
    """Store another text for a memory, as a version that follows the one that was seen.

    Args:
        bank: where it is.
        subject: the memory or reading.
        seen: id of the version that was edited.
        text: the new text.

    Raises:
        ChangedMeanwhileError: It is no longer the newest.
        MemoryNotFoundError: There is nothing that could be moved on.
    """
    if subject.version.id != seen:
        raise ChangedMeanwhileError(subject.version)
    after = edited(subject.version, text)
    if subject.kind == "memory":
        moved = await bank.aadvance(subject.reference, after, expected=seen)
    else:
        await bank.aappend(after, owner=subject.reference)
        moved = await _move_reading(bank, subject, after.id)
    if not moved:
        raise ChangedMeanwhileError(await bank.aget(subject.reference))
    return after


async def roll_back(bank: MemoryBank, subject: Subject, seen: str, to: str) -> None:
    """Make an older version the newest one again; those after it stay stored.

    Args:
        bank: where it is.
        subject: the memory or reading.
        seen: id of the version that was the newest.
        to: id of the older one.

    Raises:
        ChangedMeanwhileError: It is no longer the newest.
        MemoryNotFoundError: There is no such version.
    """
    await bank.aget(to)
    if subject.version.id != seen:
        raise ChangedMeanwhileError(subject.version)
    if subject.kind == "memory":
        moved = await bank.amove_head(subject.reference, to, expected=seen)
    else:
        moved = await _move_reading(bank, subject, to)
    if not moved:
        raise ChangedMeanwhileError(await bank.aget(subject.reference))


async def _move_reading(bank: MemoryBank, subject: Subject, to: str) -> bool:
    if subject.kind != "reading":
        message = (
            f"{subject.reference!r} is one version, or a reading that has not ended: name it with "
            "a branch first."
        )
        raise MemoryNotFoundError(message)
    records = bank.records
    place = (records.readings, subject.reference)
    given: Given = {place: {"version": subject.version.id}, (records.versions, to): ...}
    return await records.commit([records.put(*place, {"version": to})], given)
