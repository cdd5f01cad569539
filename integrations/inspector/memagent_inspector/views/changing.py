"""Changes that happen only if nobody was there first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory.bank import replace_for
from memagent_graph.memory.lookup import newest_edit
from memagent_graph.memory.version import edit_version
from memagent_inspector.views.holding import hold_of

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
    after = edit_version(subject.version, text)
    if subject.kind == "memory":
        moved = await bank.aadvance(subject.reference, after, expected=seen)
    elif subject.kind == "reading":
        moved = await _replaced(bank, subject, after)
    else:
        raise _not_moved(subject)
    if not moved:
        raise ChangedMeanwhileError(await bank.aget(subject.reference))
    return after


async def edit_held(
    bank: MemoryBank, memory: str, hold_id: str, seen: str, text: str
) -> MemoryVersion:
    """Store another text for a reading that waits; it continues from there when it is let go.

    Args:
        bank: where it is.
        memory: what it reads into.
        hold_id: of who holds it.
        seen: id of the version that was edited.
        text: the new text.

    Raises:
        ChangedMeanwhileError: Somebody edited that version first.
        MemoryConflictError: It is no longer held.
    """
    hold = await hold_of(bank, memory, hold_id)
    try:
        return await bank.aedit(seen, text, hold=hold)
    except MemoryConflictError:
        newest = await newest_edit(bank.records, seen, memory)
        if newest is None or newest.id == seen:
            raise
        raise ChangedMeanwhileError(newest) from None


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
    if subject.kind == "memory":
        moved = await bank.amove_head(subject.reference, to, expected=seen)
    elif subject.kind == "reading":  # it is found by its chunks, and then by its edits
        moved = await _replaced(bank, subject, edit_version(subject.version, older.text))
    else:
        raise _not_moved(subject)
    if not moved:
        raise ChangedMeanwhileError(await bank.aget(subject.reference))


async def _replaced(bank: MemoryBank, subject: Subject, after: MemoryVersion) -> bool:
    try:
        await replace_for(bank.records, subject.reference, subject.version, after)
    except MemoryConflictError:
        return False
    return True


def _not_moved(subject: Subject) -> MemoryNotFoundError:
    message = (
        f"{subject.reference!r} is one version, or a reading under way: name it with a branch, or "
        "pause the reading first."
    )
    return MemoryNotFoundError(message)
