"""Remove keys and the client's text from errors before they are logged."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_LOOK = 2_000
"""Length of the examined part of an error, in characters."""
_LONGEST = 500
"""Length of the quoted part of an error, in characters."""
_LONGEST_REQUEST = 1_000_000
"""Longest text of a request that errors are compared with, in characters.

For longer requests, errors are not quoted.
"""
_ROW = 3
"""Number of successive words that count as the client's if its texts have them too."""
_SECRET = re.compile(
    r"(?:bearer|basic)\s+\S+|\b(?:sk|pk|key|token)[-_][\w*.-]+|[\w-]{32,}|(?<=://)[^\s/@]+(?=@)",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"(['\"`])(.{1,200}?)\1", re.DOTALL)


def without_echoes(said: str, request: dict[str, Any], key: str) -> str:
    """Return a server's error, with an ellipsis in place of keys and of the request's texts.

    Args:
        said: the error of the model's server.
        request: the request that caused the error.
        key: this server's key.
    """
    said = said[:_LONGEST_LOOK].replace(key, "…") if key else said[:_LONGEST_LOOK]
    said = _SECRET.sub("…", " ".join(said.split()))[:_LONGEST]
    texts = " ".join(" ".join(_texts(request)).split())
    if len(texts) > _LONGEST_REQUEST:
        return said.partition(" ")[0]
    said = _QUOTED.sub(lambda match: "'…'" if match[2] in texts else match[0], said)
    words = said.split(" ")
    starts = range(len(words) - _ROW + 1)
    rows = [at for at in starts if " ".join(words[at : at + _ROW]) in texts]
    echoed = {number for at in rows for number in range(at, at + _ROW)}
    return " ".join("…" if at in echoed else word for at, word in enumerate(words))


def _texts(value: Any) -> Iterator[str]:
    """The texts of a request, except for the names of its fields and of the model."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in pairs:
            if name not in ("model", "role", "type"):
                yield from _texts(inner)
