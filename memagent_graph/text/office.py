"""Read Office and OpenDocument files from the XML of their parts: all that they show, in order.

This runs in the process that converts documents.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from functools import partial
from io import BytesIO
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias
from zipfile import ZipFile

from lxml import etree

from memagent_graph.pictures.picture import write_mark
from memagent_graph.text.notation import (
    MOST_REPEATED,
    TICKS,
    in_style,
    raise_text,
    spread_cells,
    symbol,
    write_formula,
    write_scripts,
    write_table,
)
from memagent_graph.text.ocr import Album
from memagent_graph.text.source import Converted, PasswordError, warn_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

Element: TypeAlias = Any
"""An element of lxml, which has no types."""


_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/(\w{1,20})/")
"""Beginning of the namespaces of ISO's strict form, which some libraries do not know."""
_USUAL = rb"http://schemas.openxmlformats.org/\1/2006/"
_RAISED = re.compile(
    rb'(vertAlign val="(?:(super)|sub)script" ?/>[^&]{0,500}?'
    rb"<(?:\w{1,9}:)?t(?: [^<>]{0,99})?>)([^<]+)"
)
"""Text of a cell that is raised or lowered, of which openpyxl says nothing."""


class Package:
    """The parts of an archive of XML files, and how they refer to each other."""

    def __init__(self, content: bytes) -> None:
        self._archive = ZipFile(BytesIO(content))
        self._names = {name.replace("\\", "/").lower(): name for name in self._archive.namelist()}

    def holds(self, part: str) -> bool:
        """Whether the archive has a part; the case of its name does not matter."""
        return part.lstrip("/").lower() in self._names

    def read(self, part: str) -> bytes:
        """Return the bytes of a part."""
        return self._archive.read(self._names[part.lstrip("/").lower()])

    def parse(self, part: str) -> Element | None:
        """Return the root of a part; None if the archive lacks it. Raises as `parse_xml`."""
        return parse_xml(self.read(part), part) if self.holds(part) else None

    @property
    def is_usual(self) -> bool:
        """Whether `repack` changes nothing."""
        listed = self._right_names()
        return (
            not _STRICT.search(self.read(self.main()))
            and all(name == listed[key] for key, name in self._names.items())
            and not any(_RAISED.search(self.read(key)) for key in self._names if key[-4:] == ".xml")
        )

    def repack(self) -> BytesIO:
        """Return the archive as openpyxl reads it.

        It has the names that it lists, the usual namespaces, and signs round what is raised.
        """
        listed, packed = self._right_names(), BytesIO()
        with ZipFile(packed, "w") as archive:
            for key, name in self._names.items():
                content = _STRICT.sub(_USUAL, self._archive.read(name))
                archive.writestr(listed[key], _RAISED.sub(_mark_raised, content))
        return packed

    def _right_names(self) -> dict[str, str]:
        """Return the names of parts as the archive lists them."""
        types = self.parse("[Content_Types].xml")
        listed = () if types is None else types.iter("{*}Override")
        usual = {key: name.replace("\\", "/") for key, name in self._names.items()}
        return usual | {
            name.lower(): name for part in listed if (name := get(part, "PartName")[1:])
        }

    def targets(self, part: str) -> dict[str, tuple[str, str]]:
        """Return (kind, part or address) of all that a part refers to, by id."""
        folder, name = posixpath.split(part.lstrip("/"))
        links = self.parse(posixpath.join(folder, "_rels", f"{name}.rels"))
        found = {}
        for link in links if links is not None else ():
            kind, target = link.get("Type", "").rpartition("/")[2], link.get("Target", "")
            if link.get("TargetMode") != "External":
                target = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
            found[link.get("Id", "")] = kind, target
        return found

    def main(self) -> str:
        """Return the name of the part that holds the document.

        Raises:
            ValueError: There is none.
        """
        for kind, target in self.targets("").values():
            if kind == "officeDocument":
                return target
        raise ValueError("it is no Office file, or a damaged one")


def _mark_raised(found: re.Match[bytes]) -> bytes:
    before, is_above, text = found.groups()
    begin, end = (b"_x000E_", b"_x000F_") if is_above else (b"_x0010_", b"_x0011_")
    return before + begin + text + end


def parse_xml(content: bytes, name: str) -> Element:
    """Return the root of a file of XML.

    Raises:
        ValueError: It declares entities, which no Office program does, or is not XML.
    """
    parser = etree.XMLParser(resolve_entities=False, huge_tree=True)
    root = etree.fromstring(content, parser)
    if root.getroottree().docinfo.doctype:
        message = f"{name} declares a document type, which no Office program does"
        raise ValueError(message)
    return root


def local(element: Element) -> str:
    """Return the name of an element without its namespace; empty for a comment."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def get(element: Element | None, name: str, default: str = "") -> str:
    """Return an attribute by its name without a namespace."""
    for key, value in element.attrib.items() if element is not None else ():
        if key.rpartition("}")[2] == name:
            return str(value)
    return default


def child(element: Element | None, *path: str) -> Element | None:
    """Return the first child at a path of names."""
    for name in path:
        if element is None:
            return None
        element = next((found for found in element if local(found) == name), None)
    return element


_FORMULAS = {"d", "f", "nary", "rad", "sSub", "sSubSup", "sSup"}
"""Elements of Office whose parts stand above each other."""


def _is_formula(element: Element) -> bool:
    return local(element) in _FORMULAS and "/math}" in element.tag


def _read_formula(element: Element, inline: Callable[[Element], Iterable[str]]) -> str:
    """Return a formula of Office; `inline` reads its parts."""
    name, settings = local(element), child(element, f"{local(element)}Pr")
    parts = ["".join(inline(part)) for part in element if part is not settings]
    if name == "d":
        begin = get(child(settings, "begChr"), "val", "(")
        return f"{begin}{', '.join(parts)}{get(child(settings, 'endChr'), 'val', ')')}"
    if name == "nary":
        *bounds, inner = ["", "", *parts][-3:]
        sign = get(child(settings, "chr"), "val", "\u222b")
        return f"{write_formula('sSubSup', [sign, *bounds])} {inner}"
    return write_formula(name, parts)


def _chart_text(root: Element | None) -> str:
    """Return the words of a chart or diagram."""
    if root is None:
        return ""
    runs = [element.text or "" for element in root.iter("{*}t", "{*}v") if element.text]
    return " | ".join(dict.fromkeys(run.strip() for run in runs if run.strip()))


_SIGNS = {
    "tab": "\t",
    "ptab": "\t",
    "br": "\n",
    "cr": "\n",
    "noBreakHyphen": "-",
    "line-break": "\n",
    "s": " ",
}
_LEFT_OUT = {
    "del", "moveFrom", "instrText", "delText", "rPr", "pPr", "tblPr", "tcPr", "trPr", "sectPr",
    "sdtPr", "Fallback", "tblGrid", "proofErr", "tracked-changes", "forms",
}  # fmt: skip


_DEEPEST = 6
"""Deepest level of a heading."""


class Word:
    """The text of a DOCX, part by part.

    Args:
        package: the file.
    """

    def __init__(self, package: Package) -> None:
        self._package = package
        self._part = package.main()
        self._album, self._objects, self._described = Album(), 0, ""
        targets = package.targets(self._part)
        self._parts = dict(targets.values())
        self._links = targets
        self._styles: dict[str, Element] = {}
        styles = package.parse(self._parts.get("styles", "-"))
        for style in styles if styles is not None else ():
            self._styles[get(style, "styleId")] = style
        self._numbers = _Numbers(package.parse(self._parts.get("numbering", "-")))

    def convert(self) -> Converted:
        """Return headers, body, footers, notes and comments.

        Raises:
            ValueError: The file has no body.
        """
        root = self._package.parse(self._part)
        body = child(root, "body")
        if body is None:
            raise ValueError("it has no text of its own, or is damaged")
        margins: dict[str, dict[str, None]] = {"headerReference": {}, "footerReference": {}}
        for reference in body.iter("{*}headerReference", "{*}footerReference"):
            _, part = self._links.get(get(reference, "id"), ("", ""))
            text = "\n\n".join(self._read_part(part))
            margins[local(reference)][text] = None
        blocks = [*margins["headerReference"], *self._blocks(body), *margins["footerReference"]]
        for kind, mark in (("footnotes", "^"), ("endnotes", "^e"), ("comments", "comment ")):
            blocks += self._notes(self._parts.get(kind, ""), mark)
        album = self._album
        warnings = warn_of(picture=album.unread, embedded_object=self._objects) + album.warnings
        return Converted("\n\n".join(filter(None, blocks)), (), warnings, album.pictures)

    def _read_part(self, part: str) -> Iterator[str]:
        root = self._package.parse(part)
        if root is None:
            return
        before, self._links = self._links, self._package.targets(part)
        yield from self._blocks(root)
        self._links = before

    def _notes(self, part: str, mark: str) -> Iterator[str]:
        root = self._package.parse(part)
        before, self._links = self._links, self._package.targets(part)
        for note in root if root is not None else ():
            text = " ".join(self._blocks(note)).strip()
            if text and get(note, "type") not in {"separator", "continuationSeparator"}:
                author = get(note, "author")
                yield f"[{mark}{get(note, 'id')}]: {author + ': ' if author else ''}{text}"
        self._links = before

    def _blocks(self, parent: Element) -> Iterator[str]:
        for element in parent:
            name = local(element)
            if name == "p":
                yield from self._paragraph(element)
            elif name == "tbl":
                yield self._table(element)
            elif name == "altChunk":
                self._objects += 1
            elif name not in _LEFT_OUT:
                yield from self._blocks(element)

    def _paragraph(self, element: Element) -> Iterator[str]:
        boxes: list[str] = []
        text = write_scripts("".join(self._inline(element, boxes))).strip()
        settings = child(element, "pPr")
        named = dict(self._style_chain(get(child(settings, "pStyle"), "val")))
        styles = [*named.values()]
        if text:
            label = self._numbers.label([settings, *styles], named)
            level = self._level(settings, styles)
            title = " ".join(text.split()) if level else text
            yield f"{'#' * level} {label}{title}".lstrip(" ") if level else f"{label}{text}"
        yield from boxes

    def _style_chain(self, name: str) -> Iterator[tuple[str, Element | None]]:
        """Yield a style and those that it is based on, each with its settings of paragraphs."""
        seen = set()
        while name in self._styles and name not in seen:
            seen.add(name)
            style = self._styles[name]
            yield name, child(style, "pPr")
            name = get(child(style, "basedOn"), "val")

    def _level(self, settings: Element | None, styles: Sequence[Element | None]) -> int:
        name = get(child(settings, "pStyle"), "val")
        title = get(child(self._styles.get(name), "name"), "val", name).lower().replace(" ", "")
        if title.startswith("heading") and title[7:].isdigit():
            return min(int(title[7:]), _DEEPEST)
        if title == "title":
            return 1
        for place in (settings, *styles):
            if (level := child(place, "outlineLvl")) is not None:
                number = int(get(level, "val", "9"))
                return number + 1 if number < _DEEPEST else 0
        return 0

    def _inline(self, parent: Element, boxes: list[str]) -> Iterator[str]:  # noqa: C901, PLR0912 - a list
        """Yield the pieces of a paragraph; text boxes in it become blocks after it."""
        for element in parent:
            name = local(element)
            if name == "t":
                yield element.text or ""
            elif name in _SIGNS:
                yield _SIGNS[name]
            elif name == "r":
                yield self._run(element, boxes)
            elif name == "sym":
                yield symbol(get(element, "char"), get(element, "font"))
            elif name == "ffData":
                yield _form_field(element)
            elif _is_formula(element):
                yield _read_formula(element, partial(self._inline, boxes=boxes))
            elif name == "txbxContent":
                boxes += self._blocks(element)
            elif name in {"footnoteReference", "endnoteReference", "commentReference"}:
                mark = {"f": "^", "e": "^e", "c": "comment "}[name[0]]
                yield f"[{mark}{get(element, 'id')}]"
            elif name == "hyperlink":
                yield self._link(element, boxes)
            elif name == "AlternateContent":
                yield from self._choose(element, boxes)
            elif name in {"docPr", "imagedata", "blip", "OLEObject", "control"}:
                yield from self._picture(element, name)
            elif name in {"chart", "relIds"}:
                _, part = self._links.get(get(element, "id") or get(element, "dm"), ("", ""))
                boxes.append(_chart_text(self._package.parse(part)))
            elif name not in _LEFT_OUT:
                yield from self._inline(element, boxes)

    def _run(self, element: Element, boxes: list[str]) -> str:
        text, settings = "".join(self._inline(element, boxes)), child(element, "rPr")
        style = child(self._styles.get(get(child(settings, "rStyle"), "val")), "rPr")
        font = get(child(settings, "rFonts"), "ascii").lower()
        if font in TICKS:
            text = "".join(TICKS[font].get(ord(sign) & 0xFF, sign) for sign in text)
        raised = (get(child(place, "vertAlign"), "val") for place in (settings, style))
        return raise_text(text, _LEVELS.get(next(filter(None, raised), ""), 0))

    def _choose(self, element: Element, boxes: list[str]) -> Iterator[str]:
        """Yield one of two forms of the same content."""
        for form in element:
            found: list[str] = []
            text = "".join(self._inline(form, found))
            if text.strip() or found or local(form) == "Fallback":
                boxes += found
                yield text
                return

    def _picture(self, element: Element, name: str) -> Iterator[str]:
        if name == "docPr":
            described = get(element, "descr").strip()
            frame = element.getparent()
            if next(frame.iter("{*}blip"), None) is not None:
                self._described = described
            elif described:  # of a chart
                yield write_mark(described)
        elif name in {"imagedata", "blip"}:
            _, part = self._links.get(get(element, "embed") or get(element, "id"), ("", ""))
            described = self._described or get(element, "title").strip()
            yield add_picture(self._album, self._package, part, described)
            self._described = ""
        else:
            self._objects += 1

    def _link(self, element: Element, boxes: list[str]) -> str:
        text = "".join(self._inline(element, boxes))
        kind, address = self._links.get(get(element, "id"), ("", ""))
        shown = kind != "hyperlink" or not text.strip() or text.strip() in address
        return text if shown else f"{text} <{address}>"

    def _table(self, element: Element) -> str:
        rows = []
        for row in element.iter("{*}tr"):
            if next(row.iterancestors("{*}tbl")) is element:
                cells = [
                    cell for cell in row.iter("{*}tc") if next(cell.iterancestors("{*}tr")) is row
                ]
                rows.append(
                    [
                        (
                            " ".join(self._blocks(cell)),
                            max(_number(child(cell, "tcPr", "gridSpan"), "val", 1), 1),
                            1,
                        )
                        for cell in cells
                    ]
                )
        return write_table(spread_cells(rows))


_LEVELS = {"superscript": 1, "subscript": -1}


def _form_field(element: Element) -> str:
    """Return what a field of a form shows that is no text: a tick, or what was chosen."""
    box, choices = child(element, "checkBox"), child(element, "ddList")
    setting = next(
        (
            get(at, "val", "1")
            for name in ("checked", "result", "default")
            if (at := child(box if box is not None else choices, name)) is not None
        ),
        "0",
    )
    if box is not None:
        return "\u2610" if setting in _OFF else "\u2612"
    entries = [*choices.iter("{*}listEntry")] if choices is not None else []
    at = int(setting) if setting.isdecimal() else 0
    return get(entries[at], "val") if at < len(entries) else ""


_OFF = {"0", "false", "off"}


class _Numbers:
    """The numbers of paragraphs, counted as they are shown."""

    def __init__(self, root: Element | None) -> None:
        self._lists: dict[str, dict[int, Element]] = {}
        self._used: dict[str, tuple[str, dict[int, Element]]] = {}
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._begun: set[tuple[str, int]] = set()
        links, named = dict[str, str](), dict[str, str]()  # lists by the style that they take
        for element in root if root is not None else ():
            name = get(element, "abstractNumId")
            if local(element) == "abstractNum":
                self._lists[name] = {
                    _number(level, "ilvl"): level for level in element if local(level) == "lvl"
                }
                links[name] = get(child(element, "numStyleLink"), "val")
                named[get(child(element, "styleLink"), "val")] = name
            elif local(element) == "num":
                name = get(child(element, "abstractNumId"), "val")
                own = {_number(at, "ilvl"): at for at in element if local(at) == "lvlOverride"}
                self._used[get(element, "numId")] = named.get(links.get(name) or "-", name), own

    def label(self, places: Sequence[Element | None], styles: Collection[str]) -> str:
        """Count a paragraph, and return its number or "-"; empty if it has none.

        Args:
            places: its settings, and those of the styles that it is based on.
            styles: the names of these styles.
        """
        settings = [child(place, "numPr") for place in places]
        used, depth = (_first(settings, name) for name in ("numId", "ilvl"))
        name, own = self._used.get(used, ("", {}))
        levels = self._lists.get(name, {}) | {
            at: found for at in own if (found := child(own[at], "lvl")) is not None
        }
        named = (at for at in levels if get(child(levels[at], "pStyle"), "val") in styles)
        at = int(depth) if depth.isdecimal() else next(named, 0)
        level, counts = levels.get(at), self._counts[name]
        if level is None:
            return ""
        begin = child(own.get(at), "startOverride")
        if begin is not None and (used, at) not in self._begun:
            self._begun.add((used, at))
            counts[at] = _number(begin, "val", 1) - 1
        counts[at] = counts.get(at, _number(child(level, "start"), "val", 1) - 1) + 1
        for deeper in [key for key in counts if key > at]:
            if at < _number(child(levels.get(deeper), "lvlRestart"), "val", deeper):
                del counts[deeper]
        if get(child(level, "numFmt"), "val") == "bullet":
            return "- "
        text = get(child(level, "lvlText"), "val")
        for above in range(at + 1):
            place = levels.get(above)
            style = get(child(place, "numFmt"), "val") if child(level, "isLgl") is None else ""
            count = counts.get(above, _number(child(place, "start"), "val", 1))
            text = text.replace(f"%{above + 1}", in_style(count, style))
        return f"{text} " if text.strip() else ""


def _first(settings: Iterable[Element | None], name: str) -> str:
    return next((found for at in settings if (found := get(child(at, name), "val"))), "")


def _number(element: Element | None, name: str, default: int = 0) -> int:
    value = get(element, name)
    return int(value) if value.isdecimal() else default


def add_picture(album: Album, package: Package, part: str, caption: str, page: int = 0) -> str:
    """Add a picture that is a part of a package, and return its mark."""
    return album.add(package.read(part) if package.holds(part) else None, part, caption, page)


class Slides:
    """The text of a PPTX, slide by slide, with notes and comments."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._album, self._objects, self._number = Album(), 0, 0
        self._links: dict[str, tuple[str, str]] = {}

    def convert(self) -> Converted:
        """Return a page for each slide."""
        main = self._package.main()
        targets = self._package.targets(main)
        order = child(self._package.parse(main), "sldIdLst")
        pages = []
        for number, slide in enumerate(order if order is not None else (), 1):
            relation = next((value for key, value in slide.attrib.items() if key[:1] == "{"), "")
            _, part = targets.get(str(relation), ("", ""))
            pages.append("\n\n".join(filter(None, self._slide(number, part))) + "\n\n")
        starts = [0, *accumulate(map(len, pages[:-1]))] if pages else []
        album = self._album
        warnings = warn_of(picture=album.unread, embedded_object=self._objects) + album.warnings
        return Converted("".join(pages), starts, warnings, album.pictures)

    def _slide(self, number: int, part: str) -> Iterator[str]:
        yield f"<!-- Slide number: {number} -->"
        self._number = number
        self._links = self._package.targets(part)
        yield from self._shapes(child(self._package.parse(part), "cSld", "spTree"))
        for kind, target in self._links.values():
            if kind == "notesSlide":
                tree = child(self._package.parse(target), "cSld", "spTree")
                shapes = (
                    [shape for shape in tree if local(shape) == "sp"] if tree is not None else []
                )
                texts = [_paragraphs(shape) for shape in shapes if _role(shape) not in _MARGINS]
                if notes := "\n".join(filter(None, texts)):
                    yield f"Notes: {notes}"
            elif kind == "comments":
                root = self._package.parse(target)
                for text in root.iter("{*}text", "{*}t") if root is not None else ():
                    yield f"Comment: {text.text}" if text.text else ""

    def _shapes(self, parent: Element | None) -> Iterator[str]:
        for shape in parent if parent is not None else ():
            name = local(shape)
            if name == "pic":
                described = get(child(shape, "nvPicPr", "cNvPr"), "descr").strip()
                _, part = self._links.get(get(child(shape, "blipFill", "blip"), "embed"), ("", ""))
                yield add_picture(self._album, self._package, part, described, self._number)
            elif name == "graphicFrame":
                yield from self._frame(shape)
            elif name == "AlternateContent":
                forms = [[*self._shapes(form)] for form in shape]
                yield from next(filter(None, forms), [])
            elif name == "grpSp":
                yield from self._shapes(shape)
            elif name == "sp" and (text := _paragraphs(shape)):
                is_title = _role(shape) in {"title", "ctrTitle"}
                yield f"# {' '.join(text.split())}" if is_title else text

    def _frame(self, frame: Element) -> Iterator[str]:
        for element in frame.iter("{*}tbl", "{*}chart", "{*}relIds", "{*}oleObj"):
            if local(element) == "tbl":
                rows = (
                    [_paragraphs(cell) for cell in row.iter("{*}tc")]
                    for row in element.iter("{*}tr")
                )
                yield write_table(rows)
            elif local(element) == "oleObj":
                self._objects += 1
            else:
                name = get(element, "dm") or get(element, "id")
                yield _chart_text(self._package.parse(self._links.get(name, ("", ""))[1]))


_MARGINS = {"sldNum", "dt", "hdr", "ftr", "sldImg"}


def _role(shape: Element) -> str:
    place = next(shape.iter("{*}ph"), None)
    return "" if place is None else get(place, "type", "body")


def _paragraphs(shape: Element) -> str:
    """Return the paragraphs of a shape or cell, each on a line."""
    lines = (write_scripts("".join(_runs(at))) for at in shape.iter("{*}p"))
    return "\n".join(filter(None, (line.replace("\v", "\n").strip() for line in lines)))


def _runs(parent: Element) -> Iterator[str]:
    for element in parent:
        name = local(element)
        if name == "t":
            yield element.text or ""
        elif name in _SIGNS:
            yield _SIGNS[name]
        elif name == "r":
            baseline = get(child(element, "rPr"), "baseline", "0")
            level = int(baseline) if baseline.lstrip("-").isdecimal() else 0
            yield raise_text("".join(_runs(element)), level)
        elif _is_formula(element):
            yield _read_formula(element, _runs)
        elif name not in _LEFT_OUT:
            yield from _runs(element)


class SingleFile:
    """A document whose parts are all in one file of XML."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def parse(self, part: str) -> Element | None:
        """Return the root, for each of its parts; raises as `parse_xml`."""
        return None if part.startswith("META-INF") else parse_xml(self._content, part)


class OpenDocument:
    """The text of an ODT, ODS or ODP."""

    def __init__(self, package: Package | SingleFile) -> None:
        self._package = package
        self._album, self._objects = Album(), 0
        self._pages: list[int] = []
        self._levels: dict[str, int] = {}

    def convert(self) -> Converted:
        """Return headers, body and footers; each sheet or slide is a page.

        Raises:
            ValueError: The file is encrypted, or has no body.
        """
        manifest = self._package.parse("META-INF/manifest.xml")
        if manifest is not None and next(manifest.iter("{*}encryption-data"), None) is not None:
            raise PasswordError
        body = child(self._package.parse("content.xml"), "body")
        if body is None:
            raise ValueError("it has no text of its own, or is damaged")
        styles = self._package.parse("styles.xml")
        for root in (styles, body.getparent()):
            for style in root.iter("{*}style") if root is not None else ():
                position = get(child(style, "text-properties"), "text-position").split(" ")[0]
                self._levels[get(style, "name")] = _POSITIONS.get(position.strip("0123456789%"), 0)
        margins: dict[str, list[str]] = {"header": [], "footer": []}
        for margin in styles.iter("{*}header", "{*}footer") if styles is not None else ():
            margins[local(margin)] += self._blocks(margin)
        text, pages = "", []
        for block in filter(None, [*margins["header"], *self._blocks(body), *margins["footer"]]):
            if block.startswith("\f"):
                pages.append(len(text))
            text += block.removeprefix("\f") + "\n\n"
        album = self._album
        warnings = warn_of(picture=album.unread, embedded_object=self._objects) + album.warnings
        return Converted(text.rstrip("\n"), pages, warnings, album.pictures)

    def _blocks(self, parent: Element) -> Iterator[str]:
        for element in parent:
            name = local(element)
            if name in {"p", "h"}:
                boxes: list[str] = []
                text = write_scripts(self._inline(element, boxes)).strip()
                level = min(_number(element, "outline-level", 1), _DEEPEST) if name == "h" else 0
                yield f"{'#' * level} {text}" if level and text else text
                yield from boxes
            elif name == "table":
                is_sheet = local(parent) == "spreadsheet"
                yield (f"\f## {get(element, 'name')}\n\n" if is_sheet else "") + self._table(
                    element
                )
            elif name == "page":
                self._pages.append(0)
                yield f"\f<!-- Slide number: {len(self._pages)} -->"
                yield from self._blocks(element)
            elif name == "image":
                yield self._picture(element)
            elif name in {"object", "object-ole"}:
                self._objects += 1
            elif name not in _LEFT_OUT:
                yield from self._blocks(element)

    def _picture(self, element: Element) -> str:
        part, frame = get(element, "href").removeprefix("./"), element.getparent()
        caption = next((at.text for at in frame.iter("{*}desc", "{*}title") if at.text), "")
        if isinstance(self._package, SingleFile):
            return self._album.add(None, part, caption)
        return add_picture(self._album, self._package, part, caption, len(self._pages))

    def _inline(self, element: Element, boxes: list[str]) -> str:
        pieces = [element.text or ""]
        for found in element:
            name = local(found)
            if name in _SIGNS:
                pieces.append(_SIGNS[name] * min(_number(found, "c", 1), MOST_REPEATED))
            elif name in {"note", "annotation", "frame", "custom-shape"}:
                inner = [block for block in self._blocks(found) if block]
                if name in {"note", "annotation"}:
                    pieces.append(f" [{' '.join(inner)}]")
                else:
                    boxes += inner
            elif name not in _LEFT_OUT:
                level = self._levels.get(get(found, "style-name"), 0) if name == "span" else 0
                pieces.append(raise_text(self._inline(found, boxes), level))
            pieces.append(found.tail or "")
        return "".join(pieces)

    def _table(self, element: Element) -> str:
        rows = []
        for row in element.iter("{*}table-row"):
            if next(row.iterancestors("{*}table")) is not element:
                continue
            cells: list[str] = []
            for cell in row:
                if local(cell) in {"table-cell", "covered-table-cell"}:
                    times = min(_number(cell, "number-columns-repeated", 1), MOST_REPEATED)
                    cells += [" ".join(self._blocks(cell)) or _value(cell)] * times
            times = _number(row, "number-rows-repeated", 1) if any(cells) else 1
            rows += [cells] * min(times, MOST_REPEATED)
        return write_table(rows)


_POSITIONS = {"super": 1, "sub": -1, "-": -1}


def _value(cell: Element) -> str:
    """Return the value of a cell that does not say how it is shown."""
    values = (get(cell, f"{kind}value") for kind in ("", "date-", "time-", "boolean-", "string-"))
    return next(filter(None, values), "")


def read_docx(content: bytes) -> Converted:
    """Read a DOCX."""
    return Word(Package(content)).convert()


def read_pptx(content: bytes) -> Converted:
    """Read a PPTX."""
    return Slides(Package(content)).convert()


def read_opendocument(content: bytes) -> Converted:
    """Read an ODT, ODS or ODP, also one that is a single file of XML."""
    package = Package(content) if content.startswith(b"PK") else SingleFile(content)
    return OpenDocument(package).convert()


def comments_of(package: Package, part: str) -> dict[str, str]:
    """Return the comments of a sheet by the reference of their cell."""
    found: dict[str, str] = {}
    for kind, target in package.targets(part).values():
        root = package.parse(target) if kind in {"comments", "threadedComment"} else None
        for comment in root.iter("{*}comment", "{*}threadedComment") if root is not None else ():
            said = "".join(run.text or "" for run in comment.iter("{*}t", "{*}text")).strip()
            if said and (kind == "threadedComment" or get(comment, "ref") not in found):
                found[get(comment, "ref")] = said
    return found


def drawings_of(package: Package, part: str) -> tuple[list[str], int]:
    """Return the texts of a sheet's boxes and charts, and the number of its pictures."""
    texts, pictures = [], 0
    for kind, target in package.targets(part).values():
        root = package.parse(target) if kind == "drawing" else None
        for shape in root.iter("{*}sp", "{*}pic", "{*}chart") if root is not None else ():
            pictures += local(shape) == "pic"
            if local(shape) == "sp":
                texts.append(_paragraphs(shape))
            elif local(shape) == "chart":
                _, chart = package.targets(target).get(get(shape, "id"), ("", ""))
                texts.append(_chart_text(package.parse(chart)))
    return texts, pictures
