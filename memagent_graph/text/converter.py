"""Convert PDF, DOCX, HTML and the like to text, once, in a pool of separate processes."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from asyncio import CancelledError
from bisect import bisect_right
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache, cached_property
from hashlib import file_digest, sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from time import monotonic
from typing import IO, TYPE_CHECKING, cast

from memagent_graph import errors
from memagent_graph.config import from_environment
from memagent_graph.pictures import has_ocr
from memagent_graph.sync import in_thread, is_cancelled
from memagent_graph.text.cache import open_cache
from memagent_graph.text.conversion import FORMATS, LIBRARIES, READ_BY, Limit, Reply, Request
from memagent_graph.text.source import Converted, Headings, Location, TextSource

if TYPE_CHECKING:
    from memagent_graph.pictures import Picture
    from memagent_graph.text.charset import Opener

_LOOK_SECONDS, _START_SECONDS = 0.02, 120.0
"""Interval of checks on a process and its caller, and the time in which one must have started."""
_LONGEST_LINE = 1 << 16  # longest header line of a reply, in bytes
_NAMES = "DYLD_LIBRARY_PATH LANG LC_ALL LC_CTYPE LD_LIBRARY_PATH PYTHONHOME PYTHONUTF8 SYSTEMROOT"
_ENVIRONMENT = _NAMES.split()
"""Variables that Python may need to start. All others, keys and tokens included, are not passed."""
_MB = 1 << 20
_LIMITS: dict[Limit, tuple[str, float, str]] = {
    "time": ("MEMAGENT_CONVERSION_SECONDS", 120, "takes longer than {:g} seconds to convert"),
    "memory": ("MEMAGENT_CONVERSION_MEMORY_MB", 1024, "takes over {:g} MB of memory to convert"),
    "output": ("MEMAGENT_CONVERSION_OUTPUT_MB", 64, "has a text that is longer than {:g} MB"),
}
"""Limits on one document: time, memory of the process (its libraries take about 200), and text."""


def _make_request(path: Path, suffix: str, picture: str | None = None) -> Request:
    seconds, memory, output = (from_environment(*limit[:2]) for limit in _LIMITS.values())
    sizes = int(memory * _MB), int(output * _MB)
    return Request(str(path.absolute()), suffix, seconds, *sizes, picture)


class Converter:
    """A process that converts one document after the other; `documents` counts them."""

    expiry: threading.Timer

    def __init__(self) -> None:
        import psutil

        self.documents = 0
        # An interrupt of a Python that starts may be lost, since some imports pass over it: Ctrl-C
        # waits, in this thread and, until it can take it, in the process that it begins.
        if sys.platform != "win32":
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            # Without `-P`, a module in the current folder could take the place of any other.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-W", "ignore", "-m", "memagent_graph.text.conversion"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_environment(),
            )
        finally:
            if sys.platform != "win32":
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._requests = cast("IO[bytes]", self._process.stdin)
        self._replies = cast("IO[bytes]", self._process.stdout)
        self._seen = psutil.Process(self._process.pid)

    def convert(self, request: Request) -> tuple[Reply, bytes]:
        """Convert a file; end a process that exceeds a limit, or that nobody waits for any more."""
        if not self.documents:
            hello, _ = self._hear(replace(request, seconds=_START_SECONDS))
            if hello.error or hello.limit:
                return hello, b""
        self.documents += 1
        with suppress(OSError):  # if it has ended, `_hear` notices
            self._requests.write(json.dumps(asdict(request)).encode() + b"\n")
            self._requests.flush()
        return self._hear(request)

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def memory(self) -> int:
        """Resident memory of the process, in bytes."""
        import psutil

        try:
            return int(self._seen.memory_info().rss)
        except psutil.Error:  # it has ended
            return 0

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._requests, self._replies):
            with suppress(OSError):  # unwritten requests no longer matter
                pipe.close()

    def _hear(self, request: Request) -> tuple[Reply, bytes]:
        heard = in_thread(lambda: self._receive(request.output))
        until = monotonic() + request.seconds
        exceeded: Limit | None = None
        while exceeded is None and not wait([heard], _LOOK_SECONDS).done:
            if is_cancelled():
                raise CancelledError
            if monotonic() > until:
                exceeded = "time"
            elif self.memory > request.memory:
                exceeded = "memory"
        if exceeded is None:
            with suppress(EOFError, ValueError, TypeError):  # cut off, or not a reply
                return heard.result()
        self.end()
        if exceeded is not None:
            return Reply(limit=exceeded), b""
        status = self._process.returncode
        if status == -signal.SIGINT:  # Ctrl-C reaches it too, unlike the threads of a graph
            raise CancelledError
        return Reply(error=f"its process ended with status {status}"), b""

    def _receive(self, most: int) -> tuple[Reply, bytes]:
        reply = Reply(**json.loads(self._replies.readline(_LONGEST_LINE)))
        content = self._replies.read(reply.size) if 0 <= reply.size <= most else b""
        if len(content) != reply.size:
            raise EOFError
        return reply, content


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    places = [str(Path(place).absolute()) for place in sys.path if place]
    package = str(Path(__file__).parents[2])  # it may come from the current folder
    places[:0] = [] if package in places else [package]
    return {**kept, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}


AT_ONCE = min(4, os.cpu_count() or 1)  # documents converted at the same time
_KEPT_SECONDS = 10.0
"""Time for which an idle process is kept, in seconds; starting one takes about a second."""
_KEPT_DOCUMENTS, _KEPT_SHARE = 100, 0.5
"""Documents, and share of the memory limit, from which on a process is replaced."""


class Converters:
    """A pool of converting processes, at most `AT_ONCE` working at once."""

    def __init__(self) -> None:
        self._idle = list[Converter]()
        self.begin_anew()

    def begin_anew(self) -> None:
        """After a fork, leave the processes to the parent."""
        self._idle, self._turns = [], threading.BoundedSemaphore(AT_ONCE)

    def convert(self, request: Request) -> tuple[Reply, bytes]:
        """Convert a file, or load a picture of it; `CancelledError` if nobody waits for it."""
        while not self._turns.acquire(timeout=_LOOK_SECONDS):
            if is_cancelled():
                raise CancelledError
        try:
            converter = self._take() or Converter()
            try:
                reply, content = converter.convert(request)
            except BaseException:
                converter.end()
                raise
            is_sound = converter.alive and not (reply.limit or reply.missing)
            is_small = converter.memory < request.memory * _KEPT_SHARE
            if is_sound and is_small and converter.documents < _KEPT_DOCUMENTS:
                converter.expiry = threading.Timer(_KEPT_SECONDS, self._expire, [converter])
                converter.expiry.daemon = True
                converter.expiry.start()
                self._idle.append(converter)
            else:
                converter.end()
            return reply, content
        finally:
            self._turns.release()

    def end(self) -> None:
        """End the idle processes."""
        while converter := self._take():
            converter.end()

    def _take(self) -> Converter | None:
        with suppress(IndexError):
            while True:
                converter = self._idle.pop()
                converter.expiry.cancel()
                if converter.alive:
                    return converter
                converter.end()
        return None

    def _expire(self, converter: Converter) -> None:
        with suppress(ValueError):  # it was taken
            self._idle.remove(converter)
            converter.end()


shared = Converters()  # the pool of this process
atexit.register(shared.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.begin_anew)


_FORM = 17  # version of the conversion; a change here that gives other texts or pages increases it
_NO_OCR = ' For pictures of text: pip install "memagent-graph[ocr]"'


class ConvertedSource(TextSource):
    """The text of a file that is converted; from the cache if it is there and `keep` is set."""

    def __init__(
        self, path: Path, name: str, suffix: str | None = None, *, keep: bool = True
    ) -> None:
        if not can_convert():
            raise _make_missing_error(name)
        suffix = suffix or path.suffix.lower()
        digest, content = _find_or_convert(name, _make_request(path, suffix), keep=keep)
        try:
            converted = Converted.decode(content)
        except (KeyError, TypeError, ValueError) as error:
            message = f"{name} cannot be converted to text: its converter sent something else."
            raise errors.UnreadableSourceError(message) from error
        super().__init__(converted.text, name)
        self.digest, self.read_by, self.path = digest, read_by(suffix), path.absolute()
        self.uri, self._suffix, self._pages = self.path.as_uri(), suffix, converted.pages
        self.pictures, self.lost = converted.pictures, converted.lost
        self.warnings = tuple(f"{name}: {line}" for line in converted.warnings)
        pages = enumerate(pairwise([*self._pages, self.length] if suffix == ".pdf" else ()), 1)
        blank = [str(page) for page, (start, end) in pages if self.text[start:end].isspace()]
        if blank:
            where = f"page{'s' * (len(blank) > 1)} {', '.join(blank)} of {len(self._pages)}"
            hint = "" if has_ocr() else _NO_OCR
            self.warnings += (f"{name}: no text on {where}.{hint}",)

    @classmethod
    def of_copy(cls, path: Path, name: str, suffix: str, opener: Opener) -> ConvertedSource:
        """Convert a copy of a file, since the process that converts opens it by its path."""
        with TemporaryDirectory() as folder:
            copy = Path(folder, f"document{suffix}")
            with open(path, "rb", opener=opener) as file, copy.open("wb") as kept:
                copyfileobj(file, kept)
            source = cls(copy, name)
        source.path, source.uri = path.absolute(), path.absolute().as_uri()
        return source

    def locate(self, offset: int) -> Location:
        """Return name, line, page and heading of the code point at `offset`."""
        page = bisect_right(self._pages, offset)
        begin = self._pages[page - 1] if page else 0
        heading = self._headings.above(offset, since=begin)
        return super().locate(offset)._replace(page=page or None, heading=heading)

    def load_picture(self, picture: Picture) -> tuple[str, str]:
        """Return (media type, base64) of a picture, as models get it."""
        gone = f"{self.name} has changed or is gone, and with it {picture.mark}."
        if not self.path.is_file():
            raise errors.SourceChangedError(gone)
        reply, content = shared.convert(_make_request(self.path, self._suffix, picture.place))
        if why := reply.error or (f"it exceeds the limit on {reply.limit}" if reply.limit else ""):
            message = f"{picture.mark} of {self.name} cannot be shown: {why.rstrip('.')}."
            raise errors.UnreadableSourceError(message)
        if reply.digest != self.digest:
            raise errors.SourceChangedError(gone)
        found = Converted.decode(content)
        return found.warnings[0], found.text

    @cached_property
    def _headings(self) -> Headings:
        return Headings(self if self._suffix != ".pdf" else TextSource(""))


def _find_or_convert(name: str, request: Request, *, keep: bool) -> tuple[str, bytes]:
    kept, converter = open_cache() if keep else None, _converter(request.suffix, request.seconds)
    if kept is not None and converter is not None:
        with Path(request.path).open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        if (found := kept.find(f"{digest}-{converter}", request.output)) is not None:
            return digest, found
    reply, content = shared.convert(request)
    if reply.missing:
        raise _make_missing_error(name)
    if reply.limit is not None:
        variable, usual, said = _LIMITS[reply.limit]
        detail = f": it {reply.error}" if reply.error else ""
        what = f"{said.format(from_environment(variable, usual))}{detail}"
        hint = f"raise {variable}; otherwise convert it to text with another tool."
        message = f"{name} {what}. If you trust it, {hint}"
        raise errors.ConversionLimitError(message, limit=reply.limit)
    if reply.error is not None:
        hint = "Check that it opens elsewhere, or save it as plain text."
        message = f"{name} cannot be converted to text: {reply.error.rstrip('. ')}. {hint}"
        raise errors.UnreadableSourceError(message)
    if kept is not None and converter is not None:
        kept.keep(f"{reply.digest}-{converter}", content)
    return reply.digest, content


def can_convert() -> bool:
    """Whether the `documents` extra is installed."""
    return all(map(find_spec, LIBRARIES))


@cache
def read_by(suffix: str) -> str:
    """Return the library that reads a format and its version; "text" where none is needed."""
    reader = FORMATS.get(suffix, "")
    library = READ_BY.get(reader) or READ_BY.get(reader.partition(".")[0])
    try:
        return f"{library} {version(library)}" if library else "text"
    except PackageNotFoundError:
        return str(library)


@cache
def _converter(suffix: str, seconds: float) -> str | None:
    """A digest of converter and versions for a format; None if a library reports no version."""
    try:
        made_by = f"{FORMATS[suffix]} {[*map(version, LIBRARIES.values())]} {_FORM}"
        if has_ocr():  # reads as many pages as it has time for
            made_by += f" {version('rapidocr')} {seconds}"
    except PackageNotFoundError:
        return None
    return sha256(made_by.encode()).hexdigest()[:16]


def _make_missing_error(name: str) -> errors.MissingDependencyError:
    message = f'To read {name}: pip install "memagent-graph[documents]"'
    return errors.MissingDependencyError(message)
