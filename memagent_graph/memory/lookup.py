"""Look up memories in a store: by name, by id, by chain of ids, and their histories."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from memagent_graph.errors import BadRecordError, MemoryNotFoundError, NewerRecordError
from memagent_graph.memory import owners
from memagent_graph.memory.items import owners_of
from memagent_graph.memory.version import History, MemoryVersion, walk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records

    Found = Value | BadRecordError

EDITS = "edits"
"""Field of a version's record: ids of the versions that replace it, by memory's name."""
_MEND = "`memagent memory check --repair` restores what is left of it."

_NOTHING: Mapping[str, Found | None] = MappingProxyType({})
_log = logging.getLogger(__name__)


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
) -> tuple[MemoryVersion | None, list[Found | None]]:
    """Return what `head` does, and the values in other places, read just before."""
    place, likely = (records.heads, name), records.led_to(name)
    guess = [] if likely is None else [(records.versions, likely)]
    values = await records.values([*places, place, *guess])
    pointer, known = values[len(places)], {} if likely is None else {likely: values[-1]}
    found = None if pointer is None else await _follow(records, place, pointer, known)
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
        more = await versions(records, [key for key in ids if key not in known])
        known |= {version.id: version for version in more if isinstance(version, MemoryVersion)}
        found = walk(tip, known, known.values())
        wanted = [key for key in found.gaps if key not in asked]
    return found


async def list_bank(records: Records) -> list[tuple[str, MemoryVersion]]:
    """Return names with their newest versions: named memories first, then readings.

    A memory that cannot be read is skipped, and a warning that names it is logged.
    """
    pointers: list[tuple[str, str]] = []
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if isinstance(item, BadRecordError):
                _log.warning("%s Run `memagent memory check`.", item)
            elif isinstance(item.value.get("version"), str):
                pointers.append((item.key, item.value["version"]))
            else:
                why = "Memory %r points to no version. Run `memagent memory check`."
                _log.warning(why, item.key)
    heads = await versions(records, [key for _, key in pointers], refresh=False)
    found = []
    for (name, key), version in zip(pointers, heads, strict=True):
        if not isinstance(version, MemoryVersion):
            why = str(version or f"version {key} is gone").rstrip(".")
            _log.warning("Memory %r cannot be listed: %s. Run `memagent memory check`.", name, why)
        else:
            found.append((name, version))
    return found


async def versions(
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
    records: Records, place: Place, pointer: Found, known: Mapping[str, Found | None] = _NOTHING
) -> MemoryVersion | None:
    """The version that a pointer leads to, or that it leads to by now; None if it is gone by now.

    Raises:
        BadRecordError: The version cannot be read.
        MemoryNotFoundError: The version is gone, and the pointer is there.
    """
    name = place[1]
    while True:
        try:
            return await _version(records, name, pointer, known)
        except (BadRecordError, MemoryNotFoundError) as error:
            mend = "" if isinstance(error, NewerRecordError) else f" {_MEND}"
            message = f"Memory {name!r} cannot be read: {error}{mend}"
            if isinstance(error, BadRecordError):
                raise type(error)(message, key=name) from error
            (now,) = await records.values([place])
            if now is None:  # forgotten meanwhile
                return None
            if now == pointer:
                raise MemoryNotFoundError(message) from error
            pointer = now


async def _version(
    records: Records, name: str, pointer: Found, known: Mapping[str, Found | None]
) -> MemoryVersion:
    """The version that a name points to; its record may be known."""
    if isinstance(pointer, BadRecordError):
        raise pointer
    key = pointer.get("version")
    if not isinstance(key, str):
        raise BadRecordError("It points to no version.", key=name)
    value = known.get(key)
    if value is None:
        (value,) = await records.values([(records.versions, key)])
    if value is None:
        raise owners.no_such_version(key)
    return MemoryVersion.from_record(value, key)
