"""Find the character set of text, and read files of text, of any size, in windows."""

from __future__ import annotations

import codecs
import os
import re
from bisect import bisect_right
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from memagent_graph.errors import SourceChangedError, SourceError, UnreadableSourceError
from memagent_graph.templates import plural
from memagent_graph.text.source import MARKDOWN, Headings, Location
from memagent_graph.text.terms import count_line_ends

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import BinaryIO

    Opener = Callable[[str, int], int]

_CHARSET = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE
)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig"}
_MARKS |= dict.fromkeys((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE), "utf-32")
_MARKS |= dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16")
"""Byte order marks, and the encodings that they stand for and that leave them out."""


def decode(content: bytes) -> str:
    """Return a page's text: by its mark, as UTF-8 if most is, as it says, or by its letters."""
    encoding = _find_encoding(content[:4096])
    text = content.decode(encoding or "utf-8", "replace")
    if encoding or text.count("\ufffd") * 10 <= len(content) - len(text):  # bytes of longer signs
        return text
    found = _find_named(content) or guess_encoding(content.lstrip(bytes(range(128)))[:SAMPLE])[0]
    return content.decode(found or "utf-8", "replace")


def _find_named(content: bytes) -> str | None:
    """Return the encoding that a page or a file of XML says it has; bytes say it is Unicode."""
    found = _CHARSET.search(content[:4096])
    with suppress(LookupError):
        named = widen(found[1].decode()) if found else "utf-8"
        return None if named.startswith("utf") else named
    return None


def widen(name: str) -> str:
    """Return the encoding that programs mean by a name: it has letters that the named one lacks.

    Raises a `LookupError` for an unknown name.
    """
    plain = name.lower().removeprefix("x-").removesuffix("-i").replace("cp-", "cp")
    codec = codecs.lookup(plain).name
    return _WIDER.get(codec, codec)


_WIDER = {"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "big5": "big5hkscs"}
_WIDER |= {"gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949"}
_WIDER |= {"iso2022_jp": "iso2022_jp_2", "tis-620": "cp874"}


_ESCAPES = re.compile(rb"\x1b\$|~\{(?:[!-w][!-~]){2,}~\}")
"""What begins letters that bytes of ASCII stand for, in ISO-2022 and HZ."""


def _find_encoding(sample: bytes) -> str | None:
    """Return the encoding of a text that has a mark, or is ASCII, or UTF-16, by its bytes only."""
    for mark, name in _MARKS.items():
        if sample.startswith(mark):
            return name
    if sample.isascii() and _ESCAPES.search(sample):  # those encodings have seven bits
        found, _ = guess_encoding(sample)
        return widen(found) if found and found.startswith(("HZ", "ISO-2022")) else None
    even, odd = sample[::2].count(0), sample[1::2].count(0)  # of UTF-16, all are on one side
    if min(even, odd) or max(even, odd) * 8 < len(sample):
        return None
    encoding = "utf-16-be" if even else "utf-16-le"
    with suppress(UnicodeDecodeError):
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
        is_text = all(sign.isprintable() or sign.isspace() for sign in text)
        return encoding if is_text and sum(map(str.isascii, text)) * 2 > len(text) else None
    return None


def guess_encoding(sample: bytes) -> tuple[str | None, float]:
    """Return the encoding that fits best, and from 0 to 1 how certain it is."""
    from chardet import EncodingEra, detect  # a sixth of a second, for few documents

    for era in (EncodingEra.MODERN_WEB, EncodingEra.ALL):
        found = detect(sample, encoding_era=era)
        if name := found["encoding"]:
            return "cp932" if name == "SHIFT_JIS" else name, found["confidence"] or 0.0
    return None, 0.0


_BLOCK = 1 << 18
"""Bytes between two entries of the index: a window decodes whole blocks of this size."""
SAMPLE = 1 << 16  # bytes looked at to detect the kind of a file, and its encoding
_SURE = 0.9  # confidence of a guessed encoding below which a warning names it


def open_text(
    path: Path, name: str, sample: bytes, opener: Opener | None, encoding: str | None = None
) -> FileSource:
    """Open a file of text that begins with a sample, in its encoding, or else in the best one.

    It is UTF-8 if most signs beyond ASCII are.
    """
    if encoding is not None:
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
    source = FileSource(path, name, _find_encoding(sample) or "utf-8", opener=opener)
    if source.encoding != "utf-8" or not source.invalid:
        return source
    found, confidence = "utf-8", 1.0  # type: tuple[str | None, float]
    if source.invalid * 10 > source.beyond_ascii:
        found = _find_named(sample)
        if found is None:
            found, confidence = guess_encoding(source.lines_beyond_ascii())
    hint = "convert it to UTF-8, or name its encoding with open_source(..., encoding=...)."
    if found is None:
        message = f"{name} is in an unknown encoding: {hint}"
        raise UnreadableSourceError(message)
    if codecs.lookup(found).name == "utf-8":
        lost = f"{plural(source.invalid, 'character')} that could not be decoded as UTF-8"
        source.warnings = (f"{name} has {lost} and were read as U+FFFD.",)
        return source
    source = FileSource(path, name, found, opener=opener)
    if confidence < _SURE:
        guess = f"{name} was read as {found.lower()}, which is a guess: if letters are wrong, "
        source.warnings = (guess + hint,)
    return source


_CONTROLS = bytes(set(range(32)) - set(b"\t\n\v\f\r\b\x1b"))


def is_binary(sample: bytes) -> bool:
    """Whether the beginning of a file is no text."""
    if _find_encoding(sample) is not None:
        return False
    if (len(sample) - len(sample.translate(None, _CONTROLS))) * 10 > len(sample):
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        return b"\0" in sample
    return False


class _BlockState(NamedTuple):
    code_point: int
    byte: int
    line: int
    state: tuple[bytes, int]


def _version_of(path: Path) -> tuple[int, int, int]:
    """Return metadata by which a change to a file is noticed: its size, time and inode."""
    found = os.stat(path)  # noqa: PTH116 - a third of the time, for thousands of files
    return found.st_size, found.st_mtime_ns, found.st_ino


class FileSource:
    """A text file, decoded block by block through a sparse index.

    `invalid` is the number of U+FFFD characters, which stand for bytes that could not be decoded,
    and `beyond_ascii` that of all other characters beyond ASCII.
    """

    warnings: tuple[str, ...] = ()

    def __init__(self, path: Path, name: str, encoding: str, opener: Opener | None = None) -> None:
        self.name, self._path, self._opener = name, path, opener
        self.uri: str | None = path.absolute().as_uri()
        self.encoding, self._decoder = encoding.lower(), codecs.getincrementaldecoder(encoding)
        self._version = _version_of(path)
        self._cached: tuple[int, str] = (-1, "")
        self._index: list[_BlockState] = []
        self._scan()
        self._headings = Headings(self) if path.suffix.lower() in MARKDOWN else None

    def _scan(self) -> None:
        digest, decoder, position = sha256(), self._decoder("replace"), 0
        length = lines = self.invalid = beyond = 0
        half = last = False
        with self._open() as file:
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
                self.invalid += text.count("\ufffd")
                beyond += 0 if text.isascii() else len(text) - len(text.encode("ascii", "ignore"))
        self.digest, self.length = digest.hexdigest(), length
        self.beyond_ascii = beyond - self.invalid

    def lines_beyond_ascii(self) -> bytes:
        """Return lines with bytes beyond ASCII, from all over the file."""
        found = bytearray()
        with self._open() as file:
            while line := file.readline(SAMPLE):
                if len(found) <= SAMPLE * file.tell() // self._version[0] and not line.isascii():
                    found += line
        return bytes(found)

    def read(self, start: int, size: int) -> str:
        """Return code points `start` to `start + size`."""
        number = self._number_at(start)
        skip, found, left = start - self._index[number].code_point, list[str](), size
        while left > 0 and number < len(self._index):
            found.append(self._block(number)[skip : skip + left])
            left -= len(found[-1])
            number, skip = number + 1, 0
        return "".join(found)

    def locate(self, offset: int) -> Location:
        """Return name, line and, in Markdown, heading of the code point at `offset`."""
        number = self._number_at(offset)
        entry = self._index[number]
        before = count_line_ends(self._block(number), 0, offset - entry.code_point)
        heading = self._headings.above(offset) if self._headings else None
        return Location(self.name, entry.line + before + 1, heading=heading)

    def _number_at(self, offset: int) -> int:
        return bisect_right(self._index, offset, key=lambda entry: entry.code_point) - 1

    def _block(self, number: int) -> str:
        (cached, text), entry = self._cached, self._index[number]
        block: bytes | None = None
        with suppress(OSError):  # it is gone, or a link
            if _version_of(self._path) == self._version:
                if cached == number:
                    return text
                with self._open() as file:
                    file.seek(entry.byte)
                    block = file.read(_BLOCK)
        if block is None:
            hint = "The memory so far is kept; to read the new content, start the reading again."
            message = f"{self.name} changed while it was being read. {hint}"
            raise SourceChangedError(message)
        decoder = self._decoder("replace")
        decoder.setstate(entry.state)
        text = decoder.decode(block, number == len(self._index) - 1)
        self._cached = (number, text)
        return text

    def _open(self) -> BinaryIO:
        return open(self._path, "rb", opener=self._opener)
