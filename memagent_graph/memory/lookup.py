"""Memories found again in a store: by name, by id, by what was read, and all that led to them."""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from memagent_graph.errors import BadRecordError, MemoryNotFoundError, NewerRecordError
from memagent_graph.memory.history import History, walk
from memagent_graph.memory.owners import owners_of
from memagent_graph.memory.version import MemoryVersion, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.records import Place, Records

EDITS = "edits"
"""Field of a stored version: by a memory's name, the id of the version that replaces it there."""
_MEND = "`memagent memory check --repair` goes back to what is left of it."

_log = logging.getLogger(__name__)


async def find(
    records: Records, ids: Iterable[str], memory: str | None = None
) -> MemoryVersion | None:
    """See `MemoryBank.afind`; not beyond a version that was edited for who reads into `memory`."""
    found: MemoryVersion | None = None
    listed = isinstance(ids, list)
    ids, size = iter(ids), 1
    while batch := (
        [*islice(ids, size)] if listed else await asyncio.to_thread(list, islice(ids, size))
    ):
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
    """The id of what a person made of a stored version, for who reads into a memory."""
    edits = value.get(EDITS) if isinstance(value, dict) else None
    found = edits.get(memory) if isinstance(edits, dict) else None
    return found if isinstance(found, str) else None


async def newest_edit(records: Records, key: str, memory: str) -> MemoryVersion | None:
    """The version that who reads into a memory goes on from instead of this one, if any."""
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
    """See `MemoryBank.aget`."""
    of_name, of_reading, version = await records.values(
        [(place, reference) for place in (records.heads, records.readings, records.versions)]
    )
    if of_name is not None:
        return await _followed(records, (records.heads, reference), of_name)
    if of_reading is not None:
        return await _followed(records, (records.readings, reference), of_reading)
    if version is None:
        message = f"There is no memory {reference!r}: neither a name nor a version's id."
        raise MemoryNotFoundError(message)
    return await readable(records, reference, version)


async def head(records: Records, name: str) -> MemoryVersion | None:
    """See `MemoryBank.ahead`."""
    (pointer,) = await records.values([(records.heads, name)])
    return None if pointer is None else await _followed(records, (records.heads, name), pointer)


async def reading(records: Records, key: str) -> MemoryVersion | None:
    """See `MemoryBank.areading`."""
    (pointer,) = await records.values([(records.readings, key)])
    if not isinstance(pointer, dict):
        return None
    (version,) = await versions(records, [pointer.get("version", "")])
    return version if isinstance(version, MemoryVersion) else None


async def history(records: Records, reference: str) -> History:
    """See `MemoryBank.ahistory`."""
    tip = await get(records, reference)
    known, found = {tip.id: tip}, History()
    names, asked, wanted = set[str](), set[str](), [tip.id]
    while wanted:
        asked.update(wanted)
        stored = await records.by_id(wanted)
        new = {name for _, value in stored for name in owners_of(value)} - names
        names |= new
        ids = dict.fromkeys(wanted)
        for name in new:  # what led to a version is listed by its other owners
            ids |= dict.fromkeys(await records.keys(records.members(name)))
        more = await versions(records, [key for key in ids if key not in known])
        known |= {version.id: version for version in more if isinstance(version, MemoryVersion)}
        found = walk(tip, known, known.values())
        wanted = [key for key in found.gaps if key not in asked]
    return found


async def list_memories(
    records: Records, *, question: str | None, source: str | None
) -> list[tuple[str, MemoryVersion]]:
    """See `MemoryBank.alist`."""
    pointers = await list_names(records)
    heads = await versions(records, [key for _, key in pointers], refresh=False)
    found = []
    for (name, key), version in zip(pointers, heads, strict=True):
        if isinstance(version, MemoryVersion):
            found.append((name, version))
        else:
            reason = version or f"version {key} is gone"
            _log.warning("Memory %r cannot be listed: %s (memagent memory check)", name, reason)
    return [
        (name, version)
        for name, version in found
        if question in (None, version.question) and source in (None, version.source)
    ]


async def list_names(records: Records) -> list[tuple[str, str]]:
    """Names and readings' keys, with the ids that they point to."""
    found = []
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if isinstance(item, BadRecordError):
                _log.warning("%s (memagent memory check)", item)
            elif isinstance(item.value.get("version"), str):
                found.append((item.key, item.value["version"]))
            else:
                _log.warning("Memory %r leads nowhere (memagent memory check)", item.key)
    return found


async def list_owners(records: Records, key: str) -> list[str]:
    """The memories that list a version, whatever its record says."""
    names = [name for name, _ in await list_names(records)]
    listed = await records.values([(records.members(name), key) for name in names])
    return [name for name, entry in zip(names, listed, strict=True) if entry is not None]


async def versions(
    records: Records, keys: Sequence[str], *, refresh: bool = True
) -> list[MemoryVersion | BadRecordError | None]:
    """Versions by their ids: what cannot be read is an error, what is gone is None."""
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
    """A stored version, with its text where another one has it.

    Raises:
        BadRecordError: It cannot be read.
    """
    return _read(key, value, await with_texts(records, {key: value}))


def gone(key: str) -> MemoryNotFoundError:
    """The error of a version that is not there."""
    return MemoryNotFoundError(f"Version {key} is gone: it expired or was deleted in the store.")


async def _followed(
    records: Records, place: Place, pointer: Value | BadRecordError
) -> MemoryVersion:
    """The version that a pointer leads to; one that was deleted after a move is not missed."""
    while True:
        try:
            return await _pointed(records, place[1], pointer)
        except MemoryNotFoundError:
            (now,) = await records.values([place])
            if now is None or now == pointer:
                raise
            pointer = now


async def _pointed(records: Records, name: str, pointer: Value | BadRecordError) -> MemoryVersion:
    """The version that a name points to; what is wrong with it is said of the name."""
    try:
        return await _version(records, _target(name, pointer))
    except NewerRecordError as error:
        message = f"Memory {name!r} cannot be read: {error}"
        raise NewerRecordError(message, key=name) from error
    except BadRecordError as error:
        message = f"Memory {name!r} cannot be read: {error} {_MEND}"
        raise BadRecordError(message, key=name) from error
    except MemoryNotFoundError as error:
        message = f"Memory {name!r} cannot be read: {error} {_MEND}"
        raise MemoryNotFoundError(message) from error


async def _version(records: Records, key: str) -> MemoryVersion:
    (value,) = await records.values([(records.versions, key)])
    if value is None:
        raise gone(key)
    return await readable(records, key, value)


def _target(name: str, pointer: Value | BadRecordError) -> str:
    """The id that a name points to."""
    if isinstance(pointer, BadRecordError):
        raise pointer
    target = pointer.get("version")
    if not isinstance(target, str):
        raise BadRecordError("It leads nowhere.", key=name)
    return target


async def with_texts(
    records: Records, values: Mapping[str, object], *, refresh: bool = True
) -> Mapping[str, object]:
    """Stored versions by their ids, and those that have the texts of some of them."""
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
