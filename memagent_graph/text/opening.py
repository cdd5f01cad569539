"""Open a document: text, a path, bytes, a stream, LangChain documents or a list of these."""

from __future__ import annotations

import json
import os
import reprlib
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias, TypeGuard
from urllib.parse import unquote, urlsplit

from langchain_core.documents import Document

from memagent_graph.counted import counted
from memagent_graph.errors import EmptyDocumentError, SourceError
from memagent_graph.sync import work_through
from memagent_graph.text.converters import AT_ONCE
from memagent_graph.text.files import FileSource, open_file
from memagent_graph.text.paths import is_converted, open_path
from memagent_graph.text.source import JoinedSource, Source, TextSource

DocumentLike: TypeAlias = (
    "str | bytes | Path | dict[str, str] | Document | Source | IO[str] | IO[bytes]"
    " | Iterable[object]"
)


def open_source(document: DocumentLike, *, name: str | None = None) -> Source:
    """Open a document.

    Args:
        document: a `str` is always text. A `Path` or `{"path": str}` is a file, a folder or a
            glob; `{"uri": str}` takes a `Source.uri`. Bytes are decoded like a file. Streams and
            generators, of text or of LangChain documents, are read once and kept in a temporary
            file. A list is all of its items, joined. Links that lead out of a folder or glob are
            skipped.
        name: its name in output; its own name by default.

    Raises:
        SourceError: This is not a document.
        SourceNotFoundError: A path does not exist, or a glob matches nothing.
        UnreadableSourceError: A file is binary or a device, or a folder has nothing to read.
        ConversionLimitError: A conversion exceeds the limit on time, memory or length of text.
        EmptyDocumentError: There is no text, or only white space.
        MissingDependencyError: The file's format needs the `documents` extra.

    Examples:
        >>> from memagent_graph.text.opening import open_source
        >>> source = open_source("Ann signed.", name="lease")  # or Path("lease.pdf"), ...
        >>> source.name, source.read(0, 3)
        ('lease', 'Ann')
    """
    source = _open(document, name)
    if not _has_text(source):
        message = f"{source.name} is empty or only white space: give a document with text."
        raise EmptyDocumentError(message)
    return source


def _open(document: object, name: str | None = None) -> Source:  # noqa: C901 - a list of kinds
    if isinstance(document, str):
        return TextSource(document, name or "text")
    if isinstance(document, os.PathLike):
        return _open_path(document, name)
    if isinstance(document, dict):
        return _open_record(document)
    if isinstance(document, bytes | bytearray):
        return _spool([bytes(document)], name or "bytes")
    if isinstance(document, Document):
        metadata = document.metadata
        title = metadata.get("source") or metadata.get("title") or "document"
        return _open(document.page_content, str(title))
    if _is_source(document):
        return document
    if hasattr(document, "read"):
        title = getattr(document, "name", None)
        # `read` asks a pipe until it has all of it, and does not see an interrupt between two
        # of these attempts before the pipe ends; `read1` asks once.
        return _spool(
            _blocks(getattr(document, "read1", document.read)),
            title if isinstance(title, str) else "stream",
        )
    if isinstance(document, list | tuple):
        if not document:
            raise EmptyDocumentError("The list of documents is empty: give at least one document.")
        parts = work_through(
            [(partial(_open, item), _is_converted(item)) for item in document], AT_ONCE
        )
        return parts[0] if len(parts) == 1 else JoinedSource(parts, f"{len(parts)} documents")
    if isinstance(document, Iterable):
        return _spool(document, "stream")
    message = (
        "A document is text, a path, bytes, a stream, LangChain documents or a list of these, not "
        f"{type(document).__name__}."
    )
    raise SourceError(message)


def _open_record(record: dict[str, str]) -> Source:
    if "path" in record:
        return _open_path(record["path"])
    uri = record.get("uri", "")
    if uri.startswith("list:"):
        uris = json.loads(uri.removeprefix("list:"))
        return JoinedSource([_open({"uri": item}) for item in uris], counted(len(uris), "document"))
    parts = urlsplit(uri)
    if parts.scheme != "file":
        given = reprlib.repr(record)
        message = f'A document record is {{"path": ...}} or {{"uri": "file://..."}}, not {given}.'
        raise SourceError(message)
    return _open_path(unquote(parts.path))


def _open_path(path: str | os.PathLike[str], name: str | None = None) -> Source:
    return open_path(Path(path), name)


def _is_converted(document: object) -> bool:
    return isinstance(document, os.PathLike) and is_converted(Path(document))


def _is_source(document: object) -> TypeGuard[Source]:
    return hasattr(document, "read") and hasattr(document, "locate")


def _blocks(read: Callable[[int], str | bytes]) -> Iterator[str | bytes]:
    while block := read(1 << 16):
        yield block


def _spool(blocks: Iterable[str | bytes | Document], name: str) -> Source:
    """Copy what can be read only once to a file that is deleted with the source."""
    encoding = None
    with tempfile.NamedTemporaryFile(delete=False) as file:
        path = Path(file.name)
        for block in blocks:
            if isinstance(block, Document):
                block = f"{block.page_content}\n\n"  # noqa: PLW2901
            if isinstance(block, str):
                encoding = "utf-8"
                block = block.encode("utf-8", "surrogatepass")  # noqa: PLW2901
            file.write(block)
    try:
        source = FileSource(path, name, encoding) if encoding else open_file(path, name)
    except BaseException:
        path.unlink()
        raise
    source.uri = None
    weakref.finalize(source, path.unlink, missing_ok=True)
    return source


def _has_text(source: Source) -> bool:
    start = 0
    while window := source.read(start, 1 << 16):
        if not window.isspace():
            return True
        start += len(window)
    return False
