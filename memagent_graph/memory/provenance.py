"""Trace which documents versions came from, and what memories fall back to without them.

A version names its document or, of joined documents, those in its chunk. Earlier documents are
known from the versions that it follows; if those were thinned out, its record lists in `read` what
they had read.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from memagent_graph.errors import BadRecordError
from memagent_graph.memory.owners import children_first, owners_of
from memagent_graph.memory.version import MemoryVersion, follows_of, make_reading_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records

Rows = list[list[str]]
"""Digests and names of documents."""
READ = "read"
"""Field of a record with the documents of missing earlier versions."""

_PAIR = 2


class VersionSources:
    """The versions that led to others.

    Args:
        values: records of versions by id, including all that they follow, unless those are gone.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values

    def before(self, key: str) -> list[str]:
        """Return the ids of the existing versions that one follows directly."""
        return [other for other in follows_of(self.values[key]) if other in self.values]

    def above(self, keys: Iterable[str]) -> list[str]:
        """Return these versions and all that led to them, nearest first."""
        found = dict.fromkeys(keys)
        left = [*found]
        for key in left:
            new = [other for other in self.before(key) if other not in found]
            found |= dict.fromkeys(new)
            left += new
        return left

    def is_known(self, key: str) -> bool:
        """Whether it is certain what was read for the versions that one follows directly."""
        value = self.values[key]
        if {*follows_of(value)} <= self.values.keys() or isinstance(value.get(READ), list):
            return True
        # A reading without a name has one document; joined ones are named in `parts`.
        alone = [make_reading_key(str(value.get("root")), str(value.get("digest")))]
        joined = value.get("parts") or value.get("merged")
        return value.get("owners") == alone and not joined


def rows_of(value: Value) -> Rows:
    """Return the documents that a version itself names."""
    own = [] if value.get("thread") else [[value.get("digest"), value.get("name")]]
    return _sound(own) + parts_of(value)


def parts_of(value: Value) -> Rows:
    """Return the documents in the chunk of a version, if they were joined."""
    return _sound(value.get("parts"))


def list_missing(value: Value) -> Rows:
    """Return the documents of missing earlier versions, as listed in a record."""
    return _sound(value.get(READ))


def _sound(rows: object) -> Rows:
    pairs = (
        [row for row in rows if isinstance(row, list) and len(row) == _PAIR]
        if isinstance(rows, list)
        else []
    )
    return [[str(digest), str(name)] for digest, name in pairs if digest]


def inherit_rows(lineage: VersionSources, key: str, gone: Collection[str]) -> Rows | None:
    """Return what a version's record must list when others are deleted; None if not all is known.

    Args:
        lineage: the lineage of all versions.
        key: id of the version that stays.
        gone: ids of the versions to delete.
    """
    before = read_for(lineage, [other for other in lineage.before(key) if other in gone])
    if before is None or not lineage.is_known(key):
        return None
    return _distinct(list_missing(lineage.values[key]) + before)


def read_for(lineage: VersionSources, keys: Iterable[str]) -> Rows | None:
    """Return all documents that these versions were made from; None if not all are known."""
    rows: Rows = []
    for key in lineage.above(keys):
        if not lineage.is_known(key):
            return None
        rows += rows_of(lineage.values[key]) + list_missing(lineage.values[key])
    return _distinct(rows)


def _distinct(rows: Rows) -> Rows:
    return [[*row] for row in sorted({(digest, name) for digest, name in rows})]


@dataclass(slots=True)
class Inventory:
    """The parts of a bank that came from some documents.

    Attributes:
        sources: digests of the documents, and those of joined documents that contain one of them.
        values: records of all versions, by id.
        pointers: records of heads, and of readings without a name.
        unreadable: keys of items that cannot be read.
        gone: ids of the versions to delete, each before those that it follows.
        unsure: names of memories that stay though they may have read the documents: versions that
            led to them are lost, and they have text without evidence.
    """

    sources: set[str]
    values: dict[str, Value] = field(default_factory=dict)
    pointers: dict[Place, Value] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def trace(self) -> None:
        """Find what came from the documents.

        A version that no name leads to, and that follows something unknown, counts as written by
        a reading while the documents were being forgotten.
        """
        digests = {*self.sources}
        for value in self.values.values():
            if any(digest in digests for digest, _ in parts_of(value)):
                self.sources.add(str(value["digest"]))
        lineage, values = VersionSources(self.values), self.values
        targets = {place: str(value.get("version")) for place, value in self.pointers.items()}
        led_to = {*lineage.above(key for key in targets.values() if key in values)}
        rows = {key: rows_of(value) + list_missing(value) for key, value in values.items()}
        gone = {key for key in values if any(digest in self.sources for digest, _ in rows[key])}
        names = {name for key in gone for digest, name in rows[key] if digest in digests}
        lost = [key for key in values.keys() - gone if not lineage.is_known(key)]
        said = {key: self._evidence_of(key) for key in lost if key in led_to}
        gone.update(key for key in lost if key not in said or said[key][0] & names)
        unsure = {key for key, (_, whole) in said.items() if not whole}
        followers = defaultdict(list)
        for key, value in values.items():
            for before in follows_of(value):
                followers[before].append(key)
        left = [*gone]
        while left:
            new = {*followers[left.pop()]} - gone
            gone |= new
            left += new
        self.gone = children_first({key: values[key] for key in gone})
        self.unsure = sorted(
            name
            for (_, name), key in targets.items()
            if key in values and not (unsure - gone).isdisjoint(lineage.above([key]))
        )

    def fall_back(self, name: str, key: str) -> tuple[str | None, list[str]]:
        """Return the version that a memory falls back to, and what is to be read into it again.

        Args:
            name: the memory's name.
            key: id of its newest version, which is to be deleted.

        Returns:
            The nearest of the versions before it that stay, or beyond a gap its newest one; None
            without one. And the names of the documents that were read since, the oldest first.
        """
        gone, lost, left, has_gap = {*self.gone}, Rows(), [key], False
        for at in left:
            if at not in gone:
                break
            value = self.values[at]
            lost += rows_of(value) + list_missing(value)
            new = [one for one in follows_of(value) if one not in left]
            left += [one for one in new if one in self.values]
            has_gap |= not {*new} <= self.values.keys()
        else:
            stay = [one for one in self.values.keys() - gone if name in owners_of(self.values[one])]
            age = {one: str(self.values[one].get("created_at")) for one in stay if has_gap}
            at = max(age, key=age.__getitem__, default="")
        names = (name for digest, name in reversed(lost) if digest not in self.sources)
        return at or None, [*dict.fromkeys(names)]

    def _evidence_of(self, key: str) -> tuple[set[str], bool]:
        """Names of the documents of a version's evidence, and whether all of its text has some."""
        try:
            memory = MemoryVersion.from_record(self.values[key], key, self.values).memory
        except BadRecordError:
            self.unreadable.append(key)
            return set(), True
        rest = memory.text
        for said in sorted((item.text for item in memory.evidence), key=len, reverse=True):
            rest = rest.replace(said, "")
        return {item.source for item in memory.evidence}, not any(map(str.isalnum, rest))


async def take_inventory(records: Records, digests: Sequence[str]) -> Inventory:
    """Read a bank, and find what came from the documents with these digests."""
    found = Inventory({*digests})
    async for item in records.scan(records.versions):
        if isinstance(item, BadRecordError):
            found.unreadable.append(item.key)
        else:
            found.values[item.key] = item.value
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if not isinstance(item, BadRecordError):
                found.pointers[namespace, item.key] = item.value
    found.trace()
    return found
