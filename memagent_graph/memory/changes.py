"""A log of changes to a person's memory: what, when and by whom, without the content.

Entries outlive the versions that they are about. When a person is forgotten, their entries are
deleted too. One entry stays, under a digest of the person's id: when they were forgotten, by whom.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, get_args

from memagent_graph.errors import BadRecordError
from memagent_graph.memory.records import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.records import Namespace, Records
    from memagent_graph.memory.version import MemoryVersion

What = Literal["folded", "edited", "imported", "forgotten"]

_MOST = 1_000
"""Entries kept per person; the oldest are deleted first."""
_OFTEN = 64
"""Mean number of changes between two checks of the number of entries."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a person's memory.

    Attributes:
        at: time, ISO 8601, UTC.
        what: the kind of change.
        by: who made it: "conversation" for a chatbot, otherwise as given by the caller.
        version: id of the new version; "" if there is none.
        thread: id of the thread whose messages were folded.
        messages: ids of those messages.
        model: name of the model that folded them.
    """

    at: str
    what: What
    by: str
    version: str = ""
    thread: str = ""
    messages: tuple[str, ...] = ()
    model: str = ""


def of_version(
    version: MemoryVersion,
    what: What,
    by: str,
    *,
    messages: Sequence[str] = (),
    model: str = "",
) -> Change:
    """Return the entry for a new version; for the arguments, see `Change`."""
    thread = (version.thread or "") if messages else ""
    return Change(version.created_at, what, by, version.id, thread, tuple(messages), model)


def put(records: Records, change: Change) -> PutOp:
    """Return the put of an entry, to be carried out in one step with its change."""
    value = {name: found for name, found in asdict(change).items() if found}
    return records.put(_place(records), f"{change.at} {change.version[:8]}", value)


async def listed(records: Records) -> list[Change]:
    """Return the entries of a person, newest first; unreadable ones are skipped."""
    found = [item async for item in records.scan(_place(records))]
    values = [(item.key, item.value) for item in found if not isinstance(item, BadRecordError)]
    return [change for _, value in sorted(values)[::-1] if (change := _change(value))]


async def trim(records: Records, change: Change) -> None:
    """Now and then, delete the oldest entries if there are too many."""
    if not change.version or int(change.version[:8], 16) % _OFTEN:
        return
    keys = sorted(await records.keys(_place(records)))
    gone = [records.put(_place(records), key, None) for key in keys[:-_MOST]]
    if gone:
        await records.items(gone)


async def note_forgotten(records: Records, namespace: Namespace, user: str, by: str) -> None:
    """Record that a person was forgotten, under a digest of their id.

    Args:
        records: records of any namespace in the store.
        namespace: namespace of the memories.
        user: id of the person.
        by: author of the change.
    """
    value = {"at": datetime.now(UTC).isoformat(), "what": "forgotten", "by": by}
    await records.items([records.put((*namespace, *_FORGOTTEN), label(user), value)])


async def forgotten(records: Records, namespace: Namespace, user: str) -> Change | None:
    """Return the entry that a person was forgotten; for the arguments, see `note_forgotten`."""
    (value,) = await records.values([((*namespace, *_FORGOTTEN), label(user))])
    return _change(value)


_FORGOTTEN = ("forgotten", "users")
_FIELDS = tuple(item.name for item in fields(Change))


def _place(records: Records) -> Namespace:
    return (*records.namespace, "changes")


def _change(value: object) -> Change | None:
    """The entry in a record; None if it has none."""
    if not isinstance(value, dict):
        return None
    found = {name: value[name] for name in _FIELDS if name in value}
    messages = found.pop("messages", ())
    texts = all(isinstance(text, str) for text in found.values())
    if not texts or "at" not in found or found.get("what") not in get_args(What):
        return None
    return Change(**{"by": "", **found}, messages=tuple(map(str, messages)))
