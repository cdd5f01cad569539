"""Records in Parquet files, with a column for each field, for analysis tools."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from memagent_graph.errors import MissingDependencyError
from memagent_graph.rl.records import Conversation

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator
    from types import ModuleType

    from memagent_graph.rl.records import Record


class ParquetSink:
    """Writes records to Parquet files in a folder, many per file; needs `pyarrow`.

    A file appears when it is complete, so several processes can write into one folder while others
    read it. A process that is killed loses the records that it has not written yet.

    Args:
        folder: the folder, created if missing.
        rows: records per file.

    Raises:
        MissingDependencyError: `pyarrow` is not installed.
    """

    def __init__(self, folder: str | Path, *, rows: int = 4096) -> None:
        self._arrow, self._parquet = _pyarrow()
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._rows = rows
        self._waiting: list[dict[str, object]] = []
        self._lock = threading.Lock()

    def write(self, record: Record) -> None:
        """Keep a record, and write a file when there are enough."""
        plain = record.plain()
        if isinstance(record, Conversation):
            plain["sampling"] = json.dumps(dict(record.sampling))
        with self._lock:
            self._waiting.append(plain)
            if len(self._waiting) >= self._rows:
                self._flush()

    def close(self) -> None:
        """Write the remaining records."""
        with self._lock:
            if self._waiting:
                self._flush()

    def _flush(self) -> None:
        table = self._arrow.Table.from_pylist(self._waiting, schema=_schema(self._arrow))
        name = f"{time.time_ns():020}-{uuid4().hex[:8]}"  # in the order of writing
        unfinished = self._folder / f"{name}.unfinished"
        self._parquet.write_table(table, unfinished, compression="zstd")
        unfinished.replace(self._folder / f"{name}.parquet")
        self._waiting = []


def read_rows(file: Path, skipped: Counter[str]) -> Iterator[object]:
    """Yield the records of a file as plain values; a truncated file is counted in `skipped`."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(file) as found:
            for batch in found.iter_batches():
                for row in batch.to_pylist():
                    if row.get("sampling") is not None:
                        row["sampling"] = json.loads(row["sampling"])
                    yield row
    except (arrow.ArrowInvalid, OSError):
        skipped["torn file"] += 1


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        message = "Parquet needs pyarrow: pip install 'memagent-graph[rl]', or use JSON lines."
        raise MissingDependencyError(message) from error
    return pa, parquet


def _schema(arrow: ModuleType) -> object:
    """Columns of all kinds of records; those that a kind lacks are empty."""
    words = ("kind", "rollout", "sample", "group", "tokenizer", "sampling", "answer", "response")
    columns = dict.fromkeys((*words, "finish_reason"), arrow.string())
    numbers = ("step", "conversations", "policy", "start", "end")
    columns |= dict.fromkeys(numbers, arrow.int64())
    columns |= dict.fromkeys(("prompt_ids", "completion_ids"), arrow.list_(arrow.int32()))
    columns |= {"final": arrow.bool_(), "changed": arrow.bool_(), "reward": arrow.float64()}
    return arrow.schema({**columns, "logprobs": arrow.list_(arrow.float64())})
