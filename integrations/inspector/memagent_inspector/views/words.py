"""What changed from one text to another: lines first, then the words of lines that changed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")
_MOST_LINES = 2_000
_MOST_WORDS = 1_500
"""Of a changed run of lines; what is longer is marked as a whole."""


@dataclass(frozen=True, slots=True)
class Run:
    """Text that both have, or only one of them."""

    kind: Literal["same", "added", "removed"]
    text: str


def compare(before: str, after: str) -> list[Run]:
    """The runs of which both texts are made: what was removed comes before what was added.

    Args:
        before: the older text.
        after: the newer one.
    """
    if before == after:
        return [Run("same", before)] if before else []
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    if max(len(old), len(new)) > _MOST_LINES:
        return [*_differ(before, after)]
    runs: list[Run] = []
    for first, last, begin, end in _pairs(old, new):
        runs += _words("".join(old[first:last]), "".join(new[begin:end]))
    return runs


def side(runs: Sequence[Run], kind: Literal["added", "removed"]) -> list[Run]:
    """The runs of one of the two texts, `removed` for the older one."""
    return [run for run in runs if run.kind in ("same", kind)]


def _words(before: str, after: str) -> Iterator[Run]:
    old, new = _WORD.findall(before), _WORD.findall(after)
    if before == after or max(len(old), len(new)) > _MOST_WORDS:
        yield from _differ(before, after)
        return
    for first, last, begin, end in _pairs(old, new):
        yield from _differ("".join(old[first:last]), "".join(new[begin:end]))


def _pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[int, int, int, int]]:
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return ((first, last, begin, end) for _, first, last, begin, end in matcher.get_opcodes())


def _differ(before: str, after: str) -> Iterator[Run]:
    if before == after:
        yield Run("same", before)
        return
    if before:
        yield Run("removed", before)
    if after:
        yield Run("added", after)
