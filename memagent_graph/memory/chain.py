"""The chain of versions in a store: find and append versions, move names, keep answers.

A version can belong to several memories, its owners, and is deleted with the last.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import astuple
from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, cast

from memagent_graph.errors import BadRecordError, MemoryNotFoundError, NewerRecordError
from memagent_graph.memory.items import owners_of
from memagent_graph.memory.store import MOST_LOST_RACES, NO_CONDITIONS, agrees, pause, race_error
from memagent_graph.memory.version import SCHEMA, History, MemoryVersion, walk
from memagent_graph.readers.base import Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.items import Place, Records, Stored
    from memagent_graph.memory.store import Given, Value

EDITS = "edits"
"""Field of a version's record: ids of the versions that replace it, by memory's name."""
_MEND = "`memagent memory check --repair` restores what is left of it."

NOTHING: Mapping[str, Value] = MappingProxyType({})
"""No records."""
_log = logging.getLogger(__name__)


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


def no_such_version(key: str) -> MemoryNotFoundError:
    """Return the error for a version that does not exist."""
    return MemoryNotFoundError(f"Version {key} is gone: it expired, or was deleted in the store.")


def pointer_to(version: str | None) -> Value | None:
    """Return the record of a name that points to a version; None for a name that does not exist."""
    return None if version is None else {"version": version}


async def append_version(
    records: Records, version: MemoryVersion, *, owner: str | None = None
) -> MemoryVersion:
    """Store a version unless its id exists, and return the stored one.

    A record that cannot be read is replaced.

    Args:
        records: the bank.
        version: the version.
        owner: the memory that it belongs to; `collect` deletes versions without an owner.
    """
    done = await append_versions(records, [version], owner)
    return version if done is None else done[version.id]


async def advance_head(
    records: Records,
    name: str,
    version: MemoryVersion,
    *,
    expected: str | None,
    also: Sequence[PutOp] = (),
    given: Given = NO_CONDITIONS,
) -> bool:
    """Store a version and point a name to it in one step, unless the name has moved.

    Args:
        records: the bank.
        name: the memory's name.
        version: its new head.
        expected: id of the current head; None if the name does not exist.
        also: further puts in the same step.
        given: further conditions; see `AtomicStore.acommit`.

    Returns:
        Whether it was done.
    """
    head = (records.heads, name)
    puts = [records.put(*head, {"version": version.id}), *also]
    conditions = {**given, head: pointer_to(expected)}
    done = await append_versions(records, [version], name, also=puts, given=conditions)
    if done is not None:
        records.note(name, version.id)
    return done is not None


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
    puts, given = [records.put(*head, {"version": to}), *also], {head: pointer_to(expected)}
    if not await records.commit(puts, {**given, place: ..., listed: ...}):
        now, value = await records.values([head, place])
        if not isinstance(value, dict):
            raise no_such_version(to)
        if now != pointer_to(expected):
            return now == {"version": to}  # another writer moved it to the same version
        if not await adopt(records, name, to, value, also=puts, given=given):
            return False
    records.note(name, to)
    return True


async def adopt(
    records: Records,
    owner: str,
    key: str,
    value: Stored,
    *,
    also: Sequence[PutOp] = (),
    given: Given = NO_CONDITIONS,
) -> bool:
    """Add a memory to the owners of a version with this record, and return whether it is there.

    Earlier versions need not be adopted: they are inherited when their owner releases them. See
    `append_versions` for what is done `also`, and what is `given`.
    """
    version, there = MemoryVersion.from_record(value, key), {(records.versions, key): ...}
    done = await append_versions(
        records, [version], owner, also=also, given={**given, **there}, found={key: value}
    )
    return done is not None


async def append_versions(
    records: Records,
    versions: Sequence[MemoryVersion],
    owner: str | None = None,
    *,
    also: Sequence[PutOp] = (),
    given: Given = NO_CONDITIONS,
    found: Mapping[str, Stored] = NOTHING,
) -> dict[str, MemoryVersion] | None:
    """Store versions in one step, each unless its id exists; a record that is damaged is replaced.

    Args:
        records: the bank's records.
        versions: the versions, each after those that it follows.
        owner: see `append_version`.
        also: further puts in the same step.
        given: further conditions; see `AtomicStore.acommit`.
        found: records of versions as they were seen; none is expected of the others.

    Returns:
        The versions now stored, by id: the given ones, or those of writers who were first. What
        follows one in the place of which another memory is stored is left out. None if other items
        are not as given.
    """
    ids = [version.id for version in versions]
    found = {key: found.get(key) for key in ids}
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        kept: dict[str, MemoryVersion] = {}
        replaced: set[str] = set()
        after: dict[str, Stored] = {}
        for version in versions:
            if not replaced.isdisjoint(version.parents):
                replaced.add(version.id)
                continue
            one, after[one.id] = _choose(version, owner, found[version.id])
            kept[one.id] = one
            if one.text != version.text:
                replaced.add(one.id)
        puts, seen = records.changes(found, after)
        puts += also
        if not puts or await records.commit(puts, {**given, **seen}):
            return kept
        stored = await records.values([*given], refresh=False)
        now = [{} if isinstance(one, BadRecordError) else one for one in stored]
        if not all(map(agrees, now, given.values())):
            return None
        found = dict(await records.by_id(ids))
    raise race_error("Version", ids[-1])


def _choose(
    version: MemoryVersion, owner: str | None, found: Stored
) -> tuple[MemoryVersion, Stored]:
    """Return the version that is to be stored, and its record, which may be there."""
    names = set() if owner is None else {owner}
    if found is None:
        return version, version.to_record(names)
    try:
        kept = MemoryVersion.from_record(found, version.id)
    except NewerRecordError as error:
        _log.warning("%s It was left as it is.", error)
        return version, found
    except BadRecordError as error:
        _log.info("%s It was replaced.", error)
        names |= {*owners_of(found)}
        return version, version.to_record(names)
    known = {*owners_of(found)}
    if names <= known or not isinstance(found, dict):
        return kept, found
    return kept, {**found, "owners": sorted(known | names)}


_ANSWER = "answer"
"""Field of a version's record with the answer that was written from it."""
_TRIES = 3
"""Times that an answer is stored upon a record which has changed meanwhile."""
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
    place: Place = (records.versions, version)
    value: Stored = seen
    for _ in range(_TRIES):
        schema = value.get("schema") if isinstance(value, dict) else None
        if isinstance(value, dict) and isinstance(schema, int) and schema <= SCHEMA:
            old = _answer(value) or KeptAnswer("", "", 0, Usage())
            at, cost = datetime.now(UTC).isoformat(), astuple(old.usage + usage)
            put = records.put(*place, {**value, _ANSWER: [answer, at, old.times + 1, *cost]})
            if await records.commit([put], {place: value}):
                return
        (value,) = await records.values([place], refresh=False)


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
