"""The log on standard error: a line for each record, which commands no terminal."""

from __future__ import annotations

import logging
import sys
import traceback

_LONGEST = 500
"""Characters of a message."""


class Lines(logging.Formatter):
    """A record as one line of printable characters.

    Errors appear with their kind and their place: their words may be text of a client.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = f"memagent: {record.levelname.lower()}: {record.name}: "
        line += _printable(record.getMessage()[:_LONGEST])
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, trace = record.exc_info
            frames = traceback.extract_tb(trace)[-1:]
            where = "".join(f" at {frame.filename}:{frame.lineno}" for frame in frames)
            line += f" ({kind.__name__}{where})"
        return line


def log_to_stderr() -> None:
    """Write warnings of this server and all that it uses to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _printable(text: str) -> str:
    """With an escape for each character that shows nothing: controls, marks of direction."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
