"""Forget documents: delete the versions and statements that came from them, in a whole bank."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from langgraph.store.memory import InMemoryStore

from memagent_graph.errors import BadRecordError, ConfigurationError, MemoryConflictError
from memagent_graph.memory import notices, owners
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.inventory import take_inventory
from memagent_graph.memory.owners import children_first, owners_of
from memagent_graph.memory.provenance import READ, Lineage, listed, rows_of
from memagent_graph.memory.records import Records
from memagent_graph.memory.removal import forget_topic
from memagent_graph.memory.version import followed
from memagent_graph.text.index import forget_recent
from memagent_graph.text.user_cache import count_converted, forget_converted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.inventory import Inventory, Rewritten
    from memagent_graph.memory.records import Place

_AT_ONCE = 100
_DIGITS = 64
_AGAIN = "Memories of this document kept being written meanwhile: forget it again."


class ForgottenSource(NamedTuple):
    """The result of `MemoryBank.forget_source`, or its preview.

    Attributes:
        versions: number of versions deleted.
        statements: number of statements removed from memories that stay.
        rewritten: names of those memories.
        forgotten: names of memories that had nothing else, and keys of readings without a name.
        cached: number of entries removed from the user's cache.
        unreadable: keys of unreadable items, which stay and may have content of the documents.
    """

    versions: int = 0
    statements: int = 0
    rewritten: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    cached: int = 0
    unreadable: tuple[str, ...] = ()

    def plus(self, more: ForgottenSource) -> ForgottenSource:
        """Return the sum of both."""
        return ForgottenSource(
            self.versions + more.versions,
            self.statements + more.statements,
            self.rewritten + more.rewritten,
            self.forgotten + more.forgotten,
            self.cached + more.cached,
            self.unreadable + more.unreadable,
        )


async def forget(
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
            rows = rows_of(item.value) + listed(item.value)
            found.update(digest for digest, called in rows if called == name)
    return sorted(found)


async def remove_strays(records: Records, ids: Sequence[str]) -> int:
    """Delete versions that follow something forgotten meanwhile, and return their number.

    Args:
        records: the bank's records.
        ids: ids of the versions that a reading wrote.

    Raises:
        MemoryConflictError: Other writers kept changing their memories.
    """
    count = 0
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        values, pointers, gone = await _strays(records, ids)
        deleted = await _delete(records, values, pointers, gone)
        count += deleted
        if deleted == len(gone):
            return count
    raise MemoryConflictError(_AGAIN)


async def _strays(
    records: Records, ids: Sequence[str]
) -> tuple[dict[str, Value], dict[Place, Value], list[str]]:
    """Versions, the pointers of their names, and the ids of those to delete."""
    values = await _there(records, ids)
    above = {before for value in values.values() for before in followed(value)}
    lineage = Lineage(values | await _there(records, sorted(above - {*values})))
    strays = {key for key in values if not lineage.is_known(key)}
    for key in reversed(children_first(values)):
        if not strays.isdisjoint(lineage.before(key)):
            strays.add(key)
    names = sorted({name for key in strays for name in owners_of(values[key])})
    places = [(place, name) for name in names for place in (records.heads, records.readings)]
    found = zip(places, await records.values(places), strict=True)
    pointers = {place: value for place, value in found if isinstance(value, dict)}
    targets = [str(pointer.get("version")) for pointer in pointers.values()]
    kept = lineage.above(target for target in targets if target in lineage.values)
    return values, pointers, children_first({key: values[key] for key in strays - {*kept}})


def _is_digest(digest: str) -> bool:
    return len(digest) == _DIGITS and not digest.strip("0123456789abcdef")


def _uncache(digests: Collection[str], *, preview: bool) -> int:
    if preview:
        return sum(map(count_converted, digests))
    forget_recent(digests)
    return sum(map(forget_converted, digests))


async def _copy(records: Records) -> tuple[Records, list[str]]:
    """A bank in which forgetting can be rehearsed, and the keys of what could not be copied."""
    copy, bad = Records(InMemoryStore(), records.namespace, None, None), list[str]()
    for place in (records.versions, records.heads, records.readings, records.all_members):
        puts = []
        async for item in records.scan(place):
            if not isinstance(item, BadRecordError):
                puts.append(copy.put(tuple(item.namespace), item.key, item.value))
            elif place == records.versions:
                bad.append(item.key)
        await copy.items(puts)
    return copy, bad


async def _forget(
    records: Records, digests: Sequence[str], *, rehearsed: bool = False
) -> ForgottenSource:
    done = ForgottenSource()
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        await notices.post(records, digests)
        found = await take_inventory(records, digests)
        touched = {*digests, *found.sources}
        if lost == 0 or not rehearsed:  # a rehearsal would count again what it does not remove
            cached = await asyncio.to_thread(_uncache, touched, preview=rehearsed)
            done = done.plus(ForgottenSource(cached=cached))
        done = done._replace(unreadable=tuple(found.unreadable))
        if not found.gone:
            await _forget_leases(records, touched)
            await _forget_under_way(records, touched)
            return done
        done = done.plus(await _remove(records, found))
    raise MemoryConflictError(_AGAIN)


async def _remove(records: Records, found: Inventory) -> ForgottenSource:
    """Delete what was found, until another writer interferes."""
    done = ForgottenSource()
    pointing = _pointing(found)
    topics = {name for (_, name), _ in pointing}
    topics |= {str(found.values[key].get("root")) for key in found.gone}
    for topic in topics:
        await forget_topic(records, topic)
    for place, target in pointing:
        rewritten = found.rewrite(target) if place[0] == records.heads else None
        if not await _repoint(records, found, place, rewritten):
            return done
        done = done.plus(_of_name(place[1], rewritten))
    versions = await _delete(records, found.values, found.pointers, found.gone)
    for name in done.forgotten:
        versions += await _release(records, name)
    return done.plus(ForgottenSource(versions=versions))


def _pointing(found: Inventory) -> list[tuple[Place, str]]:
    """Heads and readings that point to versions from the documents, with those versions."""
    gone = {*found.gone}
    targets = [(place, str(value.get("version"))) for place, value in found.pointers.items()]
    return [(place, target) for place, target in targets if target in gone]


def _of_name(name: str, rewritten: Rewritten | None) -> ForgottenSource:
    if rewritten is None:
        return ForgottenSource(forgotten=(name,))
    return ForgottenSource(statements=rewritten.statements, rewritten=(name,))


async def _repoint(
    records: Records, found: Inventory, place: Place, rewritten: Rewritten | None
) -> bool:
    """Point a name to what is left of its memory, or delete it; False if it was moved."""
    given: dict[Place, Value | None] = {place: found.pointers[place]}
    if rewritten is None:
        del found.pointers[place]
        return await records.commit([records.put(*place, None)], given)
    name, after = place[1], rewritten.version
    at = (records.versions, after.id)
    (stored,) = await records.values([at])
    given[at] = stored if isinstance(stored, dict) else None
    value = {**after.to_record(), "owners": sorted({name, *owners_of(stored)})}
    if rewritten.read is not None:
        value[READ] = rewritten.read
    pointer: Value = {"version": after.id}
    puts = [
        records.put(*at, value),
        records.put(records.members(name), after.id, {}),
        records.put(*place, pointer),
    ]
    found.pointers[place] = pointer
    return await records.commit(puts, given, topic=name)


async def _release(records: Records, name: str) -> int:
    """Delete the other versions of a memory, unless the name exists again; return their number."""
    places = [(records.heads, name), (records.readings, name)]
    ids = await records.keys(records.members(name))
    return (await owners.release(records, name, ids, dict.fromkeys(places))).deleted


async def _delete(
    records: Records,
    values: Mapping[str, Value],
    pointers: Mapping[Place, Value],
    ids: Sequence[str],
) -> int:
    """Delete versions in this order while nothing else changes them; return their number."""
    for start in range(0, len(ids), _AT_ONCE):
        puts: list[PutOp] = []
        given: dict[Place, Value | None] = {}
        for key in ids[start : start + _AT_ONCE]:
            puts.append(records.put(records.versions, key, None))
            given[records.versions, key] = values[key]
            for owner in owners_of(values[key]):
                puts.append(records.put(records.members(owner), key, None))
                for namespace in (records.heads, records.readings):
                    given[namespace, owner] = pointers.get((namespace, owner))
        if not await records.commit(puts, given):
            return start
    return len(ids)


async def _forget_leases(records: Records, digests: Iterable[str]) -> None:
    """Delete the leases of the documents; their holders take them again."""
    endings = tuple(f"-{digest}" for digest in digests)
    held = [key for key in await records.keys(records.leases) if key.endswith(endings)]
    if held:
        await records.items([records.put(records.leases, key, None) for key in held])


async def _forget_under_way(records: Records, digests: Collection[str]) -> None:
    """Remove readings of the documents from the list; those that continue enter it again."""
    listed = [item async for item in records.scan(records.all_under_way)]
    found = [item for item in listed if not isinstance(item, BadRecordError)]
    puts = [
        records.put(tuple(item.namespace), item.key, None)
        for item in found
        if item.value.get("source") in digests
    ]
    if puts:
        await records.items(puts)


async def _there(records: Records, ids: Sequence[str]) -> dict[str, Value]:
    found = await records.by_id(ids)
    return {key: value for key, value in found if isinstance(value, dict)}
