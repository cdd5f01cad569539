"""The words of others on a terminal: documents, models, names of files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_COMMANDS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")}, "\ufffd")

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


def shown(text: str, stream: TextIO | None = None) -> str:
    """The text with a mark for each character that a terminal would obey; a pipe gets it as it is.

    Args:
        text: what to print.
        stream: where to; standard output by default.
    """
    if not (stream or sys.stdout).isatty():
        return text
    return text.replace("\r\n", "\n").translate(_COMMANDS)


def row(*fields: str) -> str:
    """Fields with tabs between them; none can forge another, or a line, in a pipe either."""
    return "\t".join(field.translate(_ESCAPES) for field in fields)
