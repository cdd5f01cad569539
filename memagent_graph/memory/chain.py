"""The chain of versions in a store: find and release versions, move names, keep answers.

A version can belong to several memories, its owners, and is deleted with the last.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import astuple
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

from memagent_graph.errors import BadRecordError, MemoryNotFoundError, NewerRecordError
from memagent_graph.memory.items import owners_of
from memagent_graph.memory.version import SCHEMA, History, MemoryVersion, follows_of, walk
from memagent_graph.readers.base import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records, Stored

EDITS = "edits"
"""Field of a version's record: ids of the versions that replace it, by memory's name."""
_MEND = "`memagent memory check --repair` restores what is left of it."

NOTHING: Mapping[str, Value] = MappingProxyType({})
"""No records."""
_AT_ONCE = 100
"""Versions changed in one step."""


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
) -> tuple[MemoryVersion | None, list[Stored]]:
    """Return what `head` does, and the values in other places, read just before."""
    place, likely = (records.heads, name), records.led_to(name)
    guess = [] if likely is None else [(records.versions, likely)]
    values = await records.values([*places, place, *guess])
    pointer, known = values[len(places)], {} if likely is None else {likely: values[-1]}
    found = await _follow(records, place, pointer, known)
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
        more = await find_versions(records, [key for key in ids if key not in known])
        known |= {version.id: version for version in more if isinstance(version, MemoryVersion)}
        found = walk(tip, known, known.values())
        wanted = [key for key in found.gaps if key not in asked]
    return found


async def find_versions(
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
    records: Records, place: Place, pointer: Stored, known: Mapping[str, Stored] = NOTHING
) -> MemoryVersion | None:
    """The version that a pointer leads to, or that it leads to by now; None if it is gone by now.

    `known` are records of versions.

    Raises:
        BadRecordError: The version cannot be read.
        MemoryNotFoundError: The version is gone, and the pointer is there.
    """
    name = place[1]
    while pointer is not None:
        try:
            key = _target(pointer, name)
            value = known.get(key) or (await records.by_id([key]))[0][1]
            if value is not None:
                return MemoryVersion.from_record(value, key)
            raise no_such_version(key)
        except (BadRecordError, MemoryNotFoundError) as error:
            mend = "" if isinstance(error, NewerRecordError) else f" {_MEND}"
            message = f"Memory {name!r} cannot be read: {error}{mend}"
            if isinstance(error, BadRecordError):
                raise type(error)(message, key=name) from error
            seen, (pointer,) = pointer, await records.values([place])
            if pointer == seen:
                raise MemoryNotFoundError(message) from error
    return None  # forgotten meanwhile


def _target(pointer: Value | BadRecordError, name: str) -> str:
    """The id of the version that a name points to."""
    if isinstance(pointer, BadRecordError):
        raise pointer
    if not isinstance(key := pointer.get("version"), str):
        raise BadRecordError("It points to no version.", key=name)
    return key


class Forgotten(NamedTuple):
    """The result of `MemoryBank.forget`, or of its preview.

    Attributes:
        versions: number of deleted versions.
        shared: number of versions that stay because another memory has them, by its name.
    """

    versions: int
    shared: dict[str, int]


def no_such_version(key: str) -> MemoryNotFoundError:
    """Return the error for a version that does not exist."""
    return MemoryNotFoundError(f"Version {key} is gone: it expired, or was deleted in the store.")


def pointer_to(version: str | None) -> Value | None:
    """Return the record of a name that points to a version; None for a name that does not exist."""
    return None if version is None else {"version": version}


async def release(
    records: Records,
    owner: str,
    ids: Iterable[str],
    given: Mapping[Place, Value | None],
    keep: Mapping[str, Value] = NOTHING,
    *,
    preview: bool = False,
) -> tuple[Forgotten, bool]:
    """Remove versions from a memory, and delete those that no other memory has or needs.

    One other memory that has a version inherits all that led to it. So the newest versions are
    released first: a memory that adopts one meanwhile still finds all that led to it. Return what
    was done, and whether it is complete: it ends where another writer has changed something.

    Args:
        records: the bank's records.
        owner: the memory's name.
        ids: ids of its versions.
        given: items and their values; the release stops when they change.
        keep: ids of versions that the memory keeps, with what changes in their records.
        preview: whether only to return what would be done.
    """
    deleted, shared = 0, Counter[str]()
    values = dict(await records.by_id([*ids]))
    others = _find_others(values, owner)
    for start in range(0, len(others), _AT_ONCE):
        batch = [*others][start : start + _AT_ONCE]
        leave = {key: _without(values[key], owner, others[key]) for key in batch if key not in keep}
        stay = {key: _with(values[key], keep[key]) for key in batch if key in keep}
        puts, seen = records.changes(values, leave | stay)
        puts += [records.put(records.members(owner), key, None) for key in leave]
        if puts and not preview and not await records.commit(puts, {**given, **seen}):
            return Forgotten(deleted, dict(shared)), False
        deleted += sum(values[key] is not None and value is None for key, value in leave.items())
        shared.update(name for value in leave.values() for name in owners_of(value))
    return Forgotten(deleted, dict(shared)), True


async def delete_versions(
    records: Records,
    values: Mapping[str, Value],
    pointers: Mapping[Place, Value | None],
    ids: Sequence[str],
) -> int:
    """Delete versions in this order, until one or its names changed; return their number.

    `values` are their records, and `pointers` those of all names, as they were seen.
    """
    for start in range(0, len(ids), _AT_ONCE):
        batch = ids[start : start + _AT_ONCE]
        puts, given = records.changes(values, dict.fromkeys(batch))
        for owner in {owner for key in batch for owner in owners_of(values[key])}:
            for place in records.places_of(owner):
                if (pointer := pointers.get(place)) is not None or place not in pointers:
                    given[place] = pointer
        if not await records.commit(puts, given):
            return start
    return len(ids)


def _find_others(values: Mapping[str, Stored], owner: str) -> dict[str, set[str]]:
    """The other memories that have versions or, one of them, need them; the newest first."""
    found = {key: {*owners_of(values[key])} - {owner} for key in children_first(values)}
    for key, names in found.items():
        value = values[key]
        for before in follows_of(value) if names and isinstance(value, dict) else ():
            if before in found:
                found[before].add(min(names))
    return found


def _with(value: Stored, changes: Value) -> Stored:
    return {**value, **changes} if isinstance(value, dict) else value


def _without(value: Stored, owner: str, names: set[str]) -> Value | None:
    """A version's record without a memory; None if no other has it."""
    if not names or not isinstance(value, dict):
        return None
    edits = {name: key for name, key in (value.get(EDITS) or {}).items() if name != owner}
    rest = {name: found for name, found in value.items() if name != EDITS}
    return {**rest, "owners": sorted(names), **({EDITS: edits} if edits else {})}


def children_first(values: Mapping[str, object]) -> list[str]:
    """Return ids of versions, each before the one that it follows."""
    before = {
        key: [other for other in follows_of(value) if other in values and other != key]
        if isinstance(value, dict)
        else []
        for key, value in values.items()
    }
    return [*TopologicalSorter(before).static_order()][::-1]


_ANSWER = "answer"
"""Field of a version's record with the answer that was written from it."""
_EDITS_BACK = 3
"""Most edits between a version and the answer to show with it."""


class KeptAnswer(NamedTuple):
    """An answer, stored with the version that it was written from.

    `usage` is the cost of all readings, `times` in number, that ended with it; the last at `at`
    (ISO 8601, UTC).
    """

    text: str
    at: str
    times: int
    usage: Usage


async def has_answer(records: Records, version: str) -> bool:
    """Whether an answer was written from a version; else its reading may have been killed."""
    ((_, value),) = await records.by_id([version])
    return _answer(value) is not None


async def keep_answer(
    records: Records, version: str, answer: str, usage: Usage, seen: Value | None = None
) -> None:
    """Store an answer with the version that it was written from, and add up what they cost.

    Nothing is stored if the version is gone, or a newer release wrote it. Its record as it was
    `seen` last saves a round trip if it still is.
    """
    place = (records.versions, version)
    if not await _add_answer(records, place, seen, answer, usage):
        (value,) = await records.values([place], refresh=False)
        await _add_answer(records, place, value, answer, usage)


async def _add_answer(
    records: Records, place: Place, value: Stored, answer: str, usage: Usage
) -> bool:
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(schema, int) or schema > SCHEMA:
        return False
    new = KeptAnswer(answer, datetime.now(UTC).isoformat(), 1, usage)
    if (old := _answer(value)) is not None:
        new = new._replace(times=old.times + new.times, usage=old.usage + new.usage)
    row = [*new[:-1], *astuple(new.usage)]
    return await records.commit([records.put(*place, {**value, _ANSWER: row})], {place: value})


async def answers_of(records: Records, versions: Sequence[MemoryVersion]) -> dict[str, KeptAnswer]:
    """Return the answers kept with versions, by id; an edit has that of the version it edits."""
    found: dict[str, KeptAnswer] = {}
    wanted = {version.id: version.id for version in versions}
    for _ in range(_EDITS_BACK + 1):
        places = [(records.versions, key) for key in wanted.values()]
        values = dict(zip(wanted, await records.values(places, refresh=False), strict=True))
        found |= {key: kept for key, value in values.items() if (kept := _answer(value))}
        wanted = {
            key: str(value.get("parent"))
            for key, value in values.items()
            if key not in found and isinstance(value, dict) and value.get("made_by") == "edit"
        }
    return found


def _answer(value: Stored) -> KeptAnswer | None:
    """The answer in a version's record; None without one."""
    match value:
        case {"answer": [text, at, times, calls, read, written, seconds]}:
            return KeptAnswer(text, at, times, Usage(calls, read, written, seconds))
    return None
