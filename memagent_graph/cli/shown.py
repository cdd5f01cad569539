"""The words of others on a terminal: documents, models, names of files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_COMMANDS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, "\ufffd")

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


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
