"""Where records are written as they come, and read back: JSON lines, Parquet, Redis, a list."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from memagent_graph.errors import TraceError

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from memagent_graph.rl.records import Record


class Sink(Protocol):
    """Takes records, from any thread."""

    def write(self, record: Record) -> None:
        """Keep one record."""
        ...

    def close(self) -> None:
        """Write what is left, and let go of files and connections."""
        ...


class ListSink:
    """Keeps records in memory, for whoever trains in the same process.

    Attributes:
        records: what was written and not taken yet.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Keep one record."""
        self.records.append(record)

    def take(self) -> list[Record]:
        """What was written since the last time; pass it to `traces.join`."""
        taken, self.records = self.records, []
        return taken

    def close(self) -> None:
        """Nothing: the records stay."""


class JSONLinesSink:
    """Appends records to a file, a line each; several processes may do so at once.

    A line is one write, so that whoever reads meanwhile finds whole ones, but for the last.

    Args:
        path: the file, made if need be.
    """

    def __init__(self, path: str | Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._file = os.open(path, flags, 0o644)

    def write(self, record: Record) -> None:
        """Append one record."""
        line = json.dumps(record.plain(), separators=(",", ":")).encode() + b"\n"
        os.write(self._file, line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(paths: str | Path | Iterable[str | Path], skipped: Counter[str]) -> Iterator[Any]:
    """What sinks wrote, as plain values, in order; torn lines are counted in `skipped`.

    Raises:
        TraceError: There is no such file, or it is of another kind.
    """
    for path in [paths] if isinstance(paths, str | Path) else paths:
        if not Path(path).is_file():
            message = f"There are no traces in {path}: name a file that a sink wrote."
            raise TraceError(message)
        with Path(path).open("rb") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    skipped["torn line"] += 1
