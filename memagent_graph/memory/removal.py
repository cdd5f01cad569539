"""Memories taken away: their names, their versions, and what was announced of them."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory import lookup, owners, runs
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.history import walk
from memagent_graph.memory.provenance import READ, Lineage, inherited, listed
from memagent_graph.memory.version import MemoryVersion, followed, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.history import History
    from memagent_graph.memory.provenance import Rows
    from memagent_graph.memory.records import Records


class Forgotten(NamedTuple):
    """The result of `MemoryBank.forget`, or of its preview.

    Attributes:
        versions: number of deleted versions.
        shared: number of versions that stay because another memory has them, by its name.
    """

    versions: int
    shared: dict[str, int]


async def delete(records: Records, name: str) -> None:
    """See `MemoryBank.adelete`."""
    if not any((await records.pointers(name)).values()):
        raise _nameless(name)
    await _unname(records, name)
    await owners.release(records, name, await records.keys(records.members(name)), {}, spare=True)


async def forget(records: Records, name: str, *, preview: bool = False) -> Forgotten:
    """See `MemoryBank.aforget`."""
    deleted, shared, roots = 0, Counter[str](), set[str]()
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        pointers = await records.pointers(name)
        ids = await records.keys(records.members(name))
        if not ids and not any(pointers.values()):
            break
        if not preview:
            await _unname(records, name)
        given = dict.fromkeys(pointers)
        released = await owners.release(records, name, ids, given, preview=preview)
        if preview:
            return Forgotten(released.deleted, dict(released.shared))
        deleted, shared = deleted + released.deleted, shared + released.shared
        roots |= released.roots
    else:
        message = f"{name!r} kept being written meanwhile: forget it again."
        raise MemoryConflictError(message)
    if lost == 0:
        raise _nameless(name)
    for topic in (name, *roots):
        await forget_topic(records, topic)
    listed = records.under_way(name)  # what was left by readings that were killed
    gone = [records.put(listed, key, None) for key in await records.keys(listed)]
    await records.items([*gone, records.put(records.holds, name, None)])
    return Forgotten(deleted, dict(shared))


async def thin(
    records: Records,
    name: str,
    keep: int | None,
    replaced: datetime | None = None,
    *,
    preview: bool = False,
) -> int:
    """See `MemoryBank.athin`."""
    ids = await records.keys(records.members(name))
    if replaced is None and (keep is None or len(ids) <= keep):
        return 0
    pointers = await records.pointers(name)
    values = {key: value for key, value in await records.by_id(ids) if isinstance(value, dict)}
    stored = await lookup.with_texts(records, values)
    known = {version.id: version for version in _sound(values, stored)}
    heads = [found.get("version") for found in pointers.values() if isinstance(found, dict)]
    tip = known.get(str(heads[0])) if heads else None
    if tip is None:
        return 0
    whole = walk(tip, known, ())
    kept = {version.id for version in _fresh(whole, replaced)[:keep]}
    if preview:
        return len(ids) - len(kept)
    readable = {
        place: found for place, found in pointers.items() if not isinstance(found, BadRecordError)
    }
    read: dict[str, Rows] = {}
    gone = values.keys() - kept
    if tip.thread is None:
        lineage = Lineage(values)
        for key in kept:
            if (rows := inherited(lineage, key, gone)) != listed(values[key]) and rows:
                read[key] = rows

    def stays(key: str, value: Value) -> Value:
        after = {**value, READ: read[key]} if key in read else value
        if tip.thread is None and gone & {*followed(value)}:
            after = {**after, lookup.THINNED: True}
        if text_of(value) in gone and key in known:
            whole = replace(known[key], unchanged=None).to_record()
            after = {name: after[name] for name in after if name != "unchanged"} | whole
        return after

    return (await owners.release(records, name, ids, readable, kept, stays=stays)).deleted


def _fresh(history: History, replaced: datetime | None) -> list[MemoryVersion]:
    """The newest version, and those that were replaced after that time."""
    limit = "" if replaced is None else replaced.isoformat()
    newer = history[:-1]
    return history[:1] + [
        version for by, version in zip(newer, history[1:], strict=True) if by.created_at >= limit
    ]


async def clear(records: Records) -> int:
    """See `MemoryBank.aclear`."""
    topics: set[str] = set()
    count, bad = 0, None
    while True:
        places = []
        async for item in records.scan(records.namespace):
            if not isinstance(item, BadRecordError):
                topics.add(str(item.value.get("root")))
            elif item.namespace is None:
                bad = item
                continue
            places.append((tuple(item.namespace or ()), item.key))
            topics.add(item.key)
        if not places:
            break
        await records.items([records.put(*place, None) for place in places])
        count += len(places)
    for topic in topics:
        await forget_topic(records, topic)
    await records.forget_label()
    if bad is not None:
        raise bad
    return count


def _sound(values: Mapping[str, Value], stored: Mapping[str, object]) -> Iterator[MemoryVersion]:
    for key, value in values.items():
        with suppress(BadRecordError):
            yield MemoryVersion.from_record(value, key, stored)


async def _unname(records: Records, name: str) -> None:
    places = (records.heads, records.readings)
    puts = [records.put(place, name, None) for place in places]
    await records.items([*puts, runs.forget(records, name)])


async def forget_topic(records: Records, topic: str) -> None:
    """Delete what was announced of a name, or of a reading's root."""
    await records.call(lambda: records.atomic.aforget_topic(records.versions, topic))


def _nameless(name: str) -> MemoryNotFoundError:
    return MemoryNotFoundError(f"There is no memory named {name!r}.")
