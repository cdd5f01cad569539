"""A profile as it is given out: the instance, its entries, and who told them when."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from memagent_graph.conversation.entries import read, same
from memagent_graph.memory.version import Told

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memagent_graph.conversation.fields import Fields
    from memagent_graph.memory.version import MemoryVersion
    from memagent_graph.readers.base import Evidence


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """What is known of one field of a profile, or was.

    Attributes:
        field: its path, as "diet" or "address.city".
        value: as JSON has it; of a list, one item.
        message: id of the message that says so; empty if that is not known, as after an edit.
        thread: of which conversation.
        told_at: when it was said (ISO 8601).
        until: when another value took its place or it was taken out; empty while it stands.
        fits: whether the schema has a place for it now.
    """

    field: str
    value: Any
    message: str = ""
    thread: str = ""
    told_at: str = ""
    until: str = ""
    fits: bool = True


def entries_of(version: MemoryVersion, fields: Fields[Any]) -> list[ProfileEntry]:
    """The entries of a profile: those that stand, and then those that stood, the newest first."""
    told = {item.line: item for item in version.told if not item.until}
    standing = read(version.text)[0]
    misfits = fields.fit(standing).misfits
    found = []
    for entry in standing:
        source = told.get(entry.line) or Told(entry.line, "", "", entry.day)
        fits = not any(entry is one for one in misfits)
        found.append(
            ProfileEntry(
                entry.field, entry.value, source.message, source.thread, source.at, fits=fits
            )
        )
    for item in sorted(version.told, key=lambda item: item.until, reverse=True):
        for entry in read(item.line)[0] if item.until else ():
            known = entry.field in fields.by_path
            found.append(
                ProfileEntry(
                    entry.field, entry.value, item.message, item.thread, item.at, item.until, known
                )
            )
    return found


class Past(NamedTuple):
    """Which lines of a profile are kept that no longer stand.

    Attributes:
        values: how many of each field, the newest.
        days: for how many days after they were replaced; None for ever.
    """

    values: int
    days: float | None = None

    def of(self, items: Sequence[Told]) -> list[Told]:
        """The last of some lines, in their order."""
        since = "" if self.days is None else (datetime.now(UTC) - timedelta(self.days)).isoformat()
        kept, counts = [], Counter[str]()
        for item in reversed(items):
            for entry in read(item.line)[0]:
                counts[entry.field] += 1
                if counts[entry.field] <= self.values and item.until >= since:
                    kept.append(item)
        return kept[::-1]


class Said(NamedTuple):
    """Where a message begins in what was folded, its id, and when it was said (ISO 8601)."""

    start: int
    message: str
    at: str


def attest(
    before: Sequence[Told],
    text: str,
    evidence: Iterable[Evidence],
    said: Sequence[Said],
    *,
    thread: str,
    past: Past,
) -> tuple[Told, ...]:
    """Who told the lines of a profile, after a fold.

    Args:
        before: as known before it.
        text: the profile.
        evidence: where the lines that the fold wrote stand in what was folded.
        said: the messages that were folded, in their order; at least one.
        thread: of which conversation.
        past: which values that no longer stand are kept.
    """
    starts = [one.start for one in said]
    new = {}
    for item in evidence:
        one = said[max(0, bisect(starts, item.start) - 1)]
        new[item.text] = Told(item.text, one.message, thread, one.at)
    standing = {item.line: item for item in before if not item.until}
    lines = text.splitlines()
    now = [new.get(line) or standing.get(line) for line in lines]
    gone = [
        replace(item, until=said[-1].at)
        for line, item in standing.items()
        if not any(_says_the_same(line, other) for other in lines)
    ]
    return (
        *(item for item in now if item is not None),
        *past.of([*(item for item in before if item.until), *gone]),
    )


def _says_the_same(line: str, other: str) -> bool:
    """Whether two lines differ at most in their day."""
    if line == other:
        return True
    (one, _), (two, _) = read(line), read(other)
    return any(a.field == b.field and same(a.value, b.value) for a in one for b in two)
