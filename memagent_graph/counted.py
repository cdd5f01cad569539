"""A number with its noun, for messages to people."""

from __future__ import annotations

_PLURALS = {"person": "people"}
"""Plurals that follow no rule."""


def counted(number: float, noun: str) -> str:
    """Return a number with its noun: "1 version", "2,000 memories", "0.5 minutes"."""
    if number == 1:
        return f"1 {noun}"
    plural = _PLURALS.get(noun)
    if plural is None:
        ends_in_ies = noun.endswith("y") and noun[-2:-1] not in "aeiou"
        plural = f"{noun[:-1]}ies" if ends_in_ies else f"{noun}s"
    figure = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{figure} {plural}"
