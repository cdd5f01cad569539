"""Convert documents to text, each format by what was made for it, in a process of their own.

That process, `python -m memagent_graph.text.conversion`, reads one `Request` per line from standard
input. To standard output it writes one `Reply` per line, followed by a `Converted`. It exits at
once when standard input ends.

The kernel's limits hold where the parent's would come too late or not at all: for a document that
allocates gigabytes at once, or after the parent was killed. macOS ignores the limit on memory, and
Windows has none of these limits; there, only the parent's checks hold.
"""

from __future__ import annotations

import codecs
import json
import math
import os
import posixpath
import re
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from importlib import import_module
from io import BytesIO
from mimetypes import guess_type
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias
from zipfile import BadZipFile, ZipFile

from memagent_graph.pictures import MARK, without_marks, without_numbers
from memagent_graph.text.charset import SAMPLE, decode, is_binary
from memagent_graph.text.notation import HYPERLINK, MOST_LEVELS, SIGNS, write_scripts
from memagent_graph.text.source import ENDS_AT, Converted, warn_of
from memagent_graph.text.terms import replace_surrogates

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

if sys.platform != "win32":
    import resource

_WORD = (".docx", ".docm", ".dotx", ".dotm")
_SLIDES = (".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm")
_SHEETS = (".xlsx", ".xlsm", ".xltx", ".xltm")
_OPEN = (".odt", ".ods", ".odp", ".ott", ".ots", ".otp", ".fodt", ".fods", ".fodp")
PAGES = (".html", ".htm", ".xhtml", ".xht")
_MAILS = (".eml", ".emlx", ".mbox", ".mht", ".mhtml")

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
FORMATS = {
    ".pdf": "pdf.read_pdf",
    **dict.fromkeys(_WORD, "office.Word.read"),
    **dict.fromkeys(_SLIDES, "office.Slides.read"),
    **dict.fromkeys(_SHEETS, "sheets.Workbook.read"),
    **dict.fromkeys(_OPEN, "opendocument.OpenDocument.read"),
    **dict.fromkeys(PAGES, "html.read_html"),
    ".epub": "html.read_epub",
    **dict.fromkeys(_MAILS, "mail.read_mail"),
    ".msg": "mail.read_outlook",
    **dict.fromkeys((".ics", ".vcf"), "mail.read_card"),
    ".rtf": "conversion.read_rtf",
    ".ipynb": "html.read_notebook",
    **dict.fromkeys(PICTURES, "ocr.read_picture"),
}
"""The function for each suffix; `format_of` looks at the content for files with another one."""
OLDER = {
    **dict.fromkeys((".doc", ".dot", ".hwp", ".hwpx", ".wps", ".wpd", ".pages"), ".docx"),
    **dict.fromkeys((".xls", ".xlsb", ".numbers"), ".xlsx"),
    **dict.fromkeys((".ppt", ".pps", ".key"), ".pptx"),
    **dict.fromkeys((".djvu", ".ps", ".xps", ".oxps"), ".pdf"),
    **dict.fromkeys((".mobi", ".azw", ".azw3"), ".epub"),
    **dict.fromkeys((".7z", ".bz2", ".gz", ".rar", ".tar", ".tgz", ".xz", ".zip"), "a folder"),
}
"""Suffixes of documents that cannot be read, with the format in which to save them."""
_IN_ARCHIVE = {
    b"word/document.xml": ".docx",
    b"xl/workbook.xml": ".xlsx",
    b"ppt/presentation.xml": ".pptx",
    b"META-INF/container.xml": ".epub",
    b"content.xml": ".odt",
}
"""The part by which an archive is known as a document, and the suffix that it should have."""
_PICTURE_HEADS = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_PAGE = re.compile(rb"\s*(?:<!doctype html|<html)", re.IGNORECASE)


def format_of(suffix: str, head: bytes, tail: bytes) -> str | None:
    """Return the suffix that a document should have, by its content; None if it is no document.

    A document has any name: a PDF saved without a suffix, RTF that is called ".doc". An archive has
    its table of contents in its last bytes.
    """
    if suffix in FORMATS and (suffix not in PICTURES or head.startswith(_PICTURE_HEADS)):
        return suffix
    if head.startswith((b"%PDF-", b"{\\rtf")):
        return ".pdf" if head[:1] == b"%" else ".rtf"
    if not suffix and head.startswith(_PICTURE_HEADS[:2]):
        return ".png"  # the content decides how it is read
    if head.startswith(b"PK\x03\x04") and suffix not in {".jar", ".zip"}:
        found = (kind for sign, kind in _IN_ARCHIVE.items() if sign in head or sign in tail)
        return next(found, None)
    return ".html" if suffix in OLDER and _PAGE.match(head) else None


PLAIN = frozenset({*_MAILS, ".ics", ".vcf", ".ipynb", ".fodt", ".fods", ".fodp"})
"""Suffixes of text that can be read as it is where the `documents` extra is not installed."""
_SAME = ("lxml", "openpyxl", "psutil", "pypdfium2", "selectolax", "striprtf")
LIBRARIES = {name: name for name in _SAME} | {"PIL": "pillow", "oxmsg": "python-oxmsg"}
"""Modules of the `documents` extra, and the packages that they are in."""
READ_BY = {"pdf": "pypdfium2", "html": "selectolax", "conversion.read_rtf": "striprtf"}
READ_BY["mail.read_outlook"] = "python-oxmsg"
READ_BY |= {"office": "lxml", "opendocument": "lxml", "sheets": "lxml"}
"""The package by which a module or function reads; the others need the standard library only."""


def load() -> None:
    """Import the libraries."""
    for name in ("oxmsg", "striprtf.striprtf"):
        import_module(name)
    for name in sorted({place.partition(".")[0] for place in FORMATS.values()}):
        _import(name)


def _import(name: str) -> Any:
    return import_module(f"memagent_graph.text.{name}")  # the parent needs none of them


def convert(content: bytes, suffix: str) -> Converted:
    """Convert a document; if it is broken, each library has its own errors."""
    module, _, name = FORMATS[suffix].partition(".")
    found: Converted = attrgetter(name)(_import(module))(content)
    text = replace_surrogates(found.text)
    marks = reversed([*MARK.finditer(text)] if found.pictures else [])
    starts = {int(mark["number"]): mark.start() for mark in marks}  # of several, the first
    placed = (one.start if one.start >= 0 else starts.get(one.number, -1) for one in found.pictures)
    pairs = zip(found.pictures, placed, strict=True)
    pictures = [replace(one, start=start) for one, start in pairs if start >= 0]
    return replace(found, text=text, pictures=pictures)


Attachment: TypeAlias = tuple[str, Converted]
"""A file within a document: its name, and what was read of it."""


def convert_within(name: str, content: bytes) -> Attachment:
    """Convert a file that is within a document, by its name or its content."""
    suffix = format_of(posixpath.splitext(name.lower())[1], content[:4096], content[-4096:])
    media, why = (guess_type(name)[0] or "").partition("/")[0], ""
    is_text = media not in {"audio", "image", "video"} and not is_binary(content[:SAMPLE])
    if suffix is None and is_text:
        return name, Converted(decode(content))
    try:
        found = convert(content, suffix) if suffix else Converted()
        text = without_numbers(found.text)
        text = without_marks(text).strip() if suffix in PICTURES else text
        if text or suffix not in {None, *PICTURES}:
            return name, replace(found, text=text)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        why = f": {' '.join(str(error).split())[:200] or type(error).__name__}"
    is_lost = float(media != "image")  # few of them have words
    return name, Converted("", (), (f"was not read{why or '.'}",), lost=is_lost)


def write_attachments(files: Sequence[Attachment]) -> tuple[list[str], list[str], float]:
    """Return the texts of files with their names, what they lack, and how many were not read."""
    texts = [f"## Attachment: {name}\n\n{one.text}" for name, one in files if one.text.strip()]
    warnings = [f"attachment {name} {line}" for name, one in files for line in one.warnings]
    return texts, warnings, sum(one.lost for _, one in files)


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
    html, ocr, package, pdf = map(_import, ("html", "ocr", "package", "pdf"))
    if suffix == ".pdf":
        drawn, media_type = pdf.draw_picture(content, place), ""
    else:
        found: bytes | None = content
        if suffix in PAGES:
            found = html.find_picture(content, place)
        elif place:
            found = package.Package(content).read(place)
        if found is None:
            raise ocr.PictureError("it is no longer in the document")
        opened = ocr.open_picture(found)
        drawn, media_type = ocr.draw(opened), ocr.MEDIA_TYPES[opened.format]
    shown: tuple[str, str] = ocr.encode(drawn, media_type)
    return shown


def _count_unpacked(content: bytes) -> int:
    with suppress(BadZipFile), ZipFile(BytesIO(content)) as archive:
        return sum(item.file_size for item in archive.infolist())  # never unpacks to more
    return 0


def read_rtf(content: bytes) -> Converted:
    """Read a text of RTF, without what was deleted under review."""
    library: Any = import_module("striprtf.striprtf")
    pictures = content.count(b"\\pict")
    objects = content.count(b"\\objdata") + len(_UNWRITTEN.findall(content))
    content = content.removeprefix(codecs.BOM_UTF8)
    begun = content if content.lstrip().startswith(b"{\\rtf") else b"{%b}" % content  # a part
    pages, encoding = _MACHINE.findall(begun, 0, _HEAD), "cp1252"
    with suppress(LookupError):
        page = pages[-1].removeprefix(b"ansicpg") if pages else b"1252"
        encoding = codecs.lookup(_MACHINES.get(page, f"cp{page.decode()}")).name
    begun = _FONT.sub(rb"\g<0>\\fcharset1", _MACHINE.sub(b"", begun, len(pages)))
    library.destinations -= _SHOWN
    library.specialchars |= _WRITTEN
    library.charset_map[2] = "latin-1"  # of signs, by their codes
    whole = _prepare_rtf(begun, library.specialchars)
    text: str = library.rtf_to_text(whole.decode("latin-1"), encoding, errors="replace")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins halves
    text = _SIGNS.sub(lambda found: found[2].translate(SIGNS[_MARKS[found[1]]]), text)
    text = re.sub(r"\n{3,}", "\n\n", write_scripts(text.replace("\xad", "")))
    warnings = warn_of(picture=pictures, embedded_object=objects)
    return Converted(text.strip(), (), warnings, lost=objects / (text.count("\n") + objects + 1))


_TOKEN = re.compile(rb"(?si)\\([a-z]{1,32})(-?\d{1,10})?[ ]?|\\'[0-9a-f]{2}|\\.|[{}]|[^\\{}]+|\\\Z")
_SIGN_FONT = re.compile(
    rb"(?i)\\f(\d{1,9})(?:\\[a-z]+-?\d*|\{[^{}]{0,99}\}|\s){0,20}+(symbol|wingdings(?: 2)?);"
)
_MARKS = dict(zip("\x15\x17\x19", SIGNS, strict=True))
_SIGNS = re.compile("([\x15\x17\x19])([^\x15-\x1a]*)[\x16\x18\x1a]")
"""A font of signs, the marks of text in one, and the text between them."""
_RAISING = {b"super": b"\x0e", b"up": b"\x0e", b"sub": b"\x10", b"dn": b"\x10"}
_RAISING |= {b"msup": b"\x0e", b"msub": b"\x10", b"mden": b"\x10"}
_LEVEL, _PLAIN = {b"nosupersub", b"plain"}, (b"", b"", b"")
_WRITTEN = dict.fromkeys(("mdeg", "me", "mfName", "mlim", "mnum"), " ")
_WRITTEN |= {"column": "\n", "mden": "/"}
_SHAPES = "md mf mfunc mm mmath mmr mnary moMath moMathPara mr mrad msSub msSubSup msSup msub msup"
_SHOWN = {*_WRITTEN, *_SHAPES.split(), "object", "pntext", "result", "upr"}
"""Words that begin what is shown, and that the library leaves out; some stand for text."""
_SETTINGS = {b"cs", b"ds", b"s", b"ts", *map(str.encode, _SHOWN)}
"""Words that are known where a star hides what is unknown: those, and styles."""
_BOXES = {b"do", b"dptxbxtext", b"shp", b"shpgrp", b"shpinst", b"shptxt"}
_NOTES = {margin + pages for margin in (b"footer", b"header") for pages in (b"", b"f", b"l", b"r")}
_NOTES |= {b"annotation", b"footnote"}
_APART = _NOTES | _BOXES
"""What the library leaves out: boxes, and notes, headers and footers, which go to the end."""


def _prepare_rtf(content: bytes, written: Mapping[str, str]) -> bytes:  # noqa: C901, PLR0912, PLR0915
    """Return RTF as the library needs it; `written` are words that stand for text."""
    kept, around = list[bytes](), list[tuple[set[bytes], tuple[bytes, bytes, bytes], int]]()
    marks = {name.encode(): mark.encode() for mark, name in _MARKS.items()}
    fonts = {number: marks[name.lower()] for number, name in _SIGN_FONT.findall(content)}
    at = form = 0
    deleted, script, is_begun, address = set[bytes](), _PLAIN, False, b""
    ends, notes = dict[int, bytes](), list[bytes]()  # how groups end, by their depth
    while token := _TOKEN.match(content, at):
        at, (word, number), piece, now = token.end(), token.groups(), token[0], script
        if word == b"bin":  # that many bytes of anything
            at += max(int(number or 0), 0)
            continue
        if piece == b"{":
            around.append((deleted, script, len(kept)))
        elif piece == b"}":
            end = ends.pop(len(around), b"")
            deleted, now, begin = around.pop() if around else (set(), _PLAIN, 0)
            if end in _NOTES:
                notes += [*kept[begin:], piece]
                kept, script = [*kept[:begin], b"{}"], now  # a word before it ends here
                continue
            kept += [] if around else notes
            piece = (b"\\par " if end in _BOXES else end) + piece
        elif word is None and (found := HYPERLINK.search(piece.decode("latin-1"))):
            address = found[1].encode("latin-1")
            continue
        elif word == b"fldrslt":
            ends |= {len(around): b" <%b>" % address} if address else {}
            piece += _show_form(content[form:at]) if form else b""
            address, form = b"", 0
        elif word == b"formfield":
            form = at
        elif piece == b"\\*":  # hides the group, unless what begins here is known
            following = _TOKEN.match(content, at)
            if not is_begun or (following and following[1] in _SETTINGS | _APART):
                continue
        elif word in {b"deleted", b"mvf"}:
            deleted = deleted - {word} if number == b"0" else deleted | {word}
        elif word in _RAISING:
            outer = around[-1][1][0][: MOST_LEVELS - 1] if around else b""
            now = b"" if number == b"0" else outer + _RAISING[word], *script[1:]
        elif word == b"f":
            now = *script[:2], fonts.get(number, b"")
        elif word in {b"strike", b"striked"}:
            now = script[0], b"" if number == b"0" else b"\x13", script[2]
        elif word in _LEVEL:
            is_plain = word == b"plain"
            deleted, now = (set(), _PLAIN) if is_plain else (deleted, (b"", *script[1:]))
        elif word in _APART:
            piece, ends[len(around)] = b"\\par " + piece[len(word) + 1 :], word
        elif deleted and (word is None or word == b"u" or word.decode() in written):
            continue
        is_begun = piece == b"{" or (is_begun and not piece.strip())
        old, new = (struck + raised + font for raised, struck, font in (script, now))
        same = len(posixpath.commonprefix([old, new]))
        kept += [bytes(sign + 1 for sign in reversed(old[same:])), piece, new[same:]]
        script = now
    return _HIGH.sub(lambda found: b"\\'%02x" % found[0][0], b"".join(kept))


def _show_form(settings: bytes) -> bytes:
    """Return what a field of a form shows that is no text: a tick, or what was chosen."""
    found = {b"defres": b"0", b"res": b"25", **dict(_SETTING.findall(settings))}
    chosen = found[b"defres" if found[b"res"] == b"25" else b"res"]  # which says nothing
    if found.get(b"type") == b"1":
        return b"{\\uc1\\u9744?}" if chosen == b"0" else b"{\\uc1\\u9746?}"
    return b"".join(_CHOICE.findall(settings)[int(chosen) :][:1])


_SETTING = re.compile(rb"\\ff(type|res|defres)(\d{1,4})")
_CHOICE = re.compile(rb"\\ffl ([^{}]{0,999})")
_UNWRITTEN = re.compile(rb"\\fldinst\b[^{}]{0,99}?(?:\{[^{}]{0,99}?)?[ {](?:EQ|AUTONUM|LISTNUM)")
"""Fields that have no result, since programs draw them."""
_HEAD = 200  # bytes at the beginning of RTF that name its character set
_MACHINE = re.compile(rb"\\(mac|pca|pc|ansicpg\d{1,5})(?![a-z0-9])")
_MACHINES = {b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850", b"10000": "mac_roman"}
_FONT = re.compile(rb"\\f\d{1,9}(?![^{};]{0,200}\\fcharset)(?=[^{};]{0,200};)")
"""A font that does not say its character set: the library gives it that of the next one."""
_HIGH = re.compile(rb"[\x80-\xff]|(?<=\\'[\da-fA-F]{2})[^\\{}\r\n]")
"""Bytes beyond ASCII, and the second one of a letter of two, which may be ASCII."""


if __name__ == "__main__":
    import_module("memagent_graph.text.conversion").main()  # the name by which others import it
