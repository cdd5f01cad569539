"""The words of others on a terminal: documents, models, names of files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_CONTROLS = {*range(0x20), *range(0x7F, 0xA0)}
_TURNING = {0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)}
"""Marks of direction, with which a text reads other than it is, and separators of lines."""
_COMMANDS = dict.fromkeys((_CONTROLS | _TURNING) - {ord("\n"), ord("\t")}, "\ufffd")

_ESCAPES = {code: f"\\x{code:02x}" for code in _CONTROLS}
_ESCAPES |= {code: f"\\u{code:04x}" for code in _TURNING}


def shown(text: str, stream: TextIO | None = None) -> str:
    """Replace control characters with a mark, unless the stream is not a terminal.

    Args:
        text: the text to print.
        stream: the stream to print to; standard output by default.
    """
    if not (stream or sys.stdout).isatty():
        return text
    return text.replace("\r\n", "\n").translate(_COMMANDS)


def row(*fields: str) -> str:
    """Join fields with tabs; no field can forge another field or a line, in a pipe either."""
    return "\t".join(field.translate(_ESCAPES) for field in fields)
