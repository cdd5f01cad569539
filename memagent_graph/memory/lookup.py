"""Look up memories in a store: by name, by id, by chain of ids, and their histories."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from memagent_graph.errors import BadRecordError, MemoryNotFoundError, NewerRecordError
from memagent_graph.memory import owners
from memagent_graph.memory.owners import owners_of
from memagent_graph.memory.version import History, MemoryVersion, text_of, walk

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Mapping, Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records

EDITS = "edits"
"""Field of a version's record: ids of the versions that replace it, by memory's name."""
_MEND = "`memagent memory check --repair` restores what is left of it."

_log = logging.getLogger(__name__)


async def find(records: Records, ids: Iterator[str], memory: str) -> MemoryVersion | None:
    """Return the last version of the longest prefix of `ids` that is stored; None if none is.

    It stops at a version that was edited in `memory`. It asks for 2, 4, 8, ... versions at once: if
    nothing is stored, that costs one round trip, and a thousand chunks cost nine. `ids` is iterated
    in a thread and no further than needed, since each id may require cutting a chunk.
    """
    found: MemoryVersion | None = None
    size = 2
    while batch := await asyncio.to_thread(list, islice(ids, size)):
        values = dict(await records.by_id(batch))
        for version in (await _readable(records, values)).values():
            if not isinstance(version, MemoryVersion):
                return found
            found = version
            if edit_of(values[found.id], memory):
                return found
        size *= 2
    return found


def edit_of(value: object, memory: str | None) -> str | None:
    """Return the id of the edit that replaces a stored version in a memory; None without one."""
    edits = value.get(EDITS) if isinstance(value, dict) else None
    found = edits.get(memory) if isinstance(edits, dict) else None
    return found if isinstance(found, str) else None


async def newest_edit(records: Records, key: str, memory: str) -> MemoryVersion | None:
    """Return the edit that a reading into a memory continues from instead; None without one."""
    newest: MemoryVersion | None = None
    ((_, value),) = await records.by_id([key])
    seen = {key}
    while (edit := edit_of(value, memory)) and edit not in seen:
        seen.add(edit)
        ((_, value),) = await records.by_id([edit])
        if value is None:  # it expired, or was evicted
            break
        newest = await readable(records, edit, value)
    return newest


async def get(records: Records, reference: str) -> MemoryVersion:
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
        found = await readable(records, reference, version)
    if found is None:
        message = (
            f"There is no memory {reference!r}: it is neither a name nor a version's id. "
            "`memagent memory list` lists all."
        )
        raise MemoryNotFoundError(message)
    return found


async def head(records: Records, name: str) -> MemoryVersion | None:
    """Return the newest version of a named memory; None if there is no such name."""
    place, likely = (records.heads, name), records.led_to(name)
    places = [place] if likely is None else [place, (records.versions, likely)]
    pointer, *more = await records.values(places)
    if likely is not None and pointer == {"version": likely} and isinstance(more[0], dict):
        return await _with_name(name, readable(records, likely, more[0]))
    found = None if pointer is None else await _follow(records, place, pointer)
    if found is not None:
        records.note(name, found.id)
    return found


async def history(records: Records, reference: str) -> History:
    """Return all versions that led to a memory, newest first, and the gaps between them."""
    tip = await get(records, reference)
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


async def list_memories(
    records: Records, *, question: str | None = None, source: str | None = None
) -> list[tuple[str, MemoryVersion]]:
    """Return names with their newest versions: named memories first, then readings.

    A memory that cannot be read is skipped, and a warning that names it is logged.

    Args:
        records: the bank.
        question: only memories of this question.
        source: only memories of the document with this digest.
    """
    pointers = await list_names(records)
    heads = await versions(records, [key for _, key in pointers], refresh=False)
    found = []
    for (name, key), version in zip(pointers, heads, strict=True):
        if not isinstance(version, MemoryVersion):
            why = str(version or f"version {key} is gone").rstrip(".")
            _log.warning("Memory %r cannot be listed: %s. Run `memagent memory check`.", name, why)
        elif question in (None, version.question) and source in (None, version.document.digest):
            found.append((name, version))
    return found


async def list_names(records: Records) -> list[tuple[str, str]]:
    """Return names, and keys of readings, with the ids that they point to."""
    found = []
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if isinstance(item, BadRecordError):
                _log.warning("%s Run `memagent memory check`.", item)
            elif isinstance(item.value.get("version"), str):
                found.append((item.key, item.value["version"]))
            else:
                _log.warning(
                    "Memory %r points to no version. Run `memagent memory check`.", item.key
                )
    return found


async def list_owners(records: Records, key: str) -> list[str]:
    """Return the memories that list a version, even if its record does not name them."""
    names = [name for name, _ in await list_names(records)]
    listed = await records.values([(records.members(name), key) for name in names])
    return [name for name, entry in zip(names, listed, strict=True) if entry is not None]


async def versions(
    records: Records, keys: Sequence[str], *, refresh: bool = True
) -> list[MemoryVersion | BadRecordError | None]:
    """Return versions by id: an error for one that cannot be read, None for one that is gone."""
    places = [(records.versions, key) for key in keys]
    values = await records.values(places, refresh=refresh)
    stored = dict(zip(keys, values, strict=True))
    found = await _readable(records, stored, refresh=refresh)
    return [found[key] for key in keys]


async def _readable(
    records: Records, values: Mapping[str, Value | BadRecordError | None], *, refresh: bool = True
) -> dict[str, MemoryVersion | BadRecordError | None]:
    stored = await with_texts(records, values, refresh=refresh)
    found: dict[str, MemoryVersion | BadRecordError | None] = {}
    for key, value in values.items():
        try:
            found[key] = None if value is None else _read(key, value, stored)
        except BadRecordError as error:
            found[key] = error
    return found


async def readable(records: Records, key: str, value: Value | BadRecordError) -> MemoryVersion:
    """Return a stored version, with its text if another version has it."""
    return _read(key, value, await with_texts(records, {key: value}))


async def _follow(
    records: Records, place: Place, pointer: Value | BadRecordError
) -> MemoryVersion | None:
    """The version that a pointer leads to, or that it leads to by now; None if it is gone by now.

    Raises:
        BadRecordError: The version cannot be read.
        MemoryNotFoundError: The version is gone, and the pointer is there.
    """
    while True:
        try:
            return await _with_name(place[1], _version(records, place[1], pointer))
        except MemoryNotFoundError:
            (now,) = await records.values([place])
            if now is None:  # forgotten meanwhile
                return None
            if now == pointer:
                raise
            pointer = now


async def _with_name(name: str, version: Awaitable[MemoryVersion]) -> MemoryVersion:
    """The version; errors name the memory."""
    try:
        return await version
    except (BadRecordError, MemoryNotFoundError) as error:
        mend = "" if isinstance(error, NewerRecordError) else f" {_MEND}"
        message = f"Memory {name!r} cannot be read: {error}{mend}"
        if isinstance(error, BadRecordError):
            raise type(error)(message, key=name) from error
        raise MemoryNotFoundError(message) from error


async def _version(records: Records, name: str, pointer: Value | BadRecordError) -> MemoryVersion:
    """The version that a name points to."""
    if isinstance(pointer, BadRecordError):
        raise pointer
    key = pointer.get("version")
    if not isinstance(key, str):
        raise BadRecordError("It points to no version.", key=name)
    (value,) = await records.values([(records.versions, key)])
    if value is None:
        raise owners.no_such_version(key)
    return await readable(records, key, value)


async def with_texts(
    records: Records, values: Mapping[str, object], *, refresh: bool = True
) -> Mapping[str, object]:
    """Return stored versions by id, together with those that have the texts of some of them."""
    wanted = sorted({holder for value in values.values() if (holder := text_of(value))} - {*values})
    places = [(records.versions, key) for key in wanted]
    more = await records.values(places, refresh=refresh)
    return {**values, **dict(zip(wanted, more, strict=True))}


def _read(
    key: str, value: Value | BadRecordError, stored: Mapping[str, object] | None = None
) -> MemoryVersion:
    if isinstance(value, BadRecordError):
        raise value
    return MemoryVersion.from_record(value, key, stored)
