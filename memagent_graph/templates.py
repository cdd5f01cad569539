"""Fill templates with text that nobody vouches for, and messages with numbers."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TAG = re.compile(r"</?([A-Za-z][\w-]*+)[^<>]*+>")
_GAP = r"[\s\u00ad\u200b-\u200f\u2060-\u2064\ufeff]*"
"""White space and characters that nobody sees, with which a delimiter may be disguised."""
_CHAT_TAGS = frozenset({"think", "thinking", "start_of_turn", "end_of_turn"})
_CONTROL = r"<(?=[|｜][^\s<>|｜]{1,40}[|｜]>|/?s>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])"
"""Servers read the control tokens of chat templates even in the text of a message."""


def render(template: str, **values: str) -> str:
    """Fill a template's fields; no value can close its tags or bring in another field.

    Args:
        template: a text with each field in braces.
        values: value of each field.
    """
    return fill(template, {name: disarm(value, template) for name, value in values.items()})


def fill(template: str, values: Mapping[str, str]) -> str:
    """Fill a template's fields with values that are disarmed already."""
    # In one pass, so that a field's name in a value stays a piece of text.
    return re.sub(rf"\{{({'|'.join(values)})\}}", lambda match: values[match[1]], template)


def disarm(value: str, template: str) -> str:
    """`value` without forged delimiters: another sign in their place reads as before."""
    if "<" not in value and "[" not in value:  # all of them begin so, and searching costs more
        return value
    return _forgery_pattern(template).sub("‹", value)


@lru_cache(maxsize=64)
def _forgery_pattern(template: str) -> re.Pattern[str]:
    """Finds what forges a delimiter of the template or of chats in a value."""
    tags = {match[1].lower() for match in _TAG.finditer(template)}
    names = "|".join(map(_spaces_between, sorted(tags | _CHAT_TAGS)))
    # Two gaps in a row would share out a long run of spaces in every way there is.
    return re.compile(rf"<(?={_GAP}(?:/{_GAP})?(?:{names})\b)|{_CONTROL}", re.IGNORECASE)


def _spaces_between(name: str) -> str:
    return _GAP.join(map(re.escape, name))


_PLURALS = {"person": "people"}
"""Plurals that follow no rule."""


def plural(number: float, noun: str) -> str:
    """Return a number with its noun: "1 version", "2,000 memories", "0.5 minutes"."""
    if number == 1:
        return f"1 {noun}"
    plural = _PLURALS.get(noun)
    if plural is None:
        ends_in_ies = noun.endswith("y") and noun[-2:-1] not in "aeiou"
        plural = f"{noun[:-1]}ies" if ends_in_ies else f"{noun}s"
    figure = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{figure} {plural}"
