"""Find which versions came from a document, and what memories fall back to without them.

A version names its document or, of joined documents, those in its chunk; and the documents that
the versions which it follows are made from. If some of those were thinned out, it also names the
joined documents in their chunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from memagent_graph.errors import BadRecordError
from memagent_graph.memory.items import UNKNOWN
from memagent_graph.memory.lookup import is_thinned
from memagent_graph.memory.owners import children_first, owners_of
from memagent_graph.memory.version import follows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from langgraph.store.base import PutOp

    from memagent_graph.memory.atomic import Value
    from memagent_graph.memory.items import Place, Records

Rows = list[list[str]]
"""Digests and names of documents."""

_PAIR = 2
_AT_ONCE = 100


class BankContents(NamedTuple):
    """All memories of a bank.

    Attributes:
        versions: records of versions, by id.
        pointers: records of names, and of readings without one; None for one that cannot be read.
        bad: errors of what cannot be read.
    """

    versions: dict[str, Value]
    pointers: dict[Place, Value | None]
    bad: list[BadRecordError]

    @property
    def targets(self) -> dict[str, str | None]:
        """The versions that names and readings lead to; None for one that cannot be read."""
        found = {name: (value or {}).get("version") for (_, name), value in self.pointers.items()}
        return {name: key if isinstance(key, str) else None for name, key in found.items()}


async def take_contents(records: Records) -> BankContents:
    """Read all memories of a bank."""
    found = BankContents({}, {}, [])
    async for item in records.scan(records.versions):
        if isinstance(item, BadRecordError):
            found.bad.append(item)
        else:
            found.versions[item.key] = item.value
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if not isinstance(item, BadRecordError):
                found.pointers[namespace, item.key] = item.value
                continue
            found.bad.append(item)
            if item.key != UNKNOWN:
                found.pointers[namespace, item.key] = None
    return found


async def delete_versions(records: Records, found: BankContents, ids: Sequence[str]) -> int:
    """Delete versions in this order, until one or where its names lead is not as it was found.

    Returns:
        The number of those that were deleted.
    """
    values, pointers = found.versions, found.pointers
    for start in range(0, len(ids), _AT_ONCE):
        puts: list[PutOp] = []
        given: dict[Place, Value | None] = {}
        for key in ids[start : start + _AT_ONCE]:
            puts.append(records.put(records.versions, key, None))
            given[records.versions, key] = values[key]
            for owner in owners_of(values[key]):
                puts.append(records.put(records.members(owner), key, None))
                for place in ((records.heads, owner), (records.readings, owner)):
                    if (pointer := pointers.get(place)) is not None or place not in pointers:
                        given[place] = pointer
        if not await records.commit(puts, given):
            return start
    return len(ids)


def above(values: Mapping[str, Value], keys: Iterable[str]) -> list[str]:
    """Return these versions and all that led to them and are there, nearest first."""
    left = [*dict.fromkeys(keys)]
    found = {*left}
    for key in left:
        new = [one for one in follows_of(values[key]) if one in values and one not in found]
        found.update(new)
        left += dict.fromkeys(new)
    return left


def rows_of(value: Value) -> Rows:
    """Return the documents that a version is made from, those that it follows first."""
    return _sound(value.get("sources")) + _own_rows(value)


def _own_rows(value: Value) -> Rows:
    own = [] if value.get("thread") else [[value.get("digest"), value.get("name")]]
    return _sound(own) + _sound(value.get("parts"))


def _sound(rows: object) -> Rows:
    pairs = (
        [row for row in rows if isinstance(row, list | tuple) and len(row) == _PAIR]
        if isinstance(rows, list | tuple)
        else []
    )
    return [[str(digest), str(name)] for digest, name in pairs if digest]


@dataclass(slots=True)
class Inventory:
    """The parts of a bank that came from some documents.

    Attributes:
        contents: all of the bank.
        sources: digests of the documents, and those of joined documents that contain one of them.
        gone: ids of the versions to delete, each before those that it follows.
        unsure: names of memories that stay though they may have read the documents: versions that
            led to them are lost, and were of joined documents.
    """

    contents: BankContents
    sources: set[str]
    gone: list[str] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)

    def trace(self) -> None:
        """Find what came from the documents."""
        digests, values = {*self.sources}, self.contents.versions
        for value in values.values():
            if any(digest in digests for digest, _ in _sound(value.get("parts"))):
                self.sources.add(str(value["digest"]))
        gone = {
            key: value
            for key, value in values.items()
            if any(digest in self.sources for digest, _ in rows_of(value))
        }
        self.gone = children_first(gone)
        unsure = {key for key in values.keys() - gone if self._lacks_parts(values[key])}
        self.unsure = sorted(
            name
            for name, key in self.contents.targets.items()
            if unsure and key in values and not unsure.isdisjoint(above(values, [key]))
        )

    def _lacks_parts(self, value: Value) -> bool:
        """Whether lost versions may have read documents, among joined ones, that it does not name.

        A joined document that a version follows is named again, by an empty name.
        """
        joined = value.get("parts") or any(not name for _, name in rows_of(value))
        is_whole = {*follows_of(value)} <= self.contents.versions.keys()
        return bool(joined) and not is_whole and not is_thinned(value)

    def fall_back(self, name: str, key: str) -> tuple[str | None, list[str]]:
        """Return the version that a memory falls back to, and what is to be read into it again.

        Args:
            name: the memory's name.
            key: id of its newest version, which is to be deleted.

        Returns:
            The nearest of the versions before it that stay, or beyond a gap its newest one; None
            without one. And the names of the documents that were read since, the oldest first.
        """
        values, gone, left, has_gap = self.contents.versions, {*self.gone}, [key], False
        own, inherited = Rows(), Rows()
        for at in left:
            if at not in gone:
                break
            value = values[at]
            own += _own_rows(value)
            inherited += _sound(value.get("sources"))
            new = [one for one in follows_of(value) if one not in left]
            left += [one for one in new if one in values]
            has_gap |= not {*new} <= values.keys()
        else:
            stay = [one for one in values.keys() - gone if name in owners_of(values[one])]
            age = {one: str(values[one].get("created_at")) for one in stay if has_gap}
            at = max(age, key=age.__getitem__, default="")
        kept = {digest for digest, _ in rows_of(values[at])} if at else set()
        lost = [row for row in inherited if row[0] not in kept] + own[::-1]
        names = (name for digest, name in lost if name and digest not in self.sources)
        return at or None, [*dict.fromkeys(names)]


async def take_inventory(records: Records, digests: Sequence[str]) -> Inventory:
    """Read a bank, and find what came from the documents with these digests."""
    found = Inventory(await take_contents(records), {*digests})
    found.trace()
    return found
