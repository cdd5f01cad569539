"""The log on standard error: one line per record, without control characters."""

from __future__ import annotations

import logging
import sys
import traceback

_LONGEST = 500
"""Most characters of a message."""


class Lines(logging.Formatter):
    """Formats a record as one line of printable characters.

    Errors are logged with type and place only, because their messages may have a client's text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line = f"memagent: {record.levelname.lower()}: {record.name}: "
        line += _printable(record.getMessage()[:_LONGEST])
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)[-1:]
            where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in frames)
            line += f" ({kind.__name__}{where})"
        return line


def log_to_stderr() -> None:
    """Write the warnings of this process to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _printable(text: str) -> str:
    """The text with escapes for unprintable characters, such as controls and direction marks."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
