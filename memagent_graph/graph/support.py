"""Drop unsupported statements of a memory, or warn about them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memagent_graph.evidence.statements import leave_out
from memagent_graph.graph.records import backed

if TYPE_CHECKING:
    from memagent_graph.evidence.places import Memory

_SHOWN = 80
"""Code points quoted of a statement in a warning."""


def drop_unsupported(memory: Memory) -> Memory:
    """Return the memory without its unsupported statements, which are counted in `dropped`."""
    if not memory.unsupported:
        return memory
    text = leave_out(memory.text, {item.text for item in memory.unsupported})
    dropped = memory.dropped + len(memory.unsupported)
    return replace(backed(text, memory), unsupported=(), dropped=dropped)


def warn(memory: Memory) -> list[str]:
    """Return warnings about unsupported statements in the final memory, kept or left out."""
    warnings = []
    if memory.unsupported:
        first, count = memory.unsupported[0], len(memory.unsupported)
        names = f" ({', '.join(first.missing)})" if first.missing else ""
        quoted = first.text if len(first.text) <= _SHOWN else f"{first.text[: _SHOWN - 1]}…"
        has = "statement of the memory has" if count == 1 else "statements of the memory have"
        warnings.append(f'{count} {has} no support in what was read: "{quoted}"{names}')
        warnings[0] += "." if count == 1 else ", for example."
    if memory.dropped:
        were = "statement was" if memory.dropped == 1 else "statements were"
        warnings.append(
            f"{memory.dropped} {were} left out of the memory, without support in what was read."
        )
    return warnings
