"""Files of any encoding and size, decoded in windows and never held whole."""

from __future__ import annotations

import codecs
import errno
import os
import shutil
import stat
import tempfile
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from charset_normalizer import from_bytes

from memagent_graph.errors import SourceChangedError, UnreadableSourceError
from memagent_graph.text.conversion import CONVERTERS
from memagent_graph.text.converted import ConvertedSource
from memagent_graph.text.outline import MARKDOWN, Headings
from memagent_graph.text.source import Location, Source

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    Opener = Callable[[str, int], int]

_BLOCK = 1 << 18
"""Bytes between two entries of the index: a window decodes whole blocks of this size."""

_SAMPLE = 1 << 16
"""Bytes looked at to detect the kind of a file."""

_MARKS = [
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]


def open_unlinked(path: str, flags: int) -> int:
    """Open a file by descriptors, without following a link in any part of its path.

    Args:
        path: an absolute path, resolved. A part that has become a link since is not followed.
        flags: flags of `os.open`.

    Raises:
        OSError: A part is a link, or the file is none.
    """
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


def open_file(path: Path, name: str | None = None, opener: Opener | None = None) -> Source:
    """Open a file: text in any encoding, or a format that markitdown converts.

    A file counts as binary if its first 64 KiB have NUL bytes and are not UTF-8, or if more than
    a tenth of them are control characters; NUL bytes in text are kept. Invalid bytes in UTF-8
    text are read as U+FFFD and counted in `FileSource.invalid`.

    Args:
        path: the file.
        name: its name in output; its path by default.
        opener: opens the file, as for `open`.

    Raises:
        UnreadableSourceError: The file is binary, a pipe or a device, or may not be read.
        ConversionLimitError: Its conversion exceeds a limit.
        MissingDependencyError: Its format needs the `documents` extra.
    """
    name = name or str(path)
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            message = (
                f"{name} is a pipe, a socket or a device, not a file: pass its content on "
                'standard input, and "-" in place of its name.'
            )
            raise UnreadableSourceError(message)
        if path.suffix.lower() in CONVERTERS:
            return ConvertedSource(path, name) if opener is None else _copy(path, name, opener)
        with open(path, "rb", opener=opener) as file:
            sample = file.read(_SAMPLE)
        for mark, encoding in _MARKS:
            if sample.startswith(mark):
                return FileSource(path, name, encoding, skip=len(mark), opener=opener)
        if _is_binary(sample):
            formats = ", ".join(sorted(CONVERTERS))
            message = f"{name} is a binary file: only text can be read, and {formats}."
            raise UnreadableSourceError(message)
        return _open_unmarked(path, name, sample, opener)
    except PermissionError as error:
        message = f"No permission to read {name}: change its permissions."
        raise UnreadableSourceError(message) from error


def _copy(path: Path, name: str, opener: Opener) -> Source:
    """Convert a copy of a file, since the process that converts opens it by its path."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, f"document{path.suffix}")
        with open(path, "rb", opener=opener) as file, copy.open("wb") as kept:
            shutil.copyfileobj(file, kept)
        source = ConvertedSource(copy, name)
    source.uri = path.absolute().as_uri()
    return source


def _open_unmarked(path: Path, name: str, sample: bytes, opener: Opener | None) -> FileSource:
    source = FileSource(path, name, "utf-8", opener=opener)
    if not source.invalid or source.invalid * 1000 <= source.length:
        return source
    guesses = from_bytes(sample)
    guess = guesses.best()
    if guess is None:
        message = f"{name} is in an unknown encoding; convert it to UTF-8."
        raise UnreadableSourceError(message)
    for other in guesses:  # among code pages that fit equally well, prefer the most common
        if other.encoding == "cp1252" and other.chaos <= guess.chaos:
            guess = other
    return FileSource(path, name, guess.encoding, opener=opener)


_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))


def _is_binary(sample: bytes) -> bool:
    controls = len(sample) - len(sample.translate(None, _CONTROLS))
    if controls * 10 > len(sample):
        return True
    if b"\0" not in sample:
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return True
    return False


class _Entry(NamedTuple):
    """The position and decoder state at which a block begins."""

    code_point: int
    byte: int
    line: int
    state: tuple[bytes, int]


@dataclass(frozen=True)
class _Version:
    """Metadata by which a change to a file is noticed without reading it."""

    size: int
    modified: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> _Version:
        found = os.stat(path)  # noqa: PTH116 - a third of the time, for thousands of files
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)


class FileSource:
    """A text file, decoded block by block through a sparse index.

    Args:
        path: the file.
        name: its name in output.
        encoding: name of a Python codec.
        skip: length of the byte order mark before the text, in bytes.
        opener: opens the file, as for `open`.

    Attributes:
        invalid: number of U+FFFD characters, which stand for bytes that could not be decoded.
    """

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
        self._decoder = codecs.getincrementaldecoder(encoding)
        self._errors = "replace"
        self._version = _Version.of(path)
        self._cached: tuple[int, str] = (-1, "")
        self._index: list[_Entry] = []
        self._headings = Headings() if path.suffix.lower() in MARKDOWN else None
        self._scan(skip)

    def _scan(self, skip: int) -> None:
        digest = sha256()
        decoder = self._decoder(self._errors)
        length = lines = invalid = 0
        position = skip
        with self._open() as file:
            digest.update(file.read(skip))
            last = False
            while not last:
                self._index.append(_Entry(length, position, lines, decoder.getstate()))
                block = file.read(_BLOCK)
                last = len(block) < _BLOCK
                digest.update(block)
                text = decoder.decode(block, last)
                position += len(block)
                length += len(text)
                lines += text.count("\n")
                invalid += text.count("\ufffd")
                if self._headings:
                    self._headings.feed(text)
        if self._headings:
            self._headings.end()
        self.digest = digest.hexdigest()
        self.length = length
        self.invalid = invalid

    def read(self, start: int, size: int) -> str:
        """Return code points `start` to `start + size`.

        Raises:
            SourceChangedError: The file changed since it was opened.
        """
        pieces = []
        number = bisect_right(self._index, start, key=lambda entry: entry.code_point) - 1
        while size > 0 and number < len(self._index):
            text = self._block(number)
            skip = start - self._index[number].code_point
            piece = text[skip : skip + size]
            pieces.append(piece)
            start += len(piece)
            size -= len(piece)
            number += 1
        return "".join(pieces)

    def locate(self, offset: int) -> Location:
        """Return name, line and, in Markdown, heading of the code point at `offset`."""
        number = bisect_right(self._index, offset, key=lambda entry: entry.code_point) - 1
        entry = self._index[number]
        before = self._block(number).count("\n", 0, offset - entry.code_point)
        heading = self._headings.above(offset) if self._headings else None
        return Location(self.name, entry.line + before + 1, heading=heading)

    def _block(self, number: int) -> str:
        cached, text = self._cached
        self._check()
        if cached == number:
            return text
        entry = self._index[number]
        try:
            with self._open() as file:
                file.seek(entry.byte)
                block = file.read(_BLOCK)
        except OSError as error:  # gone, or a link since the check
            raise self._changed() from error
        decoder = self._decoder(self._errors)
        decoder.setstate(entry.state)
        text = decoder.decode(block, number == len(self._index) - 1)
        self._cached = (number, text)
        return text

    def _check(self) -> None:
        try:
            same = _Version.of(self._path) == self._version
        except OSError:
            same = False
        if not same:
            raise self._changed()

    def _changed(self) -> SourceChangedError:
        message = (
            f"{self.name} changed while it was being read. The memory so far is kept; to read "
            "the new content, start the reading again."
        )
        return SourceChangedError(message)

    def _open(self) -> BinaryIO:
        return open(self._path, "rb", opener=self._opener)
