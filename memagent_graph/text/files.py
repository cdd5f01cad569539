"""Open documents: text, bytes, streams, a file of any encoding and size, a folder or a glob."""

from __future__ import annotations

import glob
import json
import os
import re
import reprlib
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, islice, takewhile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import parse_qs, unquote, urlsplit

from langchain_core.documents import Document

from memagent_graph import errors
from memagent_graph.sync import work_through
from memagent_graph.text.charset import SAMPLE, FileSource, is_binary, open_text
from memagent_graph.text.conversion import FORMATS, OLDER, PICTURES, PLAIN, format_of
from memagent_graph.text.converter import AT_ONCE, ConvertedSource, can_convert
from memagent_graph.text.source import (
    JoinedSource,
    Skipped,
    Source,
    TextSource,
    flat_parts,
    list_lines,
    metadata_of,
    skips_of,
    warnings_of,
)
from memagent_graph.text.terms import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memagent_graph.text.charset import Opener


def open_file(
    path: Path,
    name: str | None = None,
    opener: Opener | None = None,
    encoding: str | None = None,
    *,
    keep: bool = True,
) -> Source:
    """Open a file: text in any encoding, or a format that is converted; errors as `open_source`.

    A file counts as binary if its first 64 KiB have NUL bytes and are neither UTF-8 nor UTF-16, or
    if more than a tenth of them are control characters; NUL bytes in text are kept. `opener` opens
    it, as for `open`; its converted text is in the cache only if `keep`.
    """
    name = replace_surrogates(name or str(path))
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            hint = 'pass its content on standard input, and "-" in place of its name.'
            message = f"{name} is a pipe, a socket or a device, not a file: {hint}"
            raise errors.UnreadableSourceError(message)
        suffix = path.suffix.lower()
        with open(path, "rb", opener=opener) as file:
            sample = file.read(SAMPLE)
            file.seek(max(file.seek(0, os.SEEK_END) - SAMPLE, 0))
            kind = format_of(suffix, sample, file.read(SAMPLE))
        if kind and (can_convert() or kind not in PLAIN):
            if opener is None:
                return ConvertedSource(path, name, kind, keep=keep)
            return ConvertedSource.of_copy(path, name, kind, opener)
        if encoding is None and is_binary(sample):
            why = f"is a binary file: only text can be read, and {', '.join(sorted(FORMATS))}."
            if suffix in OLDER:
                why = f"is in a format that cannot be read, {suffix}: save it as {OLDER[suffix]}."
            message = f"{name} {why}"
            raise errors.UnreadableSourceError(message)
        return open_text(path, name, sample, opener, encoding)
    except PermissionError as error:
        message = f"No permission to read {name}: change its permissions."
        raise errors.UnreadableSourceError(message) from error


_ADDRESS = re.compile(r"(\w{2,}):/+(.+)", re.DOTALL)
"""A URL as a `Path` has it, with one slash of two. The name of a drive is one letter."""


def open_path(
    path: Path,
    name: str | None = None,
    opener: Opener | None = None,
    wants: Callable[[str], bool] = bool,
) -> Source:
    """Open a file, all files of a folder, or the files that a glob matches.

    Links that lead out of the folder or glob, or to hidden files in it, are skipped: the author of
    a folder, such as a project of strangers, must not choose what else is read. `opener` opens each
    file, as for `open`, and `wants` chooses those of a folder by their names in output.
    """
    if path.exists() and not path.is_dir():
        return open_file(path, name, opener)
    prefix = f"{name}/" if name is not None and path.is_dir() else ""
    if path.is_dir():
        base = path.absolute()
        files, root = sorted(_walk(base)), base if prefix else base.parent
    else:
        of_glob = (folder for folder in path.parents if not glob.has_magic(str(folder)))
        base = next(of_glob, path).absolute()
        every = sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - absolute ones too
        entered = {folder for file in every for folder in file.parents}
        files = [file for file in every if file.is_file() or file not in entered]
        if not files:
            raise _make_not_found(path)
        root = base if base == Path.cwd() else base.parent
    named = [(file, prefix + file.absolute().relative_to(root).as_posix()) for file in files]
    tasks = [
        (partial(_open_meant, file, base, shown, opener), _is_converted(file))
        for file, shown in named
        if wants(shown)
    ]
    opened, name = work_through(tasks, AT_ONCE), name or str(path)
    parts = [part for part in opened if not isinstance(part, Skipped)]
    skipped = [part for part in opened if isinstance(part, Skipped)]
    if not parts:
        nothing = "no file is included." if files else "it has no files."
        message = f"Nothing in {name} can be read: {list_lines([*map(str, skipped)]) or nothing}"
        raise errors.UnreadableSourceError(message)
    uri = path.absolute().as_uri() if wants is bool else None
    return JoinedSource(parts, name, uri=uri, skipped=skipped)


def _make_not_found(path: Path) -> errors.SourceNotFoundError:
    if address := _ADDRESS.match(str(path)):
        url = f"{address[1]}://{address[2]}"
        hint = f"Save it as a file, or pipe it in: curl --location {url} | memagent ask QUESTION -"
        message = f"{url} is a web address, and nothing is downloaded. {hint}"
    else:
        message = f"There is no {path}. Check the path, which is relative to {Path.cwd()}."
    return errors.SourceNotFoundError(message)


def _walk(folder: Path) -> Iterator[Path]:
    refused = list[OSError]()
    for root, folders, files in os.walk(folder, onerror=refused.append):  # follows no links
        left_out = {name for name in folders if name[0] == "." or Path(root, name).is_symlink()}
        folders[:] = [name for name in folders if name not in left_out]
        yield from (Path(root, name) for name in (*files, *left_out))
    yield from (Path(error.filename) for error in refused)


def _is_converted(document: object) -> bool:
    suffix = Path(document).suffix.lower() if isinstance(document, os.PathLike) else ""
    return suffix in FORMATS and (suffix not in PLAIN or can_convert())


def _open_meant(file: Path, base: Path, name: str, opener: Opener | None) -> Source | Skipped:
    """Open a file of a folder; a record that says why it was skipped if it is not read."""
    shown = replace_surrogates(name)
    try:
        if file.name.startswith("."):
            return Skipped(shown, "it is hidden.")
        if _leads_away(file.absolute(), base):
            return Skipped(shown, "it is a link out of the folder, or to a hidden file.")
        if file.is_dir():
            entered = f"it is a {'link to a ' * file.is_symlink()}folder, which is not entered."
            refused = "no permission to read the folder: change its permissions."
            return Skipped(shown, entered if os.access(file, os.R_OK | os.X_OK) else refused)
        if file.suffix.lower() in PICTURES and file.stat().st_size < _ICON:
            return Skipped(shown, "it is a picture of less than 4 KiB, as icons are.")
        found = Path(os.path.realpath(file)) if opener else file
        source = open_file(found, name, opener)
        return source if _has_text(source) else Skipped(shown, _why_empty(source))
    except (errors.SourceError, ImportError, OSError) as error:
        said = str(error) or type(error).__name__
        return Skipped(shown, f"it{said[len(name) :]}" if said.startswith(f"{name} ") else said)


_ICON = 4096  # bytes below which a picture in a folder is an icon


def _why_empty(source: Source) -> str:
    return " ".join(warnings_of(source)) or "it is empty or only white space."


def _leads_away(file: Path, base: Path) -> bool:
    """Whether links take a file out of the folder, or to something hidden in it."""
    target, inside = Path(os.path.realpath(file)), os.path.realpath(base)
    if not target.is_relative_to(inside):
        return True
    parts = (path.parts for path in (target.relative_to(inside), file.relative_to(base)))
    of_target, of_file = (any(part.startswith(".") for part in found) for found in parts)
    return of_target and not of_file


_About: TypeAlias = "Mapping[str, Any]"
DocumentLike: TypeAlias = (
    "str | bytes | Path | dict[str, str] | Document | Source | corpus | IO[str] | IO[bytes]"
    " | Iterable[object]"
)


def open_source(
    document: DocumentLike, *, name: str | None = None, encoding: str | None = None
) -> Source:
    """Open a document.

    Args:
        document: a `str` is always text. A `Path` or `{"path": str}` is a file, a folder or a
            glob; `{"uri": str}` takes a `Source.uri`. Bytes are decoded like a file. Streams and
            generators of text are read once and kept in a temporary file. A list is all of its
            items, joined, and so is a generator of LangChain documents. Links that lead out of a
            folder or glob are skipped.
        name: its name in output; its own name by default.
        encoding: a Python codec, such as "cp1252", for a text file or bytes whose encoding is
            known. By default it is found from the content.

    Raises:
        SourceError: This is not a document, or there is no such encoding.
        SourceNotFoundError: A path does not exist, or a glob matches nothing.
        UnreadableSourceError: A file is binary or a device, or a folder has nothing to read.
        ConversionLimitError: A conversion exceeds the limit on time, memory or length of text.
        EmptyDocumentError: There is no text, or only white space.
        MissingDependencyError: The file's format needs the `documents` extra.

    Examples:
        >>> from memagent_graph.text.files import open_source
        >>> source = open_source("Ann signed.", name="lease")  # or Path("lease.pdf"), ...
        >>> source.name, source.read(0, 3)
        ('lease', 'Ann')
    """
    source = _open(document, name, encoding)
    if not _has_text(source):
        found = " ".join(warnings_of(source))
        message = f"{source.name} is empty or only white space: give a document with text. {found}"
        raise errors.EmptyDocumentError(message.rstrip())
    return source


_PATH_CHARACTERS = 1024  # longest text, in characters, that is looked up as the name of a file


def warn_of_path(text: str) -> None:
    """Warn if a document is the name of a file or an address: its text was perhaps meant."""
    found = "a web address, and nothing is downloaded: save it as a file, and pass its Path."
    if is_file := len(text) <= _PATH_CHARACTERS and os.path.isfile(text):  # noqa: PTH113 - of any
        found = f'also the name of a file, which {{"path": {json.dumps(text)}}} would read.'
    if is_file or (_ADDRESS.match(text) and len(text.split()) == 1):
        message = f"The document is the text {text!r}, which is {found}"
        # Not in the source's warnings: a client of a server could look for files with them.
        warnings.warn(message, UserWarning, stacklevel=2)


def _open(  # noqa: C901, PLR0912 - a list of kinds
    document: object, name: str | None = None, encoding: str | None = None
) -> Source:
    if isinstance(document, dict) and "path" in document:
        document = Path(document["path"])
    if isinstance(document, bytes | bytearray):
        return _spool([bytes(document)], name or "bytes", encoding)
    if isinstance(document, os.PathLike):
        path = Path(document)
        if encoding is None:
            return open_path(path, name)
        if path.is_file():
            return open_file(path, name, encoding=encoding)
    if encoding is not None:
        raise errors.SourceError("An encoding is for one text file or bytes: open each by itself.")
    if isinstance(document, str):
        warn_of_path(document)
        return TextSource(document, name or "text")
    if isinstance(document, dict):
        return _open_record(document)
    if isinstance(document, Document):
        about = document.metadata
        title = about.get("source") or about.get("title") or "document"
        source = TextSource(document.page_content, str(title), about)
        source.id = document.id
        return source
    if isinstance(document, corpus):
        return document.open_sources()
    if hasattr(document, "read") and hasattr(document, "locate"):
        return cast("Source", document)
    if hasattr(document, "read"):
        # `read` asks a pipe until it has all of it, and does not see an interrupt between two
        # of these attempts before the pipe ends; `read1` asks once.
        read = partial(getattr(document, "read1", document.read), 1 << 16)
        title = name or getattr(document, "name", None)
        title = title if isinstance(title, str) else "stream"
        return _spool(takewhile(bool, iter(read, None)), title)
    if isinstance(document, list | tuple):
        if not document:
            raise errors.EmptyDocumentError("The list of documents is empty: give at least one.")
        tasks = [(partial(_open, item), _is_converted(item)) for item in document]
        parts = work_through(tasks, AT_ONCE)
        return parts[0] if len(parts) == 1 else _join(parts)
    if isinstance(document, Iterable):
        blocks = iter(document)
        first = [*islice(blocks, 1)]  # documents have sources and metadata, which text has not
        loads = first and isinstance(first[0], Document)
        return _open([*first, *blocks]) if loads else _spool(chain(first, blocks), "stream")
    kinds = "text, a path, bytes, a stream, LangChain documents or a list of these"
    message = f"A document is {kinds}, not {type(document).__name__}."
    raise errors.SourceError(message)


def _join(parts: Sequence[Source]) -> Source:
    """Join the documents of a list, of which at least one has text."""
    empty = [f"{part.name}: {_why_empty(part)}" for part in parts if not _has_text(part)]
    if len(empty) == len(parts):
        message = f"None of the documents has text: {list_lines([*dict.fromkeys(empty)])}"
        raise errors.EmptyDocumentError(message)
    return JoinedSource(parts, f"{len(parts)} documents")


def _open_record(record: dict[str, str]) -> Source:
    uri = record.get("uri", "")
    if uri.startswith("list:"):
        return _join([_open({"uri": item}) for item in json.loads(uri.removeprefix("list:"))])
    parts = urlsplit(uri)
    if parts.scheme != "file":
        given = reprlib.repr(record)
        message = f'A document record is {{"path": ...}} or {{"uri": "file://..."}}, not {given}.'
        raise errors.SourceError(message)
    path, encodings = Path(unquote(parts.path)), parse_qs(parts.query).get("encoding")
    return open_file(path, encoding=encodings[0]) if encodings else open_path(path)


def _spool(blocks: Iterable[str | bytes], name: str, encoding: str | None = None) -> Source:
    """Copy what can be read only once to a file that is deleted with the source.

    A name says the format, but the converted text is not kept in the cache.
    """
    is_text, suffix = False, PurePosixPath(name).suffix.lower()
    suffix = suffix if suffix in FORMATS or suffix in OLDER else ""
    with tempfile.NamedTemporaryFile(delete=False, suffix=suffix) as file:
        path = Path(file.name)
        for block in blocks:
            if isinstance(block, str):
                is_text = True
                block = replace_surrogates(block).encode()  # noqa: PLW2901
            file.write(block)
    try:
        if is_text:
            source: Source = FileSource(path, name, "utf-8")
        else:
            source = open_file(path, name, encoding=encoding, keep=False)
    except BaseException:
        path.unlink()
        raise
    source.uri = None
    weakref.finalize(source, path.unlink, missing_ok=True)
    return source


def _has_text(source: Source) -> bool:
    windows = (source.read(start, SAMPLE) for start in range(0, source.length, SAMPLE))
    return not all(window.isspace() for window in windows)


class corpus:  # noqa: N801 - it is called like a function
    """Choose the documents to read, and give them metadata.

    A pattern is a name with wildcards (`*`, `?`, `[ab]`), or the end of one after a `/`: "*.md",
    "drafts/*", "2024/lease.pdf". `*` matches `/` as well. Names are those of the output: files of a
    folder begin with its name. The result is a document, for the retriever's `corpus`, the tool's
    `sources`, or a reading.

    Args:
        documents: as for `open_source`: a `Path` is a file, a folder or a glob.
        include: patterns; what matches none is not opened. All documents by default.
        exclude: patterns; what matches one is not opened.
        metadata: metadata by pattern, or a function from a name to them. Documents of LangChain
            keep their own as well.

    Examples:
        >>> from memagent_graph import MemAgentRetriever, corpus
        >>> from langchain_core.documents import Document
        >>> lease = Document("Ann signed the lease.", metadata={"source": "lease.md", "year": 2023})
        >>> draft = Document("Odo signed the lease.", metadata={"source": "drafts/lease.md"})
        >>> chosen = corpus([lease, draft], exclude="drafts/*")
        >>> retriever = MemAgentRetriever(corpus=chosen, model="extractive")
        >>> [found.page_content for found in retriever.invoke("Who signed?", filter={"year": 2023})]
        ['Ann signed the lease.']
    """

    def __init__(
        self,
        documents: DocumentLike,
        *,
        include: str | Iterable[str] = (),
        exclude: str | Iterable[str] = (),
        metadata: Mapping[str, _About] | Callable[[str], _About] | None = None,
    ) -> None:
        self._documents, self._metadata = documents, metadata
        self._include = (include,) if isinstance(include, str) else tuple(include)
        self._exclude = (exclude,) if isinstance(exclude, str) else tuple(exclude)

    def wants(self, name: str) -> bool:
        """Whether a document of this name is read."""
        included = not self._include or any(_matches(name, pattern) for pattern in self._include)
        return included and not any(_matches(name, pattern) for pattern in self._exclude)

    def open_sources(self) -> JoinedSource:
        """Open the documents anew."""
        opened = self._open_all()
        skipped = [file for source in opened for file in skips_of(source)]
        every = (part for source in opened for part in flat_parts(source))
        if not (parts := [part for part in every if self.wants(part.name)]):
            patterns = ", ".join([*self._include, *(f"not {name}" for name in self._exclude)])
            message = f"No document is included ({patterns}): change include or exclude."
            raise errors.EmptyDocumentError(message)
        for part in parts:
            if found := {**metadata_of(part), **self._metadata_of(part.name)}:
                part.metadata = found  # type: ignore[attr-defined]
        return JoinedSource(parts, "corpus", skipped=skipped)

    def _open_all(self) -> list[Source]:
        items = self._documents if isinstance(self._documents, list | tuple) else [self._documents]
        return [
            open_path(Path(item), wants=self.wants)
            if isinstance(item, os.PathLike) and not Path(item).is_file()
            else open_source(item)
            for item in items
            if not (isinstance(item, os.PathLike) and Path(item).is_file()) or self.wants(str(item))
        ]

    def _metadata_of(self, name: str) -> Mapping[str, Any]:
        if self._metadata is None or callable(self._metadata):
            return self._metadata(name) if self._metadata else {}
        found = [value for pattern, value in self._metadata.items() if _matches(name, pattern)]
        return {key: item for value in found for key, item in value.items()}


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*/{pattern}")
