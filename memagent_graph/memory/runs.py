"""Readings that moved the head of a named memory: the repeat of one reads nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.memory.items import label

if TYPE_CHECKING:
    from collections.abc import Mapping

    from langgraph.store.base import PutOp

    from memagent_graph.memory.items import Place, Records

_MOST = 20
"""Most readings that a memory remembers, for want of their answers."""


class EndedRun(NamedTuple):
    """A reading whose version became the head of a named memory.

    Attributes:
        asked: digest of question, settings and document.
        version: id of the version.
        progress: fields of the fold's progress, to answer from it again.
        answered: whether it was answered; otherwise it may have been killed before.
    """

    asked: str
    version: str
    progress: Mapping[str, object]
    answered: bool = False


async def find(records: Records, name: str, asked: str) -> EndedRun | None:
    """Return the reading of what is asked that moved the head of a memory; None without one."""
    found = await _runs(records, name)
    return next((run for run in reversed(found) if run.asked == asked), None)


async def note(records: Records, name: str, run: EndedRun) -> PutOp:
    """Return the write that notes a reading; make it in one step with the move of the head."""
    waiting = [
        other
        for other in await _runs(records, name)
        if other.asked != run.asked and not other.answered
    ]
    return _put(records, name, [*waiting[1 - _MOST :], run])


async def mark_answered(records: Records, name: str, asked: str) -> None:
    """Note that a reading was answered."""
    runs = await _runs(records, name)
    if any(run.asked == asked and not run.answered for run in runs):
        after = [run._replace(answered=run.answered or run.asked == asked) for run in runs]
        await records.commit([_put(records, name, after)], {_place(records, name): _value(runs)})


def forget(records: Records, name: str) -> PutOp:
    """Return the write that forgets all readings of a memory."""
    return records.put(*_place(records, name), None)


async def _runs(records: Records, name: str) -> list[EndedRun]:
    """The readings, oldest first; none if their record cannot be read."""
    (value,) = await records.values([_place(records, name)])
    rows = value.get("runs") if isinstance(value, dict) else None
    try:
        return [EndedRun(*row) for row in rows or ()]
    except TypeError:
        return []


def _put(records: Records, name: str, runs: list[EndedRun]) -> PutOp:
    return records.put(*_place(records, name), _value(runs))


def _value(runs: list[EndedRun]) -> dict[str, object]:
    return {"runs": [[*run] for run in runs]}


def _place(records: Records, name: str) -> Place:
    return records.runs, label(name)
