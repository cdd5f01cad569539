"""Changes that happen only if nobody was there first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory.lookup import newest_edit
from memagent_inspector.views.subject import find

if TYPE_CHECKING:
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


async def edit(bank: MemoryBank, reference: str, seen: str, text: str) -> None:
    """Store another text for a memory, as a version that follows the one that was seen.

    Args:
        bank: where it is.
        reference: the memory, or the key of a reading.
        seen: id of the version that was edited: the newest, or one of a reading under way.
        text: the new text.

    Raises:
        ChangedMeanwhileError: Somebody changed it first.
        MemoryNotFoundError: There is nothing that could be moved on.
    """
    subject = await find(bank, reference)
    if subject.kind == "version":
        raise _not_moved(subject)
    if text != (await bank.aget(seen)).text:
        await _replace(bank, subject, text, seen)


async def _replace(bank: MemoryBank, subject: Subject, text: str, seen: str) -> None:
    try:
        await bank.aedit(subject.reference, text, before=seen)
    except MemoryConflictError:
        newest = await newest_edit(bank.records, seen, subject.reference)
        now = newest or (await find(bank, subject.reference)).version
        raise ChangedMeanwhileError(now) from None


async def roll_back(bank: MemoryBank, subject: Subject, seen: str, to: str) -> None:
    """Make an older version the newest one again, or of a reading its text; others stay stored.

    Args:
        bank: where it is.
        subject: the memory or reading.
        seen: id of the version that was the newest.
        to: id of the older one.

    Raises:
        ChangedMeanwhileError: It is no longer the newest.
        MemoryNotFoundError: There is no such version.
    """
    older = await bank.aget(to)
    if subject.version.id != seen:
        raise ChangedMeanwhileError(subject.version)
    if subject.kind == "reading":  # it is found by its chunks, and then by its edits
        await _replace(bank, subject, older.text, seen)
    elif subject.kind != "memory":
        raise _not_moved(subject)
    elif not await bank.amove_head(subject.reference, to, expected=seen):
        raise ChangedMeanwhileError(await bank.aget(subject.reference))


def _not_moved(subject: Subject) -> MemoryNotFoundError:
    message = (
        f"{subject.reference!r} is one version, or a reading that has not ended: name it with a "
        "branch."
    )
    return MemoryNotFoundError(message)
