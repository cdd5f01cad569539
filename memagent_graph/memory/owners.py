"""Owners and sources of versions: the memories that have them, and the documents they came from.

A version can belong to several memories, and is deleted with the last. It names its document or, of
joined documents, those in its chunk; and the documents that the versions which it follows are made
from. If some of those were thinned out, it also names the joined documents in their chunks.
"""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, MemoryNotFoundError
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause, race_error
from memagent_graph.memory.items import UNKNOWN, owners_of
from memagent_graph.memory.version import follows_of, is_thinned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Given, Value
    from memagent_graph.memory.items import Place, Records

    Found = Value | BadRecordError | None

_NOTHING: Mapping[str, Value] = MappingProxyType({})
_AT_ONCE = 100
"""Versions changed in one step."""


class Released(NamedTuple):
    """The result of `release`: versions deleted, and those that stay, by the memory that has them.

    `done` says whether it was completed.
    """

    deleted: int
    shared: Counter[str]
    done: bool


async def adopt(records: Records, owner: str, key: str, value: Found = None) -> None:
    """Add a memory to the owners of a version, unless the version is gone.

    Earlier versions need not be adopted: they are inherited when their owner releases them. `value`
    is the version's record, if it is known.
    """
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        if lost or value is None:
            ((_, value),) = await records.by_id([key])
        if not isinstance(value, dict) or owner in owners_of(value):
            return
        names = sorted({*owners_of(value), owner})
        if await records.commit(*records.changes({key: value}, {key: {**value, "owners": names}})):
            return
    raise race_error("Versions of", owner)


async def move_head(
    records: Records, name: str, to: str, *, expected: str | None, also: Sequence[PutOp] = ()
) -> bool:
    """Point a name to another version, unless the name has moved.

    Args:
        records: the bank.
        name: the memory's name.
        to: id of its new head.
        expected: id of the current head; None if the name does not exist.
        also: further puts in the same step.

    Returns:
        Whether the name points to the version now.

    Raises:
        MemoryNotFoundError: There is no such version.
    """
    head, place, listed = (records.heads, name), (records.versions, to), (records.members(name), to)
    given: Given = {head: pointer_to(expected), place: ..., listed: ...}
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        if await records.commit([records.put(*head, {"version": to}), *also], given):
            records.note(name, to)
            return True
        now, stored = await records.values([head, place])
        if not isinstance(stored, dict):
            raise no_such_version(to)
        if now != pointer_to(expected):
            return now == {"version": to}  # another writer moved it to the same version
        await adopt(records, name, to, stored)
    return False


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
    keep: Mapping[str, Value] = _NOTHING,
    *,
    preview: bool = False,
) -> Released:
    """Remove versions from a memory, and delete those that no other memory has or needs.

    One other memory that has a version inherits all that led to it. So the newest versions are
    released first: a memory that adopts one meanwhile still finds all that led to it.

    Args:
        records: the bank's records.
        owner: the memory's name.
        ids: ids of its versions.
        given: items and their values; the release stops when they change.
        keep: ids of versions that the memory keeps, with what changes in their records.
        preview: whether only to return what would be done.
    """
    done, ids = Released(0, Counter(), done=True), [*ids]
    waiting = {*ids}
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        values = dict(await records.by_id(ids))
        others = _find_others(values, owner)
        left = [key for key in others if key in waiting]
        while left:
            batch = left[:_AT_ONCE]
            leave = [key for key in batch if key not in keep]
            after: dict[str, Found] = {}
            for key in batch:
                after[key] = value = values[key]
                if key not in keep:
                    after[key] = _without(value, owner, others[key])
                elif isinstance(value, dict):
                    after[key] = {**value, **keep[key]}
            puts, seen = records.changes(values, after)
            puts += [records.put(records.members(owner), key, None) for key in leave]
            if puts and not preview and not await records.commit(puts, {**given, **seen}):
                break
            done = _add(done, [(values[key], after[key]) for key in leave])
            waiting.difference_update(batch)
            left = left[_AT_ONCE:]
        else:
            return done
        if await records.values([*given]) != [*given.values()]:
            return done._replace(done=False)
    raise race_error("Versions of", owner)


def _find_others(values: Mapping[str, Found], owner: str) -> dict[str, set[str]]:
    """The other memories that have versions or, one of them, need them; the newest first."""
    found = {key: {*owners_of(values[key])} - {owner} for key in children_first(values)}
    for key, names in found.items():
        value = values[key]
        for before in follows_of(value) if names and isinstance(value, dict) else ():
            if before in found:
                found[before].add(min(names))
    return found


def _without(value: Found, owner: str, names: set[str]) -> Value | None:
    """A version's record without a memory; None if no other has it."""
    if not names or not isinstance(value, dict):
        return None
    edits = {name: key for name, key in (value.get("edits") or {}).items() if name != owner}
    rest = {name: found for name, found in value.items() if name != "edits"}
    return {**rest, "owners": sorted(names), **({"edits": edits} if edits else {})}


def _add(done: Released, changed: Iterable[tuple[Found, Found]]) -> Released:
    """Count what was deleted, and what stays for the sake of others."""
    deleted, shared = done.deleted, Counter(done.shared)
    for before, after in changed:
        deleted += before is not None and after is None
        shared.update(owners_of(after))
    return Released(deleted, shared, done=True)


def children_first(values: Mapping[str, object]) -> list[str]:
    """Return ids of versions, each before the one that it follows."""
    before = {
        key: [other for other in follows_of(value) if other in values and other != key]
        if isinstance(value, dict)
        else []
        for key, value in values.items()
    }
    return [*TopologicalSorter(before).static_order()][::-1]


Rows = list[list[str]]
"""Digests and names of documents."""


class BankContents(NamedTuple):
    """All memories of a bank: records by id and place (None if unreadable), and errors."""

    versions: dict[str, Value]
    pointers: dict[Place, Value | None]
    bad: list[BadRecordError]

    @property
    def targets(self) -> dict[str, str | None]:
        """The versions that names and readings lead to; None for one that cannot be read."""
        found = {name: (value or {}).get("version") for (_, name), value in self.pointers.items()}
        return {name: key if isinstance(key, str) else None for name, key in found.items()}


async def take_contents(records: Records) -> BankContents:
    """Read all memories of a bank."""
    found = BankContents({}, {}, [])
    async for item in records.scan(records.versions):
        if isinstance(item, BadRecordError):
            found.bad.append(item)
        else:
            found.versions[item.key] = item.value
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if not isinstance(item, BadRecordError):
                found.pointers[namespace, item.key] = item.value
                continue
            found.bad.append(item)
            if item.key != UNKNOWN:
                found.pointers[namespace, item.key] = None
    return found


async def delete_versions(records: Records, found: BankContents, ids: Sequence[str]) -> int:
    """Delete versions in this order, until one or its names changed; return their number."""
    values, pointers = found.versions, found.pointers
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


def above(values: Mapping[str, Value], keys: Iterable[str]) -> list[str]:
    """Return these versions and all that led to them and are there, nearest first."""
    left = [*dict.fromkeys(keys)]
    found = {*left}
    for key in left:
        new = [one for one in follows_of(values[key]) if one in values and one not in found]
        found.update(new)
        left += dict.fromkeys(new)
    return left


def rows_of(value: Value) -> Rows:
    """Return the documents that a version is made from, those that it follows first."""
    return _sound(value.get("sources")) + _own_rows(value)


def _own_rows(value: Value) -> Rows:
    own = [] if value.get("thread") else [[value.get("digest"), value.get("name")]]
    return _sound(own) + _sound(value.get("parts"))


def _sound(rows: object) -> Rows:
    if not isinstance(rows, list | tuple):
        return []
    pairs = [row for row in rows if isinstance(row, list | tuple) and len(row) == len(("", ""))]
    return [[str(digest), str(name)] for digest, name in pairs if digest]


class Inventory(NamedTuple):
    """The parts of a bank that came from some documents.

    Attributes:
        contents: all of the bank.
        sources: digests of the documents, and those of joined documents that contain one of them.
        gone: ids of the versions to delete, each before those that it follows.
        unsure: names of memories that stay though they may have read the documents: versions that
            led to them are lost, and were of joined documents.
    """

    contents: BankContents
    sources: set[str]
    gone: list[str]
    unsure: list[str]

    def fall_back(self, name: str, key: str) -> tuple[str | None, list[str]]:
        """Return what a memory falls back to from a version, and what is to be read into it again.

        That is the nearest of the versions before it that stay, or beyond a gap the memory's newest
        one; None without one. And the documents that were read since, the oldest first.
        """
        values, gone, left, has_gap = self.contents.versions, {*self.gone}, [key], False
        own, inherited = Rows(), Rows()
        for at in left:
            if at not in gone:
                break
            value = values[at]
            own += _own_rows(value)
            inherited += _sound(value.get("sources"))
            new = [one for one in follows_of(value) if one not in left]
            left += [one for one in new if one in values]
            has_gap |= not {*new} <= values.keys()
        else:
            stay = [one for one in values.keys() - gone if name in owners_of(values[one])]
            age = {one: str(values[one].get("created_at")) for one in stay if has_gap}
            at = max(age, key=age.__getitem__, default="")
        kept = {digest for digest, _ in rows_of(values[at])} if at else set()
        lost = [row for row in inherited if row[0] not in kept] + own[::-1]
        names = (name for digest, name in lost if name and digest not in self.sources)
        return at or None, [*dict.fromkeys(names)]


async def take_inventory(records: Records, digests: Sequence[str]) -> Inventory:
    """Read a bank, and find what came from the documents with these digests."""
    found = await take_contents(records)
    sources, values = {*digests}, found.versions
    for value in values.values():
        if any(digest in digests for digest, _ in _sound(value.get("parts"))):
            sources.add(str(value["digest"]))
    gone = {
        key: value
        for key, value in values.items()
        if any(digest in sources for digest, _ in rows_of(value))
    }
    unsure = {key for key in values.keys() - gone if _lacks_parts(values, values[key])}
    names = [
        name
        for name, key in found.targets.items()
        if unsure and key in values and not unsure.isdisjoint(above(values, [key]))
    ]
    return Inventory(found, sources, children_first(gone), sorted(names))


def _lacks_parts(values: Mapping[str, Value], value: Value) -> bool:
    """Whether lost versions may have read documents, among joined ones, that it does not name.

    A joined document that a version follows is named again, by an empty name.
    """
    joined = value.get("parts") or any(not name for _, name in rows_of(value))
    is_whole = {*follows_of(value)} <= values.keys()
    return bool(joined) and not is_whole and not is_thinned(value)
