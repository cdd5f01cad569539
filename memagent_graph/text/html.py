"""Read pages of HTML and XHTML as Markdown, books of such pages, and notebooks."""

from __future__ import annotations

import json
import posixpath
import re
from base64 import b64decode
from collections import Counter, defaultdict
from contextlib import suppress
from hashlib import sha256
from html import escape
from itertools import groupby
from typing import Any, cast
from urllib.parse import unquote

from selectolax.lexbor import LexborHTMLParser, SelectolaxError

from memagent_graph.pictures import write_mark
from memagent_graph.text import notation
from memagent_graph.text.charset import decode
from memagent_graph.text.conversion import convert_within
from memagent_graph.text.ocr import Album
from memagent_graph.text.package import Package, child, get
from memagent_graph.text.source import Converted, PasswordError, warn_of

_BLOCK_NAMES = """
address article aside blockquote body caption center dd details dialog dir div dl dt fieldset form
figcaption figure footer header hgroup hr legend main menu nav ol optgroup p search section
summary ul"""
_BLOCKS = {*_BLOCK_NAMES.split()}
_LEFT_OUT = {"head", "script", "style", "template", "#comment", "-comment"}
_LEFT_OUT |= {"rp", "annotation", "annotation-xml"}  # brackets, and a formula once more
_LEFT_OUT |= {"mphantom"}  # space as wide as a formula
_DEEPEST = 150  # depth of elements that are laid out; what is nested deeper is read as running text


def read_html(content: bytes) -> Converted:
    """Read a page of HTML as Markdown: headings, lists, tables, links and fenced code."""
    album = Album()
    page = WebPage(decode(content), album)
    text = page.write()
    album.unread = 0  # a model sees them, and pages have many that say nothing
    named = page.root.css_first("head > title")
    title = " ".join(named.text().split()) if named is not None else ""
    if title not in text:
        text = f"# {title}\n\n{text}"
    return Converted(text, (), album.warnings, album.pictures)


_XML = re.compile(
    r"(?si)<!DOCTYPE[^>\[]{0,999}+(?:\[[^\]]{0,2000}+\]\s{0,9}+)?>|<!\[CDATA\[(?P<data>.*?)(?:\]\]>|\Z)"
    r"|<!--.*?(?:-->|\Z)|<(?P<name>/?[A-Za-z][\w:.-]*+)"
    r"(?P<more>(?:[^<>\"'/]|/(?!>)|\"[^\"]*+\"|'[^']*+')*+)(?P<end>/?)>",
)
"""What XHTML has and HTML lacks; a parser of XML drops signs from what is not well-formed."""


def _write_markup(found: re.Match[str]) -> str:
    """Return XHTML as HTML: no element closes itself, names have no prefix, and CDATA is text."""
    if not found["name"]:
        return escape(found["data"] or "", quote=False)
    is_end, name = found["name"][0] == "/", found["name"].strip("/").rpartition(":")[2]
    closed = f"</{name}>" if found["end"] and name.lower() not in _VOID else ""
    return f"<{'/' * is_end}{name}{found['more']}>{closed}"


_PROLOG = 1000  # code points in which a page says that it is XML
_XHTML = re.compile(r"<\?xml|http://www\.w3\.org/1999/xhtml|xmlns:\w{1,20}=.http://www\.w3\.org")
_VOID_NAMES = "area base br col embed hr img input link meta param source track wbr"
_VOID = {*_VOID_NAMES.split()}
_EMPTY_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r"[ \t\r\n\f]+")


class WebPage:
    """A page of HTML with its style sheets, perhaps in a package; an album takes its pictures."""

    def __init__(
        self, text: str, album: Album | None = None, place: tuple[Package, str] | None = None
    ) -> None:
        if place or _XHTML.search(text[:_PROLOG]):
            text = _XML.sub(_write_markup, text)
        self.root = cast("Any", LexborHTMLParser(text.replace("\0", "\ufffd")).root)
        self._album, self._is_pre, self._numbers = album, False, dict[int, int]()  # of last items
        self._styles: defaultdict[tuple[int, str], dict[str, str]] = defaultdict(dict)
        self._counters = dict[str, tuple[int, ...]]()  # those of outer elements first
        self._outer = dict[str, int]()  # how many of them are of outer elements
        self._beside, self._place = dict[int, Counter[str]](), place
        self._linked = set[str]()
        for found in self.root.css("style, link[rel~=stylesheet]"):
            if found.tag == "style":
                self._apply(found.text(), place[1] if place else "")
            else:
                self._link(place[1] if place else "", found.attributes.get("href") or "")

    def write(self) -> str:
        """Return the page as Markdown."""
        laid_out = notation.write_scripts(self._lay_out(self.root, 0))
        lines = "\n".join(line.rstrip() for line in laid_out.split("\n"))
        return _EMPTY_LINES.sub("\n\n", lines).strip()

    def _link(self, base: str, address: str) -> None:
        part = _join(base, unquote(address))
        if self._place is not None and part not in self._linked:
            self._linked.add(part)
            self._apply(decode(self._place[0].read(part) or b""), part)

    def _apply(self, sheet: str, base: str) -> None:
        sheet = _REMARK.sub("", sheet)
        for address in _IMPORT.findall(sheet):
            self._link(base, address)
        for rule in sheet.split("}"):
            selectors, _, declared = rule.rpartition("{")
            selectors = _BEFORE.split(selectors)[-1].strip() if _SHOWN.search(declared) else ""
            for selector in selectors.split(",") if _PART.search(selectors) else [selectors]:
                whole, _, part = _PART.sub(r"\0\1", selector.strip()).partition("\0")
                with suppress(SelectolaxError):  # one that is not known
                    for node in self.root.css(whole or "*") if selector else ():
                        self._styles[node.mem_id, part] |= _properties(declared)

    def _style_of(self, node: Any) -> dict[str, str]:
        own = _properties(node.attributes.get("style") or "")
        return {**self._styles.get((node.mem_id, ""), {}), **own}

    def _count(self, style: dict[str, str]) -> None:
        for name, usual in (("counter-reset", 0), ("counter-increment", 1)):
            for counter, number in _COUNTER.findall(style.get(name, "")):
                found = self._counters.get(counter, ())
                above = found[:-1] if usual else found[: self._outer.get(counter, 0)]
                value = int(number or usual) + sum(found[-1:]) * usual
                self._counters[counter] = (*above, value)

    def _write_part(self, node: Any, part: str) -> str:
        """Return what a style sheet adds to an element, if it has a letter or a number."""
        style = self._styles.get((node.mem_id, part), {})
        self._count(style)

        def write(found: re.Match[str]) -> str:
            if found["name"] is None:
                return _ESCAPED.sub(lambda code: chr(int(code[1], 16)), found[1] or found[2] or "")
            numbers = self._counters.get(found["name"].lower(), (0,))
            numbers = numbers if found["all"] else numbers[-1:]
            written = (notation.in_style(at, _CSS.get(found["style"], "")) for at in numbers)
            return (found[5] or "").join(written)

        said = "".join(map(write, _CONTENT.finditer(style.get("content", ""))))
        return said if any(map(str.isalnum, said)) and "attr(" not in style["content"] else ""

    def _lay_out(self, node: Any, depth: int) -> str:
        if depth > _DEEPEST:
            return str(node.text(separator=" "))
        before, self._outer = self._outer, {key: len(at) for key, at in self._counters.items()}
        parts = [self._write_part(node, "before")]
        parts += [self._lay_out_child(at, depth) for at in node.iter(include_text=True)]
        parts.append(self._write_part(node, "after"))
        self._counters = {key: self._counters[key][:size] for key, size in self._outer.items()}
        self._outer = before
        return "".join(parts)

    def _lay_out_child(self, node: Any, depth: int) -> str:  # noqa: C901, PLR0912 - a list
        tag = node.tag
        if tag == "-text":
            text = node.text_content or ""
            return text if self._is_pre else _SPACES.sub(" ", text.replace("\xad", ""))
        if tag is None or tag in _LEFT_OUT or self._repeats(node):
            return ""
        if tag == "br":
            return "\n"
        if tag == "iframe":  # its content is for programs that know no frames
            return f"\n\n{WebPage(node.attributes.get('srcdoc') or '', self._album).write()}\n\n"
        if tag == "switch":  # forms of the same content
            return next(filter(str.strip, (self._lay_out(at, depth + 1) for at in node.iter())), "")
        if tag in {"noembed", "noframes"}:  # the parser leaves them as they are
            return f"\n\n{WebPage(node.text()).write()}\n\n"
        if tag in notation.FORMULAS:
            return self._lay_out_formula(node, depth)
        if tag in _CODE and not self._is_pre:
            return self._lay_out_code(node, depth)
        if tag == "table" and node.css_first("table table") is None:
            return f"\n\n{self._lay_out_table(node, depth)}\n\n"
        attributes, style = node.attributes, self._style_of(node)
        self._count(style)
        if tag == "img":
            alt, held = attributes.get("alt") or "", _DATA_URL.match(attributes.get("src") or "")
            if self._album is None or held is None:
                return write_mark(alt) if alt else ""
            return self._album.add(data := _data_of(held[1]), sha256(data).hexdigest(), alt)
        if tag == "input":
            kind, value = attributes.get("type"), attributes.get("value")
            if kind in {"checkbox", "radio"}:
                return " ☒ " if "checked" in attributes else " ☐ "
            return "" if kind == "hidden" else f" {value or attributes.get('placeholder') or ''} "
        label = attributes.get("label") or ""
        if tag == "optgroup":
            return f"\n{label}\n{self._lay_out(node, depth + 1)}"
        if tag == "option":
            tick = "☒ " * ("selected" in attributes)
            return f"\n\n{tick}{label or self._lay_out(node, depth + 1)}\n\n"
        if attributes.get("role") == "img" and not node.text(strip=True):
            return write_mark(attributes.get("aria-label") or "")
        mark = self._count_item(node) if tag == "li" else ""
        inner = self._lay_out(node, depth + 1)
        return self._write_element(node, inner, style, mark)

    def _repeats(self, node: Any) -> bool:
        """Whether what a page hides from screen readers is said beside it, as of a formula."""
        if node.attributes.get("aria-hidden") != "true" or not (own := _words_of(node)):
            return False
        if (parent := node.parent).mem_id not in self._beside:
            beside = self._beside[parent.mem_id] = Counter()
            for at in parent.iter(include_text=True):
                beside.update({} if at.attributes.get("aria-hidden") == "true" else _words_of(at))
            for at in parent.css("script, style, template"):
                beside.subtract(_words_of(at))
        return all(self._beside[parent.mem_id][word] >= times for word, times in own.items())

    def _lay_out_formula(self, node: Any, depth: int) -> str:
        tag, attributes = node.tag, node.attributes
        parts = [self._lay_out_child(at, depth) for at in node.iter()]
        if tag == "mfenced":
            signs = (("open", "("), ("separators", ","), ("close", ")"))
            begin, between, end = (attributes.get(key) or usual for key, usual in signs)
            return f"{begin}{between[:1].join(parts)}{end}"
        if "mprescripts" in (tags := [at.tag for at in node.iter()]):
            at = tags.index("mprescripts")
            whole = parts[0] if at == 1 else notation.write_formula(tag, parts[:at])
            return notation.write_formula("sPre", [*parts[at + 1 : at + 3], whole])
        is_stacked = (attributes.get("linethickness") or "1")[0] == "0"
        return notation.write_formula("noBar" if is_stacked else tag, parts)

    def _write_element(self, node: Any, inner: str, style: dict[str, str], mark: str) -> str:
        tag, attributes = node.tag, node.attributes
        lines = f"{style.get('text-decoration')} {style.get('text-decoration-line')}"
        if tag in _STRUCK or "line-through" in lines or "strike" in attributes.get("notation", ""):
            inner = notation.strike_text(inner)
        fonts = style.get("font-family") or attributes.get("face") or ""
        inner = inner.translate(notation.SIGNS.get(fonts.split(",")[0].strip("'\" ").lower(), {}))
        where = (_HEIGHT.match(style.get(name, "")) for name in _RAISED_BY)
        if height := next(filter(None, where), _HEIGHT.match(tag)):
            return notation.raise_text(inner, bool(height[1]) - bool(height[2]))
        if tag == "rt":
            return notation.write_ruby(inner)
        if tag[:1] == "h" and tag[1:] in {"1", "2", "3", "4", "5", "6"}:
            title = " ".join(inner.split())
            return f"\n\n{'#' * int(tag[1:])} {title}\n\n" if title else ""
        if tag == "li":
            lines = "\n  ".join(filter(None, inner.strip().split("\n")))
            return f"\n{mark}{lines}" if lines else ""
        if tag == "a":
            address, label = attributes.get("href") or "", inner.strip()
            if attributes.get("epub:type") == "noteref" or attributes.get("role") == "doc-noteref":
                return notation.raise_text(inner, 1)
            is_plain = not _OUTSIDE.match(address) or notation.shows_address(label, address)
            inner = f"\x12{inner}\x12" if address.startswith("#") else inner  # a note's, perhaps
            return inner if is_plain or "\n" in label else f"[{label}]({address})"
        if tag in _BLOCKS or style.get("display") in _APART:
            return f"\n\n{inner}\n\n"
        is_cell = {style.get("display"), self._style_of(node.parent).get("display")} & _CELLS
        is_placed = tag == "tspan" and not {"x", "dy"}.isdisjoint(attributes)
        around = _AROUND.get(tag, " " if is_cell or is_placed else "")
        return f"{around}{inner}{around}"

    def _lay_out_code(self, node: Any, depth: int) -> str:
        self._is_pre = True
        lines = notation.write_scripts(self._lay_out(node, depth + 1)).strip("\n")
        self._is_pre = False
        fence = "~~~" if "```" in lines else "```"
        return f"\n\n{fence}\n{lines}\n{fence}\n\n" if lines else ""

    def _count_item(self, item: Any) -> str:
        of_list = item.parent
        while of_list is not None and of_list.tag not in _LISTS:
            of_list = of_list.parent
        if of_list is None:
            return "- "
        attributes, step = of_list.attributes, -1 if "reversed" in of_list.attributes else 1
        usual = sum(at.tag == "li" for at in of_list.iter()) if step < 0 else 1
        first = notation.as_integer(attributes.get("start"), usual)
        following = self._numbers.get(of_list.mem_id, first - step) + step
        number = notation.as_integer(item.attributes.get("value"), following)
        self._numbers[of_list.mem_id], self._counters["list-item"] = number, (number,)
        kind = item.attributes.get("type") or attributes.get("type") or ""
        said = (self._style_of(node).get("list-style-type", "") for node in (item, of_list))
        named = next((one for one in said if one[:1] in _QUOTES or one in _CSS), "")
        style = _CSS.get(named, notation.STYLES.get(kind, ""))
        style = style or ("decimal" if of_list.tag == "ol" else "disc")
        is_marked = style in {"disc", "none"}
        mark = "- " if is_marked else f"{notation.in_style(number, style)}. "
        mark = f"{named[1:-1].strip()} " if named[1:-1].strip() and named[0] in _QUOTES else mark
        own = style == "none" and (item.mem_id, "before") in self._styles
        return self._write_part(item, "marker") or mark * (not own)

    def _lay_out_table(self, node: Any, depth: int) -> str:
        def read(cell: Any) -> tuple[str, int, int]:
            across = notation.as_integer(cell.attributes.get("colspan"), 1)
            down = notation.as_integer(cell.attributes.get("rowspan"), 1)
            return self._lay_out(cell, depth + 1), across, max(down, 0)

        lines = sorted(node.css("tr"), key=lambda row: row.parent.tag == "tfoot")  # as it is shown
        groups = groupby(lines, key=lambda row: row.parent.mem_id)  # in which cells span rows
        read_in = ([[*map(read, row.css("td, th"))] for row in group] for _, group in groups)
        rows = [row for group in read_in for row in notation.spread_cells(group)]
        found = (self._lay_out(caption, depth + 1).split() for caption in node.css("caption"))
        return "\n\n".join([*map(" ".join, found), notation.write_table(rows)])


_REMARK = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_SHOWN = re.compile(
    "line-through|list-style|vertical-align|font-variant-position|mso-text-raise|counter"
    "|display: {0,9}(?:block|flex|grid|inline-flex|list-item|table)|content: {0,9}[\"'](?!\\\\[ef])"
)
"""What style sheets say that changes numbers or words; pages have thousands of other rules."""
_BEFORE = re.compile("[{;]")
_IMPORT = re.compile(r"@import\s{1,9}(?:url\(\s{0,9})?[\"']?([^\"')\s;]{1,999})")
_PART = re.compile(r"::?(before|after|marker)\b")
_COUNTER = re.compile(r"([\w-]++)(?: {1,9}(-?\d{1,9}))?")
_CONTENT = re.compile(
    r"\"([^\"]*+)\"|'([^']*+)'|counter(?P<all>s?)\( {0,9}(?P<name>[\w-]++)"
    r"(?: {0,9}, {0,9}[\"']([^\"']{0,99})[\"'])?(?: {0,9}, {0,9}(?P<style>[\w-]++))?"
)
_ESCAPED = re.compile(r"\\([0-9a-fA-F]{1,6}) ?")
_LISTS, _CODE = {"dir", "menu", "ol", "ul"}, {"listing", "plaintext", "pre", "xmp"}
_STRUCK = {"del", "s", "strike"}
_OUTSIDE = re.compile(r"(?!javascript:|data:|cid:|file:)[a-z][a-z0-9+.-]{0,30}:|//", re.IGNORECASE)
"""How the address of a link begins that leads out of the page."""
_APART = {"block", "flex", "grid", "list-item", "table"}
_CELLS = {"flex", "grid", "inline-flex", "table-cell"}
_AROUND = {"q": '"', "tr": "\n"}
_SPACED = "audio button canvas desc label meter mspace mtd object output svg td text textarea th"
_AROUND |= dict.fromkeys(_SPACED.split(), " ")


def _properties(declared: str) -> dict[str, str]:
    pairs = (one.partition(":") for one in declared.replace("!important", "").split(";"))
    found = {}
    for name, value in ((name.strip().lower(), value.strip()) for name, _, value in pairs):
        found[name] = value if {*value} & _QUOTES else value.lower()
        if name == "list-style":
            kinds = (kind[1] for kind in _LIST_STYLE.finditer(found[name]))
            found["list-style-type"] = next(filter(None, kinds), "disc")
    return found


_QUOTES = {'"', "'"}
_LIST_STYLE = re.compile(r"url\([^)]{0,999}\)|inside|outside|(\"[^\"]*+\"|'[^']*+'|[\w-]++)")
"""What stands in a style of a list: a picture, a place, or a text or the name of its numbers."""


_RAISED_BY = ("vertical-align", "mso-text-raise", "font-variant-position")
_HEIGHT = re.compile(r"(super|sup\Z|[\d.]{0,9}[1-9])|(sub|-[\d.]{0,9}[1-9])")
"""What raises or lowers text: a name or a length."""
_CASES, _KINDS = ("lower", "upper"), ("alpha", "greek", "latin", "roman")
_CSS = {f"{case}-{kind}": f"{case}{kind.title()}" for case in _CASES for kind in _KINDS}
_CSS |= {"none": "none", "decimal": "decimal", "decimal-leading-zero": "decimalZero"}
_CSS |= {"circle": "disc", "disc": "disc", "square": "disc"}


def _words_of(node: Any) -> Counter[str]:
    said = node.text_content if node.tag == "-text" else node.text(separator=" ")
    return notation.count_words(f"{said or ''} {node.attributes.get('alt') or ''}")


_DATA_URL = re.compile(r"data:image/[\w.+-]{1,40};base64,([A-Za-z0-9+/=\s%]{1,44000000})")


def _data_of(encoded: str) -> bytes:
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
    place = get(next(package.find("META-INF/container.xml", "rootfile"), None), "full-path")
    book = package.parse(place)
    if book is None or not place:
        raise ValueError("it is no EPUB, or a damaged one")
    if b"enc#aes" in (package.read("META-INF/encryption.xml") or b""):
        raise PasswordError
    items = {get(item, "id"): item for item in book.iter("{*}item")}
    pages = (key for key, item in items.items() if get(item, "media-type") in _PAGE_TYPES)
    others = [key for key in pages if get(items[key], "properties") != "nav"]
    order = dict.fromkeys([*(get(item, "idref") for item in book.iter("{*}itemref")), *others])
    chapters, warnings, lost = list[str](), list[str](), 0.0
    for identifier in order:
        item = items.get(identifier)
        name, kind = unquote(get(item, "href", identifier)), get(item, "media-type")
        part, why = _join(place, name), "it is missing"
        try:
            if (page := package.read(part)) is not None:
                is_page = "xml" in kind or kind.startswith("text/")  # or a picture, for example
                shown = WebPage(decode(page), place=(package, part)).write() if is_page else ""
                found = Converted(shown) if is_page else convert_within(name, page)[1]
                chapters.append(found.text)
                warnings += [f"{name} {line}" for line in found.warnings]
                lost += found.lost
                continue
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - an archive has many ways to be broken
            why = f"it is broken ({error})"
        warnings.append(f"did not read the chapter {name}: {why}.")
        lost += 1
    title = child(book, "metadata", "title")
    heading = f"# {title.text.strip()}" if title is not None and title.text else ""
    text = "\n\n".join(filter(None, [heading, *chapters]))
    return Converted(text, (), warnings, lost=lost / max(len(order), 1))


_PAGE_TYPES = {"application/xhtml+xml", "text/html"}


def _join(part: str, name: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(part), name))


def read_notebook(content: bytes) -> Converted:
    """Read a Jupyter notebook: its texts, code and printed results."""
    notebook = json.loads(content)
    sheets = [notebook, *notebook.get("worksheets", ())] if isinstance(notebook, dict) else ()
    found = [cell for sheet in sheets for cell in sheet.get("cells", ())]
    pictures, objects, blocks = 0, 0, []
    for cell in (cell for cell in found if isinstance(cell, dict)):
        source = _join_lines(cell.get("source", cell.get("input", "")))
        blocks.append(f"```\n{source}\n```" if cell.get("cell_type") == "code" else source)
        pictures += len(cell.get("attachments") or ())
        for result in cell.get("outputs") or ():
            forms = result.get("data") or {}
            page = WebPage(_join_lines(forms.get("text/html"))).write()
            laid_out = page or _join_lines(forms.get("text/markdown") or forms.get("text/latex"))
            said = (result.get("text"), result.get("traceback"), forms.get("text/plain"))
            text = _COLOURS.sub("", _join_lines(next(filter(None, said), result.get("evalue"))))
            is_picture = any(kind.startswith("image/") for kind in forms)
            pictures += is_picture
            objects += bool(forms) and not (is_picture or laid_out or text)
            printed = "\n".join(["```", text.strip("\n"), "```"]) if text.strip() else ""
            blocks.append(laid_out or printed)
    if not blocks:
        raise ValueError("it is no notebook, or an empty one")
    warnings = warn_of(picture=pictures, embedded_object=objects)
    text = "\n\n".join(filter(None, blocks))
    return Converted(text, (), warnings, lost=objects / (len(blocks) + objects))


_COLOURS = re.compile(r"\x1b\[[\d;]{0,30}m")


def _join_lines(lines: str | list[str] | None) -> str:
    return lines if isinstance(lines, str) else "".join(map(str, lines or ()))
