"""Read pages of HTML and XHTML as Markdown, and books of such pages."""

from __future__ import annotations

import posixpath
import re
from base64 import b64decode
from hashlib import sha256
from html import escape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

from selectolax.lexbor import LexborHTMLParser

from memagent_graph.pictures import write_mark
from memagent_graph.text.charset import decode
from memagent_graph.text.notation import (
    FORMULAS,
    STYLES,
    as_integer,
    in_style,
    raise_text,
    shows_address,
    spread_cells,
    write_formula,
    write_scripts,
    write_table,
)
from memagent_graph.text.ocr import Album
from memagent_graph.text.package import Package, child, get
from memagent_graph.text.source import Converted, PasswordError

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
    album, root = Album(), _parse(decode(content))
    text = _write(root, album)
    album.unread = 0  # a model sees them, and pages have many that say nothing
    named = root.css_first("head > title") if root is not None else None
    title = " ".join(named.text().split()) if named is not None else ""
    if title not in text:
        text = f"# {title}\n\n{text}"
    return Converted(text, (), album.warnings, album.pictures)


def html_to_text(text: str, album: Album | None = None) -> str:
    """Return HTML as Markdown; an album takes the pictures that it holds itself."""
    return _write(_parse(text), album)


def _parse(text: str) -> Any:
    """Return the root of a page; None if it has none."""
    if _XHTML.search(text[:_PROLOG]):
        text = _Closer().write(text)
    return LexborHTMLParser(text.replace("\0", "\ufffd")).root


def _write(root: Any, album: Album | None) -> str:
    laid_out = write_scripts(_lay_out(root, 0, album)) if root is not None else ""
    lines = "\n".join(line.rstrip() for line in laid_out.split("\n"))
    return _EMPTY_LINES.sub("\n\n", lines).strip()


class _Closer(HTMLParser):
    """Writes XHTML as HTML: no element closes itself, names have no prefix, and CDATA is text.

    A parser of XML drops signs from what is not well-formed, even one that recovers.
    """

    def write(self, text: str) -> str:
        """Return a page that a parser of HTML reads as it is meant."""
        self._written = list[str]()
        self.feed(text)
        self.close()
        return "".join(self._written)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._written.append(f"<{_local(tag)}{(self.get_starttag_text() or '')[1 + len(tag) :]}")

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        self._written += [] if _local(tag) in _VOID else [f"</{_local(tag)}>"]

    def handle_endtag(self, tag: str) -> None:
        self._written.append(f"</{_local(tag)}>")

    def handle_data(self, data: str) -> None:
        self._written.append(escape(data, quote=False))

    def unknown_decl(self, data: str) -> None:
        self.handle_data(data[6:] if data.startswith("CDATA[") else "")

    def parse_marked_section(self, i: int, report: bool = True) -> int:  # noqa: FBT001, FBT002
        """Go on after a section that no page has."""
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:
            return self.parse_bogus_comment(i)


def _local(tag: str) -> str:
    return tag.rpartition(":")[2]


_PROLOG = 1000
"""Code points in which a page says that it is XML."""
_XHTML = re.compile(r"<\?xml|http://www\.w3\.org/1999/xhtml")
_VOID = {
    *("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"),
    *("source", "track", "wbr"),
}
_EMPTY_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r"[ \t\r\n\f]+")


def _lay_out(node: Any, depth: int, album: Album | None = None) -> str:
    if depth > _DEEPEST:
        return str(node.text(separator=" "))
    return "".join(_lay_out_child(at, depth, album) for at in node.iter(include_text=True))


def _lay_out_child(node: Any, depth: int, album: Album | None) -> str:  # noqa: C901, PLR0912 - a list
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
        is_stacked = (node.attributes.get("linethickness") or "1")[0] == "0"
        parts = [_lay_out_child(at, depth, album) for at in node.iter()]
        return write_formula("noBar" if is_stacked else tag, parts)
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
    if tag == "input":
        kind, value = attributes.get("type"), attributes.get("value")
        if kind in {"checkbox", "radio"}:
            return " ☒ " if "checked" in attributes else " ☐ "
        return "" if kind == "hidden" else f" {value or attributes.get('placeholder') or ''} "
    if tag == "option" and "selected" in attributes:
        return f"\n☒ {_lay_out(node, depth + 1)}\n"
    inner = _lay_out(node, depth + 1, album)
    if level := _RAISED.get(_style_of(node).get("vertical-align") or tag, _RAISED.get(tag)):
        return raise_text(inner, level)
    if tag[:1] == "h" and tag[1:] in {"1", "2", "3", "4", "5", "6"}:
        title = " ".join(inner.split())
        return f"\n\n{'#' * int(tag[1:])} {title}\n\n" if title else ""
    if tag == "li":
        mark = _number_of(node) if node.parent and node.parent.tag == "ol" else "-"
        lines = "\n  ".join(filter(None, inner.strip().split("\n")))
        return f"\n{mark} {lines}" if lines else ""
    if tag == "a":
        address, label = attributes.get("href") or "", inner.strip()
        is_plain = not address.startswith(_OUTSIDE) or shows_address(label, address)
        return inner if is_plain or "\n" in label else f"[{label}]({address})"
    around = "\n\n" if tag in _BLOCKS else _AROUND.get(tag, "")
    return f"{around}{inner}{around}"


_OUTSIDE = ("http:", "https:", "mailto:")
_RAISED = {"sup": 1, "super": 1, "sub": -1}
_AROUND = {"mtd": " ", "td": " ", "text": " ", "th": " ", "tr": "\n"}


def _style_of(node: Any) -> dict[str, str]:
    """Return the CSS properties that an element has of its own."""
    style = (node.attributes.get("style") or "").lower().replace("!important", "")
    pairs = (one.partition(":") for one in style.split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _number_of(node: Any) -> str:
    """Return the number of an item of a list, as it is shown."""
    of_list, items = node.parent.attributes, [at for at in node.parent.iter() if at.tag == "li"]
    step = -1 if "reversed" in of_list else 1
    number = as_integer(of_list.get("start"), len(items) if step < 0 else 1)
    for at in items:
        number = as_integer(at.attributes.get("value"), number)
        if at == node:
            break
        number += step
    return f"{in_style(number, STYLES.get(of_list.get('type') or '', ''))}."


def _lay_out_table(node: Any, depth: int, album: Album | None) -> str:
    def read(cell: Any) -> tuple[str, int, int]:
        return _lay_out(cell, depth + 1, album), _span(cell, "col"), _span(cell, "row")

    rows = spread_cells([*map(read, row.css("td, th"))] for row in node.css("tr"))
    captions = [" ".join(_lay_out(found, depth + 1).split()) for found in node.css("caption")]
    return "\n\n".join([*captions, write_table(rows)])


def _span(cell: Any, of: str) -> int:
    """The number of columns or rows that a cell spans; 0 of HTML is all rows that are left."""
    value = max(as_integer(cell.attributes.get(f"{of}span"), 1), 0)
    return value or (_ALL_ROWS if of == "row" else 1)


_ALL_ROWS = 65_534

_DATA_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,([A-Za-z0-9+/=\s%]{1,44000000})")


def _data_of(encoded: str) -> bytes:
    """Return the bytes of base64 in a URL; b"" if it is none."""
    try:
        return b64decode("".join(unquote(encoded).split()), validate=True)
    except ValueError:
        return b""


def find_picture(content: bytes, digest: str) -> bytes | None:
    """Return the picture with this SHA-256, in hex, that a page holds itself; None without it."""
    held = map(_data_of, _DATA_URL.findall(decode(content)))
    return next((one for one in held if sha256(one).hexdigest() == digest), None)


def read_epub(content: bytes) -> Converted:
    """Read a book: its pages of HTML, in the order in which they are to be read."""
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
        why = "it is missing"
        try:
            if (page := package.read(part)) is not None:
                chapters.append(html_to_text(decode(page)))
                continue
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - an archive has many ways to be broken
            why = f"it is broken ({error})"
        warnings.append(f"did not read the chapter {name}: {why}.")
    title = child(book, "metadata", "title")
    heading = f"# {title.text.strip()}" if title is not None and title.text else ""
    text, lost = "\n\n".join(filter(None, [heading, *chapters])), len(warnings)
    return Converted(text, (), warnings, lost=lost / max(lost + len(chapters), 1))
