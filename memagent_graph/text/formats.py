"""Convert documents to text, each format by what was made for it.

This runs in the process that converts documents.
"""

from __future__ import annotations

import json
import posixpath
import re
from email import policy
from email.parser import BytesParser
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import chardet

from memagent_graph.text.source import Converted, PasswordError, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORMATS = {
    ".pdf": "pdf.read_pdf",
    ".docx": "office.read_docx",
    ".docm": "office.read_docx",
    ".pptx": "office.read_pptx",
    ".pptm": "office.read_pptx",
    ".xlsx": "sheets.read_xlsx",
    ".xlsm": "sheets.read_xlsx",
    ".odt": "office.read_opendocument",
    ".ods": "office.read_opendocument",
    ".odp": "office.read_opendocument",
    ".html": "formats.read_html",
    ".htm": "formats.read_html",
    ".xhtml": "formats.read_html",
    ".epub": "formats.read_epub",
    ".eml": "formats.read_mail",
    ".msg": "formats.read_outlook",
    ".rtf": "formats.read_rtf",
    ".ipynb": "formats.read_notebook",
    ".srt": "formats.read_subtitles",
    ".vtt": "formats.read_subtitles",
}
"""The function for each suffix; no other is tried, whatever the content is."""

_OPEN_XML = "application/vnd.openxmlformats-officedocument."
_OPEN_DOCUMENT = "application/vnd.oasis.opendocument."
_TYPES = {
    "application/epub+zip": ".epub",
    "application/pdf": ".pdf",
    "application/rtf": ".rtf",
    "application/vnd.ms-outlook": ".msg",
    "application/x-ipynb+json": ".ipynb",
    "application/x-subrip": ".srt",
    "application/xhtml+xml": ".xhtml",
    "message/rfc822": ".eml",
    "text/html": ".html",
    "text/rtf": ".rtf",
    "text/vtt": ".vtt",
    f"{_OPEN_DOCUMENT}presentation": ".odp",
    f"{_OPEN_DOCUMENT}spreadsheet": ".ods",
    f"{_OPEN_DOCUMENT}text": ".odt",
    f"{_OPEN_XML}presentationml.presentation": ".pptx",
    f"{_OPEN_XML}spreadsheetml.sheet": ".xlsx",
    f"{_OPEN_XML}wordprocessingml.document": ".docx",
}


def suffix_of_type(media_type: str) -> str:
    """Return the suffix of files of a media type that is converted; "" for another one."""
    return _TYPES.get(media_type.strip().lower(), "")


PLAIN = frozenset({".eml", ".ipynb", ".srt", ".vtt"})
"""Suffixes of text that can be read as it is where the `documents` extra is not installed."""

LIBRARIES = ("lxml", "openpyxl", "pypdfium2", "python-oxmsg", "selectolax", "striprtf")
"""Packages of the `documents` extra that convert."""

READ_BY = {
    ".pdf": "pypdfium2",
    **dict.fromkeys((".xlsx", ".xlsm"), "openpyxl"),
    **dict.fromkeys((".docx", ".docm", ".pptx", ".pptm", ".odt", ".ods", ".odp"), "lxml"),
    **dict.fromkeys((".html", ".htm", ".xhtml", ".epub"), "selectolax"),
    ".msg": "python-oxmsg",
    ".rtf": "striprtf",
}
"""The package that reads a format; the others need the standard library only."""


def load() -> None:
    """Import the libraries.

    Raises:
        ImportError: One is not installed.
    """
    for name in ("oxmsg", "selectolax.lexbor", "striprtf.striprtf"):
        import_module(name)
    for name in sorted({place.partition(".")[0] for place in FORMATS.values()}):
        import_module(f"memagent_graph.text.{name}")


def convert(content: bytes, suffix: str) -> Converted:
    """Convert a document.

    Args:
        content: the bytes of the file.
        suffix: the suffix of its name, such as ".pdf".

    Raises:
        ModuleNotFoundError: A library is not installed.
        PasswordError: The document is encrypted.
        Exception: The file is broken; each library has its own errors.
    """
    module, _, name = FORMATS[suffix].partition(".")
    read: Callable[[bytes], Converted] = getattr(
        import_module(f"memagent_graph.text.{module}"), name
    )
    return read(content)


_BLOCKS = {
    *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "dialog"),
    *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hr"),
    *("legend", "main", "nav", "ol", "option", "p", "section", "summary", "ul"),
}
_LEFT_OUT = {"head", "script", "style", "template", "#comment", "-comment", "iframe", "object"}
_DEEPEST = 150
"""Depth of elements that are laid out; what is nested deeper is read as running text."""


def read_html(content: bytes) -> Converted:
    """Read a page of HTML as Markdown: headings, lists, tables, links and fenced code."""
    return Converted(html_to_text(decode(content)))


def html_to_text(text: str) -> str:
    """Return HTML as Markdown."""
    from selectolax.lexbor import LexborHTMLParser

    root = LexborHTMLParser(text.replace("\0", "\ufffd")).root
    laid_out = _lay_out(root, 0) if root is not None else ""
    lines = "\n".join(line.rstrip() for line in laid_out.split("\n"))
    return _EMPTY_LINES.sub("\n\n", lines).strip()


_EMPTY_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r"[ \t\r\n\f]+")


def _lay_out(node: Any, depth: int) -> str:
    if depth > _DEEPEST:
        return str(node.text(separator=" "))
    pieces, at = [], node.child
    while at is not None:
        pieces.append(_lay_out_child(at, depth))
        at = at.next
    return "".join(pieces)


def _lay_out_child(node: Any, depth: int) -> str:  # noqa: C901 - a list of elements
    tag = node.tag
    if tag == "-text":
        return _SPACES.sub(" ", node.text_content or "")
    if tag in _LEFT_OUT:
        return ""
    if tag == "br":
        return "\n"
    if tag == "pre":
        found = node.traverse(include_text=True)
        lines = "".join(
            "\n" if at.tag == "br" else at.text_content or ""
            for at in found
            if at.tag in {"br", "-text"}
        )
        fence = "~~~" if "```" in lines else "```"
        return "\n".join(["\n", fence, lines.strip("\n"), fence, "\n"])
    if tag == "table" and node.css_first("table table") is None:
        return f"\n\n{_lay_out_table(node, depth)}\n\n"
    attributes = node.attributes
    if tag == "img":
        return f"[picture: {alt.strip()}]" if (alt := attributes.get("alt")) else ""
    if tag == "input":
        value = attributes.get("value") or attributes.get("placeholder") or ""
        return "" if attributes.get("type") == "hidden" else f" {value} "
    inner = _lay_out(node, depth + 1)
    if tag[:1] == "h" and tag[1:] in {"1", "2", "3", "4", "5", "6"}:
        title = " ".join(inner.split())
        return f"\n\n{'#' * int(tag[1:])} {title}\n\n" if title else ""
    if tag == "li":
        mark = _number_of(node) if node.parent and node.parent.tag == "ol" else "-"
        return (
            f"\n{mark} " + "\n  ".join(filter(None, inner.strip().split("\n")))
            if inner.strip()
            else ""
        )
    if tag == "a":
        address, label = attributes.get("href") or "", inner.strip()
        shown = label in address or not address.startswith(("http:", "https:", "mailto:"))
        return inner if shown or "\n" in label else f"[{label}]({address})"
    if tag == "tr":
        return f"\n{inner}\n"
    if tag in {"td", "th"}:
        return f" {inner} "
    return f"\n\n{inner}\n\n" if tag in _BLOCKS else inner


def _number_of(node: Any) -> str:
    first, number, at = node.parent.attributes.get("start") or "1", 0, node.prev
    while at is not None:
        number, at = number + (at.tag == "li"), at.prev
    return f"{(int(first) if first.isdigit() else 1) + number}."


def _lay_out_table(node: Any, depth: int) -> str:
    from memagent_graph.text.office import write_table

    rows = [[_lay_out(cell, depth + 1) for cell in row.css("td, th")] for row in node.css("tr")]
    captions = [" ".join(_lay_out(found, depth + 1).split()) for found in node.css("caption")]
    return "\n\n".join([*captions, write_table(rows)])


_CHARSET = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE
)


def decode(content: bytes) -> str:
    """Return the text of a page: by its mark, as UTF-8, as it says, or else by its letters."""
    for mark, encoding in (
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    try:
        return content.decode()
    except UnicodeDecodeError:
        pass
    named = _CHARSET.search(content[:4096])
    try:
        if named and named[1].lower() not in {b"utf-8", b"utf8"}:
            return content.decode(
                named[1].decode().lower().replace("iso-8859-1", "cp1252"), "replace"
            )
    except LookupError:
        pass
    guessed = chardet.detect(content)["encoding"] or "utf-8"
    return content.decode(guessed, "replace")


def read_epub(content: bytes) -> Converted:
    """Read a book: its pages of HTML, in the order in which they are to be read.

    Raises:
        ValueError: It is no EPUB.
    """
    from memagent_graph.text.office import Package, child, get

    package = Package(content)
    container = package.parse("META-INF/container.xml")
    root = None if container is None else next(container.iter("{*}rootfile"), None)
    place = get(root, "full-path")
    book = package.parse(place)
    if book is None:
        raise ValueError("it is no EPUB, or a damaged one")
    if package.holds("META-INF/encryption.xml") and b"enc#aes" in package.read(
        "META-INF/encryption.xml"
    ):
        raise PasswordError
    files = {get(item, "id"): unquote(get(item, "href")) for item in book.iter("{*}item")}
    chapters, missing = [], 0
    for item in book.iter("{*}itemref"):
        part = posixpath.normpath(
            posixpath.join(posixpath.dirname(place), files.get(get(item, "idref"), "-"))
        )
        if package.holds(part):
            chapters.append(html_to_text(decode(package.read(part))))
        else:
            missing += 1
    title = child(book, "metadata", "title")
    heading = f"# {title.text.strip()}" if title is not None and title.text else ""
    text = "\n\n".join(filter(None, [heading, *chapters]))
    return Converted(text, (), warn_of(missing_chapter=missing))


def read_mail(content: bytes) -> Converted:
    """Read a message of e-mail with its attachments."""
    return _read_message(BytesParser(policy=policy.default).parsebytes(content))


_HEADERS = ("From", "To", "Cc", "Date", "Subject")


def _read_message(message: Any) -> Converted:
    heads = [f"{name}: {message[name]}" for name in _HEADERS if message[name]]
    body = message.get_body(("plain", "html"))
    text = ""
    if body is not None:
        text = _text_of(body)
        if body.get_content_subtype() == "html":
            text = html_to_text(text)
    attached = []
    for part in message.iter_attachments():
        name = part.get_filename() or part.get_content_type()
        if part.get_content_type() == "message/rfc822":
            inner = _read_message(part.get_payload(0))
            attached.append((name, inner.text, inner.warnings))
        elif part.get_content_maintype() == "text" and _suffix(name) not in FORMATS:
            attached.append((name, _text_of(part), ()))
        else:
            attached.append(_convert_attachment(name, part.get_payload(decode=True) or b""))
    return _append_attachments([*heads, "", text.strip()], attached)


def _text_of(part: Any) -> str:
    try:
        return str(part.get_content())
    except (LookupError, UnicodeError):  # an encoding that Python does not have
        return decode(part.get_payload(decode=True) or b"")


def _suffix(name: str) -> str:
    return posixpath.splitext(name.lower())[1]


Attachment: TypeAlias = "tuple[str, str, Sequence[str]]"


def _convert_attachment(name: str, content: bytes) -> Attachment:
    """Return name, text and warnings of an attached file."""
    if _suffix(name) not in FORMATS:
        return name, "", ("was not read.",)
    try:
        found = convert(content, _suffix(name))
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a parser may raise anything
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return name, "", (f"was not read: {reason}",)
    return name, found.text, found.warnings


def _append_attachments(lines: Sequence[str], attached: Sequence[Attachment]) -> Converted:
    texts = [f"## Attachment: {name}\n\n{text}" for name, text, _ in attached if text.strip()]
    warnings = [f"attachment {name} {line}" for name, _, lines in attached for line in lines]
    return Converted("\n\n".join(["\n".join(lines).strip(), *texts]), (), tuple(warnings))


def read_outlook(content: bytes) -> Converted:
    """Read a message of Outlook with its attachments."""
    from oxmsg import Message

    message = Message.load(BytesIO(content))
    heads = {
        "From": message.sender,
        "To": ", ".join(f"{at.name} <{at.email_address}>" for at in message.recipients),
        "Date": message.sent_date,
        "Subject": message.subject,
    }
    text = message.body or html_to_text(message.html_body or "")
    attached = [
        _convert_attachment(at.file_name or "", at.file_bytes or b"") for at in message.attachments
    ]
    return _append_attachments(
        [*(f"{name}: {said}" for name, said in heads.items() if said), "", text], attached
    )


def read_rtf(content: bytes) -> Converted:
    """Read a text of RTF."""
    to_text: Callable[..., str] = import_module("striprtf.striprtf").rtf_to_text
    pictures = content.count(b"\\pict")
    return Converted(
        to_text(content.decode("latin-1"), errors="replace").strip(),
        (),
        warn_of(picture=pictures),
    )


def read_notebook(content: bytes) -> Converted:
    """Read a Jupyter notebook: its texts, code and printed results."""
    notebook = json.loads(content.decode("utf-8-sig"))
    cells = notebook.get("cells") or [
        cell for sheet in notebook["worksheets"] for cell in sheet["cells"]
    ]
    pictures, blocks = 0, []
    for cell in cells:
        source = _join_lines(cell.get("source", cell.get("input", "")))
        blocks.append(f"```\n{source}\n```" if cell.get("cell_type") == "code" else source)
        for result in cell.get("outputs", ()):
            content_of = result.get("data", {})
            printed = (
                result.get("text") or content_of.get("text/plain") or result.get("traceback") or ""
            )
            pictures += any(kind.startswith("image/") for kind in content_of)
            text = _COLOURS.sub("", _join_lines(printed))
            blocks.append("\n".join(["```", text.strip("\n"), "```"]) if text.strip() else "")
    return Converted("\n\n".join(filter(None, blocks)), (), warn_of(picture=pictures))


_COLOURS = re.compile(r"\x1b\[[\d;]{0,30}m")


def _join_lines(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)


_BETWEEN = 60
"""Least time between two headings of subtitles, in seconds."""

_TIMES = re.compile(r"(?:(\d{1,3}):)?(\d{1,2}):(\d{1,2})[.,]\d{1,3}[ \t]{1,9}-->[^\n]*")
_STYLE = re.compile(r"<[^<>\n]{1,200}>|\{\\[^{}]{0,99}\}")
_BLANK = re.compile(r"\n[ \t]*\n")
_SPEAKER = re.compile(r"<v(?:\.[^ <>]{0,99})? ([^<>]{1,200})>")


def read_subtitles(content: bytes) -> Converted:
    """Read subtitles as running text, with the time as a heading about every minute."""
    text = "\n".join(decode(content).splitlines())
    said: list[str] = []
    last = -_BETWEEN
    for block in _BLANK.split(text):
        times = _TIMES.search(block)
        if times is None:
            continue  # the head, a style, a note
        seconds = int(times[1] or 0) * 3600 + int(times[2]) * 60 + int(times[3])
        if seconds - last >= _BETWEEN and (
            not said or said[-1].rstrip().endswith((".", "!", "?", "…"))
        ):
            said.append(
                f"\n\n## {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}\n\n"
            )
            last = seconds
        lines = _SPEAKER.sub(r"\1: ", block[times.end() :])
        said.append(" ".join(_STYLE.sub("", lines).split()) + "\n")
    return Converted("".join(said).strip())
