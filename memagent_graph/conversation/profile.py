"""A profile of a user: its fields, its entries, and who said them when."""

from __future__ import annotations

import json
import logging
import math
import re
from bisect import bisect
from collections import Counter
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from pydantic import BaseModel, PydanticUserError, ValidationError
from typing_extensions import TypeVar

from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.statements import instant, is_none, is_not_said
from memagent_graph.memory.version import LineSource
from memagent_graph.templates import plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memagent_graph.conversation.messages import Line
    from memagent_graph.evidence.places import Evidence
    from memagent_graph.memory.version import MemoryVersion

EMPTY = "(nothing)"
"""The text of a profile from which everything was taken: a memory is never an empty text."""

_LINE = re.compile(r"(?:(?P<day>\d{4}-\d\d-\d\d) )?(?P<field>[^:\s][^:]*): (?P<value>.+)")
_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x7f\x85\u2028\u2029"})
"""Characters that JSON does not escape and some programs take for the end of a line."""


class FieldValue(NamedTuple):
    """A value of a field, or one item of a field that is a list.

    Attributes:
        field: its path, as "diet" or "address.city".
        value: the value, as in JSON.
        day: day on which it was said (ISO 8601); empty if unknown.
    """

    field: str
    value: Any
    day: str = ""

    @property
    def line(self) -> str:
        """The line of the memory: `2026-03-05 diet: "vegan"`."""
        value = json.dumps(self.value, ensure_ascii=False).translate(_ENDS)
        return f"{self.day} {self.field}: {value}".lstrip()

    @property
    def shown(self) -> str:
        """The line for a model: `2026-03-05: diet: vegan`."""
        name = self.field.replace("_", " ").replace(".", " ")
        return f"{self.day}: {name}: {_plain(self.value)}".removeprefix(": ")


def read_entries(text: str) -> tuple[list[FieldValue], list[str]]:
    """The entries of a memory, and the lines that are none: of notes without a shape, say."""
    entries, others = [], []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        try:
            value = json.loads(match["value"]) if match else None
        except ValueError:
            match = None
        if match:
            entries.append(FieldValue(match["field"], value, match["day"] or ""))
        elif line.strip() and line.strip() != EMPTY:
            others.append(line.strip())
    return entries, others


def write_entries(entries: Iterable[FieldValue], others: Iterable[str] = ()) -> str:
    """The memory of some entries; lines that are none come first."""
    return "\n".join([*others, *(entry.line for entry in entries)]) or EMPTY


def is_same_value(one: Any, other: Any) -> bool:
    """Whether two values say the same: upper case and space make no difference."""
    return bool(_fold_case(one) == _fold_case(other))


def _fold_case(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, list):
        return [_fold_case(item) for item in value]
    if isinstance(value, dict):
        return {key: _fold_case(item) for key, item in value.items()}
    return value


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        known: Mapping[str, Any] = {k: v for k, v in value.items() if v not in (None, [], {})}
        return ", ".join(f"{key.replace('_', ' ')} {_plain(item)}" for key, item in known.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(str(value).split())


Json = Any
"""A JSON value."""


@dataclass(frozen=True)
class Field:
    """One field of a profile that is merged by itself.

    Attributes:
        path: its name; of a field within another, the names joined by periods.
        schema: JSON Schema of a value, or of an item.
        key: names of the values that an item must have: two items that agree in them are one.
        many: whether it is a list, of which each item is an entry of its own.
        ordered: whether its items stay in their order: those of a set do not.
        choices: the values that there are; none if any is allowed.
        default: its value while nothing is known.
    """

    path: str
    schema: Mapping[str, Json]
    key: tuple[str, ...] = ()
    many: bool = False
    ordered: bool = True
    choices: tuple[Json, ...] = ()
    default: Json = None

    def lacks(self, value: Json) -> bool:
        """Whether a value says nothing: it is empty, or stands in place of an unknown one."""
        if isinstance(value, dict):
            value = [*value.values()]
        if isinstance(value, list):
            return all(map(self.lacks, value))
        if not isinstance(value, str):
            return value is None
        return is_not_said(value) or (value not in self.choices and is_none(value))

    def is_filler(self, value: Json) -> bool:
        """Whether models that reply with a whole profile write a value for want of another."""
        is_default = value == self.default and not isinstance(value, dict | list)
        return is_default and (not value or replace(self, choices=()).lacks(value))

    def same(self, one: Json, other: Json) -> bool:
        """Whether two items of the list are about the same thing."""
        if self.key and isinstance(one, dict) and isinstance(other, dict):
            one, other = ([item.get(name) for name in self.key] for item in (one, other))
        return is_same_value(one, other)


def fields_of(schema: Mapping[str, Json]) -> Iterator[Field]:
    """The fields that a profile of this JSON Schema is merged by."""
    types = schema.get("$defs", {})
    found, refs = _resolve(schema, types)
    yield from _walk(found, types, "", tuple(refs))


def schema_of_changes(fields: Sequence[Field], types: Mapping[str, Json]) -> dict[str, Json]:
    """Return the JSON Schema of a reply with changes: fields, actions, values, message numbers.

    Args:
        fields: fields of the profile.
        types: schemas that theirs refer to, by name.
    """
    alike: dict[str, list[Field]] = {}
    for field in fields:
        alike.setdefault(json.dumps([field.many, field.schema]), []).append(field)
    schema = {
        "type": "object",
        "properties": {
            "changes": {"type": "array", "items": {"anyOf": [*map(_change, alike.values())]}}
        },
        "required": ["changes"],
        "additionalProperties": False,
    }
    bare: dict[str, Json] = _bare({**schema, **({"$defs": types} if types else {})})
    return bare


def _walk(
    node: Mapping[str, Json], types: Mapping[str, Json], prefix: str, above: tuple[str, ...]
) -> Iterator[Field]:
    for name, given in node.get("properties", {}).items():
        path, (found, refs) = prefix + name, _resolve(given, types)
        if "properties" in found and not found.get("required") and not set(refs) & {*above}:
            yield from _walk(found, types, f"{path}.", (*above, *refs))
        elif found.get("type") == "array" and isinstance(found.get("items"), dict):
            item, _ = _resolve(found["items"], types)
            key, choices = tuple(item.get("required", ())), tuple(item.get("enum", ()))
            ordered = not found.get("uniqueItems")
            yield Field(path, found["items"], key, many=True, ordered=ordered, choices=choices)
        else:
            choices = tuple(found.get("enum", ()))
            yield Field(path, _of_value(given), choices=choices, default=given.get("default"))


def _resolve(
    node: Mapping[str, Json], types: Mapping[str, Json]
) -> tuple[Mapping[str, Json], list[str]]:
    """Follow the references of a schema's node, ignoring null; return target and names."""
    refs = []
    while True:
        options = [one for one in node.get("anyOf", ()) if one.get("type") != "null"]
        if len(options) == 1:
            node = options[0]
        elif "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            refs.append(name)
            node = types[name]
        else:
            return node, refs


def _change(fields: list[Field]) -> dict[str, Json]:
    """JSON Schema of a change of one of several fields whose values are alike."""
    many, value = fields[0].many, fields[0].schema
    properties = {
        "field": {"type": "string", "enum": [field.path for field in fields]},
        "action": {"type": "string", "enum": ["add" if many else "set", "remove"]},
        "value": value if many else {"anyOf": [value, {"type": "null"}]},
        "message": {"type": "integer"},
    }
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def _of_value(node: Mapping[str, Json]) -> dict[str, Json]:
    """Return the schema of a given value: without the default and without null."""
    options = [one for one in node.get("anyOf", ()) if one.get("type") != "null"]
    rest = {key: value for key, value in node.items() if key != "default"}
    if len(options) == 1:
        del rest["anyOf"]
        return {**options[0], **rest}
    return rest


def _bare(node: Json) -> Json:
    """A schema without the titles that pydantic makes of names."""
    if isinstance(node, list):
        return [_bare(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _bare(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str))
    }


Profile = TypeVar("Profile", bound=BaseModel)

_log = logging.getLogger(__name__)


class Fitted(NamedTuple, Generic[Profile]):
    """A profile, and the entries that it was made from.

    Attributes:
        profile: the instance.
        entries: entries of the profile, each value as the schema writes it.
        misfits: entries for which the schema has no field, or a field of another type.
    """

    profile: Profile
    entries: list[FieldValue]
    misfits: list[FieldValue]


class Fields(Generic[Profile]):
    """The fields that a pydantic model asks to be known of a person.

    Args:
        schema: the model. Nothing is known of a person at first, so each of its fields has a
            default.

    Attributes:
        by_path: each field. A model within the model is merged field by field if all of its fields
            have defaults, and is one value otherwise.
        changes: the JSON Schema of a reply with changes: fields, actions, values, numbers of
            messages.

    Raises:
        ConfigurationError: It is not a pydantic model, a field has no default, or JSON cannot say
            what it holds.
    """

    def __init__(self, schema: type[Profile]) -> None:
        if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
            message = f"schema must be a pydantic model, not {schema!r}."
            raise ConfigurationError(message)
        self.schema = schema
        self._warned = False
        name = schema.__name__
        try:
            schema()
            found = schema.model_json_schema()
        except ValidationError as error:
            fields = ", ".join(str(found["loc"][0]) for found in error.errors() if found["loc"])
            message = (
                f"Nothing is known about a person at first, but {name} cannot be empty: give a "
                f"default to {fields or 'what its validators ask for'}, such as None."
            )
            raise ConfigurationError(message) from error
        except PydanticUserError as error:
            message = f"{name} cannot be a profile, because JSON cannot express its fields: {error}"
            raise ConfigurationError(message) from error
        self.by_path = {field.path: field for field in fields_of(found)}
        self.changes = schema_of_changes([*self.by_path.values()], found.get("$defs", {}))
        if not self.by_path:
            message = f"{name} has no fields: add some for what to remember about a person."
            raise ConfigurationError(message)

    def fit(self, entries: Sequence[FieldValue]) -> Fitted[Profile]:
        """The profile that some entries make, without those that do not fit.

        Where they do not fit together, the earlier ones stay.
        """
        known = [entry for entry in entries if entry.field in self.by_path]
        profile = self._build(known)
        if profile is None:
            kept: list[FieldValue] = []
            for entry in known:
                if self._build([*kept, entry]) is not None:
                    kept.append(entry)
            known, profile = kept, self._build(kept)
        if profile is None:  # a validator that is never content twice
            known, profile = [], self.schema()
        fits = {id(entry) for entry in known}
        return Fitted(
            profile,
            [*self._as_written(profile, known)],
            [entry for entry in entries if id(entry) not in fits],
        )

    def load(self, text: str) -> Profile:
        """The profile that a memory is, without what does not fit, which is logged once."""
        entries, others = read_entries(text)
        profile, _, misfits = self.fit(entries)
        if (misfits or others) and not self._warned:
            self._warned = True
            _log.warning(
                "Left out: %s of a memory for which %s has no place. `entries` and `history` "
                "have everything. (Logged once.)",
                plural(len(misfits) + len(others), "line"),
                self.schema.__name__,
            )
        return profile

    def render(self, text: str) -> str:
        """Return the text of a profile for a model: a line for each entry that fits the schema."""
        return "\n".join(entry.shown for entry in self.fit(read_entries(text)[0]).entries)

    def complain(self, entries: Sequence[FieldValue]) -> str:
        """Return the errors of these entries by the schema, for the model that gave them."""
        try:
            self.schema.model_validate_json(json.dumps(self._assemble(entries)))
        except ValidationError as error:
            return "; ".join(
                f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in error.errors()
            )
        return ""

    def _build(self, entries: Sequence[FieldValue]) -> Profile | None:
        try:
            return self.schema.model_validate_json(json.dumps(self._assemble(entries)))
        except ValidationError:
            return None

    def _assemble(self, entries: Sequence[FieldValue]) -> dict[str, Json]:
        whole: dict[str, Json] = {}
        for entry in entries:
            *parents, name = entry.field.split(".")
            inner = whole
            for parent in parents:
                inner = inner.setdefault(parent, {})
            if self.by_path[entry.field].many:
                inner.setdefault(name, []).append(entry.value)
            else:
                inner[name] = entry.value
        return whole

    def _as_written(self, profile: Profile, entries: Sequence[FieldValue]) -> Iterator[FieldValue]:
        """Entries with their values as the model writes them: without what it ignores, say."""
        whole = profile.model_dump(mode="json", by_alias=True)
        counts = Counter(entry.field for entry in entries)
        seen: Counter[str] = Counter()
        for entry in entries:
            field = self.by_path[entry.field]
            found: Json = whole
            for name in entry.field.split("."):
                found = found.get(name) if isinstance(found, dict) else None
            if field.many:
                whole_list = isinstance(found, list) and len(found) == counts[entry.field]
                found = found[seen[entry.field]] if whole_list and field.ordered else None
                seen[entry.field] += 1
            yield entry if found is None else entry._replace(value=found)


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """A current or earlier value of one field of a profile.

    Attributes:
        field: its path, as "diet" or "address.city".
        value: the value, as in JSON; for a list, one item.
        message: id of the message that says so; empty if that is not known, as after an edit.
        thread: id of the conversation.
        told_at: time at which it was said (ISO 8601).
        until: time at which it was replaced or removed; empty while it is current.
        fits: whether it fits the current schema.
    """

    field: str
    value: Any
    message: str = ""
    thread: str = ""
    told_at: str = ""
    until: str = ""
    fits: bool = True


def entries_of(version: MemoryVersion, fields: Fields[Any]) -> list[ProfileEntry]:
    """The entries of a profile: those that stand, and then those that stood, the newest first."""
    sources = {item.line: item for item in version.told if not item.until}
    standing = read_entries(version.text)[0]
    misfits = fields.fit(standing).misfits
    found = []
    for entry in standing:
        source = sources.get(entry.line) or LineSource(entry.line, "", "", entry.day)
        fits = not any(entry is one for one in misfits)
        found.append(
            ProfileEntry(
                entry.field, entry.value, source.message, source.thread, source.at, fits=fits
            )
        )
    for item in sorted(version.told, key=lambda item: instant(item.until), reverse=True):
        for entry in read_entries(item.line)[0] if item.until else ():
            known = entry.field in fields.by_path
            found.append(
                ProfileEntry(
                    entry.field, entry.value, item.message, item.thread, item.at, item.until, known
                )
            )
    return found


class Past(NamedTuple):
    """Limits on the lines of a profile that are kept although they were replaced.

    Attributes:
        values: number of newest values to keep of each field.
        days: days to keep them after they were replaced; None for ever.
    """

    values: int
    days: float | None = None

    def of(self, items: Sequence[LineSource]) -> list[LineSource]:
        """Return the lines that stay, in their order."""
        since = -math.inf if self.days is None else time() - 86_400 * self.days
        kept, counts = [], Counter[str]()
        for item in reversed(items):
            for entry in read_entries(item.line)[0]:
                counts[entry.field] += 1
                if counts[entry.field] <= self.values and instant(item.until) >= since:
                    kept.append(item)
        return kept[::-1]


def attest(
    before: Sequence[LineSource],
    text: str,
    evidence: Iterable[Evidence],
    said: Sequence[Line],
    *,
    thread: str,
    past: Past,
    ended: Mapping[str, str],
) -> tuple[LineSource, ...]:
    """Return the sources of the lines of a profile after a fold.

    Args:
        before: the sources before the fold.
        text: the profile.
        evidence: places in the folded text of the lines that the fold wrote.
        said: the messages that were folded, in their order; at least one.
        thread: id of the conversation.
        past: limits on the replaced values that are kept.
        ended: times at which lines were replaced or removed, as far as known.
    """
    starts = [one.start for one in said]
    new = {}
    for item in evidence:
        one = said[max(0, bisect(starts, item.start) - 1)]
        new[item.text] = LineSource(item.text, one.message, thread, one.at)
    standing = {item.line: item for item in before if not item.until}
    lines = text.splitlines()
    now = [new.get(line) or standing.get(line) for line in lines]
    gone = [
        replace(item, until=ended.get(line) or said[-1].at)
        for line, item in standing.items()
        if not any(_says_the_same(line, other) for other in lines)
    ]
    return (
        *(item for item in now if item is not None),
        *past.of([*(item for item in before if item.until), *gone]),
    )


def _says_the_same(line: str, other: str) -> bool:
    """Whether two lines differ at most in their day."""
    if line == other:
        return True
    (one, _), (two, _) = read_entries(line), read_entries(other)
    return any(a.field == b.field and is_same_value(a.value, b.value) for a in one for b in two)
