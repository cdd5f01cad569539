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
    """A current or earlier value of one field of a profile.

    Attributes:
        field: its path, as "diet" or "address.city".
        value: the value, as in JSON; for a list, one item.
        message: id of the message that says so; empty if that is not known, as after an edit.
        thread: id of the conversation.
        told_at: time at which it was said (ISO 8601).
        until: time at which it was replaced or removed; empty while it is current.
        fits: whether it fits the current schema.
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
    """Limits on the lines of a profile that are kept although they were replaced.

    Attributes:
        values: number of newest values to keep of each field.
        days: days to keep them after they were replaced; None for ever.
    """

    values: int
    days: float | None = None

    def of(self, items: Sequence[Told]) -> list[Told]:
        """Return the lines that stay, in their order."""
        since = "" if self.days is None else (datetime.now(UTC) - timedelta(self.days)).isoformat()
        kept, counts = [], Counter[str]()
        for item in reversed(items):
            for entry in read(item.line)[0]:
                counts[entry.field] += 1
                if counts[entry.field] <= self.values and item.until >= since:
                    kept.append(item)
        return kept[::-1]


class Said(NamedTuple):
    """A message's start in the folded text, its id, and its time (ISO 8601)."""

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
    """Return the sources of the lines of a profile after a fold.

    Args:
        before: the sources before the fold.
        text: the profile.
        evidence: places in the folded text of the lines that the fold wrote.
        said: the messages that were folded, in their order; at least one.
        thread: id of the conversation.
        past: limits on the replaced values that are kept.
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
