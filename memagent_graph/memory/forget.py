"""Forget memories and documents: names, versions, and what a store still has."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import BadRecordError, ConfigurationError, MemoryNotFoundError
from memagent_graph.memory.chain import LAST, move_head, number_of
from memagent_graph.memory.items import EDITS, Records, find_versions, owners_of, readable
from memagent_graph.memory.lease import find_readings
from memagent_graph.memory.maintenance import (
    BankContents,
    above,
    batches,
    children_first,
    delete_versions,
    take_contents,
)
from memagent_graph.memory.store import NOTHING, Tries
from memagent_graph.memory.version import MemoryVersion, read_version, walk
from memagent_graph.sync import to_thread
from memagent_graph.text.cache import forget_converted
from memagent_graph.text.source import digests_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from memagent_graph.memory.items import Place, Stored
    from memagent_graph.memory.lease import UnderWay
    from memagent_graph.memory.store import Value
    from memagent_graph.memory.version import History
    from memagent_graph.text.source import Source


class Forgotten(NamedTuple):
    """The result of `MemoryBank.forget`, or of its preview.

    Attributes:
        versions: number of deleted versions.
        shared: number of versions that stay because another memory has them, by its name.
    """

    versions: int
    shared: dict[str, int]


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
    for batch in batches([*others]):
        leave = {key: _without(values[key], owner, others[key]) for key in batch if key not in keep}
        kept = ((key, values[key]) for key in batch if key in keep)
        stay = {key: {**value, **keep[key]} for key, value in kept if isinstance(value, dict)}
        puts, seen = records.changes(values, {**leave, **stay})
        puts += [records.put(records.members(owner), key, None) for key in leave]
        if puts and not preview and not await records.commit(puts, {**given, **seen}):
            return Forgotten(deleted, dict(shared)), False
        deleted += sum(values[key] is not None and value is None for key, value in leave.items())
        shared.update(name for value in leave.values() for name in owners_of(value))
    return Forgotten(deleted, dict(shared)), True


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
    async for lost in Tries(f"Memory {name!r}"):
        pointers = await records.pointers(name)
        ids = await records.keys(records.members(name))
        if not ids and not any(pointers.values()):
            if lost:
                break
            message = f"There is no memory named {name!r}."
            raise MemoryNotFoundError(message)
        if not preview:
            places = [*pointers, *await records.places(records.runs_of(name))]
            await records.items([records.put(*place, None) for place in places])
        given = dict.fromkeys(pointers)
        gone, _ = await release(records, name, ids, given, preview=preview)
        if preview:
            return gone
        deleted, shared = deleted + gone.versions, shared + Counter(gone.shared)
    await _unlist(records, lambda fold: fold.memory == name)
    return Forgotten(deleted, dict(shared))


def _find_others(values: Mapping[str, Stored], owner: str) -> dict[str, set[str]]:
    """The other memories that have versions or, one of them, need them; the newest first."""
    versions = {key: read_version(value) for key, value in values.items()}
    found = {key: {*owners_of(values[key])} - {owner} for key in children_first(versions)}
    for key, names in found.items():
        version = versions[key]
        for before in version.parents if names and version else ():
            if before in found:
                found[before].add(min(names))
    return found


def _without(value: Stored, owner: str, names: set[str]) -> Value | None:
    """A version's record without a memory; None if no other has it."""
    if not names or not isinstance(value, dict):
        return None
    edits = {name: key for name, key in (value.get(EDITS) or {}).items() if name != owner}
    rest = {name: found for name, found in value.items() if name != EDITS}
    return {**rest, "owners": sorted(names), **({EDITS: edits} if edits else {})}


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
    stored = await find_versions(records, ids)
    known = {version.id: version for version in stored if isinstance(version, MemoryVersion)}
    heads = [found.get("version") for found in pointers.values() if isinstance(found, dict)]
    tip = known.get(str(heads[0])) if heads else None
    if tip is None:
        return 0
    kept: dict[str, Value] = {
        version.id: {} for version in _fresh(walk(tip, known, ()), replaced)[:keep]
    }
    if preview:
        return len(ids) - len(kept)
    gone = {*ids} - kept.keys()
    for key in kept if tip.thread is None else ():
        if not gone.isdisjoint(known[key].parents):
            lost = [one for one in above(known, [key]) if one in gone]
            rows = (row for one in lost for row in known[one].made_from)
            sources = dict.fromkeys((*known[key].sources, *rows))
            whole = replace(known[key], sources=tuple(sources))
            kept[key] = {**whole.to_record(), "thinned": True}
    done, _ = await release(records, name, ids, readable(pointers), kept)
    if tip.thread is None:  # no reading moves the memory of a user
        runs = records.runs_of(name)
        ended = [run async for run in records.scan(runs) if not isinstance(run, BadRecordError)]
        left = [run.key for run in ended if run.value.get("version") in gone]
        await records.items([records.put(runs, key, None) for key in left])
    return done.versions


def _fresh(history: History, replaced: datetime | None) -> list[MemoryVersion]:
    """The newest version, and those that were replaced after that time."""
    limit = "" if replaced is None else replaced.isoformat()
    newer = history[:-1]
    return history[:1] + [
        version for by, version in zip(newer, history[1:], strict=True) if by.created_at >= limit
    ]


async def clear(records: Records) -> int:
    """Delete everything below this namespace, and return the number of items."""
    count = 0
    while places := await records.places(records.namespace):
        await records.items([records.put(*place, None) for place in places])
        count += len(places)
    await records.forget_label()
    return count


_DIGEST = re.compile("[0-9a-f]{64}")


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


def find_gone(found: BankContents, digests: Collection[str]) -> tuple[set[str], list[str]]:
    """Return what is to be forgotten with documents.

    That are their digests and those of joined documents with one of them; and the ids of versions
    that are made from them, each before those that it follows.
    """
    sources = {*digests}
    for one in found.made.values():
        if any(digest in digests for digest, _ in one.own[1:]):
            sources.add(one.document.digest)
    gone = {
        key: one
        for key, one in found.made.items()
        if any(digest in sources for digest, _ in one.made_from)
    }
    return sources, children_first(gone)


def find_unsure(found: BankContents, gone: Collection[str]) -> list[str]:
    """Return the memories that stay though they may have read forgotten documents.

    Versions that led to them are lost, and were of joined documents, which they may not have named:
    one that a version follows is named again, by an empty name.
    """
    made = found.made
    unsure = {
        key
        for key in made.keys() - gone
        if (made[key].own[1:] or any(not name for _, name in made[key].sources))
        and not {*made[key].parents} <= made.keys()
        and not found.versions[key].get("thinned")
    }
    targets = found.targets.items()
    led = ((name, above(made, [key])) for name, key in targets if unsure and key in made)
    return sorted(name for name, versions in led if not unsure.isdisjoint(versions))


def fall_back(
    found: BankContents, sources: Collection[str], gone: Collection[str], name: str, key: str
) -> tuple[str | None, list[str]]:
    """Return what a memory falls back to from a version, and what is to be read into it again.

    That is the nearest of the versions before it that stay, or beyond a gap the memory's newest
    one; None without one. And the documents that were read since, the oldest first.
    """
    own = (one for at, one in found.made.items() if name in owners_of(found.versions[at]))
    history = walk(found.made[key], found.made, own)
    passed = [*takewhile(lambda one: one.id in gone, history)]
    before = history[len(passed)] if len(passed) < len(history) else None
    kept = {digest for digest, _ in before.made_from} if before else set()
    rows = [row for one in passed for row in one.sources if row[0] not in kept]
    rows += [row for one in passed for row in one.own][::-1]
    names = (name for digest, name in rows if name and digest not in sources)
    return before.id if before else None, [*dict.fromkeys(names)]


async def forget_source(
    records: Records, *documents: str | Path | Source, preview: bool = False
) -> ForgottenSource:
    """Delete all that came from documents: versions, and what was cached.

    Versions of readings that had a document, also among others, are deleted with all that
    followed them. A named memory falls back to what it was before; `unread` of the result says
    which other documents to read into it again. A reading of them that is under way stores nothing
    from then on. When it was broken off, forget again: it continues where it was.

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
    if wrong := [digest for digest in digests if not _DIGEST.fullmatch(digest)]:
        message = (
            f"{wrong[0]!r} is not a digest of a document: give the 64 hexadecimal digits of "
            "`Source.digest`, or the opened document."
        )
        raise ConfigurationError(message)
    if preview:
        records, bad = await _copy(records)
        done = await _forget(records, digests, rehearsed=True)
        return done._replace(unreadable=(*bad, *done.unreadable))
    return await _forget(records, digests)


async def _open_digests(document: Path | Source) -> list[str]:
    """Return the digests of a document, opened if it is a file."""
    if isinstance(document, Path):
        from memagent_graph.text.files import open_source

        document = await to_thread(partial(open_source, document))
    return digests_of(document)


def _uncache(digests: Collection[str], *, preview: bool) -> int:
    from memagent_graph.text import index  # numpy is not needed for anything else

    if not preview:
        index.recent.forget(digests)
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
    touched, versions, cached = {*digests}, 0, 0
    moved: dict[str, bool] = {}  # whether a name has an older version now
    unread: dict[tuple[str, str], None] = {}
    async for lost in Tries("What came from a document"):
        # Of joined documents, what is gone no longer says that they had it.
        await post_notice(records, sorted(touched))
        found = await take_contents(records)
        sources, gone = find_gone(found, touched)
        touched |= sources
        if lost == 0 or not rehearsed:  # a rehearsal would count again what it does not remove
            cached += await asyncio.to_thread(_uncache, touched, preview=rehearsed)
        if not gone:
            break
        for name, (before, documents) in (await _move_names(records, found, sources, gone)).items():
            moved[name] = moved.get(name, True) and before is not None
            unread |= dict.fromkeys((name, document) for document in documents)
        versions += await delete_versions(records, found.versions, found.pointers, gone)
        for name, fell_back in moved.items():
            if not fell_back:  # unless the name exists again
                ids = await records.keys(records.members(name))
                given = dict.fromkeys(records.places_of(name))
                done, _ = await release(records, name, ids, given)
                versions += done.versions
    await _unlist(records, lambda fold: fold.source in touched)
    return ForgottenSource(
        versions,
        tuple(name for name, fell_back in moved.items() if fell_back),
        tuple(name for name, fell_back in moved.items() if not fell_back),
        tuple(unread),
        cached,
        tuple(error.key for error in found.bad),
        tuple(find_unsure(found, gone)),
    )


async def _move_names(
    records: Records, found: BankContents, sources: Collection[str], ids: Collection[str]
) -> dict[str, tuple[str | None, Sequence[str]]]:
    """Move names off what goes, until another writer interferes.

    Return what each led to before, and what is to be read into it again; see `fall_back`.
    """
    done: dict[str, tuple[str | None, Sequence[str]]] = {}
    gone, pointers = {*ids}, found.pointers
    for place, seen in [*pointers.items()]:
        key, name = str((seen or {}).get("version")), place[1]
        if key not in gone:
            continue
        before, unread = None, list[str]()
        if place[0] == records.heads:
            before, unread = fall_back(found, sources, gone, name, key)
        # Which readings moved it is forgotten as well: each is to be read again.
        runs, moved = await records.places(records.runs_of(name)), False
        also = [records.put(*run, None) for run in runs]
        del pointers[place]
        if before is None:
            moved = await records.commit([records.put(*place, None), *also], {place: seen})
        else:
            pointers[place] = {"version": before}
            with suppress(MemoryNotFoundError):  # it is being deleted
                moved = await move_head(records, name, before, expected=key, also=also)
        if not moved:
            break
        done[name] = before, unread
    return done


async def _unlist(records: Records, goes: Callable[[UnderWay], bool]) -> None:
    """Delete the records of folds; those that continue make new ones."""
    listed = await find_readings(records)
    if puts := [records.put(*place, None) for place, fold in listed.items() if goes(fold)]:
        await records.items(puts)


async def post_notice(records: Records, digests: Sequence[str]) -> None:
    """Post that documents are forgotten, for readings that began before, under the next number."""
    last: Place = (records.forgotten, LAST)
    async for _ in Tries("The list of forgotten documents"):
        (found,) = await records.values([last])
        number = {"number": 1 + number_of(found)}
        puts = [records.put(records.forgotten, key, number) for key in (LAST, *digests)]
        if await records.commit(puts, {last: ... if isinstance(found, BadRecordError) else found}):
            return
