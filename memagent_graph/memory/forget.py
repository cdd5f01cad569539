"""Forget memories and documents: names, versions, announcements, and what a store still has."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import (
    BadRecordError,
    ConfigurationError,
    MemoryConflictError,
    MemoryNotFoundError,
)
from memagent_graph.memory import lookup, owners, runs
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.items import Records
from memagent_graph.memory.leases import find_readings
from memagent_graph.memory.provenance import above, delete_versions, rows_of, take_inventory
from memagent_graph.memory.version import MemoryVersion, follows_of, text_of, walk
from memagent_graph.seams import drop_empty_namespaces
from memagent_graph.text.cache import forget_converted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from datetime import datetime

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place
    from memagent_graph.memory.provenance import Inventory
    from memagent_graph.memory.version import History

_KEY = "sources"
_KEPT = 20
"""Notices kept."""


async def post_notice(records: Records, digests: Sequence[str]) -> None:
    """Post that documents are forgotten, for readings that began before.

    Raises:
        MemoryConflictError: Others kept posting at the same time.
    """
    place = notice_place(records)
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


def notice_place(records: Records) -> Place:
    """Return the place of the notices in the store."""
    return records.forgotten, _KEY


def last_notice(value: Value | Exception | None) -> int:
    """Return the number of the last of the notices in a record; 0 if there is none."""
    return max((number for number, _ in _notices(value)), default=0)


async def notices_since(records: Records, seen: int) -> set[str]:
    """Return the documents' digests in notices after `seen`; in all if some have expired."""
    (found,) = await records.values([notice_place(records)])
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


_STATEMENTS = ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)")
"""The first rewrites the database, the second writes it to the file and empties the log. The first
column of the checkpoint's row says whether another connection prevented that.
"""


async def erase(holder: object) -> str:
    """Overwrite what a store or checkpointer of LangGraph still has of deleted items.

    SQLite files are rewritten, which takes time and disk space in proportion to their size.

    Args:
        holder: the store or checkpointer.

    Returns:
        Where deleted text may still be, and what to do about it; "" if nowhere.
    """
    if isinstance(holder, InMemoryStore):
        drop_empty_namespaces(holder)
    connection: Any = getattr(holder, "conn", None)
    lock: Any = getattr(holder, "lock", None)
    try:
        if isinstance(connection, sqlite3.Connection) and lock is not None:
            await asyncio.to_thread(_erase, connection, lock)
        elif _is_aiosqlite(connection) and isinstance(lock, asyncio.Lock):
            async with lock:
                await connection.commit()
                rows = [await connection.execute_fetchall(words) for words in _STATEMENTS]
            _check([*rows[-1]])
    except sqlite3.Error as error:
        return (
            f"The SQLite file could not be rewritten ({error}), so its free pages and its log "
            "may still hold what was deleted. Stop the other programs that use the file, and run "
            f'sqlite3 FILE "{"; ".join(_STATEMENTS)}".'
        )
    return ""


def _erase(connection: sqlite3.Connection, lock: Any) -> None:
    with lock:
        connection.commit()
        rows = [connection.execute(words).fetchall() for words in _STATEMENTS]
    _check(rows[-1])


def _check(rows: list[Any]) -> None:
    if rows and rows[0][0]:
        raise sqlite3.OperationalError("another program is reading its log")


def _is_aiosqlite(connection: object) -> bool:
    return type(connection).__module__.partition(".")[0] == "aiosqlite"


class Forgotten(NamedTuple):
    """The result of `MemoryBank.forget`, or of its preview.

    Attributes:
        versions: number of deleted versions.
        shared: number of versions that stay because another memory has them, by its name.
    """

    versions: int
    shared: dict[str, int]


async def delete_name(records: Records, name: str) -> None:
    """See `MemoryBank.adelete`."""
    if not any((await records.pointers(name)).values()):
        raise _nameless(name)
    await _unname(records, name)
    await owners.release(records, name, await records.keys(records.members(name)), {}, spare=True)


async def forget_memory(records: Records, name: str, *, preview: bool = False) -> Forgotten:
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
    await _unlist(records, memory=name)
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
    gone = values.keys() - kept

    def stays(key: str, value: Value) -> Value:
        follows_gone = tip.thread is None and not gone.isdisjoint(follows_of(value))
        if not follows_gone and text_of(value) not in gone:
            return value
        version = known[key]
        lost = [one for one in above(values, [key]) if one in gone] if follows_gone else []
        rows = ((digest, name) for one in lost for digest, name in rows_of(values[one]))
        whole = replace(
            version,
            unchanged=None if text_of(value) in gone else version.unchanged,
            sources=tuple(dict.fromkeys((*version.sources, *rows))),
        )
        after = {**value, **whole.to_record()}
        if whole.unchanged is None:
            after.pop("unchanged", None)
        return {**after, lookup.THINNED: True} if follows_gone else after

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


_DIGITS = 64
_AGAIN = "Memories of this document kept being written meanwhile: forget it again."


class ForgottenSource(NamedTuple):
    """The result of `MemoryBank.forget_source`, or its preview.

    Attributes:
        versions: number of versions deleted.
        fell_back: names of memories that are now what they were before the documents.
        forgotten: names of memories that had nothing before, and keys of readings without a name.
        unread: names of memories, each with a document that is to be read into it again.
        cached: number of entries removed from the user's cache.
        unreadable: keys of unreadable items, which stay and may have content of the documents.
        unsure: names of memories that stay and may have content of the documents: versions that
            led to them were lost, and were of joined documents.
    """

    versions: int = 0
    fell_back: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    unread: tuple[tuple[str, str], ...] = ()
    cached: int = 0
    unreadable: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()

    def plus(self, more: ForgottenSource) -> ForgottenSource:
        """Return the sum of both."""
        forgotten = dict.fromkeys(self.forgotten + more.forgotten)
        fell_back = dict.fromkeys(self.fell_back + more.fell_back)
        return ForgottenSource(
            self.versions + more.versions,
            tuple(name for name in fell_back if name not in forgotten),
            tuple(forgotten),
            tuple(dict.fromkeys(self.unread + more.unread)),
            self.cached + more.cached,
            self.unreadable + more.unreadable,
            self.unsure + more.unsure,
        )


async def forget_source(
    records: Records, digests: Sequence[str], *, preview: bool = False
) -> ForgottenSource:
    """See `MemoryBank.aforget_source`."""
    if wrong := [digest for digest in digests if not _is_digest(digest)]:
        message = (
            f"{wrong[0]!r} is not a digest of a document: give the {_DIGITS} hexadecimal digits of "
            "`Source.digest`, or the opened document."
        )
        raise ConfigurationError(message)
    if preview:
        records, bad = await _copy(records)
        done = await _forget(records, digests, rehearsed=True)
        return done._replace(unreadable=(*bad, *done.unreadable))
    return await _forget(records, digests)


async def digests_of(records: Records, name: str) -> list[str]:
    """See `MemoryBank.adigests_of`."""
    found: set[str] = set()
    async for item in records.scan(records.versions):
        if not isinstance(item, BadRecordError):
            found.update(digest for digest, called in rows_of(item.value) if called == name)
    return sorted(found)


def _is_digest(digest: str) -> bool:
    return len(digest) == _DIGITS and not digest.strip("0123456789abcdef")


def _uncache(digests: Collection[str], *, preview: bool) -> int:
    from memagent_graph.text.index import forget_recent  # numpy is not needed for anything else

    if not preview:
        forget_recent(digests)
    return sum(forget_converted(digest, preview=preview) for digest in digests)


async def _copy(records: Records) -> tuple[Records, list[str]]:
    """A bank in which forgetting can be rehearsed, and the keys of what could not be copied."""
    copy, bad = Records(InMemoryStore(), records.namespace, None, None), list[str]()
    for place in (records.versions, records.heads, records.readings, records.all_members):
        puts = []
        async for item in records.scan(place):
            if not isinstance(item, BadRecordError):
                puts.append(copy.put(tuple(item.namespace), item.key, item.value))
            elif place != records.all_members:
                bad.append(item.key)
        await copy.items(puts)
    return copy, bad


async def _forget(
    records: Records, digests: Sequence[str], *, rehearsed: bool = False
) -> ForgottenSource:
    done = ForgottenSource()
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        await post_notice(records, digests)
        found = await take_inventory(records, digests)
        touched = {*digests, *found.sources}
        if lost == 0 or not rehearsed:  # a rehearsal would count again what it does not remove
            cached = await asyncio.to_thread(_uncache, touched, preview=rehearsed)
            done = done.plus(ForgottenSource(cached=cached))
        unreadable = tuple(error.key for error in found.contents.bad)
        done = done._replace(unreadable=unreadable, unsure=tuple(found.unsure))
        if not found.gone:
            await _unlist(records, sources=touched)
            return done
        done = done.plus(await _remove(records, found))
    raise MemoryConflictError(_AGAIN)


async def _remove(records: Records, found: Inventory) -> ForgottenSource:
    """Delete what was found, until another writer interferes."""
    done = ForgottenSource()
    pointing = _find_pointers(found)
    topics = {name for (_, name), _ in pointing}
    topics |= {str(found.contents.versions[key].get("root")) for key in found.gone}
    for topic in topics:
        await forget_topic(records, topic)
    for place, target in pointing:
        name, is_named = place[1], place[0] == records.heads
        before, unread = found.fall_back(name, target) if is_named else (None, [])
        if not await _repoint(records, found, place, before):
            return done
        moved, lost = (name,), tuple((name, document) for document in unread)
        done = done.plus(
            ForgottenSource(forgotten=moved, unread=lost)
            if before is None
            else ForgottenSource(fell_back=moved, unread=lost)
        )
    versions = await delete_versions(records, found.contents, found.gone)
    for name in done.forgotten:
        versions += await _release(records, name)
    return done.plus(ForgottenSource(versions=versions))


def _find_pointers(found: Inventory) -> list[tuple[Place, str]]:
    """Heads and readings that point to versions from the documents, with those versions."""
    gone = {*found.gone}
    pointing = found.contents.pointers.items()
    targets = [(place, str((value or {}).get("version"))) for place, value in pointing]
    return [(place, target) for place, target in targets if target in gone]


async def _repoint(records: Records, found: Inventory, place: Place, before: str | None) -> bool:
    """Point a name to an earlier version, or delete it; False if another writer was faster.

    Which readings moved it is forgotten as well: each is to be read again.
    """
    name, also = place[1], runs.forget(records, place[1])
    seen = found.contents.pointers.pop(place) or {}
    if before is None:
        return await records.commit([records.put(*place, None), also], {place: seen})
    found.contents.pointers[place] = {"version": before}
    with suppress(MemoryNotFoundError):  # it is being deleted
        expected = str(seen.get("version"))
        return await owners.move_head(records, name, before, expected=expected, also=[also])
    return False


async def _release(records: Records, name: str) -> int:
    """Delete the other versions of a memory, unless the name exists again; return their number."""
    places = [(records.heads, name), (records.readings, name)]
    ids = await records.keys(records.members(name))
    return (await owners.release(records, name, ids, dict.fromkeys(places))).deleted


async def _unlist(
    records: Records, *, memory: str | None = None, sources: Collection[str] = ()
) -> None:
    """Delete the records of folds of a memory or documents; those that continue make new ones."""
    listed = await find_readings(records, memory, gone=True)
    puts = [
        records.put(*place, None)
        for place, fold in listed.items()
        if memory is not None or fold.source in sources
    ]
    if puts:
        await records.items(puts)
