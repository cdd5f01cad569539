"""What was done to a person's memory, when and by whom: a line for each change, without its words.

Lines outlive the versions that they are about, which retention deletes. When a person is
forgotten, their lines go too. What stays is one line, under a digest of the person's id, that
says when they were forgotten, and by whom.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, get_args

from memagent_graph.errors import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.records import Namespace, Records
    from memagent_graph.memory.version import MemoryVersion

What = Literal["folded", "edited", "imported", "forgotten"]

_MOST = 1_000
"""Lines of a person that stay; the oldest go first."""
_OFTEN = 64
"""Changes, on average, between two looks at how many lines there are."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a person's memory.

    Attributes:
        at: when, ISO 8601, UTC.
        what: was done.
        by: who did it: "conversation" for a chatbot, else what the caller said.
        version: id of the version that it made; empty if it made none.
        thread: whose messages were folded.
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
    """The line of a change that made a version; arguments as the attributes of `Change`."""
    thread = (version.thread or "") if messages else ""
    return Change(version.created_at, what, by, version.id, thread, tuple(messages), model)


def put(records: Records, change: Change) -> PutOp:
    """What writes a line, in one step with the change that it is about."""
    value = {name: found for name, found in asdict(change).items() if found}
    return records.put(_place(records), f"{change.at} {change.version[:8]}", value)


async def listed(records: Records) -> list[Change]:
    """The lines of a person, newest first; those that cannot be read are left out."""
    found = [item async for item in records.scan(_place(records))]
    values = [(item.key, item.value) for item in found if not isinstance(item, BadRecordError)]
    return [change for _, value in sorted(values)[::-1] if (change := _change(value))]


async def trim(records: Records, change: Change) -> None:
    """Now and then, delete the oldest lines where there are too many."""
    if not change.version or int(change.version[:8], 16) % _OFTEN:
        return
    keys = sorted(await records.keys(_place(records)))
    gone = [records.put(_place(records), key, None) for key in keys[:-_MOST]]
    if gone:
        await records.items(gone)


async def note_forgotten(records: Records, namespace: Namespace, user: str, by: str) -> None:
    """Write that a person was forgotten, where nothing but a digest says who that was.

    Args:
        records: of any namespace in the store.
        namespace: of the library there.
        user: who was forgotten.
        by: whom.
    """
    value = {"at": datetime.now(UTC).isoformat(), "what": "forgotten", "by": by}
    await records.items([records.put((*namespace, *_FORGOTTEN), _digest(user), value)])


async def forgotten(records: Records, namespace: Namespace, user: str) -> Change | None:
    """The line that a person was forgotten; arguments as of `note_forgotten`."""
    (value,) = await records.values([((*namespace, *_FORGOTTEN), _digest(user))])
    return _change(value)


_FORGOTTEN = ("forgotten", "users")
_FIELDS = tuple(item.name for item in fields(Change))


def _place(records: Records) -> Namespace:
    return (*records.namespace, "changes")


def _digest(user: str) -> str:
    return sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _change(value: object) -> Change | None:
    """The line of a record; None if it is none."""
    if not isinstance(value, dict):
        return None
    found = {name: value[name] for name in _FIELDS if name in value}
    messages = found.pop("messages", ())
    texts = all(isinstance(text, str) for text in found.values())
    if not texts or "at" not in found or found.get("what") not in get_args(What):
        return None
    return Change(**{"by": "", **found}, messages=tuple(map(str, messages)))
