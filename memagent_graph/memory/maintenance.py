"""Maintenance of all memories of a bank: collect, check, export and import."""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Literal, NamedTuple

from memagent_graph.errors import BadRecordError, MemoryNotFoundError, NewerRecordError, StoreError
from memagent_graph.memory.chain import append_version, move_head
from memagent_graph.memory.items import find_versions, owners_of, read_history
from memagent_graph.memory.store import Tries
from memagent_graph.memory.version import MemoryVersion, read_version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from memagent_graph.memory.items import Place, Records
    from memagent_graph.memory.store import Value

_log = logging.getLogger(__name__)
_AT_ONCE = 100
"""Versions changed in one step."""


class BankContents(NamedTuple):
    """All memories of a bank: records by id and place (None if unreadable), and errors.

    `made` are the versions of the records, which may have been altered.
    """

    versions: dict[str, Value]
    made: dict[str, MemoryVersion]
    pointers: dict[Place, Value | None]
    bad: list[BadRecordError]

    @property
    def targets(self) -> dict[str, str | None]:
        """The versions that names and readings lead to; None for one that cannot be read."""
        found = {name: (value or {}).get("version") for (_, name), value in self.pointers.items()}
        return {name: key if isinstance(key, str) else None for name, key in found.items()}


async def take_contents(records: Records) -> BankContents:
    """Read all memories of a bank."""
    found = BankContents({}, {}, {}, [])
    async for item in records.scan(records.versions):
        try:
            if isinstance(item, BadRecordError):
                raise item
            key, value = item.key, item.value
            found.made[key] = read_version(value) or MemoryVersion.from_record(value, key)
            found.versions[key] = value
        except BadRecordError as error:
            found.bad.append(error)
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if isinstance(item, BadRecordError):
                found.bad.append(item)
                found.pointers[namespace, item.key] = None
            else:
                found.pointers[namespace, item.key] = item.value
    return found


def above(versions: Mapping[str, MemoryVersion], keys: Iterable[str]) -> list[str]:
    """Return these versions and all that led to them and are there, nearest first."""
    left = [*dict.fromkeys(keys)]
    found = {*left}
    for key in left:
        new = [one for one in versions[key].parents if one in versions and one not in found]
        found.update(new)
        left += dict.fromkeys(new)
    return left


def children_first(versions: Mapping[str, MemoryVersion | None]) -> list[str]:
    """Return ids of versions, each before the one that it follows."""
    before = {
        key: [one for one in version.parents if one in versions and one != key] if version else []
        for key, version in versions.items()
    }
    return [*TopologicalSorter(before).static_order()][::-1]


async def delete_versions(
    records: Records,
    values: Mapping[str, Value],
    pointers: Mapping[Place, Value | None],
    ids: Sequence[str],
) -> int:
    """Delete versions in this order, until one or its names changed; return their number.

    `values` are their records, and `pointers` those of all names, as they were seen.
    """
    count = 0
    for batch in batches(ids):
        puts, given = records.changes(values, dict.fromkeys(batch))
        for owner in {owner for key in batch for owner in owners_of(values[key])}:
            for place in records.places_of(owner):
                if (pointer := pointers.get(place)) is not None or place not in pointers:
                    given[place] = pointer
        if not await records.commit(puts, given):
            break
        count += len(batch)
    return count


def batches(ids: Sequence[str]) -> list[Sequence[str]]:
    """Return ids of versions in groups, each of which is changed in one step."""
    return [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]


async def find_digests(records: Records, name: str) -> list[str]:
    """Return the digests of the documents of this name that memories were made from."""
    made = (await take_contents(records)).made.values()
    return sorted({digest for one in made for digest, called in one.made_from if called == name})


async def list_bank(records: Records) -> list[tuple[str, MemoryVersion]]:
    """Return names with their newest versions: named memories first, then readings.

    A memory that cannot be read is skipped, and a warning that names it is logged.
    """
    pointers: list[tuple[str, str]] = []
    for namespace in (records.heads, records.readings):
        async for item in records.scan(namespace):
            if isinstance(item, BadRecordError):
                _log.warning("%s Run `memagent memory check`.", item)
            elif isinstance(item.value.get("version"), str):
                pointers.append((item.key, item.value["version"]))
            else:
                why = "Memory %r points to no version. Run `memagent memory check`."
                _log.warning(why, item.key)
    heads = await find_versions(records, [key for _, key in pointers], refresh=False)
    found = []
    for (name, key), version in zip(pointers, heads, strict=True):
        if not isinstance(version, MemoryVersion):
            why = str(version or f"version {key} is gone").rstrip(".")
            _log.warning("Memory %r cannot be listed: %s. Run `memagent memory check`.", name, why)
        else:
            found.append((name, version))
    return found


_AGE = timedelta(days=30)


class Finding(NamedTuple):
    """A defect.

    Attributes:
        kind: "dangling" for a name that points to no version, "gap" for a version whose
            predecessor is gone, "bad" for an unreadable record, and "orphan" for a version that no
            name leads to, which `collect` will delete.
        key: name of the memory, or id of the version.
        text: description of the defect, and of what was repaired or lost.
    """

    kind: Literal["dangling", "gap", "bad", "orphan"]
    key: str
    text: str


async def collect(records: Records, older_than: timedelta | None = None) -> int:
    """Delete old versions that no name leads to, and return their number.

    Args:
        records: the bank.
        older_than: least age of a version to delete; 30 days by default.

    Raises:
        MemoryConflictError: Others kept changing the memories.
    """
    limit = (datetime.now(UTC) - (_AGE if older_than is None else older_than)).isoformat()
    count = 0
    async for _ in Tries("What no name leads to"):
        found = await take_contents(records)
        kept = _led_to(found)
        gone = [k for k, one in found.made.items() if one.created_at < limit and k not in kept]
        count += (done := await delete_versions(records, found.versions, found.pointers, gone))
        if done == len(gone):
            break
    return count


async def check_bank(
    records: Records, *, repair: bool = False, spare: Iterable[MemoryVersion] = ()
) -> list[Finding]:
    """Find defects: heads that point to nothing, gaps in histories, unreadable records.

    Args:
        records: the bank.
        repair: whether to repair them; the findings then say how, and what is lost.
        spare: versions with which `repair` fills gaps, as `versions_in` of
            `memagent_graph.graph.lineage` finds them in a checkpointer.
    """
    found = await take_contents(records)
    _verify(found)
    bad = [*found.bad]
    for namespace in (records.all_members, records.leases, records.threads, records.runs):
        scanned = records.scan(namespace)
        bad += [item async for item in scanned if isinstance(item, BadRecordError)]
    bad += [error async for error in _bad_proposals(records)]
    findings = []
    for error in bad:
        done = await _remove(records, error) if repair else ""
        findings.append(Finding("bad", error.key, f"{error}{done}"))
    newer = {error.key for error in bad if isinstance(error, NewerRecordError)}
    if repair:
        own = {version.id: version for version in spare if version.id not in newer}
        for key, leads in (await _restore(records, found, own)).items():
            kind: Literal["dangling", "gap"] = "dangling" if leads in found.targets else "gap"
            findings.append(Finding(kind, leads, f"{key} was gone: restored from a checkpoint"))
    owned = _versions_by_owner(found)
    for name, target in found.targets.items():
        if target in found.versions or target in newer:
            continue
        left = [found.made[key] for key in owned[name]]
        text = await _mend(records, name, left) if repair else "points to no version"
        findings.append(Finding("dangling", name, text))
    return findings + _loose(found)


async def _bad_proposals(records: Records) -> AsyncIterator[BadRecordError]:
    """Errors of proposals that cannot be read, or whose version cannot."""
    async for item in records.scan(records.proposals):
        try:
            if isinstance(item, BadRecordError):
                raise item
            MemoryVersion.from_record(item.value.get("version"))
        except BadRecordError as error:
            yield type(error)(str(error), key=item.key, namespace=records.proposals)


async def _restore(
    records: Records, found: BankContents, spare: Mapping[str, MemoryVersion]
) -> dict[str, str]:
    """Store missing versions again; return their ids, each with the key that leads to it.

    Versions that expire, were thinned out or are of a forgotten document stay away. So does what an
    edit follows, since it may have been left of what came from other documents.
    """
    restored: dict[str, str] = {}
    if not spare or records.lives is not None:
        return restored
    forgotten = {*await records.keys(records.forgotten)}
    waiting = [(target, name, [name]) for name, target in found.targets.items() if target]
    waiting += [lost for key in _led_to(found) for lost in _list_lost(found, key)]
    while waiting:
        key, leads, names = waiting.pop()
        if key in found.versions or key not in spare:
            continue
        version = spare[key]
        if forgotten.isdisjoint(digest for digest, _ in version.made_from):
            for name in names or (None,):
                await append_version(records, version, owner=name)
            found.made[key], found.versions[key] = version, version.to_record(names)
            restored[key] = leads
            waiting += _list_lost(found, key)
    return restored


def _list_lost(found: BankContents, key: str) -> list[tuple[str, str, list[str]]]:
    """The versions that one follows and that may be restored, itself, and its memories."""
    value, version = found.versions[key], found.made[key]
    if version.edited or value.get("thinned"):
        return []
    return [(before, key, owners_of(value)) for before in version.parents]


def _loose(found: BankContents) -> list[Finding]:
    """Gaps and orphans."""
    findings = []
    kept = _led_to(found)
    for key, version in found.made.items():
        gone = [before for before in version.parents if before not in found.versions]
        if key in kept and gone:
            text = f"follows {gone[0]}, which is gone: what led to it is lost"
            findings.append(Finding("gap", key, text))
        elif key not in kept:
            text = "no name leads to it: it belongs to a reading under way, or to a broken-off one"
            findings.append(Finding("orphan", key, text))
    return findings


async def _remove(records: Records, error: BadRecordError) -> str:
    """Delete an unreadable item, and return a note. Names are repaired later, from versions."""
    namespace = error.namespace or records.versions
    if isinstance(error, NewerRecordError):
        return " It was left as it is."
    if namespace in (records.heads, records.readings):
        return ""
    listed = namespace[:-1] == records.all_members
    await records.items([records.put(namespace, error.key, {} if listed else None)])
    return " It was written again." if listed else " It was deleted."


async def _mend(records: Records, name: str, versions: list[MemoryVersion]) -> str:
    """Point a name to the newest version that is left, or delete it; return a note."""
    newest = max(versions, key=lambda version: version.created_at, default=None)
    pointers = await records.pointers(name)
    value = None if newest is None else {"version": newest.id}
    there = [place for place, found in pointers.items() if found is not None]
    await records.items([records.put(*place, value) for place in there])
    if newest is None:
        return "pointed to no version, and none is left: the name was deleted"
    return f"pointed to no version: restored as of {newest.created_at}, step {newest.step}"


async def export_lines(
    records: Records, names: Iterable[str] | None = None, *, markdown: bool = False
) -> list[str]:
    """Return memories as JSON lines: versions, oldest first, and then names.

    Args:
        records: the bank.
        names: names of the memories; all that can be read by default.
        markdown: whether to return lines of Markdown, which nothing imports: the newest versions,
            with the places of their statements.
    """
    lines: dict[str, None] = {}
    if names is None:
        names = [name for name, _ in await list_bank(records)]
    histories = {name: await read_history(records, name) for name in names}
    if markdown:
        return [line for name, found in histories.items() for line in to_markdown(name, found[0])]
    for name, history in histories.items():
        for version in reversed(history):
            lines[json.dumps({"version": version.to_record()})] = None
        lines[json.dumps({"name": name, "head": history[0].id})] = None
    return [*lines]


def to_markdown(name: str, version: MemoryVersion | None) -> list[str]:
    """Return lines of Markdown: the name, the text as a quotation, and the source of each line."""
    lines = [f"# {' '.join(name.split())}", ""]
    if version is None:
        return lines
    lines += quote("" if version.thread else version.question, version.text)
    for item in version.memory.evidence:
        lines += quote(f"- {item.place}", item.text, "  > ")
    for line in version.told:
        lines += quote(f"- {line.at}, message {line.message} of {line.thread}", line.line, "  > ")
    return lines


def quote(source: str, text: str, mark: str = "> ") -> list[str]:
    """Return where a text is from, and the text as a quotation, which it cannot end."""
    head = [" ".join(source.split()), ""] if source else []
    return [*head, *(mark + line for line in text.splitlines()), ""]


async def store_lines(records: Records, lines: Iterable[str]) -> int:
    """Store the lines of an `export`, and return the number of versions.

    Raises:
        StoreError: A line is not from `export`, or the version of a name is missing.
    """
    versions, heads = _parse_lines(lines)
    led_to = {name: {*above(versions, versions.keys() & {head})} for name, head in heads.items()}
    for key, version in versions.items():
        for owner in [name for name in heads if key in led_to[name]] or (None,):
            await append_version(records, version, owner=owner)
    for name, head in heads.items():
        try:
            await move_head(records, name, head, expected=None)
        except MemoryNotFoundError as error:
            message = (
                f"The version of {name!r} is neither in these lines nor in the store: import the "
                "whole file as exported."
            )
            raise StoreError(message) from error
    return len(versions)


def _parse_lines(lines: Iterable[str]) -> tuple[dict[str, MemoryVersion], dict[str, str]]:
    """Versions by id, and the targets of names."""
    versions: dict[str, MemoryVersion] = {}
    heads: dict[str, str] = {}
    for line in filter(str.strip, lines):
        try:
            record = json.loads(line)
            if "version" in record:
                version = MemoryVersion.from_record(record["version"])
                versions[version.id] = version
            else:
                heads[record["name"]] = str(record["head"])
        except (BadRecordError, KeyError, TypeError, ValueError) as error:
            message = (
                f"Not a line of an export: {line[:60]!r}. Import a file that `memagent memory "
                "export` wrote."
            )
            raise StoreError(message) from error
    return versions, heads


def _led_to(found: BankContents) -> set[str]:
    """Ids of the versions that a name leads to, also beyond gaps."""
    owned, made = _versions_by_owner(found), found.made
    reached: set[str] = set()
    for name, target in found.targets.items():
        line = above(made, [key for key in made.keys() & {target} if key])
        follows = {before for key in line for before in made[key].parents}
        reached.update(line if line and follows <= made.keys() else [*line, *owned[name]])
    return reached


def _versions_by_owner(found: BankContents) -> defaultdict[str, list[str]]:
    """Ids of the versions of each memory."""
    owned = defaultdict(list)
    for key, value in found.versions.items():
        for owner in owners_of(value):
            owned[owner].append(key)
    return owned


def _verify(found: BankContents) -> None:
    """Leave only versions that were not altered, and add the errors of others to `found.bad`."""
    for key, value in [*found.versions.items()]:
        try:
            MemoryVersion.from_record(value, key)
        except BadRecordError as error:
            found.bad.append(error)
            del found.versions[key], found.made[key]
