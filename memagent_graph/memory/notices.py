"""Notices to readings under way that documents were forgotten since they began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memagent_graph.errors import MemoryConflictError
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.records import Records

_KEY = "sources"
_KEPT = 20
"""Notices kept."""


async def post(records: Records, digests: Sequence[str]) -> None:
    """Post that documents are forgotten, for readings that began before.

    Raises:
        MemoryConflictError: Others kept posting at the same time.
    """
    place = (records.forgotten, _KEY)
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        (found,) = await records.values([place])
        notices = [notice for notice in _notices(found) if notice[1] != [*digests]]
        number = max((notice[0] for notice in _notices(found)), default=0) + 1
        value = {"notices": [*notices, [number, [*digests]]][-_KEPT:]}
        given = found if isinstance(found, dict) or found is None else ...
        if await records.commit([records.put(*place, value)], {place: given}):
            return
    message = "Other documents are being forgotten at the same time: try again."
    raise MemoryConflictError(message)


async def last(records: Records) -> int:
    """Return the number of the last notice; 0 if there is none."""
    (found,) = await records.values([(records.forgotten, _KEY)])
    return max((number for number, _ in _notices(found)), default=0)


async def since(records: Records, seen: int) -> set[str]:
    """Return the documents' digests in notices after `seen`; in all if some have expired."""
    (found,) = await records.values([(records.forgotten, _KEY)])
    notices = _notices(found)
    newest = max((number for number, _ in notices), default=0)
    later = [row for number, row in notices if number > seen or newest < seen]
    return {digest for row in later for digest in row}


def _notices(value: Value | Exception | None) -> list[tuple[int, list[str]]]:
    rows = value.get("notices") if isinstance(value, dict) else None
    sound = [row for row in rows if _is_notice(row)] if isinstance(rows, list) else []
    return [(number, [*map(str, digests)]) for number, digests in sound]


def _is_notice(row: object) -> bool:
    return isinstance(row, list) and [*map(type, row)] == [int, list]
