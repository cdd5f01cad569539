"""The text of a memory as its lines, each in pieces that have evidence or have none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.memory.version import MemoryVersion


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a line.

    Attributes:
        text: exactly as the memory has it.
        evidence: numbers of its evidence, in the version; none if it has none.
        missing: of an unsupported statement, names and numbers that nothing accounts for.
        unsupported: whether it is one.
    """

    text: str
    evidence: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    unsupported: bool = False


def lines_of(version: MemoryVersion) -> list[list[Piece]]:
    """The lines of a memory, without those that are empty."""
    evidence: dict[str, list[int]] = {}
    for number, item in enumerate(version.memory.evidence):
        evidence.setdefault(item.text, []).append(number)
    marks = {item.text: item.missing for item in version.memory.unsupported}
    known = sorted({*evidence, *marks} - {""}, key=len, reverse=True)
    lines = []
    for line in version.text.splitlines():
        if not line.strip():
            continue
        found = [text for text in known if text in line]
        lines.append([_piece(text, evidence, marks) for text in _cut(line, found)])
    return lines


def _cut(line: str, texts: list[str]) -> list[str]:
    """A line in pieces of which some are these texts, the longest first."""
    pieces = [(line, False)]
    for text in texts:
        cut: list[tuple[str, bool]] = []
        for piece, known in pieces:
            first, *others = [piece] if known else piece.split(text)
            cut.append((first, known))
            for other in others:
                cut += [(text, True), (other, False)]
        pieces = cut
    return [piece for piece, _ in pieces if piece]


def _piece(text: str, evidence: dict[str, list[int]], marks: dict[str, tuple[str, ...]]) -> Piece:
    numbers = tuple(evidence.get(text, ()))
    return Piece(text, numbers, marks.get(text, ()), text in marks)
