"""Derive the fields of a profile, and the JSON Schema of their changes, from its JSON Schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memagent_graph.conversation.entries import same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
    """

    path: str
    schema: Mapping[str, Json]
    key: tuple[str, ...] = ()
    many: bool = False
    ordered: bool = True

    def same(self, one: Json, other: Json) -> bool:
        """Whether two items of the list are about the same thing."""
        if self.key and isinstance(one, dict) and isinstance(other, dict):
            one, other = ([item.get(name) for name in self.key] for item in (one, other))
        return same(one, other)


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
            key = tuple(item.get("required", ()))
            yield Field(path, found["items"], key, many=True, ordered=not found.get("uniqueItems"))
        else:
            yield Field(path, _of_value(given))


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
