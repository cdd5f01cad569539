"""The process that converts documents: `python -m memagent_graph.text.conversion`.

It reads one `Request` per line from standard input. To standard output it writes one `Reply` per
line, followed by the text and the offsets of its pages. It exits at once when standard input ends.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from array import array
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Literal, TypeAlias
from zipfile import BadZipFile, ZipFile, is_zipfile

from memagent_graph.text import confinement, pdf
from memagent_graph.text.outline import find_pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markitdown import MarkItDown

Limit: TypeAlias = Literal["time", "memory", "output"]

CONVERTERS = {
    ".pdf": "PdfConverter",
    ".docx": "DocxConverter",
    ".pptx": "PptxConverter",
    ".xlsx": "XlsxConverter",
    ".epub": "EpubConverter",
    ".html": "HtmlConverter",
    ".htm": "HtmlConverter",
}
"""The converter of each suffix; no other is tried, whatever the content is. The ones for archives,
pictures and sound would unpack the file, start programs or send it to a service."""

_LONGEST_ERROR = 2000
"""Characters of an error that are passed on, since it may quote the document."""


@dataclass(frozen=True)
class Request:
    """A document to convert, with limits.

    Attributes:
        path: absolute path of the file.
        seconds: limit on wall-clock time, in seconds.
        memory: limit on the process's memory, libraries included, in bytes.
        output: limit on the text in UTF-8 with its page offsets, in bytes.
    """

    path: str
    seconds: float
    memory: int
    output: int


@dataclass(frozen=True)
class Reply:
    """The outcome of a conversion.

    Attributes:
        size: length of the text that follows, in bytes.
        pages: number of page offsets that follow the text.
        digest: SHA-256, in hex, of the bytes that were converted.
        error: why there is no text.
        limit: the limit that the conversion exceeded.
        missing: whether a required package is not installed.
    """

    size: int = 0
    pages: int = 0
    digest: str = ""
    error: str | None = None
    limit: Limit | None = None
    missing: bool = False

    @property
    def failed(self) -> bool:
        """Whether there is no text."""
        return self.error is not None or self.limit is not None


@dataclass(frozen=True)
class Converted:
    """The text of a document.

    Attributes:
        text: the whole text.
        pages: offsets of the pages, slides or sheets, in code points; empty if there are none.
    """

    text: str = ""
    pages: Sequence[int] = ()

    def encode(self) -> tuple[bytes, bytes]:
        """Return the text and the pages as bytes."""
        return self.text.encode("utf-8", "surrogatepass"), array("I", self.pages).tobytes()

    @classmethod
    def decode(cls, text: bytes, pages: bytes) -> Converted:
        """Return the record that `encode` made these bytes from.

        Raises:
            ValueError: The bytes are something else.
        """
        starts = array("I")
        starts.frombytes(pages)
        return cls(text.decode("utf-8", "surrogatepass"), starts.tolist())


PAGE_BYTES = array("I").itemsize
"""Bytes per page offset in the output of `Converted.encode`."""


def main() -> None:
    """Answer requests, one document after the other."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # or Ctrl-C waits for parsers in C
    lines = SimpleQueue[str]()
    asked, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not be taken for a reply
    threading.Thread(target=_listen, args=(asked, lines), daemon=True).start()
    try:
        import markitdown  # noqa: F401 - takes a second, which should not count for a document
    except ImportError as error:
        _send(replies, Reply(error=str(error), missing=True))
        return
    confinement.refuse_connections_processes_and_files()
    _send(replies, Reply())
    while True:
        request = Request(**json.loads(lines.get()))
        with confinement.limits(request.seconds, request.memory):
            reply, text = _convert(request)
        _send(replies, reply, text)


def _listen(asked: IO[str], lines: SimpleQueue[str]) -> None:
    for line in asked:
        lines.put(line)
    os._exit(0)  # the parent is gone or needs nothing more, not even the current document


def _send(replies: IO[bytes], reply: Reply, content: bytes = b"") -> None:
    replies.write(json.dumps(asdict(reply)).encode() + b"\n")
    replies.write(content)
    replies.flush()


def _convert(request: Request) -> tuple[Reply, bytes]:
    path = Path(request.path)
    try:
        content = path.read_bytes()  # once: the file may change, and the digest must match the text
        unpacked = _unpacked_size(content)
        if unpacked > request.memory:
            return Reply(error=f"unpacks to {unpacked:,} bytes", limit="memory"), b""
        converted = _read(BytesIO(content), path.suffix.lower())
        text, pages = converted.encode()
    except BadZipFile as error:
        return Reply(error=f"a broken archive: {error}"), b""
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        kinds = {type(cause).__name__ for cause in _causes(error)}
        if "MemoryError" in kinds:
            return Reply(limit="memory"), b""
        missing = not kinds.isdisjoint({"MissingDependencyException", "ModuleNotFoundError"})
        return Reply(error=str(error)[:_LONGEST_ERROR], missing=missing), b""
    if len(text) + len(pages) > request.output:
        return Reply(limit="output"), b""
    digest = sha256(content).hexdigest()
    return Reply(len(text), len(converted.pages), digest), text + pages


def _read(file: BytesIO, suffix: str) -> Converted:
    if suffix == ".pdf":
        pages = list(pdf.read_pages(file))
        return Converted("".join(pages), [0, *accumulate(map(len, pages[:-1]))] if pages else [])
    from markitdown import StreamInfo

    text = _markitdown(suffix).convert_stream(file, stream_info=StreamInfo(extension=suffix))
    return Converted(text.text_content, find_pages(text.text_content, suffix))


@cache
def _markitdown(suffix: str) -> MarkItDown:
    from markitdown import MarkItDown, converters

    converter = MarkItDown(enable_builtins=False, enable_plugins=False)
    converter.register_converter(getattr(converters, CONVERTERS[suffix])())
    return converter


def _unpacked_size(content: bytes) -> int:
    if not is_zipfile(BytesIO(content)):
        return 0
    with ZipFile(BytesIO(content)) as archive:  # never unpacks more than its directory says
        return sum(item.file_size for item in archive.infolist())


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all its causes, including those of markitdown's attempts."""
    found: BaseException | None = error
    while found is not None:
        yield found
        for attempt in getattr(found, "attempts", None) or ():
            yield from _causes(attempt.exc_info[1])
        found = found.__cause__ or found.__context__


if __name__ == "__main__":
    main()
