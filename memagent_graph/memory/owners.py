"""Owners of versions: a version can belong to several memories, and is deleted with the last."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError, MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.version import follows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records

    Found = Value | BadRecordError | None

_AT_ONCE = 100
"""Versions changed in one step."""


class Released(NamedTuple):
    """The result of `release`.

    Attributes:
        deleted: number of versions deleted.
        shared: number of versions that stay, by the other memory that has them.
        roots: roots of all of them.
        done: whether it was completed.
    """

    deleted: int
    shared: Counter[str]
    roots: set[str]
    done: bool


async def adopt(records: Records, owner: str, key: str) -> None:
    """Add a memory to the owners of a version.

    Earlier versions need not be adopted: they are inherited when their owner releases them.

    Args:
        records: the bank's records.
        owner: the memory's name.
        key: the version's id; a missing version is ignored.

    Raises:
        MemoryConflictError: Other writers kept changing it.
    """
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        ((_, value),) = await records.by_id([key])
        if not isinstance(value, dict) or owner in owners_of(value):
            return
        puts = adoption_puts(records, owner, key, value)
        if await records.commit(puts, {(records.versions, key): value}):
            return
    raise _busy(owner)


async def move_head(
    records: Records, name: str, to: str, *, expected: str | None, also: Sequence[PutOp] = ()
) -> bool:
    """See `MemoryBank.amove_head`."""
    head, place = (records.heads, name), (records.versions, to)
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        (stored,) = await records.values([place])
        if not isinstance(stored, dict):
            raise no_such_version(to)
        puts = [records.put(*head, {"version": to}), *also]
        if name not in owners_of(stored):
            puts += adoption_puts(records, name, to, stored)
        if await records.commit(puts, {head: pointer_to(expected), place: stored}):
            records.note(name, to)
            return True
        (now,) = await records.values([head])
        if now != pointer_to(expected):
            return now == {"version": to}  # another writer moved it to the same version
    return False


def no_such_version(key: str) -> MemoryNotFoundError:
    """Return the error for a version that does not exist."""
    return MemoryNotFoundError(f"Version {key} is gone: it expired, or was deleted in the store.")


def pointer_to(version: str | None) -> Value | None:
    """Return the record of a name that points to a version; None for a name that does not exist."""
    return None if version is None else {"version": version}


def adoption_puts(records: Records, owner: str, key: str, value: Value) -> list[PutOp]:
    """Return the puts that add a memory to the owners of a version."""
    names = sorted({*owners_of(value), owner})
    return [
        records.put(records.versions, key, {**value, "owners": names}),
        records.put(records.members(owner), key, {}),
    ]


async def release(
    records: Records,
    owner: str,
    ids: Iterable[str],
    given: Mapping[Place, Value | None],
    keep: Container[str] = (),
    *,
    spare: bool = False,
    stays: Callable[[str, Value], Value] = lambda _, value: value,
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
        keep: ids of versions that the memory keeps.
        spare: whether it also keeps versions that no other memory has or needs.
        stays: returns the new record of a version that is kept.
        preview: whether only to return what would be done.
    """
    done, ids = Released(0, Counter(), set(), done=True), [*ids]
    waiting = {*ids}
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        values = dict(await records.by_id(ids))
        others = _find_others(values, owner)
        left = [key for key in others if key in waiting]
        while left:
            batch = left[:_AT_ONCE]
            leave = [key for key in batch if key not in keep and (others[key] or not spare)]
            after = {key: _without(values[key], owner, others[key]) for key in leave}
            for key in batch:
                if key in keep and isinstance(value := values[key], dict):
                    after[key] = stays(key, value)
            changed = {key: value for key, value in after.items() if value != values[key]}
            puts = [records.put(records.versions, key, value) for key, value in changed.items()]
            for key in leave:
                puts.append(records.put(records.members(owner), key, None))
                new = {*owners_of(after[key])} - {*owners_of(values[key])}
                puts += [records.put(records.members(name), key, {}) for name in new]
            seen: dict[Place, Value | None] = {}
            for key in changed:
                if not isinstance(value := values[key], BadRecordError):
                    seen[records.versions, key] = value
            if puts and not preview and not await records.commit(puts, {**given, **seen}):
                break
            done = _add(done, [(values[key], after[key]) for key in leave])
            waiting.difference_update(batch)
            left = left[_AT_ONCE:]
        else:
            return done
        if await records.values([*given]) != [*given.values()]:
            return done._replace(done=False)
    raise _busy(owner)


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


def _add(done: Released, changes: Iterable[tuple[Found, Value | None]]) -> Released:
    """Count what was deleted, and what stays for the sake of others."""
    deleted, shared, roots = done.deleted, Counter(done.shared), {*done.roots}
    for before, after in changes:
        deleted += before is not None and after is None
        shared.update(owners_of(after))
        if isinstance(before, dict):
            roots.add(str(before.get("root")))
    return Released(deleted, shared, roots, done=True)


def children_first(values: Mapping[str, object]) -> list[str]:
    """Return ids of versions, each before the one that it follows."""
    before = {
        key: [other for other in follows_of(value) if other in values and other != key]
        if isinstance(value, dict)
        else []
        for key, value in values.items()
    }
    return [*TopologicalSorter(before).static_order()][::-1]


def owners_of(value: object) -> list[str]:
    """Return the memories that a stored version belongs to; [] for an unreadable record."""
    owners = value.get("owners") if isinstance(value, dict) else None
    return [name for name in owners if isinstance(name, str)] if isinstance(owners, list) else []


def _busy(owner: str) -> MemoryConflictError:
    message = f"Versions of {owner!r} were changed {MOST_LOST_RACES} times meanwhile: try again."
    return MemoryConflictError(message)
