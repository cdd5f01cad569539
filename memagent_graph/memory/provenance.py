"""Which documents a stored version was made from, and which of its statements came from each.

A version names its document, and of joined documents those that its chunk was of. What led to it
is known from the versions that it follows; where those were thinned out, or were forgotten, its
item lists in `read` what they had read.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.memory.version import followed, reading_key, text_of
from memagent_graph.readers.notes import Note, notes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.readers.base import Evidence, Memory

Rows = list[list[str]]
"""Digests and names of documents."""
Place = tuple[object, ...]
"""Of evidence."""

READ = "read"
"""Where an item lists what those before it had read that are gone."""

_PAIR = 2
_PLACE = ("source", "line", "start", "end")


class Lineage:
    """What led to each of some versions.

    Args:
        values: stored versions by their ids; the ones that any of them follows are among them,
            unless they are gone.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values
        self._evidence: dict[str, set[Place]] = {}

    def before(self, key: str) -> list[str]:
        """The versions that one follows directly, if they are there."""
        return [other for other in followed(self.values[key]) if other in self.values]

    def above(self, keys: Iterable[str]) -> list[str]:
        """These versions and all that led to them, nearest first."""
        found = dict.fromkeys(keys)
        left = [*found]
        for key in left:
            new = [other for other in self.before(key) if other not in found]
            found |= dict.fromkeys(new)
            left += new
        return left

    def has_gap(self, key: str) -> bool:
        """Whether something that a version follows directly is gone."""
        return any(other not in self.values for other in followed(self.values[key]))

    def is_known(self, key: str) -> bool:
        """Whether it is certain what was read for what a version follows directly."""
        value = self.values[key]
        if not self.has_gap(key) or isinstance(value.get(READ), list):
            return True
        # A reading without a name has one document. Joined ones were named where they were read.
        alone = [reading_key(str(value.get("root")), str(value.get("source")))]
        joined = value.get("parts") or value.get("merged") or value.get("recalled")
        return value.get("owners") == alone and not joined

    def origins(self, key: str, wanted: Place) -> list[str]:
        """The versions with which evidence came into a version, or may have."""
        found, seen, left = [], {key}, [key]
        while left:
            at = left.pop()
            nearer = [other for other in self.before(at) if wanted in self._evidence_of(other)]
            if not nearer or self.has_gap(at):
                found.append(at)
            left += [other for other in nearer if other not in seen]
            seen.update(nearer)
        return found

    def _evidence_of(self, key: str) -> set[Place]:
        if key not in self._evidence:
            value = self.values[key]
            rows = self.values.get(text_of(value) or key, value).get("evidence")
            items = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
            places = [tuple(row.get(name) for name in _PLACE) for row in items]
            texts = [row.get("text") for row in items]
            self._evidence[key] = {*places, *((*p, t) for p, t in zip(places, texts, strict=True))}
        return self._evidence[key]


def places_of(item: Evidence) -> tuple[Place, Place]:
    """Where a statement stands in what was read, without and with what the memory makes of it."""
    place = tuple(getattr(item, name) for name in _PLACE)
    return place, (*place, item.text)


def rows_of(value: Value) -> Rows:
    """The documents that a version was made from, as far as it says so itself."""
    own = [] if value.get("thread") else [[value.get("source"), value.get("source_name")]]
    return _sound(own) + parts_of(value)


def parts_of(value: Value) -> Rows:
    """The documents that the chunk of a version was of, where they were joined."""
    return _sound(value.get("parts"))


def listed(value: Value) -> Rows:
    """The documents that those before a version had read, of those that are gone."""
    return _sound(value.get(READ))


def _sound(rows: object) -> Rows:
    pairs = (
        [row for row in rows if isinstance(row, list) and len(row) == _PAIR]
        if isinstance(rows, list)
        else []
    )
    return [[str(digest), str(name)] for digest, name in pairs if digest]


def inherited(lineage: Lineage, key: str, gone: Collection[str]) -> Rows | None:
    """What a version's item is to list when others go; None if that is not all known.

    Args:
        lineage: of all of them.
        key: id of the version that stays.
        gone: ids of the versions that go.
    """
    before = read_for(lineage, [other for other in lineage.before(key) if other in gone])
    if before is None or not lineage.is_known(key):
        return None
    return _distinct(listed(lineage.values[key]) + before)


def read_for(lineage: Lineage, keys: Iterable[str]) -> Rows | None:
    """All documents that these versions were made from; None if that is not all known."""
    rows: Rows = []
    for key in lineage.above(keys):
        if not lineage.is_known(key):
            return None
        rows += rows_of(lineage.values[key]) + listed(lineage.values[key])
    return _distinct(rows)


def _distinct(rows: Rows) -> Rows:
    return [[*row] for row in sorted({(digest, name) for digest, name in rows})]


class Split(NamedTuple):
    """A memory without what came from somewhere.

    Attributes:
        text: of what stays.
        evidence: of what stays.
        removed: statements that went.
    """

    text: str
    evidence: tuple[Evidence, ...]
    removed: int


def split(memory: Memory, gone: Collection[Evidence]) -> Split:
    """A memory without the statements that rest on some of its evidence, or on none at all.

    Headings, which nothing says the origin of, go too.
    """
    spans = [
        (start, start + len(item.text), item)
        for item in memory.evidence
        for start in _places(memory.text, item.text)
    ]
    begins = [0, *accumulate(map(len, memory.text.splitlines(keepends=True)))]
    lines: dict[int, list[tuple[Note, bool]]] = {}
    for note in notes(memory.text):
        items = [item for start, end, item in spans if start < note.end and note.start < end]
        stays = bool(items) and not any(item in gone for item in items)
        lines.setdefault(bisect_right(begins, note.start), []).append((note, stays))
    text = "\n".join(filter(None, map(_left_of, lines.values())))
    removed = sum(not stays for line in lines.values() for _, stays in line)
    evidence = [item for item in memory.evidence if item not in gone and item.text in text]
    return Split(text, tuple(evidence), removed)


def _left_of(line: Sequence[tuple[Note, bool]]) -> str:
    """Of a line its notes that stay; with its bullet, if all do."""
    if all(stays for _, stays in line):
        return line[0][0].line.rstrip()
    return " ".join(note.text for note, stays in line if stays)


def _places(text: str, part: str) -> Sequence[int]:
    """Where a part stands in a text, each time."""
    found: list[int] = []
    at = text.find(part) if part else -1
    while at >= 0:
        found.append(at)
        at = text.find(part, at + len(part))
    return found
