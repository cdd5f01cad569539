"""Find which versions came from some documents, and what memories are without them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from memagent_graph.errors import BadRecordError
from memagent_graph.memory.owners import children_first
from memagent_graph.memory.provenance import (
    Lineage,
    Split,
    listed,
    parts_of,
    places_of,
    read_for,
    rows_of,
    split,
)
from memagent_graph.memory.version import MemoryVersion, edited, followed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.provenance import Rows
    from memagent_graph.memory.records import Place, Records
    from memagent_graph.readers.base import Evidence


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A named memory without the statements of some documents.

    Attributes:
        version: its new head, which follows the old one.
        read: the documents that all versions before it had read; None if that is not known.
        statements: number of statements removed.
    """

    version: MemoryVersion
    read: Rows | None
    statements: int


@dataclass(slots=True)
class Inventory:
    """The parts of a bank that came from some documents.

    Attributes:
        digests: digests of the documents.
        values: records of all versions, by id.
        pointers: records of heads, and of readings without a name.
        unreadable: keys of items that cannot be read.
        sources: `digests`, and the digests of joined documents that contain one of them.
        gone: ids of the versions to delete, each before those that it follows.
    """

    digests: set[str]
    values: dict[str, Value] = field(default_factory=dict)
    pointers: dict[Place, Value] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _parts: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def trace(self) -> None:
        """Find the versions that came from the documents, and set `gone` and `sources`."""
        for value in self.values.values():
            self._note(value)
        lineage = Lineage(self.values)
        targets = [str(pointer.get("version")) for pointer in self.pointers.values()]
        led_to = {*lineage.above(target for target in targets if target in self.values)}
        tainted = {key for key in self.values if self._is_source(lineage, key, led_to)}
        followers = defaultdict(list)
        for key, value in self.values.items():
            for before in followed(value):
                followers[before].append(key)
        left = [*tainted]
        while left:
            new = {*followers[left.pop()]} - tainted
            tainted |= new
            left += new
        self.gone = children_first({key: self.values[key] for key in tainted})

    def rewrite(self, key: str) -> Rewritten | None:
        """Return the memory of a version without the documents; None if nothing is left of it."""
        lineage = Lineage(self.values)
        try:
            before = MemoryVersion.from_record(self.values[key], key, self.values)
            left = self._left_of(lineage, before)
        except BadRecordError:  # the origin of its statements is unknown
            return None
        if not left.text:
            return None
        read = read_for(lineage, [key])
        if read is not None:
            read = [row for row in read if row[0] not in self.sources]
        other = self._last_other(lineage, key)
        after = replace(
            edited(before, left.text),
            evidence=left.evidence,
            source="" if other is None else str(other["source"]),
            source_name=self._named(before) if other is None else str(other["source_name"]),
            cut=before.cut,
            created_at=datetime.now(UTC).isoformat(),
        )
        if other is not None:
            end, length = int(other["end"]), int(other["length"])
            after = replace(after, start=end, end=end, length=length)
        return Rewritten(after, read, left.removed)

    def _note(self, value: Value) -> None:
        """Note the documents' names, and the joined documents that contain them."""
        if value.get("source") in self.digests:
            self.sources.add(str(value["source"]))
        for digest, name in rows_of(value) + listed(value):
            if digest in self.digests:
                self._names.add(name)
        for digest, name in parts_of(value):
            if digest in self.digests:
                self.sources.add(str(value["source"]))
                self._parts[str(value["source"])].add(name)

    def _is_source(self, lineage: Lineage, key: str, led_to: set[str]) -> bool:
        """Whether a version was made from the documents, or follows a deleted one that was.

        A version that no name leads to, and that follows something unknown, counts as written by
        a reading while the documents were being forgotten.
        """
        value = self.values[key]
        if value.get("source") in self.sources:
            return True
        if any(digest in self.sources for digest, _ in listed(value)):
            return True
        if lineage.is_known(key):
            return False
        if key not in led_to:
            return True
        try:
            version = MemoryVersion.from_record(value, key, self.values)
            return self._left_of(lineage, version).text != _lines(version.text)
        except BadRecordError:
            self.unreadable.append(key)
            return False

    def _left_of(self, lineage: Lineage, version: MemoryVersion) -> Split:
        gone = {item for item in version.evidence if self._is_theirs(lineage, version.id, item)}
        return split(version.memory, gone)

    def _is_theirs(self, lineage: Lineage, key: str, item: Evidence) -> bool:
        """Whether evidence of a version stands in one of the documents, as far as is known."""
        place, made = places_of(item)
        if any(self._brought(lineage, at, item) for at in lineage.origins(key, place)):
            return True
        # Another document can have the same place; then the statement decides.
        again = (self.values[at] for at in lineage.origins(key, made))
        return any(
            value.get("source") in self.digests and value.get("source_name") == item.source
            for value in again
        )

    def _brought(self, lineage: Lineage, key: str, item: Evidence) -> bool:
        """Whether evidence that came in with a version is from the documents."""
        value = self.values[key]
        source, has_gap = str(value.get("source")), lineage.has_gap(key)
        if source in self.digests and (not has_gap or item.source == value.get("source_name")):
            return True
        if item.source in self._parts.get(source, ()):
            return True
        if not has_gap or item.source not in self._names:
            return False
        return not lineage.is_known(key) or any(d in self.sources for d, _ in listed(value))

    def _last_other(self, lineage: Lineage, key: str) -> Value | None:
        """The last version above that read another document; None if there is none."""
        above = (self.values[at] for at in lineage.above([key]))
        return next((v for v in above if v.get("source") not in {*self.sources, ""}), None)

    def _named(self, version: MemoryVersion) -> str:
        return "" if version.source in self.digests else version.source_name


async def take_inventory(records: Records, digests: Sequence[str]) -> Inventory:
    """Read a bank, and find what came from the documents with these digests."""
    found = Inventory({*digests}, sources={*digests})
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


def _lines(text: str) -> str:
    """A memory's text, as `split` returns it if everything stays."""
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if any(map(str.isalnum, line)))
