"""Owners of versions: a version can belong to several memories, and is deleted with the last."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import MemoryConflictError, MemoryNotFoundError
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.version import follows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.errors import BadRecordError
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records

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

    def plus(self, more: Released) -> Released:
        """Return the sum of both."""
        shared, roots = self.shared + more.shared, self.roots | more.roots
        return Released(self.deleted + more.deleted, shared, roots, more.done)


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
    first = dict(await records.by_id([*ids]))
    done = Released(0, Counter(), set(), done=True)
    heirs: dict[str, set[str]] = {}
    left = iter(children_first(first))
    while batch := [*islice(left, _AT_ONCE)]:
        for lost in range(MOST_LOST_RACES):
            await pause(lost)
            found = (
                [(key, first[key]) for key in batch] if lost == 0 else await records.by_id(batch)
            )
            step = _step(records, owner, found, heirs, keep, stays, spare=spare)
            if preview or not step.puts or await records.commit(step.puts, {**given, **step.given}):
                done = done.plus(step.released)
                heirs = step.heirs
                break
            if await records.values([*given]) != [*given.values()]:
                return done._replace(done=False)
        else:
            raise _busy(owner)
    return done


class _OwnerPuts(NamedTuple):
    """The puts and conditions of one step, and their effect."""

    puts: list[PutOp]
    given: Mapping[Place, Value]
    heirs: dict[str, set[str]]
    released: Released


def _step(
    records: Records,
    owner: str,
    found: Sequence[tuple[str, Value | BadRecordError | None]],
    before: Mapping[str, set[str]],
    keep: Container[str],
    stays: Callable[[str, Value], Value],
    *,
    spare: bool,
) -> _OwnerPuts:
    heirs = {key: {*names} for key, names in before.items()}
    puts, given = [], {}
    deleted, shared, roots = 0, Counter[str](), set[str]()
    for key, value in found:
        names = {*owners_of(value), *heirs.pop(key, ())} - {owner}
        if names and isinstance(value, dict):
            for earlier in follows_of(value):
                heirs.setdefault(earlier, set()).add(min(names))
        if key in keep and isinstance(value, dict) and (after := stays(key, value)) != value:
            given[records.versions, key] = value
            puts.append(records.put(records.versions, key, after))
        if key in keep or (spare and not names):
            continue
        puts.append(records.put(records.members(owner), key, None))
        if value is None:
            continue
        if isinstance(value, dict):
            given[records.versions, key] = value
            roots.add(str(value.get("root")))
        if names and isinstance(value, dict):
            shared.update(names)
            kept = {**value, "owners": sorted(names)}
            if isinstance(edits := value.get("edits"), dict) and owner in edits:
                kept["edits"] = {name: key for name, key in edits.items() if name != owner}
            puts.append(records.put(records.versions, key, kept))
            new = names - {*owners_of(value)}
            puts += [records.put(records.members(name), key, {}) for name in new]
        else:
            deleted += 1
            puts.append(records.put(records.versions, key, None))
    return _OwnerPuts(puts, given, heirs, Released(deleted, shared, roots, done=True))


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
