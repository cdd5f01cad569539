"""How to cut a source: `next_chunk` is a pure function of (source, offset)."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memagent_graph.text.source import Source


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a source.

    Attributes:
        text: the part itself, exactly as decoded.
        start: offset of its first code point in the source.
        end: offset one past its last.
        tokens: how many tokens it has.
        source: where it came from.
    """

    text: str
    start: int
    end: int
    tokens: int
    source: Source

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hex."""
        return sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()
