"""Edit a memory that a reading continues from: store the edit and point to it in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import BadRecordError, MemoryConflictError
from memagent_graph.memory import lookup
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.holding import hold_of, hold_place, is_silent, no_longer_held, under_way
from memagent_graph.memory.lookup import EDITS
from memagent_graph.memory.owners import owners_of
from memagent_graph.memory.version import reading_key

if TYPE_CHECKING:
    from memagent_graph.memory.holding import Hold
    from memagent_graph.memory.records import Place, Records
    from memagent_graph.memory.version import MemoryVersion


async def replace_for(
    records: Records,
    memory: str,
    before: MemoryVersion,
    after: MemoryVersion,
    hold: Hold | None = None,
) -> None:
    """Store an edit of a version, for readings that write to a memory and reach that version.

    If the memory points to the version, it points to the edit afterwards.

    Args:
        records: the bank's records.
        memory: its name, or the key of a reading without one.
        before: the version that was edited.
        after: the edit.
        hold: the hold on the memory; nothing is stored if it has ended. Without one, the memory
            must point to the version.

    Raises:
        MemoryConflictError: Somebody else edited it first, the hold has ended, or a reading has not
            paused at that version.
        MemoryNotFoundError: The version is gone.
    """
    own, new = (records.versions, before.id), (records.versions, after.id)
    heads: list[Place] = [(records.heads, memory), (records.readings, memory)]
    held = None if hold is None else hold_place(records, hold.memory)
    topic = after.root if memory == reading_key(after.root, after.source) else memory
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        places = [own, new, *heads, *([] if held is None else [held])]
        stored = dict(zip(places, await records.values(places), strict=True))
        value = stored[own]
        if not isinstance(value, dict):
            raise lookup.gone(before.id)
        moved = [place for place in heads if stored[place] == {"version": before.id}]
        if lookup.edit_of(value, memory) not in (None, after.id) or not (hold or moved):
            raise was_changed(memory)
        if hold is not None and held is not None and not _is_same(hold, stored[held]):
            raise no_longer_held(memory)
        if not moved and await _is_read_on(records, memory, before.id):
            raise _not_paused(memory, before.id)
        edits = {**(value.get(EDITS) or {}), memory: after.id}
        names = sorted({*owners_of(stored[new]), memory})
        puts = [
            records.put(*new, {**after.to_record(), "owners": names}),
            records.put(records.members(memory), after.id, {}),
            records.put(*own, {**value, EDITS: edits}),
            *(records.put(*place, {"version": after.id}) for place in moved),
        ]
        given = {
            place: found for place, found in stored.items() if not isinstance(found, BadRecordError)
        }
        if await records.commit(puts, given, topic=topic):
            return
    raise was_changed(memory)


def _is_same(hold: Hold, stored: object) -> bool:
    """Whether a memory is still held by this hold, renewed or not."""
    there = hold_of(stored)
    return there is not None and there.id == hold.id


async def _is_read_on(records: Records, memory: str, version: str) -> bool:
    """Whether a reading would not see an edit of this version, because it does not wait there."""
    folds = [fold for fold in await under_way(records, memory) if not is_silent(fold)]
    return bool(folds) and not any(fold.held and fold.version == version for fold in folds)


def _not_paused(memory: str, version: str) -> MemoryConflictError:
    message = (
        f"{memory!r} is not paused at version {version}: wait until `under_way` says that it is "
        "held, and edit the version that it says."
    )
    return MemoryConflictError(message)


def was_changed(reference: str) -> MemoryConflictError:
    """The error for the second of two concurrent edits."""
    message = f"{reference!r} was changed meanwhile: read the new text, and edit it again."
    return MemoryConflictError(message)
