"""How much of a document a memory knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.memory.version import MemoryVersion


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of a document, in percent.

    Attributes:
        read: how much was read.
        skimmed: how much was skimmed and not read.
    """

    read: float
    skimmed: float

    @classmethod
    def of(cls, version: MemoryVersion) -> Coverage:
        """Of a version's document."""
        document = version.document
        length = max(document.length, 1)
        skimmed = 0 if document.again else sum(end - start for start, end in document.skipped)
        return cls(_percent((document.end - skimmed) / length), _percent(skimmed / length))

    @property
    def text(self) -> str:
        """For a person."""
        read = f"{self.read:.0f}% read"
        return f"{read}, {self.skimmed:.0f}% skimmed" if self.skimmed else read


def _percent(share: float) -> float:
    return round(100 * min(max(share, 0.0), 1.0), 1)
