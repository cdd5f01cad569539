"""Convert documents to text, each format by what was made for it.

This runs in the process that converts documents.
"""

from __future__ import annotations

import codecs
import json
import posixpath
import re
from base64 import b64decode
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from html import escape, unescape
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from memagent_graph.pictures.picture import MARK, write_mark
from memagent_graph.templates import replace_surrogates
from memagent_graph.text.source import Converted, PasswordError, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memagent_graph.text.ocr import Album

_WORD = (".docx", ".docm", ".dotx", ".dotm")
_SLIDES = (".pptx", ".pptm", ".ppsx", ".ppsm", ".potx", ".potm")
_SHEETS = (".xlsx", ".xlsm", ".xltx", ".xltm")
_OPEN = (".odt", ".ods", ".odp", ".ott", ".ots", ".otp", ".fodt", ".fods", ".fodp")
_PAGES = (".html", ".htm", ".xhtml", ".xht")
_MAILS = (".eml", ".emlx", ".mbox", ".mht", ".mhtml")
_SUBTITLES = (".ass", ".sbv", ".srt", ".ssa", ".vtt")

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Suffixes of pictures."""

FORMATS = {
    ".pdf": "pdf.read_pdf",
    **dict.fromkeys(_WORD, "office.Word.read"),
    **dict.fromkeys(_SLIDES, "office.Slides.read"),
    **dict.fromkeys(_SHEETS, "sheets.Workbook.read"),
    **dict.fromkeys(_OPEN, "office.OpenDocument.read"),
    **dict.fromkeys(_PAGES, "formats.read_html"),
    ".epub": "formats.read_epub",
    **dict.fromkeys(_MAILS, "mail.read_mail"),
    ".msg": "mail.read_outlook",
    ".rtf": "formats.read_rtf",
    ".ipynb": "formats.read_notebook",
    **dict.fromkeys(_SUBTITLES, "formats.read_subtitles"),
    **dict.fromkeys(PICTURES, "ocr.read_picture"),
}
"""The function for each suffix; `format_of` looks at the content for files with another one."""

OLDER = {
    **dict.fromkeys((".doc", ".dot", ".wps", ".wpd", ".pages"), ".docx"),
    **dict.fromkeys((".xls", ".xlsb", ".numbers"), ".xlsx"),
    **dict.fromkeys((".ppt", ".pps", ".key"), ".pptx"),
    **dict.fromkeys((".djvu", ".ps", ".xps", ".oxps"), ".pdf"),
    **dict.fromkeys((".mobi", ".azw", ".azw3"), ".epub"),
}
"""Suffixes of documents that cannot be read, with the format in which to save them."""

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


_IN_ARCHIVE = {
    b"word/document.xml": ".docx",
    b"xl/workbook.xml": ".xlsx",
    b"ppt/presentation.xml": ".pptx",
    b"META-INF/container.xml": ".epub",
    b"content.xml": ".odt",
}
"""The part by which an archive is known as a document, and the suffix that it should have."""
PICTURE_HEADS = (b"\x89PNG\r\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")
_PAGE = re.compile(rb"\s*(?:<!doctype html|<html)", re.IGNORECASE)


def is_icon(suffix: str, size: int) -> bool:
    """Whether a file of so many bytes is a picture so small that a folder's reader skips it."""
    return suffix.lower() in PICTURES and size < _ICON


_ICON = 4096
"""Bytes below which a picture in a folder is an icon."""


def format_of(suffix: str, head: bytes, tail: bytes) -> str | None:
    """Return the suffix that a document should have, by its content; None if it is no document.

    A document has any name: a PDF saved without a suffix, RTF that is called ".doc". An archive has
    its table of contents in its last bytes.
    """
    if suffix in FORMATS and (suffix not in PICTURES or head.startswith(PICTURE_HEADS)):
        return suffix
    if head.startswith(b"%PDF-"):
        return ".pdf"
    if head.startswith(b"{\\rtf"):
        return ".rtf"
    if not suffix and head.startswith(PICTURE_HEADS[:2]):
        return ".png"  # the content decides how it is read
    if head.startswith(b"PK\x03\x04") and suffix not in {".jar", ".zip"}:
        found = (kind for sign, kind in _IN_ARCHIVE.items() if sign in head or sign in tail)
        return next(found, None)
    return ".html" if suffix in OLDER and _PAGE.match(head) else None


PLAIN = frozenset({*_MAILS, ".ipynb", *_SUBTITLES, ".fodt", ".fods", ".fodp"})
"""Suffixes of text that can be read as it is where the `documents` extra is not installed."""

_SAME = ("lxml", "openpyxl", "psutil", "pypdfium2", "selectolax", "striprtf")
LIBRARIES = {name: name for name in _SAME} | {"PIL": "pillow", "oxmsg": "python-oxmsg"}
"""Modules of the `documents` extra, and the packages that they are in."""

READ_BY = {
    ".pdf": "pypdfium2",
    **dict.fromkeys((*_WORD, *_SLIDES, *_SHEETS, *_OPEN), "lxml"),
    **dict.fromkeys((*_PAGES, ".epub"), "selectolax"),
    ".msg": "python-oxmsg",
    ".rtf": "striprtf",
}
"""The package that reads a format; the others need the standard library only."""


def load() -> None:
    """Import the libraries."""
    for name in ("oxmsg", "selectolax.lexbor", "striprtf.striprtf"):
        import_module(name)
    for name in sorted({place.partition(".")[0] for place in FORMATS.values()}):
        import_module(f"memagent_graph.text.{name}")


def convert(content: bytes, suffix: str) -> Converted:
    """Convert a document; if it is broken, each library has its own errors."""
    module, _, name = FORMATS[suffix].partition(".")
    found: Converted = attrgetter(name)(import_module(f"memagent_graph.text.{module}"))(content)
    text = replace_surrogates(found.text)
    marks = reversed([*MARK.finditer(text)] if found.pictures else [])
    starts = {int(mark["number"]): mark.start() for mark in marks}  # of several, the first
    pictures = (
        one if one.start >= 0 else replace(one, start=starts.get(one.number, -1))
        for one in found.pictures
    )
    return replace(found, text=text, pictures=[one for one in pictures if one.start >= 0])


def load_picture(content: bytes, suffix: str, place: str) -> tuple[str, str]:
    """Return (media type, base64) of the picture at a `Picture.place`, as models get it."""
    from memagent_graph.text import ocr

    if suffix == ".pdf":
        from memagent_graph.text.pdf import draw_picture

        return ocr.encode(draw_picture(content, place), "")
    found: bytes | None = content
    if suffix in _PAGES:
        held = map(_data_of, _DATA_URL.findall(decode(content)))
        found = next((one for one in held if sha256(one).hexdigest() == place), None)
    elif place:
        from memagent_graph.text.office import Package

        found = Package(content).read(place)
    if found is None:
        raise ocr.PictureError("it is no longer in the document")
    opened = ocr.open_picture(found)
    return ocr.encode(ocr.draw(opened), ocr.media_type_of(opened))


_DATA_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,([A-Za-z0-9+/=\s%]{1,44000000})")


def _data_of(encoded: str) -> bytes:
    """Return the bytes of base64 in a URL; b"" if it is none."""
    try:
        return b64decode("".join(unquote(encoded).split()), validate=True)
    except ValueError:
        return b""


_BLOCKS = {
    *("address", "article", "aside", "blockquote", "body", "caption", "dd", "details", "dialog"),
    *("div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hr"),
    *("legend", "main", "nav", "ol", "option", "p", "section", "summary", "ul"),
}
_LEFT_OUT = {
    *("head", "script", "style", "template", "#comment", "-comment", "object"),
    *("annotation", "annotation-xml"),  # a formula once more
}
_DEEPEST = 150
"""Depth of elements that are laid out; what is nested deeper is read as running text."""


def read_html(content: bytes) -> Converted:
    """Read a page of HTML as Markdown: headings, lists, tables, links and fenced code."""
    from memagent_graph.text.ocr import Album

    album, page = Album(), decode(content)
    text = html_to_text(page, album)
    album.unread = 0  # a model sees them, and pages have many that say nothing
    title = " ".join(html_to_text(found[1]).split()) if (found := _TITLE.search(page)) else ""
    if title not in text:
        text = f"# {title}\n\n{text}"
    return Converted(text, (), album.warnings, album.pictures)


_TITLE = re.compile(r"<title[^<>]{0,200}>([^<]{1,1000})</title", re.IGNORECASE)


def html_to_text(text: str, album: Album | None = None) -> str:
    """Return HTML as Markdown; an album takes the pictures that it holds itself."""
    from selectolax.lexbor import LexborHTMLParser

    from memagent_graph.text.notation import write_scripts

    if _XHTML.search(text[:_PROLOG]):
        text = _close_all(text)
    root = LexborHTMLParser(text.replace("\0", "\ufffd")).root
    laid_out = write_scripts(_lay_out(root, 0, album)) if root is not None else ""
    lines = "\n".join(line.rstrip() for line in laid_out.split("\n"))
    return _EMPTY_LINES.sub("\n\n", lines).strip()


def _close_all(text: str) -> str:
    """Return XHTML as HTML, in which no element closes itself; as it is if it is not XML."""
    from lxml import etree

    named = _NAMED.sub(lambda found: escape(unescape(found[0])), text).encode()
    parser = etree.XMLParser(encoding="utf-8", resolve_entities=False, huge_tree=True)
    try:
        root = etree.fromstring(named, parser)
    except etree.XMLSyntaxError:
        return text
    for element in root.iter(etree.Element):
        element.tag = etree.QName(element).localname
    return str(etree.tostring(root, method="html", encoding="unicode"))


_PROLOG = 1000
"""Code points in which a page says that it is XML."""
_XHTML = re.compile(r"<\?xml|http://www\.w3\.org/1999/xhtml")
_NAMED = re.compile(r"&\w{1,31};")

_EMPTY_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r"[ \t\r\n\f]+")


def _lay_out(node: Any, depth: int, album: Album | None = None) -> str:
    if depth > _DEEPEST:
        return str(node.text(separator=" "))
    pieces, at = [], node.child
    while at is not None:
        pieces.append(_lay_out_child(at, depth, album))
        at = at.next
    return "".join(pieces)


def _lay_out_child(node: Any, depth: int, album: Album | None) -> str:  # noqa: C901, PLR0912 - a list
    from memagent_graph.text.notation import FORMULAS, raise_text, write_formula

    tag = node.tag
    if tag == "-text":
        return _SPACES.sub(" ", node.text_content or "")
    if tag in _LEFT_OUT:
        return ""
    if tag == "br":
        return "\n"
    if tag == "iframe":  # its content is for programs that know no frames
        return f"\n\n{html_to_text(node.attributes.get('srcdoc') or '', album)}\n\n"
    if tag in FORMULAS:
        parts = [_lay_out_child(at, depth, album) for at in node.iter()]
        return write_formula(tag, parts)
    if tag == "pre":
        found = (at for at in node.traverse(include_text=True) if at.tag in {"br", "-text"})
        lines = "".join("\n" if at.tag == "br" else at.text_content or "" for at in found)
        fence = "~~~" if "```" in lines else "```"
        return "\n".join(["\n", fence, lines.strip("\n"), fence, "\n"])
    if tag == "table" and node.css_first("table table") is None:
        return f"\n\n{_lay_out_table(node, depth, album)}\n\n"
    attributes = node.attributes
    if tag == "img":
        alt, held = attributes.get("alt") or "", _DATA_URL.match(attributes.get("src") or "")
        if album is None or held is None:
            return write_mark(alt) if alt else ""
        return album.add(data := _data_of(held[1]), sha256(data).hexdigest(), alt)
    if tag == "input" and attributes.get("type") in {"checkbox", "radio"}:
        return " ☒ " if "checked" in attributes else " ☐ "
    if tag == "option" and "selected" in attributes:
        return f"\n☒ {_lay_out(node, depth + 1)}\n"
    if tag == "input":
        value = attributes.get("value") or attributes.get("placeholder") or ""
        return "" if attributes.get("type") == "hidden" else f" {value} "
    inner = _lay_out(node, depth + 1, album)
    if tag in {"sup", "sub"}:
        return raise_text(inner, 1 if tag == "sup" else -1)
    if tag[:1] == "h" and tag[1:] in {"1", "2", "3", "4", "5", "6"}:
        title = " ".join(inner.split())
        return f"\n\n{'#' * int(tag[1:])} {title}\n\n" if title else ""
    if tag == "li":
        mark = _number_of(node) if node.parent and node.parent.tag == "ol" else "-"
        lines = "\n  ".join(filter(None, inner.strip().split("\n")))
        return f"\n{mark} {lines}" if lines else ""
    if tag == "a":
        address, label = attributes.get("href") or "", inner.strip()
        shown = label in address or not address.startswith(("http:", "https:", "mailto:"))
        return inner if shown or "\n" in label else f"[{label}]({address})"
    around = "\n\n" if tag in _BLOCKS else _AROUND.get(tag, "")
    return f"{around}{inner}{around}"


_AROUND = {"td": " ", "th": " ", "tr": "\n"}


def _number_of(node: Any) -> str:
    """Return the number of an item of a list, as it is shown."""
    from memagent_graph.text.notation import STYLES, in_style

    of_list, items = node.parent.attributes, [at for at in node.parent.iter() if at.tag == "li"]
    step = -1 if "reversed" in of_list else 1
    number = _integer(of_list.get("start"), len(items) if step < 0 else 1)
    for at in items:
        number = _integer(at.attributes.get("value"), number)
        if at == node:
            break
        number += step
    return f"{in_style(number, STYLES.get(of_list.get('type') or '', ''))}."


def _integer(value: str | None, default: int) -> int:
    return int(value) if value and _INTEGER.fullmatch(value.strip()) else default


_INTEGER = re.compile(r"-?[0-9]{1,9}")


def _lay_out_table(node: Any, depth: int, album: Album | None) -> str:
    from memagent_graph.text.notation import spread_cells, write_table

    def read(cell: Any) -> tuple[str, int, int]:
        return _lay_out(cell, depth + 1, album), _span(cell, "col"), _span(cell, "row")

    rows = spread_cells([*map(read, row.css("td, th"))] for row in node.css("tr"))
    captions = [" ".join(_lay_out(found, depth + 1).split()) for found in node.css("caption")]
    return "\n\n".join([*captions, write_table(rows)])


def _span(cell: Any, of: str) -> int:
    """The number of columns or rows that a cell spans; 0 of HTML is all rows that are left."""
    value = max(_integer(cell.attributes.get(f"{of}span"), 1), 0)
    return value or (_ALL_ROWS if of == "row" else 1)


_ALL_ROWS = 65_534

_CHARSET = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE
)


MARKS = [
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]
"""Byte order marks, and the encodings that they stand for."""
_CP1252 = re.compile(r"iso-8859-1\Z")  # whose C1 controls nobody writes


def decode(content: bytes) -> str:
    """Return the text of a page: by its mark, as UTF-8, as it says, or else by its letters."""
    for mark, encoding in MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, "replace")
    with suppress(UnicodeDecodeError):
        return content.decode(find_unmarked(content[:4096]) or "utf-8")
    named = _CHARSET.search(content[:4096])
    with suppress(LookupError):
        if named and named[1].lower() not in {b"utf-8", b"utf8"}:
            return content.decode(_CP1252.sub("cp1252", named[1].decode().lower()), "replace")
    return content.decode(guess_encoding(content)[0] or "utf-8", "replace")


_ESCAPES = {b"\x1b$B": "iso2022_jp_2", b"\x1b$@": "iso2022_jp_2", b"\x1b$)C": "iso2022_kr"}
"""Encodings by the escapes with which ASCII bytes stand for other letters."""
_HZ = re.compile(rb"~\{(?:[!-w][!-~]){2,}~\}")


def find_unmarked(sample: bytes) -> str | None:
    """Return the encoding of ASCII bytes that are not ASCII: UTF-16 without mark, ISO-2022, HZ."""
    if b"\x1b$" in sample:
        return next((name for escape, name in _ESCAPES.items() if escape in sample), None)
    if _HZ.search(sample):
        return "hz"
    even, odd = sample[::2].count(0), sample[1::2].count(0)  # of UTF-16, all are on one side
    if min(even, odd) or max(even, odd) * 8 < len(sample):
        return None
    encoding = "utf-16-be" if even else "utf-16-le"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return None
    is_text = all(sign.isprintable() or sign.isspace() for sign in text)
    return encoding if is_text and sum(map(str.isascii, text)) * 2 > len(text) else None


def guess_encoding(sample: bytes) -> tuple[str | None, float]:
    """Return the encoding that fits best, and from 0 to 1 how certain it is."""
    from chardet import EncodingEra, detect  # a sixth of a second, for few documents

    for era in (EncodingEra.MODERN_WEB, EncodingEra.ALL):
        found = detect(sample, encoding_era=era)
        if name := found["encoding"]:
            wider = "cp932" if name == "SHIFT_JIS" else name  # what programs write by that name
            return wider, found["confidence"] or 0.0
    return None, 0.0


def read_epub(content: bytes) -> Converted:
    """Read a book: its pages of HTML, in the order in which they are to be read."""
    from memagent_graph.text.office import Package, child, get

    package = Package(content)
    container = package.parse("META-INF/container.xml")
    root = None if container is None else next(container.iter("{*}rootfile"), None)
    place = get(root, "full-path")
    book = package.parse(place)
    if book is None or not place:
        raise ValueError("it is no EPUB, or a damaged one")
    if b"enc#aes" in (package.read("META-INF/encryption.xml") or b""):
        raise PasswordError
    files = {get(item, "id"): unquote(get(item, "href")) for item in book.iter("{*}item")}
    chapters, warnings = list[str](), list[str]()
    for item in book.iter("{*}itemref"):
        name = files.get(get(item, "idref"), "-")
        part = posixpath.normpath(posixpath.join(posixpath.dirname(place), name))
        try:
            if (page := package.read(part)) is None:
                warnings.append(f"did not read the chapter {name}: it is missing.")
            else:
                chapters.append(html_to_text(decode(page)))
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - an archive has many ways to be broken
            warnings.append(f"did not read the chapter {name}: it is broken ({error}).")
    title = child(book, "metadata", "title")
    heading = f"# {title.text.strip()}" if title is not None and title.text else ""
    text, lost = "\n\n".join(filter(None, [heading, *chapters])), len(warnings)
    return Converted(text, (), warnings, lost=lost / max(lost + len(chapters), 1))


def read_rtf(content: bytes) -> Converted:
    """Read a text of RTF, without what was deleted under review."""
    from memagent_graph.text.notation import write_scripts

    library = import_module("striprtf.striprtf")
    to_text: Callable[..., str] = library.rtf_to_text
    pictures = content.count(b"\\pict")
    whole = _prepare_rtf(content.removeprefix(codecs.BOM_UTF8), library.specialchars)
    kind = _MACHINE.search(whole, 0, _HEAD)
    encoding = _MACHINES[kind[1]] if kind else "cp1252"
    text = to_text(whole.decode("latin-1"), encoding, errors="replace")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins halves
    text = _EMPTY_LINES.sub("\n\n", write_scripts(text))
    return Converted(text.strip(), (), warn_of(picture=pictures))


_TOKEN = re.compile(
    rb"\\([a-z]{1,32})(-?\d{1,10})?[ ]?|\\'[0-9a-f]{2}|\\.|[{}]|[^\\{}]+|\\\Z",
    re.DOTALL | re.IGNORECASE,
)
_RAISING = {b"super": b"\x0e", b"up": b"\x0e", b"sub": b"\x10", b"dn": b"\x10"}
_LEVEL = {b"nosupersub", b"plain"}
_SETTINGS = {b"cs", b"ds", b"s", b"ts"}
"""Styles, before which some programs write the star that hides what is unknown."""
_APART = {
    *(b"annotation", b"footnote", b"shp", b"shpgrp", b"shpinst", b"shptxt"),
    *(b"header", b"headerl", b"headerr", b"headerf", b"footer", b"footerl", b"footerr", b"footerf"),
}
"""What the library leaves out: notes, headers, footers and boxes."""


def _prepare_rtf(  # noqa: C901, PLR0912 - a list
    content: bytes, written: Mapping[str, str]
) -> bytes:
    """Return RTF without binary data and what was deleted; with signs round what is raised.

    A link has its address after it. `written` are words that stand for text.
    """
    kept, around, at = list[bytes](), list[tuple[set[bytes], bytes]](), 0
    deleted, script, is_begun, address = set[bytes](), b"", False, b""
    links = list[tuple[int, bytes]]()
    while token := _TOKEN.match(content, at):
        at, (word, number) = token.end(), token.groups()
        piece, now = token[0], script
        if word == b"bin":  # that many bytes of anything
            at += max(int(number or 0), 0)
            continue
        if piece == b"{":
            around.append((deleted, script))
        elif piece == b"}":
            if links and links[-1][0] == len(around):
                piece = b" <%b>}" % links.pop()[1]
            deleted, now = around.pop() if around else (set(), b"")
        elif word is None and (found := _LINK.search(piece)):
            address = found[1]
            continue
        elif word == b"fldrslt":
            links += [(len(around), address)] if address else []
            address = b""
        elif piece == b"\\*":  # hides the group, unless what begins here is known
            following = _TOKEN.match(content, at)
            if not is_begun or (following and following[1] in _SETTINGS | _APART):
                continue
        elif word in {b"deleted", b"mvf"}:
            deleted = deleted - {word} if number == b"0" else deleted | {word}
        elif word in _RAISING:
            now = b"" if number == b"0" else _RAISING[word]
        elif word in _LEVEL:
            deleted, now = set() if word == b"plain" else deleted, b""
        elif word in _APART:
            piece = b"\\par " + piece[len(word) + 1 :]
        elif deleted and (word is None or word == b"u" or word.decode() in written):
            continue
        is_begun = piece == b"{" or (is_begun and not piece.strip())
        ends = [bytes([script[0] + 1])] if script and now != script else []
        kept += [*ends, piece, *([now] if now and now != script else [])]
        script = now
    return b"".join(kept)


_LINK = re.compile(rb'HYPERLINK[ \t]{1,9}"([^"]{1,2000})"')
_HEAD = 200
"""Bytes at the beginning of RTF that name its character set."""
_MACHINE = re.compile(rb"\\(mac|pca|pc)(?![a-z0-9])")
_MACHINES = {b"mac": "mac_roman", b"pc": "cp437", b"pca": "cp850"}


def read_notebook(content: bytes) -> Converted:
    """Read a Jupyter notebook: its texts, code and printed results."""
    notebook = json.loads(content)
    sheets = [notebook, *notebook.get("worksheets", ())] if isinstance(notebook, dict) else ()
    found = [cell for sheet in sheets for cell in sheet.get("cells", ())]
    cells = [cell for cell in found if isinstance(cell, dict)]
    if not cells:
        raise ValueError("it is no notebook, or an empty one")
    pictures, blocks = 0, []
    for cell in cells:
        source = _join_lines(cell.get("source", cell.get("input", "")))
        blocks.append(f"```\n{source}\n```" if cell.get("cell_type") == "code" else source)
        for result in cell.get("outputs") or ():
            content_of = result.get("data") or {}
            printed = result.get("text") or result.get("traceback") or _plainest(content_of)
            printed = printed or result.get("evalue")
            pictures += any(kind.startswith("image/") for kind in content_of)
            text = _COLOURS.sub("", _join_lines(printed))
            blocks.append("\n".join(["```", text.strip("\n"), "```"]) if text.strip() else "")
    return Converted("\n\n".join(filter(None, blocks)), (), warn_of(picture=pictures))


_COLOURS = re.compile(r"\x1b\[[\d;]{0,30}m")


def _plainest(results: Mapping[str, Any]) -> str:
    """Return a result in the plainest of its forms."""
    for kind in ("text/plain", "text/markdown", "text/latex"):
        if kind in results:
            return _join_lines(results[kind])
    if "text/html" in results:
        return html_to_text(_join_lines(results["text/html"]))
    found = results.get("application/json")
    return json.dumps(found, ensure_ascii=False) if found is not None else ""


def _join_lines(lines: str | list[str] | None) -> str:
    return lines if isinstance(lines, str) else "".join(map(str, lines or ()))


_BETWEEN = 60
"""Least time between two headings of subtitles, in seconds."""

_TIMES = re.compile(
    r"(?m)^[ \t]{0,9}(?:(\d{1,3}):)?(\d{1,2}):(\d{1,2})[.,]\d{1,3}"
    r"(?:[ \t]{1,9}-->[^\n]*|,\d[\d:.,]{0,20})"
)
_DIALOGUE = re.compile(r"Dialogue:[^,\n]{0,20},([\d:.]{1,20}),([\d:.]{1,20}),(?:[^,\n]*,){6}(.*)")
_BREAK = re.compile(r"\\[Nnh]")
_STYLE = re.compile(r"<[^<>\n]{1,200}>|\{\\[^{}]{0,99}\}")
_SPEAKER = re.compile(r"<v(?:\.[^ <>]{0,99})? ([^<>]{1,200})>")
_NO_CUE = re.compile(
    r"(?:\A|\n\n)(?:NOTE|STYLE|REGION|WEBVTT)\b[^\n]*(?:\n(?![^\n]*-->)[^\n]*\S[^\n]*)*+"
)
_NAME_OF_NEXT = re.compile(r"\n(?:[ \t]{0,9}\n[^\n]+|[ \t]{0,9}\d{1,9}[ \t]{0,9})\n\Z")
"""The number or name of a cue, between the one before it and its time."""


def read_subtitles(content: bytes) -> Converted:
    """Read subtitles as running text, with the time as a heading about every minute."""
    lines = decode(content).splitlines()
    if spoken := [found for line in lines if (found := _DIALOGUE.match(line))]:
        said = sorted((found[1].zfill(11), _BREAK.sub(" ", found[3])) for found in spoken)
        lines = [line for begin, text in said for line in ("", f"{begin} --> ", text)]
    _, *pieces = _TIMES.split(_NO_CUE.sub("\n\n", "\n".join(lines)))
    text, last = list[str](), -_BETWEEN
    for at in range(0, len(pieces), 4):
        hours, minutes, seconds = (int(part or 0) for part in pieces[at : at + 3])
        cue, now = pieces[at + 3], hours * 3600 + minutes * 60 + seconds
        if now - last >= _BETWEEN and (
            not text or text[-1].rstrip().endswith((".", "!", "?", "…"))
        ):
            text.append(f"\n\n## {now // 3600:02}:{now // 60 % 60:02}:{now % 60:02}\n\n")
            last = now
        cue = _NAME_OF_NEXT.sub("", cue) if at + 4 < len(pieces) else cue
        plain = _STYLE.sub("", _SPEAKER.sub(r"\1: ", cue))
        text.append(" ".join(unescape(plain).split()) + "\n")
    return Converted("".join(text).strip())
