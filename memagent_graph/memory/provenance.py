"""Trace which documents a stored version, and each of its statements, came from.

A version names its document or, of joined documents, those in its chunk. Earlier documents are
known from the versions that it follows; if those were thinned out or forgotten, its record lists in
`read` what they had read.
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
"""The place of evidence."""

READ = "read"
"""Field of a record with the documents of missing earlier versions."""

_PAIR = 2
_PLACE = ("source", "line", "start", "end")


class Lineage:
    """The versions that led to others.

    Args:
        values: records of versions by id, including all that they follow, unless those are gone.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values
        self._evidence: dict[str, set[Place]] = {}

    def before(self, key: str) -> list[str]:
        """Return the ids of the existing versions that one follows directly."""
        return [other for other in followed(self.values[key]) if other in self.values]

    def above(self, keys: Iterable[str]) -> list[str]:
        """Return these versions and all that led to them, nearest first."""
        found = dict.fromkeys(keys)
        left = [*found]
        for key in left:
            new = [other for other in self.before(key) if other not in found]
            found |= dict.fromkeys(new)
            left += new
        return left

    def has_gap(self, key: str) -> bool:
        """Whether a version that this one follows directly is gone."""
        return any(other not in self.values for other in followed(self.values[key]))

    def is_known(self, key: str) -> bool:
        """Whether it is certain what was read for the versions that one follows directly."""
        value = self.values[key]
        if not self.has_gap(key) or isinstance(value.get(READ), list):
            return True
        # A reading without a name has one document; joined ones are named in `parts`.
        alone = [reading_key(str(value.get("root")), str(value.get("source")))]
        joined = value.get("parts") or value.get("merged") or value.get("recalled")
        return value.get("owners") == alone and not joined

    def origins(self, key: str, wanted: Place) -> list[str]:
        """Return the versions with which evidence came in, or may have."""
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
    """Return the place of a statement in the document, without and with its text."""
    place = tuple(getattr(item, name) for name in _PLACE)
    return place, (*place, item.text)


def rows_of(value: Value) -> Rows:
    """Return the documents that a version itself names."""
    own = [] if value.get("thread") else [[value.get("source"), value.get("source_name")]]
    return _sound(own) + parts_of(value)


def parts_of(value: Value) -> Rows:
    """Return the documents in the chunk of a version, if they were joined."""
    return _sound(value.get("parts"))


def listed(value: Value) -> Rows:
    """Return the documents of missing earlier versions, as listed in a record."""
    return _sound(value.get(READ))


def _sound(rows: object) -> Rows:
    pairs = (
        [row for row in rows if isinstance(row, list) and len(row) == _PAIR]
        if isinstance(rows, list)
        else []
    )
    return [[str(digest), str(name)] for digest, name in pairs if digest]


def inherited(lineage: Lineage, key: str, gone: Collection[str]) -> Rows | None:
    """Return what a version's record must list when others are deleted; None if not all is known.

    Args:
        lineage: the lineage of all versions.
        key: id of the version that stays.
        gone: ids of the versions to delete.
    """
    before = read_for(lineage, [other for other in lineage.before(key) if other in gone])
    if before is None or not lineage.is_known(key):
        return None
    return _distinct(listed(lineage.values[key]) + before)


def read_for(lineage: Lineage, keys: Iterable[str]) -> Rows | None:
    """Return all documents that these versions were made from; None if not all are known."""
    rows: Rows = []
    for key in lineage.above(keys):
        if not lineage.is_known(key):
            return None
        rows += rows_of(lineage.values[key]) + listed(lineage.values[key])
    return _distinct(rows)


def _distinct(rows: Rows) -> Rows:
    return [[*row] for row in sorted({(digest, name) for digest, name in rows})]


class Split(NamedTuple):
    """A memory without some statements.

    Attributes:
        text: the remaining text.
        evidence: the remaining evidence.
        removed: number of statements removed.
    """

    text: str
    evidence: tuple[Evidence, ...]
    removed: int


def split(memory: Memory, gone: Collection[Evidence]) -> Split:
    """Remove the statements of a memory that rest on some evidence, or on none at all.

    Headings, whose origin is unknown, are removed too.
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
    """The remaining notes of a line; with its bullet, if all remain."""
    if all(stays for _, stays in line):
        return line[0][0].line.rstrip()
    return " ".join(note.text for note, stays in line if stays)


def _places(text: str, part: str) -> Sequence[int]:
    """All offsets of a part in a text."""
    found: list[int] = []
    at = text.find(part) if part else -1
    while at >= 0:
        found.append(at)
        at = text.find(part, at + len(part))
    return found
