"""Write records as they come, and read them back: JSON lines, Parquet, Redis, a list."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urldefrag
from uuid import uuid4

from memagent_graph.errors import TraceError, install_hint
from memagent_graph.memory.redis.connection import connect
from memagent_graph.memory.redis.pipeline import Wire
from memagent_graph.rl.records import Conversation

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator
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
    with install_hint('Use JSON lines; or, for Parquet: pip install "memagent-graph[rl]"'):
        import pyarrow as pa
        from pyarrow import parquet
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


__all__ = ["JSONLinesSink", "ListSink", "ParquetSink", "RedisSink", "Sink", "read"]

_STREAM = "memagent:traces"
_AT_ONCE = 100
"""Entries of a stream read in one round trip."""


class Sink(Protocol):
    """Takes records from any thread."""

    def write(self, record: Record) -> None:
        """Keep one record."""
        ...

    def close(self) -> None:
        """Write the remaining records, and close files and connections."""
        ...


class ListSink:
    """Keeps records in memory, for training in the same process.

    Attributes:
        records: the records written and not taken yet.
    """

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Keep one record."""
        self.records.append(record)

    def take(self) -> list[Record]:
        """Return the records since the last call; `traces.join` makes rollouts of them."""
        taken = self.records[:]
        del self.records[: len(taken)]  # others may have written meanwhile
        return taken

    def close(self) -> None:
        """Do nothing: the records stay."""


class JSONLinesSink:
    """Appends records to a file, one per line; several processes may do so at once.

    Each record is one write, so that other processes find whole lines, except perhaps the last.
    A truncated line of a killed process is ended before the next is written.

    Args:
        path: the file, created if missing.

    Raises:
        OSError: The file cannot be written; also raised by `write`, if the disk is full.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, record: Record) -> None:
        """Append one record."""
        line = _json(record).encode() + b"\n"
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(self._file, line) < len(line):
            message = f"Only part of a record could be written to {self._path}: free disk space."
            raise OSError(message)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class RedisSink:
    """Adds records to a Redis stream, from which others can read them immediately.

    Args:
        url: a URL for `RedisStore.from_url`; its fragment is the name of the stream
            (`redis://localhost:6379/0#traces`), "memagent:traces" by default.

    Raises:
        ConfigurationError: It is not a Redis URL.
        StoreError: Raised by `write`: Redis cannot be reached, even after repeats.
    """

    def __init__(self, url: str) -> None:
        address, stream = urldefrag(url)
        self._stream = (stream or _STREAM).encode()
        self._connection = connect(address, max_connections=1)

    def write(self, record: Record) -> None:
        """Add one record."""
        entry = ("XADD", self._stream, "*", "record", _json(record))
        self._reply(Wire(self._stream, entry))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def read(self) -> Iterator[bytes]:
        """Yield the entries so far, in order."""
        after = "-"
        while True:
            entry = ("XRANGE", self._stream, after, "+", "COUNT", _AT_ONCE)
            found = self._reply(Wire(self._stream, entry))
            for position, fields in found:
                after = f"({position.decode()}"
                yield fields.get(b"record", b"")
            if len(found) < _AT_ONCE:
                return

    def _reply(self, command: Wire) -> Any:
        (reply,) = self._connection.send([command])
        if isinstance(reply, Exception):
            message = (
                f"The key {self._stream.decode()!r} in Redis is not a stream for traces: {reply}. "
                "Name another stream in the URL's fragment."
            )
            raise TraceError(message) from reply
        return reply


def read(paths: str | Path | Iterable[str | Path], skipped: Counter[str]) -> Iterator[object]:
    """Yield what sinks wrote as plain values, in order; truncated records are counted.

    Args:
        paths: one or several files or folders of JSON lines and Parquet, or Redis URLs.
        skipped: number of skipped records, by reason; added to.

    Raises:
        TraceError: There is no such file.
        StoreError: Redis cannot be reached.
    """
    for path in [paths] if isinstance(paths, str | Path) else paths:
        if "://" in str(path):
            yield from _read_stream(str(path), skipped)
            continue
        for file in _files(Path(path)):
            yield from (read_rows if file.suffix == ".parquet" else _read_lines)(file, skipped)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = [one for one in sorted(path.glob("*")) if one.suffix in {".jsonl", ".parquet"}]
    if not found:
        message = f"There are no traces in {path}: name a .jsonl or .parquet file, or a folder."
        raise TraceError(message)
    return found


def _read_lines(file: Path, skipped: Counter[str]) -> Iterator[object]:
    with file.open("rb") as lines:
        for line in lines:
            if line.strip():
                yield from _decode(line, skipped)


def _read_stream(url: str, skipped: Counter[str]) -> Iterator[object]:
    stream = RedisSink(url)
    try:
        for entry in stream.read():
            yield from _decode(entry, skipped)
    finally:
        stream.close()


def _decode(text: bytes, skipped: Counter[str]) -> Iterator[object]:
    try:
        yield json.loads(text)
    except ValueError:
        skipped["torn record"] += 1


def _json(record: Record) -> str:
    return json.dumps(record.plain(), separators=(",", ":"))
