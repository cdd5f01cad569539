"""Open documents: text, bytes, streams, a file of any encoding and size, a folder or a glob."""

from __future__ import annotations

import codecs
import errno
import glob
import json
import os
import re
import reprlib
import shutil
import stat
import tempfile
import warnings
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import parse_qs, quote, unquote, urlsplit

from langchain_core.documents import Document

from memagent_graph.errors import (
    EmptyDocumentError,
    SourceChangedError,
    SourceError,
    SourceNotFoundError,
    UnreadableSourceError,
)
from memagent_graph.sync import work_through
from memagent_graph.templates import count_line_ends, plural, replace_surrogates
from memagent_graph.text.converter import AT_ONCE, ConvertedSource, can_convert
from memagent_graph.text.formats import (
    FORMATS,
    MARKS,
    OLDER,
    PLAIN,
    find_unmarked,
    format_of,
    guess_encoding,
    is_icon,
)
from memagent_graph.text.source import (
    MARKDOWN,
    Headings,
    JoinedSource,
    Location,
    Skipped,
    Source,
    TextSource,
    list_lines,
    warnings_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    Opener = Callable[[str, int], int]

_BLOCK = 1 << 18
"""Bytes between two entries of the index: a window decodes whole blocks of this size."""

_SAMPLE = 1 << 16
"""Bytes looked at to detect the kind of a file, and its encoding."""

_SURE = 0.9
"""Confidence of a guessed encoding below which a warning names it."""


def open_unlinked(path: str, flags: int) -> int:
    """Open a file by its absolute path, or fail if a part of it has become a link."""
    if os.open not in os.supports_dir_fd:  # Windows
        return os.open(path, flags)
    root, *folders, last = Path(path).parts
    follow = os.O_NOFOLLOW | os.O_CLOEXEC
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, _LOOK | os.O_DIRECTORY | follow, dir_fd=at)
            os.close(at)
            at = below
        found = os.open(last, flags | os.O_NONBLOCK | follow, dir_fd=at)
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "not a file", path)
    return found


_LOOK = getattr(os, "O_PATH", os.O_RDONLY)


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
            message = (
                f"{name} is a pipe, a socket or a device, not a file: pass its content on "
                'standard input, and "-" in place of its name.'
            )
            raise UnreadableSourceError(message)
        suffix = path.suffix.lower()
        with open(path, "rb", opener=opener) as file:
            sample = file.read(_SAMPLE)
            file.seek(max(file.seek(0, os.SEEK_END) - _SAMPLE, 0))
            kind = format_of(suffix, sample, file.read(_SAMPLE))
        if kind and (can_convert() or kind not in PLAIN):
            if opener is not None:
                return _copy(path, name, kind, opener)
            return ConvertedSource(path, name, kind, keep=keep)
        if encoding is not None:
            return _open_encoded(path, name, encoding, opener)
        found = next((at for at in MARKS if sample.startswith(at[0])), (b"", find_unmarked(sample)))
        if found[1] is not None:
            return FileSource(path, name, found[1], skip=len(found[0]), opener=opener)
        if _is_binary(sample):
            known = f"is a binary file: only text can be read, and {', '.join(sorted(FORMATS))}."
            older = f"is in a format that cannot be read, {suffix}: save it as {OLDER.get(suffix)}."
            message = f"{name} {older if suffix in OLDER else known}"
            raise UnreadableSourceError(message)
        return _open_unmarked(path, name, opener)
    except PermissionError as error:
        message = f"No permission to read {name}: change its permissions."
        raise UnreadableSourceError(message) from error


def _copy(path: Path, name: str, suffix: str, opener: Opener) -> ConvertedSource:
    """Convert a copy of a file, since the process that converts opens it by its path."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, f"document{suffix}")
        with open(path, "rb", opener=opener) as file, copy.open("wb") as kept:
            shutil.copyfileobj(file, kept)
        source = ConvertedSource(copy, name)
    source.path, source.uri = path.absolute(), path.absolute().as_uri()
    return source


def _open_encoded(path: Path, name: str, encoding: str, opener: Opener | None) -> FileSource:
    try:
        codecs.getincrementaldecoder(encoding)
        codec = codecs.lookup(encoding).name
    except LookupError as error:
        message = f"There is no encoding {encoding!r}: name a Python codec, such as cp1252."
        raise SourceError(message) from error
    source = FileSource(path, name, codec, opener=opener)
    source.digest = sha256(f"{source.digest} {codec}".encode()).hexdigest()  # another text
    source.uri = f"{source.uri}?encoding={quote(codec)}"
    return source


def _open_unmarked(path: Path, name: str, opener: Opener | None) -> FileSource:
    """Open text as UTF-8, if most signs beyond ASCII are, or else in the best other encoding."""
    source = FileSource(path, name, "utf-8", opener=opener)
    if not source.invalid:
        return source
    encoding, confidence = "utf-8", 1.0  # type: tuple[str | None, float]
    if source.invalid * 10 > source.beyond_ascii:
        encoding, confidence = guess_encoding(source.lines_beyond_ascii())
    hint = "convert it to UTF-8, or name its encoding with open_source(..., encoding=...)."
    if encoding is None:
        message = f"{name} is in an unknown encoding: {hint}"
        raise UnreadableSourceError(message)
    if codecs.lookup(encoding).name == "utf-8":
        characters = plural(source.invalid, "character")
        warning = f"{name} has {characters} that could not be decoded as UTF-8 and were read as "
        source.warnings = (f"{warning}U+FFFD.",)
        return source
    source = FileSource(path, name, encoding, opener=opener)
    if confidence < _SURE:
        guess = f"{name} was read as {encoding.lower()}, which is a guess: if letters are wrong, "
        source.warnings = (guess + hint,)
    return source


_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))


def _is_binary(sample: bytes) -> bool:
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if b"\0" in sample and controls * 10 <= len(sample):
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder("utf-8")().decode(sample)
            return False
        return True
    return controls * 10 > len(sample)


class _BlockState(NamedTuple):
    """The position and decoder state at which a block begins."""

    code_point: int
    byte: int
    line: int
    state: tuple[bytes, int]


def _version_of(path: Path) -> tuple[int, int, int]:
    """Return metadata by which a change to a file is noticed: its size, time and inode."""
    found = os.stat(path)  # noqa: PTH116 - a third of the time, for thousands of files
    return found.st_size, found.st_mtime_ns, found.st_ino


class FileSource:
    """A text file, decoded block by block through a sparse index; `skip` bytes are a mark.

    `invalid` is the number of U+FFFD characters, which stand for bytes that could not be decoded,
    and `beyond_ascii` that of all other characters beyond ASCII.
    """

    warnings: tuple[str, ...] = ()

    def __init__(
        self,
        path: Path,
        name: str,
        encoding: str,
        *,
        skip: int = 0,
        opener: Opener | None = None,
    ) -> None:
        self._opener = opener
        self.name = name
        self.uri: str | None = path.absolute().as_uri()
        self._path = path
        self.encoding = encoding.lower()
        self._decoder = codecs.getincrementaldecoder(encoding)
        self._version = _version_of(path)
        self._cached: tuple[int, str] = (-1, "")
        self._index: list[_BlockState] = []
        self._scan(skip)
        self._headings = Headings(self) if path.suffix.lower() in MARKDOWN else None

    def _scan(self, skip: int) -> None:
        digest = sha256()
        decoder = self._decoder("replace")
        length = lines = invalid = beyond = 0
        half = False
        position = skip
        with self._open() as file:
            digest.update(file.read(skip))
            last = False
            while not last:
                state = decoder.getstate()
                block = file.read(_BLOCK)
                last = len(block) < _BLOCK
                digest.update(block)
                text = decoder.decode(block, last)
                lines += half and not text.startswith("\n")
                self._index.append(_BlockState(length, position, lines, state))
                position += len(block)
                length += len(text)
                half = text.endswith("\r")  # of a CRLF, perhaps
                lines += count_line_ends(text) - half
                invalid += text.count("\ufffd")
                if not text.isascii():
                    beyond += len(text) - len(text.encode("ascii", "ignore"))
        self.digest = digest.hexdigest()
        self.length = length
        self.invalid = invalid
        self.beyond_ascii = beyond - invalid

    def lines_beyond_ascii(self) -> bytes:
        """Return lines with bytes beyond ASCII, from all over the file."""
        found: list[bytes] = []
        size = 0
        with self._open() as file:
            while line := file.readline(_SAMPLE):
                room = _SAMPLE * file.tell() // self._version[0]
                if size <= room and not line.isascii():
                    found.append(line)
                    size += len(line)
        return b"".join(found)

    def read(self, start: int, size: int) -> str:
        """Return code points `start` to `start + size`."""
        number = bisect_right(self._index, start, key=lambda entry: entry.code_point) - 1
        skip, found, left = start - self._index[number].code_point, list[str](), size
        while left > 0 and number < len(self._index):
            found.append(self._block(number)[skip : skip + left])
            left -= len(found[-1])
            number, skip = number + 1, 0
        return "".join(found)

    def locate(self, offset: int) -> Location:
        """Return name, line and, in Markdown, heading of the code point at `offset`."""
        number = bisect_right(self._index, offset, key=lambda entry: entry.code_point) - 1
        entry = self._index[number]
        before = count_line_ends(self._block(number), 0, offset - entry.code_point)
        heading = self._headings.above(offset) if self._headings else None
        return Location(self.name, entry.line + before + 1, heading=heading)

    def _block(self, number: int) -> str:
        cached, text = self._cached
        entry = self._index[number]
        block: bytes | None = None
        with suppress(OSError):  # it is gone, or a link
            if _version_of(self._path) == self._version:
                if cached == number:
                    return text
                with self._open() as file:
                    file.seek(entry.byte)
                    block = file.read(_BLOCK)
        if block is None:
            message = (
                f"{self.name} changed while it was being read. The memory so far is kept; to read "
                "the new content, start the reading again."
            )
            raise SourceChangedError(message)
        decoder = self._decoder("replace")
        decoder.setstate(entry.state)
        text = decoder.decode(block, number == len(self._index) - 1)
        self._cached = (number, text)
        return text

    def _open(self) -> BinaryIO:
        return open(self._path, "rb", opener=self._opener)


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
    if path.is_dir():
        folder = path.absolute()
        root, prefix = (folder.parent, "") if name is None else (folder, f"{name}/")
        files, name = sorted(_walk(folder)), name or str(path)
        return _join_files(files, root, name, path, prefix=prefix, opener=opener, wants=wants)
    if path.exists():
        return open_file(path, name, opener)
    if glob.has_magic(str(path)):
        files = sorted(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - absolute ones too
        entered = {folder for file in files for folder in file.parents}
        files = [file for file in files if file.is_file() or file not in entered]
        if files:
            root = Path(os.path.commonpath([file.parent for file in files]))
            return _join_files(files, root, name or str(path), path, wants=wants)
    if address := _ADDRESS.match(str(path)):
        url = f"{address[1]}://{address[2]}"
        message = (
            f"{url} is a web address, and nothing is downloaded. Save it as a file, or pipe it in: "
            f"curl --location {url} | memagent ask QUESTION -"
        )
        raise SourceNotFoundError(message)
    message = f"There is no {path}. Check the path, which is relative to {Path.cwd()}."
    raise SourceNotFoundError(message)


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, and the folders that are not entered."""
    refused = list[OSError]()
    for root, folders, files in os.walk(folder, onerror=refused.append):  # follows no links
        left_out = {name for name in folders if name[0] == "." or Path(root, name).is_symlink()}
        folders[:] = [name for name in folders if name not in left_out]
        yield from (Path(root, name) for name in (*files, *left_out))
    yield from (Path(error.filename) for error in refused)


def _join_files(
    files: Sequence[Path],
    root: Path,
    name: str,
    asked: Path,
    *,
    prefix: str = "",
    opener: Opener | None = None,
    wants: Callable[[str], bool] = bool,
) -> Source:
    base = _without_wildcards(asked).absolute()
    named = [(file, prefix + file.relative_to(root).as_posix()) for file in files]
    tasks = [
        (partial(_open_meant, file, base, shown, opener), _is_converted(file))
        for file, shown in named
        if wants(shown)
    ]
    opened = work_through(tasks, AT_ONCE)
    parts = [part for part in opened if not isinstance(part, Skipped)]
    skipped = [part for part in opened if isinstance(part, Skipped)]
    if not parts:
        nothing = "it has no files." if not files else "no file is included."
        why = list_lines([*map(str, skipped)]) or nothing
        message = f"Nothing in {name} can be read: {why}"
        raise UnreadableSourceError(message)
    uri = asked.absolute().as_uri() if wants is bool else None
    return JoinedSource(parts, name, uri=uri, skipped=skipped)


def _is_converted(document: object) -> bool:
    """Whether a document is a file that is converted to text, in another process."""
    if not isinstance(document, os.PathLike):
        return False
    suffix = Path(document).suffix.lower()
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
        if is_icon(file.suffix, file.stat().st_size):
            return Skipped(shown, "it is a picture of less than 4 KiB, as icons are.")
        found = Path(os.path.realpath(file)) if opener else file
        source = open_file(found, name, opener)
        return source if _has_text(source) else Skipped(shown, _why_empty(source))
    except (SourceError, ImportError, OSError) as error:
        return Skipped(shown, _reason(error, name))


def _reason(error: Exception, name: str) -> str:
    """Return an error's message without the name of the file, which the line begins with."""
    said = str(error) or type(error).__name__
    if said.startswith(f"{name} "):
        return f"it{said.removeprefix(name)}"
    said = said.replace(f"Converting {name} to text takes", "the conversion took")
    return said.replace(f"The text of {name} is", "its text is")


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


def _without_wildcards(pattern: Path) -> Path:
    """The folder in which a glob begins; a path without wildcards is returned unchanged."""
    while glob.has_magic(str(pattern)):
        pattern = pattern.parent
    return pattern


@runtime_checkable
class Openable(Protocol):
    """Opens its documents itself, as a `Corpus` does."""

    def open_sources(self) -> Source:
        """Open the documents anew."""
        ...


DocumentLike: TypeAlias = (
    "str | bytes | Path | dict[str, str] | Document | Source | Openable | IO[str] | IO[bytes]"
    " | Iterable[object]"
)


def open_source(
    document: DocumentLike, *, name: str | None = None, encoding: str | None = None
) -> Source:
    """Open a document.

    Args:
        document: a `str` is always text. A `Path` or `{"path": str}` is a file, a folder or a
            glob; `{"uri": str}` takes a `Source.uri`. Bytes are decoded like a file. Streams and
            generators, of text or of LangChain documents, are read once and kept in a temporary
            file. A list is all of its items, joined. Links that lead out of a folder or glob are
            skipped.
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
        raise EmptyDocumentError(message.rstrip())
    return source


_PATH_CHARACTERS = 1024
"""Longest text, in characters, that is looked up as the name of a file."""


def _warn_of_path(text: str) -> None:
    """Warn if a document is the name of a file: its text was perhaps meant."""
    if len(text) <= _PATH_CHARACTERS and os.path.isfile(text):  # noqa: PTH113 - of any text
        message = (
            f"The document is the text {text!r}, which is also the name of a file: to read the "
            f"file, pass Path({text!r})."
        )
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
        raise SourceError("An encoding is for one text file, or for bytes: open each with its own.")
    if isinstance(document, str):
        _warn_of_path(document)
        return TextSource(document, name or "text")
    if isinstance(document, dict):
        return _open_record(document)
    if isinstance(document, Document):
        metadata = document.metadata
        title = metadata.get("source") or metadata.get("title") or "document"
        source = TextSource(document.page_content, str(title))
        source.metadata = metadata
        return source
    if isinstance(document, Openable):
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
            raise EmptyDocumentError("The list of documents is empty: give at least one document.")
        parts = work_through(
            [(partial(_open, item), _is_converted(item)) for item in document], AT_ONCE
        )
        return parts[0] if len(parts) == 1 else _join(parts)
    if isinstance(document, Iterable):
        return _spool(document, "stream")
    message = (
        "A document is text, a path, bytes, a stream, LangChain documents or a list of these, not "
        f"{type(document).__name__}."
    )
    raise SourceError(message)


def _join(parts: Sequence[Source]) -> Source:
    """Join the documents of a list, of which at least one has text."""
    empty = [f"{part.name}: {_why_empty(part)}" for part in parts if not _has_text(part)]
    if len(empty) == len(parts):
        message = f"None of the documents has text: {list_lines([*dict.fromkeys(empty)])}"
        raise EmptyDocumentError(message)
    return JoinedSource(parts, f"{len(parts)} documents")


def _open_record(record: dict[str, str]) -> Source:
    uri = record.get("uri", "")
    if uri.startswith("list:"):
        return _join([_open({"uri": item}) for item in json.loads(uri.removeprefix("list:"))])
    parts = urlsplit(uri)
    if parts.scheme != "file":
        given = reprlib.repr(record)
        message = f'A document record is {{"path": ...}} or {{"uri": "file://..."}}, not {given}.'
        raise SourceError(message)
    path, encodings = Path(unquote(parts.path)), parse_qs(parts.query).get("encoding")
    return open_file(path, encoding=encodings[0]) if encodings else open_path(path)


def _spool(
    blocks: Iterable[str | bytes | Document], name: str, encoding: str | None = None
) -> Source:
    """Copy what can be read only once to a file that is deleted with the source.

    A name says the format, but the converted text is not kept in the cache.
    """
    is_text = False
    suffix = PurePosixPath(name).suffix.lower()
    suffix = suffix if suffix in FORMATS or suffix in OLDER else ""
    with tempfile.NamedTemporaryFile(delete=False, suffix=suffix) as file:
        path = Path(file.name)
        for block in blocks:
            if isinstance(block, Document):
                block = f"{block.page_content}\n\n"  # noqa: PLW2901
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
    windows = (source.read(start, _SAMPLE) for start in range(0, source.length, _SAMPLE))
    return not all(window.isspace() for window in windows)
