"""Readings that ended: their answers, and those that moved the head of a named memory.

The repeat of one that moved a head reads nothing twice.
"""

from __future__ import annotations

from dataclasses import astuple
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.memory.items import label
from memagent_graph.memory.version import SCHEMA
from memagent_graph.readers.base import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memagent_graph.errors import BadRecordError
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.version import MemoryVersion

_MOST = 20
"""Most readings that a memory remembers."""
_ANSWER = "answer"
"""Field of a version's record with the answer that was written from it."""
_EDITS = 3
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


class EndedRun(NamedTuple):
    """A reading whose version became the head of a named memory.

    Attributes:
        asked: digest of question, settings and document.
        version: id of the version.
        progress: fields of the fold's progress, to answer from it again.
    """

    asked: str
    version: str
    progress: Mapping[str, object]


def place_of_runs(records: Records, name: str) -> Place:
    """Return the place of the record of a memory's readings."""
    return records.runs, label(name)


def find_run(value: object, asked: str) -> EndedRun | None:
    """Return the reading of what is asked from the record of a memory; None without one."""
    return next((run for run in reversed(_runs(value)) if run.asked == asked), None)


def add_run(value: object, run: EndedRun) -> Value:
    """Return the record with a reading, to be written in one step with the move of the head."""
    others = [other for other in _runs(value) if other.asked != run.asked]
    return {"runs": [[*one] for one in (*others[1 - _MOST :], run)]}


async def has_answer(records: Records, run: EndedRun) -> bool:
    """Whether an answer was written from a reading's version; else it may have been killed."""
    ((_, value),) = await records.by_id([run.version])
    return isinstance(value, dict) and _answer(value) is not None


async def keep_answer(
    records: Records, version: str, answer: str, usage: Usage, seen: Value | None = None
) -> None:
    """Store an answer with the version that it was written from, and add up what they cost.

    Nothing is stored if the version is gone, or a newer release wrote it. Its record as it was
    `seen` last saves a round trip if it still is.
    """
    place = (records.versions, version)
    if seen is not None and await _add(records, place, seen, answer, usage):
        return
    (value,) = await records.values([place], refresh=False)
    await _add(records, place, value, answer, usage)


async def _add(
    records: Records, place: Place, value: Value | BadRecordError | None, answer: str, usage: Usage
) -> bool:
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(schema, int) or schema > SCHEMA:
        return False
    new = KeptAnswer(answer, datetime.now(UTC).isoformat(), 1, usage)
    if (old := _answer(value)) is not None:
        new = new._replace(times=old.times + new.times, usage=old.usage + new.usage)
    row = [*new[:-1], *astuple(new.usage)]
    return await records.commit([records.put(*place, {**value, _ANSWER: row})], {place: value})


async def answers_of(records: Records, versions: Sequence[MemoryVersion]) -> dict[str, KeptAnswer]:
    """Return the answers kept with versions, by id; an edit has that of the version it edits."""
    found: dict[str, KeptAnswer] = {}
    wanted = {version.id: version.id for version in versions}
    for _ in range(_EDITS + 1):
        places = [(records.versions, key) for key in wanted.values()]
        values = await records.values(places, refresh=False)
        before: dict[str, str] = {}
        for asked, value in zip(wanted, values, strict=True):
            if not isinstance(value, dict):
                continue
            if (kept := _answer(value)) is not None:
                found[asked] = kept
            elif value.get("made_by") == "edit":
                before[asked] = str(value.get("parent"))
        if not (wanted := before):
            break
    return found


def _runs(value: object) -> list[EndedRun]:
    """The readings, oldest first; none if their record cannot be read."""
    rows = value.get("runs") if isinstance(value, dict) else None
    try:
        return [EndedRun(*row) for row in rows or ()]
    except TypeError:
        return []


def _answer(value: Mapping[str, Any]) -> KeptAnswer | None:
    """The answer in a version's record; None without one."""
    match value.get(_ANSWER):
        case [text, at, times, calls, read, written, seconds]:
            return KeptAnswer(text, at, times, Usage(calls, read, written, seconds))
    return None
