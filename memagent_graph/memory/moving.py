"""Export everything stored about a user as JSON lines, and import it."""

from __future__ import annotations

import json
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from memagent_graph.errors import BadRecordError, StoreError
from memagent_graph.memory import changes
from memagent_graph.memory.changes import Change

if TYPE_CHECKING:
    from collections.abc import Iterable

    from langgraph.store.base import PutOp

    from memagent_graph.memory.personal import PersonalMemory
    from memagent_graph.memory.records import Records


async def export(personal: PersonalMemory) -> list[str]:
    """Return all records of a user as lines: versions, thread marks, changes and kept messages.

    Records that cannot be read are skipped; `MemoryBank.check` names them.
    """
    records = personal.bank.records
    lines = await personal.bank.aexport()
    depth = len(records.namespace)
    elsewhere = {*_of_the_bank(records)}
    async for item in records.scan(records.namespace):
        if isinstance(item, BadRecordError) or _begins(tuple(item.namespace), elsewhere):
            continue
        row = {"place": [*item.namespace[depth:]], "key": item.key, "value": item.value}
        lines.append(json.dumps({"item": row}))
    return [json.dumps({"user": personal.user}), *lines] if lines else []


def is_of_users(lines: Iterable[str]) -> bool:
    """Whether lines are an export of users, not of a bank."""
    first = next(filter(str.strip, lines), "")
    return first.strip().startswith('{"user":')


def by_user(lines: Iterable[str]) -> dict[str, list[str]]:
    """Group the lines of several users by user id.

    Raises:
        StoreError: A line is not from `export`, or precedes the first user.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    user = ""
    for line in filter(str.strip, lines):
        record = _parsed(line)
        if isinstance(name := record.get("user"), str) and name:
            user = name
            found[user]
        elif user:
            found[user].append(line)
        else:
            message = (
                f"No user was named before this line: {line[:60]!r}. Import the whole file as "
                "exported."
            )
            raise StoreError(message)
    return dict(found)


async def import_lines(personal: PersonalMemory, lines: Iterable[str], *, by: str) -> None:
    """Store the lines of one user, without the line that names them.

    Existing records are kept.

    Raises:
        StoreError: A line is not from `export`.
    """
    records = personal.bank.records
    items, others = [], []
    for line in lines:
        record = _parsed(line)
        if "item" in record:
            items.append(_put(records, record["item"], line))
        else:
            others.append(line)
    await personal.bank.aimport(others)
    for put in items:
        await records.commit([put], {(put.namespace, put.key): None})
    change = Change(datetime.now(UTC).isoformat(), "imported", by)
    await records.items([changes.put(records, change)])


def _put(records: Records, row: object, line: str) -> PutOp:
    """The put of an item, which must be below the user's own namespace."""
    match row:
        case {"place": [_, *_] as labels, "key": str(key), "value": dict(value)}:
            sound = all(isinstance(label, str) and label and "." not in label for label in labels)
            namespace = (*records.namespace, *labels)
            if sound and not _begins(namespace, {*_of_the_bank(records)}):
                return records.put(namespace, key, value)
    raise _no_line(line)


def _of_the_bank(records: Records) -> list[tuple[str, ...]]:
    """Namespaces that the bank itself exports, or that are not exported."""
    lists = (records.versions, records.heads, records.readings, records.all_members)
    return [*lists, records.leases, records.forgotten]


def _begins(namespace: tuple[str, ...], places: set[tuple[str, ...]]) -> bool:
    return any(namespace[: len(place)] == place for place in places)


def _parsed(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise _no_line(line)
    return record


def _no_line(line: str) -> StoreError:
    message = (
        f"Not a line of an export of users: {line[:60]!r}. Import a file that "
        "`memagent memory export --user` wrote."
    )
    return StoreError(message)
