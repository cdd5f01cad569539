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
    """The history of a version, which goes on beyond gaps.

    Args:
        tip: the newest version.
        stored: versions by their ids.
        own: those among which the history goes on beyond a gap, where they are older.
    """
    history = History()
    listed: set[str] = set()
    current: MemoryVersion | None = tip
    while current is not None and current.id not in listed:
        history.append(current)
        listed.add(current.id)
        if current.parent == current.root:
            break
        following = stored.get(current.parent)
        if following is None:
            history.gaps.append(current.parent)
            following = _newest_end(
                [version for version in own if version.id not in listed], listed
            )
        current = following
    return history


def _newest_end(left: list[MemoryVersion], listed: set[str]) -> MemoryVersion | None:
    """The newest version that no other follows; those beside the history are no part of it."""
    parents = {version.parent for version in left}
    ends = [v for v in left if v.id not in parents and v.parent not in listed]
    return max(ends, key=lambda version: version.created_at, default=None)


def diff(before: MemoryVersion, after: MemoryVersion) -> Iterator[str]:
    """What changed from one memory to another: lines that begin with +, - or a space."""
    old, new = before.text.splitlines(), after.text.splitlines()
    for line in difflib.ndiff(old, new):
        if not line.startswith("?"):
            yield line
