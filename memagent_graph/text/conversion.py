"""The process that converts documents: `python -m memagent_graph.text.conversion`.

It reads one `Request` per line from standard input. To standard output it writes one `Reply` per
line, followed by a `Converted`. It exits at once when standard input ends.

The kernel's limits hold where the parent's would come too late or not at all: for a document that
allocates gigabytes at once, or after the parent was killed. macOS ignores the limit on memory, and
Windows has none of these limits; there, only the parent's checks hold.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import IO, Literal, TypeAlias
from zipfile import BadZipFile, ZipFile, is_zipfile

from memagent_graph.text.formats import PAGES, convert, load
from memagent_graph.text.source import ENDS_AT, Converted

if sys.platform != "win32":
    import resource

_FORBIDDEN: tuple[str, ...] = ("os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile")
_FORBIDDEN += ("os.system", "pty.spawn", "socket.", "subprocess.Popen", "webbrowser.open")
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


def _limit(seconds: float, memory: int) -> None:
    """End this process after `seconds`, and limit it to `memory` bytes, both with some grace."""
    if sys.platform == "win32":
        return
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(memory * _GRACE_MEMORY)
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    with suppress(OSError, ValueError):  # macOS
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))
    signal.alarm(math.ceil(seconds) + _GRACE_SECONDS)


Limit: TypeAlias = Literal["time", "memory", "output"]

_LOCKED = "it is encrypted and needs a password; save a copy without one"
_OLDER = "it is an older Office document, whatever its name says; save it as DOCX, XLSX or PPTX"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")
"""First bytes of an encrypted DOCX, PPTX or XLSX (otherwise a ZIP archive), and of a DOC."""
_LONGEST_ERROR = 2000  # characters of an error that are passed on, since it may quote the document


@dataclass(frozen=True)
class Request:
    """A document to convert: an absolute path, and the suffix of its format, with limits.

    These are on wall-clock time, in seconds, on the memory of the process, libraries included, and
    on the `Converted`, in bytes. If `picture` is the place of one, the reply is that picture:
    base64 for the text, and its media type for a warning.
    """

    path: str
    suffix: str
    seconds: float
    memory: int
    output: int
    picture: str | None = None


@dataclass(frozen=True)
class Reply:
    """The outcome of a conversion: the size of the `Converted` that follows, in bytes, or why not.

    The digest is SHA-256, in hex, of the bytes that were converted; `limit` is one that it
    exceeded, and `missing` says that a package is not installed.
    """

    size: int = 0
    digest: str = ""
    error: str | None = None
    limit: Limit | None = None
    missing: bool = False


def main() -> None:
    """Answer requests, one document after the other."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # or Ctrl-C waits for parsers in C
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the parent
    lines = SimpleQueue[str]()
    asked, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not be taken for a reply
    threading.Thread(target=_listen, args=(asked, lines), daemon=True).start()
    try:
        load()  # takes a second, which should not count for a document
    except ImportError as error:
        _send(replies, Reply(error=str(error), missing=True))
        return
    refuse_connections_processes_and_files()
    _send(replies, Reply())
    while True:
        request = Request(**json.loads(lines.get()))
        ENDS_AT.set(monotonic() + request.seconds)
        _limit(request.seconds, request.memory)
        _send(replies, *_convert(request))
        if sys.platform != "win32":
            signal.alarm(0)


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
        suffix = request.suffix
        if content.startswith(_OFFICE) and suffix != ".msg":
            return Reply(error=_LOCKED if _ENCRYPTED in content else _OLDER), b""
        unpacked = _count_unpacked(content)
        if unpacked > request.memory:
            return Reply(error=f"unpacks to {unpacked:,} bytes", limit="memory"), b""
        if request.picture is None:
            found = convert(content, suffix).encode()
        else:
            media_type, encoded = _load_picture(content, suffix, request.picture)
            found = Converted(encoded, (), (media_type,)).encode()
    except BadZipFile as error:
        return Reply(error=f"a broken archive: {error}"), b""
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        kinds = set[str]()
        cause: BaseException | None = error
        while cause is not None:
            kinds.add(type(cause).__name__)
            cause = cause.__cause__ or cause.__context__
        if "MemoryError" in kinds:
            return Reply(limit="memory"), b""
        if "PasswordError" in kinds:
            return Reply(error=_LOCKED), b""
        missing = "ModuleNotFoundError" in kinds
        said = str(error).strip() or type(error).__name__
        return Reply(error=said[:_LONGEST_ERROR], missing=missing), b""
    if len(found) > request.output:
        return Reply(limit="output"), b""
    return Reply(len(found), sha256(content).hexdigest()), found


def _load_picture(content: bytes, suffix: str, place: str) -> tuple[str, str]:
    from memagent_graph.text import html, ocr, pdf  # the parent needs no libraries
    from memagent_graph.text.package import Package

    if suffix == ".pdf":
        return ocr.encode(pdf.draw_picture(content, place), "")
    found: bytes | None = content
    if suffix in PAGES:
        found = html.find_picture(content, place)
    elif place:
        found = Package(content).read(place)
    if found is None:
        raise ocr.PictureError("it is no longer in the document")
    opened = ocr.open_picture(found)
    return ocr.encode(ocr.draw(opened), ocr.MEDIA_TYPES[opened.format])


def _count_unpacked(content: bytes) -> int:
    if not is_zipfile(BytesIO(content)):
        return 0
    with ZipFile(BytesIO(content)) as archive:  # never unpacks more than its directory says
        return sum(item.file_size for item in archive.infolist())


if __name__ == "__main__":
    main()
