"""Trace which documents versions and statements came from, and what is left without them.

A version names its document or, of joined documents, those in its chunk. Earlier documents are
known from the versions that it follows; if those were thinned out or forgotten, its record lists in
`read` what they had read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError
from memagent_graph.evidence.places import from_plain
from memagent_graph.evidence.statements import Note, notes
from memagent_graph.memory.owners import children_first
from memagent_graph.memory.version import (
    MemoryVersion,
    edit_version,
    follows_of,
    make_reading_key,
    read_document,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memagent_graph.evidence.places import Evidence, Memory
    from memagent_graph.facts.record import Fact
    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records

Rows = list[list[str]]
"""Digests and names of documents."""
PlaceKey = tuple[object, ...]
"""The place of evidence."""

READ = "read"
"""Field of a record with the documents of missing earlier versions."""

_PAIR = 2
_PLACE = ("source", "line", "start", "end")


class VersionSources:
    """The versions that led to others.

    Args:
        values: records of versions by id, including all that they follow, unless those are gone.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self.values = values
        self._evidence: dict[str, set[PlaceKey]] = {}

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

    def has_gap(self, key: str) -> bool:
        """Whether a version that this one follows directly is gone."""
        return any(other not in self.values for other in follows_of(self.values[key]))

    def is_known(self, key: str) -> bool:
        """Whether it is certain what was read for the versions that one follows directly."""
        value = self.values[key]
        if not self.has_gap(key) or isinstance(value.get(READ), list):
            return True
        # A reading without a name has one document; joined ones are named in `parts`.
        alone = [make_reading_key(str(value.get("root")), str(value.get("digest")))]
        joined = value.get("parts") or value.get("merged") or value.get("recalled")
        return value.get("owners") == alone and not joined

    def origins(self, key: str, wanted: PlaceKey) -> list[str]:
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

    def _evidence_of(self, key: str) -> set[PlaceKey]:
        if key not in self._evidence:
            value = self.values[key]
            self._evidence[key] = set()
            with suppress(KeyError, TypeError):  # of a damaged record
                memory = from_plain(self.values.get(text_of(value) or key, value))
                self._evidence[key] |= {at for item in memory.evidence for at in places_of(item)}
        return self._evidence[key]


def places_of(item: Evidence) -> tuple[PlaceKey, PlaceKey]:
    """Return the place of a statement in the document, without and with its text."""
    place = tuple(getattr(item, name) for name in _PLACE)
    return place, (*place, item.text)


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
    text = "\n".join(filter(None, map(_join, lines.values())))
    removed = sum(not stays for line in lines.values() for _, stays in line)
    evidence = [item for item in memory.evidence if item not in gone and item.text in text]
    return Split(text, tuple(evidence), removed)


def _join(line: Sequence[tuple[Note, bool]]) -> str:
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
        lineage = VersionSources(self.values)
        targets = [str(pointer.get("version")) for pointer in self.pointers.values()]
        led_to = {*lineage.above(target for target in targets if target in self.values)}
        tainted = {key for key in self.values if self._is_source(lineage, key, led_to)}
        followers = defaultdict(list)
        for key, value in self.values.items():
            for before in follows_of(value):
                followers[before].append(key)
        left = [*tainted]
        while left:
            new = {*followers[left.pop()]} - tainted
            tainted |= new
            left += new
        self.gone = children_first({key: self.values[key] for key in tainted})

    def rewrite(self, key: str) -> Rewritten | None:
        """Return the memory of a version without the documents; None if nothing is left of it."""
        lineage = VersionSources(self.values)
        try:
            before = MemoryVersion.from_record(self.values[key], key, self.values)
            left = self._split_facts(lineage, before) or self._split(lineage, before)
        except BadRecordError:  # the origin of its statements is unknown
            return None
        if not left.text:
            return None
        read = read_for(lineage, [key])
        if read is not None:
            read = [row for row in read if row[0] not in self.sources]
        other = self._last_other(lineage, key)
        edited, document = edit_version(before, left.text), before.document
        if document.digest in self.digests:
            document = replace(document, name="")
        after = replace(
            edited,
            memory=replace(edited.memory, evidence=left.evidence),
            document=replace(document, digest="") if other is None else read_document(other),
            cut=before.cut,
        )
        return Rewritten(after, read, left.removed)

    def _note(self, value: Value) -> None:
        """Note the documents' names, and the joined documents that contain them."""
        if value.get("digest") in self.digests:
            self.sources.add(str(value["digest"]))
        for digest, name in rows_of(value) + list_missing(value):
            if digest in self.digests:
                self._names.add(name)
        for digest, name in parts_of(value):
            if digest in self.digests:
                self.sources.add(str(value["digest"]))
                self._parts[str(value["digest"])].add(name)

    def _is_source(self, lineage: VersionSources, key: str, led_to: set[str]) -> bool:
        """Whether a version was made from the documents, or follows a deleted one that was.

        A version that no name leads to, and that follows something unknown, counts as written by
        a reading while the documents were being forgotten.
        """
        value = self.values[key]
        if value.get("digest") in self.sources:
            return True
        if any(digest in self.sources for digest, _ in list_missing(value)):
            return True
        if lineage.is_known(key):
            return False
        if key not in led_to:
            return True
        try:
            version = MemoryVersion.from_record(value, key, self.values)
            return self._split(lineage, version).text != _lines(version.text)
        except BadRecordError:
            self.unreadable.append(key)
            return False

    def _split(self, lineage: VersionSources, version: MemoryVersion) -> Split:
        gone = {
            item for item in version.memory.evidence if self._is_theirs(lineage, version.id, item)
        }
        return split(version.memory, gone)

    def _split_facts(self, lineage: VersionSources, version: MemoryVersion) -> Split | None:
        """The rest of a memory of facts, in which what the documents closed is open again.

        None if it is not one of facts.
        """
        if " | " not in version.text:  # else the package of facts is not imported
            return None
        from memagent_graph.facts.record import facts_of, is_facts, memory_of_facts
        from memagent_graph.facts.rules import ReplayStep, replay

        if not is_facts(version.text):
            return None
        known: dict[str, list[Fact]] = {}
        for key in lineage.above([version.id])[::-1]:
            with suppress(BadRecordError):
                stored = MemoryVersion.from_record(self.values[key], key, self.values)
                known[key] = facts_of(stored)
        origins: dict[tuple[object, ...], str] = {}
        steps = []
        for key, facts in known.items():
            before = [fact for one in lineage.before(key) for fact in known.get(one, ())]
            left = []
            for fact in facts:
                own = (fact.subject, fact.relation, fact.object)
                stays = [
                    item
                    for item in fact.evidence
                    if not self._brought(
                        lineage, origins.setdefault((*own, *places_of(item)[0]), key), item
                    )
                ]
                left.append(replace(fact, evidence=tuple(stays)))
            is_gone = any(digest in self.digests for digest, _ in rows_of(self.values[key]))
            steps.append(ReplayStep(before, left, is_gone))
        memory = memory_of_facts(replay(steps))
        lines = {*memory.text.splitlines()}
        removed = sum(line not in lines for line in version.text.splitlines())
        return Split(memory.text, memory.evidence, removed)

    def _is_theirs(self, lineage: VersionSources, key: str, item: Evidence) -> bool:
        """Whether evidence of a version stands in one of the documents, as far as is known."""
        place, made = places_of(item)
        if any(self._brought(lineage, at, item) for at in lineage.origins(key, place)):
            return True
        # Another document can have the same place; then the statement decides.
        again = (self.values[at] for at in lineage.origins(key, made))
        return any(
            value.get("digest") in self.digests and value.get("name") == item.source
            for value in again
        )

    def _brought(self, lineage: VersionSources, key: str, item: Evidence) -> bool:
        """Whether evidence that came in with a version is from the documents."""
        value = self.values[key]
        source, has_gap = str(value.get("digest")), lineage.has_gap(key)
        if source in self.digests and (not has_gap or item.source == value.get("name")):
            return True
        if item.source in self._parts.get(source, ()):
            return True
        if not has_gap or item.source not in self._names:
            return False
        return not lineage.is_known(key) or any(d in self.sources for d, _ in list_missing(value))

    def _last_other(self, lineage: VersionSources, key: str) -> Value | None:
        """The last version above that read another document; None if there is none."""
        above = (self.values[at] for at in lineage.above([key]))
        return next((v for v in above if v.get("digest") not in {*self.sources, ""}), None)


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
