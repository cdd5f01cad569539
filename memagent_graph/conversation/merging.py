"""Parse a model's changes of a profile, and merge them field by field."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.conversation.entries import Entry, same
from memagent_graph.conversation.rendering import TOOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from memagent_graph.conversation.fields import Fields
    from memagent_graph.conversation.heard import Heard
    from memagent_graph.conversation.schema import Field

ADD, SET, REMOVE = "add", "set", "remove"
CONTRADICTED, STALE, MISFIT, HEARSAY = "contradicted", "stale", "misfit", "hearsay"


class Change(NamedTuple):
    """One change of a profile.

    Attributes:
        field: the path of the field.
        action: "set" a value, "add" an item to a list, or "remove" either.
        value: the value or item; None to remove the value.
        message: the number of the message that says so; 0 if none is given.
    """

    field: str
    action: str
    value: Any
    message: int = 0


def understand(
    reply: Mapping[str, Any], fields: Mapping[str, Field]
) -> tuple[list[Change], list[str]]:
    """Return the changes in a reply, and messages for the model about what cannot be parsed.

    A profile, or a part of one, is taken as its values.

    Args:
        reply: the JSON object in the reply.
        fields: fields of the profile, by path.
    """
    listed = reply.get("changes")
    if listed is None:
        listed = [*_parts(reply, fields, "")]
        if reply and not listed:
            return [], [f'It has no "changes", and none of the fields {", ".join(fields)}.']
    changes: list[Change] = []
    problems = []
    for item in listed if isinstance(listed, list) else [listed]:
        field = fields.get(str(item.get("field"))) if isinstance(item, dict) else None
        if field is None or ("value" not in item and item.get("action") != REMOVE):
            shown = json.dumps(item, ensure_ascii=False, default=str)[:200]
            problems.append(f"{shown} is not a change of one of the fields {', '.join(fields)}.")
        else:
            changes += _plain(field, item)
    return changes, problems


def _parts(
    reply: Mapping[str, Any], fields: Mapping[str, Field], prefix: str
) -> Iterator[dict[str, Any]]:
    for name, value in reply.items():
        path = prefix + name
        if path in fields:
            if value is not None:
                yield {"field": path, "action": ADD if fields[path].many else SET, "value": value}
        elif isinstance(value, dict):
            yield from _parts(value, fields, f"{path}.")


def _plain(field: Field, item: Mapping[str, Any]) -> Iterator[Change]:
    """One change an item: lists of items are taken apart, and a set list replaces the old one."""
    number, value = item.get("message"), item.get("value")
    action = str(item.get("action") or SET)
    message = number if isinstance(number, int) else 0
    if not field.many:
        gone = action == REMOVE or value is None
        yield Change(field.path, REMOVE if gone else SET, None if gone else value, message)
        return
    values = value if isinstance(value, list) and field.schema.get("type") != "array" else [value]
    if action == SET or (action == REMOVE and value is None):
        yield Change(field.path, REMOVE, None, message)
    for one in values:
        if one is not None:
            yield Change(field.path, REMOVE if action == REMOVE else ADD, one, message)


class Merged(NamedTuple):
    """A profile after a change.

    Attributes:
        entries: all of them.
        new: the one that was put in; None if there is none.
        notice: `CONTRADICTED` if another value gave way, `STALE` if a newer one stands.
    """

    entries: list[Entry]
    new: Entry | None = None
    notice: str = ""


def merge(entries: Sequence[Entry], change: Change, field: Field, day: str) -> Merged:
    """Change a profile; of two values of one thing, the one that was told later stays.

    Args:
        entries: entries of the profile.
        change: the change.
        field: field of the change.
        day: day on which it was said (ISO 8601).
    """
    mine = [entry for entry in entries if entry.field == change.field]
    about = [
        entry
        for entry in mine
        if not field.many or change.value is None or field.same(entry.value, change.value)
    ]
    if any(entry.day > day for entry in about):
        agrees = any(same(entry.value, change.value) for entry in about)
        return Merged([*entries], notice="" if agrees else STALE)
    others = [entry for entry in entries if not any(entry is one for one in about)]
    if change.action == REMOVE:
        return Merged(others)
    value = change.value
    for old in about:
        if isinstance(value, dict) and isinstance(old.value, dict) and field.many:
            value = {**old.value, **{k: v for k, v in value.items() if v is not None}}
    new = Entry(change.field, value, day)
    differs = any(_differs(entry.value, value) for entry in about)
    return Merged([*others, new], new, CONTRADICTED if differs else "")


def _differs(old: Any, new: Any) -> bool:
    """Whether a value says otherwise; an item of which more is known does not."""
    if isinstance(old, dict) and isinstance(new, dict):
        return any(v is not None and _differs(v, new.get(k)) for k, v in old.items())
    return not same(old, new)


@dataclass
class Made:
    """A profile after the changes of one reply.

    Attributes:
        entries: entries of the profile.
        problems: errors of the reply, for the model.
        understood: whether the reply has changes.
        notices: fields in which something gave way, by what it was.
        sources: the message that an entry is from, by the id of the object.
    """

    entries: list[Entry]
    problems: list[str]
    understood: bool = False
    notices: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    sources: dict[int, Heard] = field(default_factory=dict)


def make(
    plain: Mapping[str, Any], fields: Fields[Any], known: Sequence[Entry], said: Sequence[Heard]
) -> Made:
    """Apply the changes of a reply: all of them, or else each that fits.

    Args:
        plain: the JSON object in the reply.
        fields: fields of the profile.
        known: entries so far.
        said: the messages that it is about, by whose numbers it names them.
    """
    changes, problems = understand(plain, fields.by_path)
    for check in (False, True):
        made = Made([*known], [*problems], understood=bool(changes))
        if problems:
            made.notices[MISFIT].add("a field that it does not have")
        for change in changes:
            _change(made, change, fields, said, check=check)
        if not fields.complain(made.entries):
            break
    return made


def _change(
    made: Made, change: Change, fields: Fields[Any], said: Sequence[Heard], *, check: bool
) -> None:
    source = said[change.message - 1] if 0 < change.message <= len(said) else None
    if source is not None and source.speaker.startswith(TOOL):
        made.notices[HEARSAY].add(change.field)
        return
    day = source.day if source else max((one.day for one in said), default="")
    merged = merge(made.entries, change, fields.by_path[change.field], day)
    if check and (complaint := fields.complain(merged.entries)):
        made.problems.append(complaint)
        made.notices[MISFIT].add(change.field)
        return
    if merged.notice:
        made.notices[merged.notice].add(change.field)
    made.entries[:] = merged.entries
    if merged.new is not None and source is not None:
        made.sources[id(merged.new)] = source
