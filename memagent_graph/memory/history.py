"""The versions that led to a memory, and where some of them are gone."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class History(list[MemoryVersion]):
    """The versions that led to a memory, newest first.

    Attributes:
        gaps: ids of versions that they name and that are gone: expired, evicted or thinned out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[str] = []


def walk(
    tip: MemoryVersion, stored: Mapping[str, MemoryVersion], own: Iterable[MemoryVersion]
) -> History:
    """The history of a version, which goes on beyond gaps; of what was merged the last comes first.

    Args:
        tip: the newest version.
        stored: versions by their ids.
        own: those among which the history goes on beyond a gap, where they are older.
    """
    history = History()
    listed: set[str] = set()
    wanted = [tip.id]
    while wanted:
        key = wanted.pop()
        if key in listed:
            continue
        found = tip if key == tip.id else stored.get(key)
        if found is None:
            history.gaps.append(key)
            left = [version for version in own if version.id not in listed]
            found = _newest_end(left, listed | {*wanted})
            if found is None:
                continue
        history.append(found)
        listed.add(found.id)
        wanted += found.follows
    return history


def _newest_end(left: list[MemoryVersion], listed: set[str]) -> MemoryVersion | None:
    """The newest version that no other follows; those beside the history are not part of it."""
    followed = {key for version in left for key in version.follows}
    ends = [v for v in left if v.id not in followed | listed and v.parent not in listed]
    return max(ends, key=lambda version: version.created_at, default=None)


def diff(before: MemoryVersion, after: MemoryVersion) -> Iterator[str]:
    """What changed from one memory to another: lines that begin with +, - or a space."""
    old, new = before.text.splitlines(), after.text.splitlines()
    for line in difflib.ndiff(old, new):
        if not line.startswith("?"):
            yield line
