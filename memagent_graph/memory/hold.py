"""Holds: a user pauses the readings into a memory, and sees which are under way.

A hold is of a memory, not of a process: all readings into it pause. It is a record that its
holder renews, and lapses without: a reading takes it for lapsed when it has seen no change of it
for as long as it says. Clocks of two machines are compared only where minutes do not matter.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from langgraph.store.base import GetOp, Item, PutOp

from memagent_graph.errors import BadRecordError, ConfigurationError, MemoryConflictError
from memagent_graph.memory import lookup
from memagent_graph.memory.atomic import MOST_LOST_RACES, pause
from memagent_graph.memory.items import label
from memagent_graph.memory.lease import is_gone

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memagent_graph.memory.items import Place, Records


T = TypeVar("T")

HOLD_SECONDS = 30.0
"""Seconds without a renewal after which a hold lapses."""
SILENT = timedelta(minutes=15)
"""Time without a sign of life after which a reading on another machine counts as ended."""
_RESTLESS = "{!r} is held and let go again and again meanwhile: try again."
_MINUTE = 60.0
_LOOKED_UP = ("seen", "hold")
"""Fields of a fold that is under way that its record does not have."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Somebody wants those who read into a memory to pause.

    Attributes:
        memory: name of the memory, or the key of a reading without one.
        by: holder of the memory.
        since: time of the request, ISO 8601, UTC.
        seconds: time after which a hold lapses if it is not renewed.
        id: tells it from other holds.
        beat: number of renewals.
    """

    memory: str
    by: str
    since: str
    seconds: float = HOLD_SECONDS
    id: str = ""
    beat: int = 0


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One fold of a reading that is under way.

    Attributes:
        memory: name of the memory it writes, or the key of a reading without one.
        question: the question.
        source: digest of the document.
        source_name: name of the document.
        fold: tells folds of one reading apart, as in events: "1.2" is that of the second segment.
        round: number of the round, counted from 1.
        step: number of chunks read.
        position: number of code points read, out of `length`.
        length: length of the fold's span, in code points.
        version: id of its memory as it is now, edits included; None before the first chunk.
        since: time of its beginning, ISO 8601, UTC.
        holder: machine, process and a number of its own, as in leases.
        held: whether it waits until its memory is released.
        lease: key of its lease, which shows that it lives while it waits for its model; empty if it
            shares its work with no other reading.
        seen: last sign of life by the store's clock, ISO 8601, UTC.
        hold: the hold of its memory, whether it has paused yet or not; None if nobody holds it.
    """

    memory: str
    question: str
    source: str
    source_name: str
    fold: str
    round: int
    step: int
    position: int
    length: int
    version: str | None
    since: str
    holder: str
    held: bool = False
    lease: str = ""
    seen: str = ""
    hold: Hold | None = None

    @property
    def chunks(self) -> int:
        """Number of all chunks, estimated from those read so far; 0 before the first."""
        if not self.position:
            return self.step
        return self.step + ceil((self.length - self.position) * self.step / self.position)


def hold_place(records: Records, memory: str) -> Place:
    """Return the place of a memory's hold in the store."""
    return records.holds, memory


def hold_of(value: object) -> Hold | None:
    """The hold in a record; None if it is none."""
    hold = _make_record(Hold, value)
    return hold if hold and hold.seconds > 0 else None


async def hold(records: Records, memory: str, by: str, seconds: float) -> Hold:
    """See `MemoryBank.ahold`."""
    if not seconds > 0:
        message = f"A hold lasts for more than 0 seconds, not {seconds!r}."
        raise ConfigurationError(message)
    now = datetime.now(UTC).isoformat()
    mine = Hold(memory, by, now, float(seconds), uuid4().hex)
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        (found,) = await records.values([hold_place(records, memory)], refresh=False)
        if (other := hold_of(found)) is not None:
            message = (
                f"{memory!r} is held by {other.by} since {other.since}: wait until it is let go, "
                "or release it."
            )
            raise MemoryConflictError(message)
        if await _swap(records, mine, found if isinstance(found, dict) else None):
            return mine
        if isinstance(found, BadRecordError):  # it is nobody's: make room
            await records.items([records.put(*hold_place(records, memory), None)])
    raise MemoryConflictError(_RESTLESS.format(memory))


async def renew(records: Records, mine: Hold) -> Hold:
    """See `MemoryBank.arenew`."""
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        there = await get_hold(records, mine.memory)
        if there is None or there.id != mine.id:
            break
        after = replace(there, beat=there.beat + 1)
        if await _swap(records, after, asdict(there)):
            return after
    raise hold_lost(mine.memory)


async def release(records: Records, memory: str, mine: Hold | None = None) -> bool:
    """See `MemoryBank.arelease`."""
    for lost in range(MOST_LOST_RACES):
        await pause(lost)
        (found,) = await records.values([hold_place(records, memory)], refresh=False)
        there = hold_of(found)
        if there is None or (mine is not None and there.id != mine.id):
            return False
        if await release_hold(records, there):
            return True
    raise MemoryConflictError(_RESTLESS.format(memory))


async def release_hold(records: Records, there: Hold) -> bool:
    """Delete a hold if it is as it was seen; say whether it was."""
    place = hold_place(records, there.memory)
    return await records.commit([records.put(*place, None)], {place: asdict(there)})


async def get_hold(records: Records, memory: str) -> Hold | None:
    """See `MemoryBank.aheld`."""
    (found,) = await records.values([hold_place(records, memory)], refresh=False)
    return hold_of(found)


def hold_lost(memory: str) -> MemoryConflictError:
    """The error of somebody whose hold is gone."""
    message = f"{memory!r} is no longer held: it was released, or the hold lapsed. Hold it again."
    return MemoryConflictError(message)


async def _swap(records: Records, mine: Hold, expected: Mapping[str, object] | None) -> bool:
    place = hold_place(records, mine.memory)
    # Where the store knows times to live, what nobody renews does not stay.
    put = PutOp(*place, asdict(mine), ttl=mine.seconds / _MINUTE)
    return await records.commit([put], {place: expected})


def note_reading(records: Records, fold: UnderWay) -> PutOp:
    """Return the write that shows others the progress of a fold."""
    value = {name: found for name, found in asdict(fold).items() if name not in _LOOKED_UP}
    return records.put(records.under_way(fold.memory), _key(fold), value)


def forget_reading(records: Records, fold: UnderWay) -> PutOp:
    """Return the write that takes a fold off the list."""
    return records.put(records.under_way(fold.memory), _key(fold), None)


def is_held(value: object) -> bool:
    """Whether a listed fold waits until its memory is let go."""
    fold = _make_record(UnderWay, value)
    return fold is not None and fold.held


def is_silent(fold: UnderWay) -> bool:
    """Whether a listed fold that does not wait has shown no sign of life for too long."""
    return not fold.held and datetime.fromisoformat(fold.seen) < datetime.now(UTC) - SILENT


async def list_readings(records: Records, memory: str | None) -> list[UnderWay]:
    """See `MemoryBank.aunder_way`."""
    where = records.all_under_way if memory is None else records.under_way(memory)
    items = [item async for item in records.scan(where) if isinstance(item, Item)]
    found = [(item, fold) for item in items if (fold := _make_record(UnderWay, item.value))]
    alive = [(item, fold) for item, fold in found if not is_gone(fold.holder)]
    memories = sorted({fold.memory for _, fold in alive})
    places = [hold_place(records, name) for name in memories]
    values = await records.values(places, refresh=False)
    holds = dict(zip(memories, map(hold_of, values), strict=True))
    beats = await _last_beats(records, [fold.lease for _, fold in alive])
    listed = [
        replace(
            fold,
            seen=max(_time(item), beats.get(fold.lease, "")),
            hold=holds[fold.memory],
            version=await _newest(records, fold) if fold.held else fold.version,
        )
        for item, fold in alive
    ]
    return sorted(listed, key=lambda fold: (fold.since, fold.memory, fold.fold))


async def _newest(records: Records, fold: UnderWay) -> str | None:
    if fold.version is None:
        return None
    newest = await lookup.newest_edit(records, fold.version, fold.memory)
    return fold.version if newest is None else newest.id


async def _last_beats(records: Records, keys: list[str]) -> dict[str, str]:
    """Return the last signs of life of the holders of leases."""
    wanted = sorted({*keys} - {""})
    with suppress(BadRecordError):
        items = await records.items(
            [GetOp(records.leases, key, refresh_ttl=False) for key in wanted]
        )
        return {item.key: _time(item) for item in items if item is not None}
    return {}


def _time(item: Item) -> str:
    at = item.updated_at
    return (at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)).isoformat()


def _key(fold: UnderWay) -> str:
    """One key for all who share the work, of whom one is listed: a successor replaces the first."""
    alone = "" if fold.lease else fold.holder
    return f"{fold.fold or 1}-{label(f'{alone} {fold.source} {fold.question}')}"


_TYPES: dict[object, type | tuple[type, ...]] = {
    "str": str,
    "int": int,
    "bool": bool,
    "float": (int, float),
    "str | None": (str, type(None)),
}


def _make_record(kind: type[T], value: object) -> T | None:
    """The record of this kind that a value is; None if it is none."""
    if not isinstance(value, dict):
        return None
    known: dict[str, Any] = {}
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name in value and item.type in _TYPES:
            if not isinstance(value[item.name], _TYPES[item.type]):
                return None
            known[item.name] = value[item.name]
    with suppress(TypeError):  # one that it needs is not there
        return kind(**known)
    return None
