"""A profile of a user: its fields, its entries, and who said them when."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from pydantic import BaseModel, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypeVar

from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.statements import instant
from memagent_graph.memory.version import LineSource, end_gone
from memagent_graph.models.structured import Shape
from memagent_graph.readers.replies import is_none, is_not_said

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from memagent_graph.memory.version import MemoryVersion

EMPTY = "(nothing)"
"""The text of a profile from which everything was taken: a memory is never an empty text."""

_LINE = re.compile(r"(?:(?P<day>\d{4}-\d\d-\d\d) )?(?P<field>[^:\s][^:]*): (?P<value>.+)")
_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x7f\x85\u2028\u2029"})
"""Characters that JSON does not escape and some programs take for the end of a line."""
Json = Any
"""A JSON value."""

_EMPTY: tuple[Json, ...] = (None, [], {})
_NULL = {"type": "null"}


class FieldValue(NamedTuple):
    """A value of a field, or one item of a field that is a list, as in JSON.

    `field` is a path, as "address.city"; `day` is when it was said (ISO 8601), "" if unknown.
    """

    field: str
    value: Json
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

    def find_source(self, sources: Mapping[str, LineSource]) -> LineSource:
        """Return its source among those of lines; one without a message if it has none there."""
        return sources.get(self.line) or LineSource(self.line, "", "", self.day)


def read_entries(text: str) -> tuple[list[FieldValue], list[str]]:
    """The entries of a memory, and the lines that are none: of notes without a shape, say."""
    entries, others = list[FieldValue](), list[str]()
    for line in filter(None, map(str.strip, text.splitlines())):
        try:
            found = _LINE.fullmatch(line)
            value = json.loads(found["value"]) if found else None
        except ValueError:
            found = None
        if found:
            entries.append(FieldValue(found["field"], value, found["day"] or ""))
        elif line != EMPTY:
            others.append(line)
    return entries, others


def write_entries(entries: Iterable[FieldValue], others: Iterable[str] = ()) -> str:
    """The memory of some entries; lines that are none come first."""
    return "\n".join([*others, *(entry.line for entry in entries)]) or EMPTY


def is_same_value(one: Json, other: Json) -> bool:
    """Whether two values say the same: upper case and space make no difference."""
    texts = (json.dumps(value, sort_keys=True, ensure_ascii=False) for value in (one, other))
    return len({" ".join(text.casefold().split()) for text in texts}) == 1


def contradicts(old: Json, new: Json) -> bool:
    """Whether a value says otherwise; one with more details does not."""
    if isinstance(old, dict) and isinstance(new, dict):
        return any(one is not None and contradicts(one, new.get(key)) for key, one in old.items())
    return not is_same_value(old, new)


def leaves(value: Json) -> Iterator[Json]:
    """The plain values in a value."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from leaves(part)
    elif value is not None:
        yield value


def _plain(value: Json) -> str:
    if isinstance(value, dict):
        known = {key: item for key, item in value.items() if item not in _EMPTY}
        return ", ".join(f"{key.replace('_', ' ')} {_plain(item)}" for key, item in known.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(str(value).split())


def drop_blank(value: Json, choices: Sequence[Json] = ()) -> Json:
    """Return a value without what stands in place of unknown ones; None if nothing is left.

    `choices` are words for none that are values here.
    """
    if isinstance(value, str):
        blank = is_not_said(value) or (value not in choices and is_none(value))
        return None if blank else value.strip()
    if isinstance(value, list):
        return [item for one in value if (item := drop_blank(one, choices)) is not None] or None
    if isinstance(value, dict):
        said = {key: drop_blank(item) for key, item in value.items()}
        known = {key: item for key, item in said.items() if item is not None}
        empty = {key: item for key, item in value.items() if item in _EMPTY}
        return {**empty, **known} if known else None
    return value


@dataclass(frozen=True)
class Field:
    """One field of a profile that is merged by itself; of a list, `schema` is that of an item.

    Two values that agree in the names of `key` are about one thing. No `choices`: any is allowed.
    """

    path: str
    schema: Mapping[str, Json]
    key: Sequence[str]
    many: bool
    choices: Sequence[Json]
    default: Json

    @property
    def label(self) -> str:
        """Its name in words, and its description in brackets."""
        described = self.schema.get("description")
        name = self.path.replace("_", " ").replace(".", " ")
        return f"{name} ({described})" if described else name

    def lacks(self, value: Json) -> bool:
        """Whether a value says nothing: it is empty, or stands in place of an unknown one."""
        return drop_blank(value, self.choices) is None

    def same(self, one: Json, other: Json) -> bool:
        """Whether two values are about the same thing."""
        if self.key and isinstance(one, dict) and isinstance(other, dict):
            one, other = ([item.get(name) for name in self.key] for item in (one, other))
        return is_same_value(one, other)

    def complete(self, old: Json, new: Json) -> Json:
        """Return a new value with what an old one of the same thing says where it says nothing."""
        if not (isinstance(old, dict) and isinstance(new, dict) and self.same(old, new)):
            return new
        return {**new, **old, **{name: item for name, item in new.items() if item is not None}}


def _find_fields(
    node: Mapping[str, Json], types: Mapping[str, Json], prefix: str, above: frozenset[str]
) -> Iterator[Field]:
    """The fields that a profile of this JSON Schema is merged by."""
    for name, given in node.get("properties", {}).items():
        path, (found, refs) = prefix + name, _resolve(given, types)
        if "properties" in found and not found.get("required") and refs.isdisjoint(above):
            yield from _find_fields(found, types, f"{path}.", above | refs)
            continue
        many = found.get("type") == "array" and isinstance(found.get("items"), dict)
        schema = found["items"] if many else {k: v for k, v in given.items() if k != "default"}
        value, _ = _resolve(schema, types)
        key, choices = value.get("required", ()), value.get("enum", ())
        yield Field(path, schema, key, many, choices, given.get("default"))


def _resolve(
    node: Mapping[str, Json], types: Mapping[str, Json]
) -> tuple[Mapping[str, Json], frozenset[str]]:
    """Follow the references of a schema's node, ignoring null; return target and names."""
    options = [one for one in node.get("anyOf", ()) if one != _NULL]
    if len(options) == 1:
        return _resolve(options[0], types)
    if "$ref" not in node:
        return node, frozenset()
    name = node["$ref"].rpartition("/")[2]
    found, refs = _resolve(types[name], types)
    return found, refs | {name}


def _schema_of_changes(fields: Iterable[Field], types: Mapping[str, Json]) -> dict[str, Json]:
    """Return the JSON Schema of a reply with changes: fields, actions, values, message numbers."""
    alike: dict[str, list[Field]] = {}
    for field in fields:
        alike.setdefault(json.dumps([field.many, field.schema]), []).append(field)
    changes = []
    for same in alike.values():
        many, value = same[0].many, same[0].schema
        has_null = many or _NULL in value.get("anyOf", ())
        properties = {
            "field": {"type": "string", "enum": [field.path for field in same]},
            "action": {"type": "string", "enum": ["add" if many else "set", "remove"]},
            "value": value if has_null else {"anyOf": [value, _NULL]},
            "message": {"type": "integer"},
        }
        changes.append(_object(properties))
    listed = _object({"changes": {"type": "array", "items": {"anyOf": changes}}})
    return {**listed, "$defs": types} if types else listed


def _object(properties: Mapping[str, Json]) -> dict[str, Json]:
    closed = {"required": [*properties], "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


class _Untitled(GenerateJsonSchema):
    """Schemas without the titles that pydantic makes of the names of fields."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


Profile = TypeVar("Profile", bound=BaseModel)


class Fitted(NamedTuple, Generic[Profile]):
    """A profile, the entries that it was made from, and those that the schema has no place for."""

    profile: Profile
    entries: list[FieldValue]
    misfits: list[FieldValue]


class Fields(Generic[Profile]):
    """The fields that a pydantic model asks to be known of a user.

    A model within it is merged field by field if all of its fields have defaults, and is one value
    otherwise. `changes` is the JSON Schema of a reply with changes. Raises `ConfigurationError` if
    it is no pydantic model, a field has no default, or JSON cannot say what it holds.
    """

    def __init__(self, schema: type[Profile]) -> None:
        if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
            message = f"schema must be a pydantic model, not {schema!r}."
            raise ConfigurationError(message)
        self.schema, name = schema, schema.__name__
        try:
            schema()
            found = schema.model_json_schema(schema_generator=_Untitled)
        except ValidationError as error:
            fields = ", ".join(str(found["loc"][0]) for found in error.errors() if found["loc"])
            message = (
                f"Nothing is known about a user at first, but {name} cannot be empty: give a "
                f"default to {fields or 'what its validators ask for'}, such as None."
            )
            raise ConfigurationError(message) from error
        except PydanticUserError as error:
            message = f"{name} cannot be a profile, because JSON cannot express its fields: {error}"
            raise ConfigurationError(message) from error
        types = found.get("$defs", {})
        root, refs = _resolve(found, types)
        self.by_path = {field.path: field for field in _find_fields(root, types, "", refs)}
        self.changes = _schema_of_changes(self.by_path.values(), types)
        self._shape = Shape(name, found, TypeAdapter(schema))
        if not self.by_path:
            message = f"{name} has no fields: add some for what to remember about a user."
            raise ConfigurationError(message)

    def fit(self, entries: Sequence[FieldValue]) -> Fitted[Profile]:
        """The profile that some entries make, without those that do not fit.

        Where they do not fit together, the earlier ones stay.
        """
        known = [entry for entry in entries if entry.field in self.by_path]
        steps = [known] if not self.complain(known) else [[entry] for entry in known]
        profile, kept = self.schema(), list[FieldValue]()
        for step in steps:
            with suppress(ValueError):
                profile = self.build([*kept, *step])
                kept += step
        fits = {id(entry) for entry in kept}
        return Fitted(profile, kept, [entry for entry in entries if id(entry) not in fits])

    def write(self, field: Field, value: Json) -> Json:
        """Return a value as the schema writes it: without what it ignores, say."""
        found: Json = None
        with suppress(ValueError):  # it may fit together with others
            profile = self.build([FieldValue(field.path, value)])
            found = profile.model_dump(mode="json", by_alias=True)
        for name in field.path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        found = found[0] if field.many and isinstance(found, list) and found else found
        return value if found is None else found

    def complain(self, entries: Iterable[FieldValue]) -> str:
        """Return the errors of these entries by the schema, for the model that gave them."""
        try:
            self.build(entries)
        except ValueError as error:
            return str(error)
        return ""

    def build(self, entries: Iterable[FieldValue]) -> Profile:
        """Return the profile of some entries. Raises ValueError if they do not fit."""
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
        profile: Profile = self._shape.load(whole)
        return profile


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
    value: Json
    message: str = ""
    thread: str = ""
    told_at: str = ""
    until: str = ""
    fits: bool = True


def entries_of(version: MemoryVersion, fields: Fields[Any]) -> list[ProfileEntry]:
    """The entries of a profile: those that stand, and then those that stood, the newest first."""
    sources = {item.line: item for item in version.told if not item.until}
    standing = read_entries(version.text)[0]
    fits = {id(entry) for entry in fields.fit(standing).entries}
    found = [(one, one.find_source(sources), id(one) in fits) for one in standing]
    for item in sorted(version.told, key=lambda item: instant(item.until), reverse=True):
        past = read_entries(item.line)[0] if item.until else ()
        found += [(one, item, one.field in fields.by_path) for one in past]
    return [
        ProfileEntry(one.field, one.value, item.message, item.thread, item.at, item.until, is_fit)
        for one, item, is_fit in found
    ]


class Past(NamedTuple):
    """Limits on the replaced lines of a profile that are kept: how many of a field, and days."""

    values: int
    days: float | None = None

    def attest(self, sources: Iterable[LineSource], text: str, at: str) -> tuple[LineSource, ...]:
        """Return the sources of the lines of a profile, and of earlier ones, as many as stay.

        Lines that are gone without a time were until `at`.
        """
        found = end_gone([*sources], text, at)
        since = -math.inf if self.days is None else time() - 86_400 * self.days
        kept, counts = [item for item in found if not item.until], Counter[str]()
        for item in sorted(found, key=lambda item: instant(item.until), reverse=True):
            entries = read_entries(item.line)[0] if item.until else ()
            counts.update(one.field for one in entries)
            fits = (counts[one.field] <= self.values for one in entries)
            kept += [item] if any(fits) and instant(item.until) >= since else []
        return (*kept,)
