"""The history of a memory: its versions, and gaps where some are gone."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from memagent_graph.memory.version import MemoryVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


class History(list[MemoryVersion]):
    """The versions that led to a memory, newest first.

    Attributes:
        gaps: ids of versions that are missing in between: expired, evicted or thinned out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[str] = []


def walk(
    tip: MemoryVersion, stored: Mapping[str, MemoryVersion], own: Iterable[MemoryVersion]
) -> History:
    """Return the history of a version, which continues beyond gaps; the last merged comes first.

    Args:
        tip: the newest version.
        stored: versions by id.
        own: versions of the memory, with which the history continues beyond a gap.
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
    """The newest version that no other follows, except for branches off the history."""
    followed = {key for version in left for key in version.follows}
    ends = [v for v in left if v.id not in followed | listed and v.parent not in listed]
    return max(ends, key=lambda version: version.created_at, default=None)


def diff(before: MemoryVersion, after: MemoryVersion) -> Iterator[str]:
    """Yield a diff of two memories: lines that begin with "+", "-" or a space."""
    old, new = before.text.splitlines(), after.text.splitlines()
    for line in difflib.ndiff(old, new):
        if not line.startswith("?"):
            yield line
