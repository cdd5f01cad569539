"""The process that converts documents: `python -m memagent_graph.text.conversion`.

It reads one `Request` per line from standard input. To standard output it writes one `Reply` per
line, followed by the text and the offsets of its pages. It exits at once when standard input ends.

The kernel's limits hold where the parent's would come too late or not at all: for a document that
allocates gigabytes at once, or after the parent was killed. macOS ignores the limit on memory, and
Windows has none of these limits; there, only the parent's checks hold.

This runs in the process that converts documents.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from array import array
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from io import BytesIO, StringIO
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Literal, TypeAlias
from zipfile import BadZipFile, ZipFile, is_zipfile

from memagent_graph.text.source import find_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from markitdown import MarkItDown

if sys.platform != "win32":
    import resource

_FORBIDDEN = (
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pty.spawn",
    "socket.",
    "subprocess.Popen",
    "webbrowser.open",
)
"""Prefixes of audit events that mean a connection or another process."""

_GRACE_SECONDS = 5
"""Seconds after the time limit: the parent ends the process earlier, and can say why."""

_GRACE_MEMORY = 1.25
"""Factor on the memory limit: the parent sees resident memory, the kernel reserved memory."""


def refuse_connections_processes_and_files() -> None:
    """Keep libraries from connecting, starting processes or writing files from now on.

    This stops what libraries do by themselves. Code that a document smuggled into the process could
    get around the first two limits.
    """
    sys.addaudithook(_refuse)
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # pipes are not files
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _refuse(event: str, _arguments: object) -> None:
    if event.startswith(_FORBIDDEN):
        message = f"{event}: converting a document needs no connection and no other process."
        raise PermissionError(message)


@contextmanager
def limits(seconds: float, memory: int) -> Iterator[None]:
    """End this process after `seconds`, and limit it to `memory` bytes, both with some grace."""
    if sys.platform == "win32":
        yield
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(memory * _GRACE_MEMORY)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    with suppress(OSError, ValueError):  # macOS
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    signal.alarm(math.ceil(seconds) + _GRACE_SECONDS)
    yield
    signal.alarm(0)


_END = "\n\n\f"
"""End of a page, as in pdfminer's output."""


def read_pages(file: BytesIO) -> Iterator[str]:
    """Yield the text of each page, which ends with a form feed.

    Forms, and tables without lines, become tables as in markitdown; everything else is running text
    as arranged by pdfminer.
    """
    forms = _forms(file)
    for number, text in enumerate(_running_texts(file)):
        form = forms.get(number, "").strip()
        yield _merge(form + _END if form else text)


def _forms(file: BytesIO) -> dict[int, str]:
    """Pages that are forms, as tables, by number; empty if pdfplumber cannot read the file."""
    found: dict[int, str] = {}
    try:
        import pdfplumber
        from markitdown.converters._pdf_converter import _extract_form_content_from_words as form

        with pdfplumber.open(file) as document:
            for number, page in enumerate(document.pages):
                if text := form(page):
                    found[number] = text
                page.close()  # frees memory
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a parser may raise anything, and pdfminer may still read it
        return {}
    return found


def _running_texts(file: BytesIO) -> Iterator[str]:
    from pdfminer.converter import TextConverter
    from pdfminer.layout import LAParams
    from pdfminer.pdfinterp import PDFPageInterpreter, PDFResourceManager
    from pdfminer.pdfpage import PDFPage

    fonts = PDFResourceManager()
    for page in PDFPage.get_pages(file):
        text = StringIO()
        device = TextConverter(fonts, text, laparams=LAParams())
        PDFPageInterpreter(fonts, device).process_page(page)
        yield text.getvalue()


def _merge(text: str) -> str:
    """Join a number such as ".1" on a line of its own with the line that it numbers."""
    merge: Callable[[str], str]
    try:
        from markitdown.converters._pdf_converter import _merge_partial_numbering_lines as merge
    except ImportError:
        return text
    return merge(text)


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

_ENCRYPTED = ("PDFPasswordIncorrect", "PDFEncryptionError", "FileNotDecryptedError")
"""Errors of parsers about a document that is encrypted."""

_LOCKED = "it is encrypted and needs a password; save a copy without one"

_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")
"""First bytes of an encrypted DOCX, PPTX or XLSX; without encryption these are ZIP archives."""

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
    refuse_connections_processes_and_files()
    _send(replies, Reply())
    while True:
        request = Request(**json.loads(lines.get()))
        with limits(request.seconds, request.memory):
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
        if content.startswith(_OFFICE) and path.suffix.lower() in {".docx", ".pptx", ".xlsx"}:
            return Reply(error=_LOCKED), b""
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
        if not kinds.isdisjoint(_ENCRYPTED):
            return Reply(error=_LOCKED), b""
        missing = not kinds.isdisjoint({"MissingDependencyException", "ModuleNotFoundError"})
        said = str(error).strip() or type(error).__name__
        return Reply(error=said[:_LONGEST_ERROR], missing=missing), b""
    if len(text) + len(pages) > request.output:
        return Reply(limit="output"), b""
    digest = sha256(content).hexdigest()
    return Reply(len(text), len(converted.pages), digest), text + pages


def _read(file: BytesIO, suffix: str) -> Converted:
    if suffix == ".pdf":
        pages = list(read_pages(file))
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
