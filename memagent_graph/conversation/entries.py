"""A profile as text: one entry a line, with the day on which it was told."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EMPTY = "(nothing)"
"""The text of a profile from which everything was taken: a memory is never an empty text."""

_LINE = re.compile(r"(?:(?P<day>\d{4}-\d\d-\d\d) )?(?P<field>[^:\s][^:]*): (?P<value>.+)")
_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x7f\x85\u2028\u2029"})
"""Characters that JSON does not escape and some programs take for the end of a line."""


class Entry(NamedTuple):
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
    def told(self) -> str:
        """The line for a model: `2026-03-05: diet: vegan`."""
        name = self.field.replace("_", " ").replace(".", " ")
        return f"{self.day}: {name}: {_plain(self.value)}".removeprefix(": ")


def read(text: str) -> tuple[list[Entry], list[str]]:
    """The entries of a memory, and the lines that are none: of notes without a shape, say."""
    entries, others = [], []
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        try:
            value = json.loads(match["value"]) if match else None
        except ValueError:
            match = None
        if match:
            entries.append(Entry(match["field"], value, match["day"] or ""))
        elif line.strip() and line.strip() != EMPTY:
            others.append(line.strip())
    return entries, others


def write(entries: Iterable[Entry], others: Iterable[str] = ()) -> str:
    """The memory of some entries; lines that are none come first."""
    return "\n".join([*others, *(entry.line for entry in entries)]) or EMPTY


def same(one: Any, other: Any) -> bool:
    """Whether two values say the same: upper case and space make no difference."""
    return bool(_folded(one) == _folded(other))


def _folded(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.casefold().split())
    if isinstance(value, list):
        return [_folded(item) for item in value]
    if isinstance(value, dict):
        return {key: _folded(item) for key, item in value.items()}
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
