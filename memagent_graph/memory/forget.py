"""Forget memories and documents: names, versions, and what a store still has."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
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
from memagent_graph.memory.owners import above, delete_versions, rows_of, take_inventory
from memagent_graph.memory.version import MemoryVersion, follows_of, text_of, walk
from memagent_graph.seams import call_with_connection, drop_empty_namespaces
from memagent_graph.sync import to_thread
from memagent_graph.text.cache import forget_converted
from memagent_graph.text.source import digests_of as digests_in

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place
    from memagent_graph.memory.owners import Inventory
    from memagent_graph.memory.version import History
    from memagent_graph.text.source import Source

_KEY = "sources"
_KEPT = 20
"""Notices kept."""


async def post_notice(records: Records, digests: Sequence[str]) -> None:
    """Post that documents are forgotten, for readings that began before."""
    place = notice_place(records)
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        (found,) = await records.values([place])
        notices = [notice for notice in _notices(found) if notice[1] != [*digests]]
        value = {"notices": [*notices, [last_notice(found) + 1, [*digests]]][-_KEPT:]}
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
    newest = last_notice(found)
    later = [row for number, row in _notices(found) if number > seen or newest < seen]
    return {digest for row in later for digest in row}


def _notices(value: Value | Exception | None) -> list[tuple[int, list[str]]]:
    rows = value.get("notices") if isinstance(value, dict) else None
    sound = [row for row in rows if isinstance(row, list)] if isinstance(rows, list) else []
    sound = [row for row in sound if [*map(type, row)] == [int, list]]
    return [(number, [*map(str, digests)]) for number, digests in sound]


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
        elif isinstance(lock, asyncio.Lock) and type(connection).__module__.startswith("aiosqlite"):
            async with lock:
                await call_with_connection(connection, _erase)
    except sqlite3.Error as error:
        return (
            f"The SQLite file could not be rewritten ({error}), so its free pages and its log "
            "may still hold what was deleted. Stop the other programs that use the file, and run "
            f'sqlite3 FILE "{"; ".join(_STATEMENTS)}".'
        )
    return ""


def _erase(file: sqlite3.Connection, lock: AbstractContextManager[object] | None = None) -> None:
    with lock or nullcontext():
        file.commit()
        *_, row = [file.execute(words).fetchone() for words in _STATEMENTS]
    if row and row[0]:
        raise sqlite3.OperationalError("another program is reading its log")


class Forgotten(NamedTuple):
    """The result of `MemoryBank.forget`, or of its preview.

    Attributes:
        versions: number of deleted versions.
        shared: number of versions that stay because another memory has them, by its name.
    """

    versions: int
    shared: dict[str, int]


async def delete_name(records: Records, name: str) -> None:
    """Delete a name; its versions stay until `collect` finds that no name leads to them.

    Raises:
        MemoryNotFoundError: There is no such name.
    """
    if not any((await records.pointers(name)).values()):
        raise _nameless(name)
    await _unname(records, name)
    await owners.release(records, name, await records.keys(records.members(name)), {}, spare=True)


async def forget_memory(records: Records, name: str, *, preview: bool = False) -> Forgotten:
    """Delete a name, and those of its versions that no other memory has or needs.

    Args:
        records: the bank.
        name: the memory's.
        preview: whether to say only what would go.

    Raises:
        MemoryNotFoundError: There is no such name.
        MemoryConflictError: Other writers kept changing it.
    """
    deleted, shared = 0, Counter[str]()
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
    else:
        message = f"{name!r} kept being written meanwhile: forget it again."
        raise MemoryConflictError(message)
    if lost == 0:
        raise _nameless(name)
    await _unlist(records, memory=name)
    return Forgotten(deleted, dict(shared))


async def thin(
    records: Records,
    name: str,
    keep: int | None,
    *,
    replaced: datetime | None = None,
    preview: bool = False,
) -> int:
    """Delete all but the newest versions of a memory, and return their number.

    Args:
        records: the bank.
        name: the memory's name.
        keep: number of versions to keep, at least 1; None for all.
        replaced: versions that were replaced before this time are deleted; None for none.
        preview: whether only to return how many would be deleted.
    """
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
        return {**after, "thinned": True} if follows_gone else after

    return (await owners.release(records, name, ids, readable, kept, stays=stays)).deleted


def _fresh(history: History, replaced: datetime | None) -> list[MemoryVersion]:
    """The newest version, and those that were replaced after that time."""
    limit = "" if replaced is None else replaced.isoformat()
    newer = history[:-1]
    return history[:1] + [
        version for by, version in zip(newer, history[1:], strict=True) if by.created_at >= limit
    ]


async def clear(records: Records) -> int:
    """Delete everything below this namespace, and return the number of items."""
    count, bad = 0, None
    while True:
        places = []
        async for item in records.scan(records.namespace):
            if isinstance(item, BadRecordError) and item.namespace is None:
                bad = item
            else:
                places.append((tuple(item.namespace or ()), item.key))
        if not places:
            break
        await records.items([records.put(*place, None) for place in places])
        count += len(places)
    await records.forget_label()
    if bad is not None:
        raise bad
    return count


def _sound(values: Mapping[str, Value], stored: Mapping[str, object]) -> Iterator[MemoryVersion]:
    for key, value in values.items():
        with suppress(BadRecordError):
            yield MemoryVersion.from_record(value, key, stored)


async def _unname(records: Records, name: str) -> None:
    puts = [records.put(*place, None) for place in records.places_of(name)]
    await records.items([*puts, runs.forget(records, name)])


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
    records: Records, *documents: str | Path | Source, preview: bool = False
) -> ForgottenSource:
    """Delete all that came from documents: versions, and what was cached.

    Versions of readings that had a document, also among others, are deleted with all that
    followed them. A named memory falls back to what it was before; `unread` of the result says
    which other documents to read into it again. A reading that is under way removes what it
    writes when it ends. When it was broken off, forget again: it continues where it was.

    Args:
        records: the bank.
        documents: their digests; or the documents, of which each joined part counts, as files
            or as sources.
        preview: whether to say only what would go.

    Raises:
        ConfigurationError: What is given is not a digest.
        MemoryConflictError: Somebody writes it again and again meanwhile.
        OSError: An entry of the user's cache cannot be removed.
    """
    digests: list[str] = []
    for document in documents:
        digests += [document] if isinstance(document, str) else await _open_digests(document)
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
    """Return the digests of the documents of this name that memories were made from."""
    found: set[str] = set()
    async for item in records.scan(records.versions):
        if not isinstance(item, BadRecordError):
            found.update(digest for digest, called in rows_of(item.value) if called == name)
    return sorted(found)


async def _open_digests(document: Path | Source) -> list[str]:
    """Return the digests of a document, opened if it is a file."""
    if isinstance(document, Path):
        from memagent_graph.text.files import open_source

        document = await to_thread(partial(open_source, document))
    return digests_in(document)


def _is_digest(digest: str) -> bool:
    return len(digest) == _DIGITS and not digest.strip("0123456789abcdef")


def _uncache(digests: Collection[str], *, preview: bool) -> int:
    from memagent_graph.text.index import forget_recent  # numpy is not needed for anything else

    if not preview:
        forget_recent(digests)
    return sum(forget_converted(digest, preview=preview) for digest in digests)


async def _copy(records: Records) -> tuple[Records, list[str]]:
    """A bank in which forgetting can be rehearsed, and the keys of what could not be copied."""
    copy, bad = Records(InMemoryStore(), records.namespace), list[str]()
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
    pointers = found.contents.pointers.items()
    targets = [(place, str((value or {}).get("version"))) for place, value in pointers]
    gone = {*found.gone}
    pointing = [(place, target) for place, target in targets if target in gone]
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
    for name in done.forgotten:  # unless the name exists again
        ids = await records.keys(records.members(name))
        given = dict.fromkeys(records.places_of(name))
        versions += (await owners.release(records, name, ids, given)).deleted
    return done.plus(ForgottenSource(versions=versions))


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
