"""Read Office and OpenDocument files from the XML of their parts: all that they show, in order.

This runs in the process that converts documents.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias
from zipfile import ZipFile

from lxml import etree

from memagent_graph.pictures.picture import write_mark
from memagent_graph.text.notation import (
    MOST_REPEATED,
    STYLES,
    TICKS,
    ListLevel,
    count_item,
    name_hidden,
    raise_text,
    spread_cells,
    symbol,
    write_formula,
    write_link,
    write_scripts,
    write_table,
)
from memagent_graph.text.ocr import Album
from memagent_graph.text.source import Converted, PasswordError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

Element: TypeAlias = Any
"""An element of lxml, which has no types."""


_EMPTY_ARCHIVE = b"PK\x05\x06" + bytes(18)
_XML = b"<", b"\xef\xbb\xbf<", b"\xff\xfe", b"\xfe\xff"
"""How a file of XML begins, with and without a mark."""


class Package:
    """The parts of an archive of XML files, or of one such file, and how they refer to others."""

    def __init__(self, content: bytes) -> None:
        self._single = content if content.startswith(_XML) else b""  # all parts in one
        self._archive = ZipFile(BytesIO(_EMPTY_ARCHIVE if self._single else content))
        self._names = {name.replace("\\", "/").lower(): name for name in self._archive.namelist()}

    def read(self, part: str) -> bytes | None:
        """Return the bytes of a part; None without one. The case of its name does not matter."""
        name = self._names.get(part.lstrip("/").lower())
        return None if name is None else self._archive.read(name)

    def parse(self, part: str) -> Element | None:
        """Return the root of a part; None if the archive lacks it. Raises as `parse_xml`."""
        is_whole = self._single and not part.startswith("META-INF")
        content = self._single if is_whole else self.read(part)
        return None if content is None else parse_xml(content, part)

    def stream(self, part: str, *names: str) -> Iterator[Element]:
        """Yield the elements of a part with these names, each as soon as it is complete.

        What was yielded is freed: a sheet may have a million rows. Raises as `parse_xml`.
        """
        tags = [f"{{*}}{name}" for name in names]
        found = BytesIO(self.read(part) or b"<none/>")
        for _, element in etree.iterparse(found, tag=tags, resolve_entities=False, huge_tree=True):
            _refuse_doctype(element, part)
            yield element
            element.clear()
            while element.getprevious() is not None:
                del element.getparent()[0]

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
        """Return the name of the part that holds the document."""
        for kind, target in self.targets("").values():
            if kind == "officeDocument":
                return target
        raise ValueError("it is no Office file, or a damaged one")


def parse_xml(content: bytes, name: str) -> Element:
    """Return the root of a file of XML; one that declares entities is a `ValueError`."""
    parser = etree.XMLParser(resolve_entities=False, huge_tree=True)
    root = etree.fromstring(content, parser)
    _refuse_doctype(root, name)
    return root


def _refuse_doctype(element: Element, name: str) -> None:
    if element.getroottree().docinfo.doctype:
        message = f"{name} declares a document type, which no Office program does"
        raise ValueError(message)


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
    """Return the words of a chart or diagram, and the values of its series with their names."""
    if root is None:
        return ""
    words = " | ".join(text for at in root.iter("{*}t") if (text := (at.text or "").strip()))
    rows = list[list[str]]()
    for series in root.iter("{*}ser", "{*}data"):
        name = " ".join(_points(child(series, "tx")))
        for part in series:
            is_value = local(part) in {"bubbleSize", "numDim", "val", "yVal"}
            row = [name if is_value else "", *_points(part)]
            if row[1:] and local(part) != "tx" and (is_value or row not in rows):
                rows.append(row)
    return "\n\n".join(filter(None, [words, write_table(rows)]))


def _points(part: Element | None) -> list[str]:
    """Return the values of a series, in order; one that is missing is empty."""
    found = dict[int, str]()
    for point in part.iter("{*}pt") if part is not None else ():
        value = child(point, "v")
        found[_number(point, "idx", len(found))] = (point if value is None else value).text or ""
    if not found and part is not None:
        return [value.text for value in part.iter("{*}v") if value.text]
    return [found.get(at, "") for at in range(min(max(found, default=-1) + 1, MOST_REPEATED))]


_SIGNS = {"noBreakHyphen": "-", "ptab": "\t", "s": " ", "tab": "\t"}
_SIGNS |= dict.fromkeys(("br", "cr", "line-break"), "\n")
_LEFT_OUT = {
    "del", "moveFrom", "rPr", "pPr", "tblPr", "tcPr", "trPr", "sectPr",
    "sdtPr", "Fallback", "tblGrid", "proofErr", "tracked-changes", "forms",
}  # fmt: skip


_DEEPEST = 6
"""Deepest level of a heading."""


_HYPERLINK = re.compile(r'HYPERLINK[ \t]{1,9}"([^"]{1,2000})"')


class OfficeDocument:
    """A document in a package."""

    def __init__(self, package: Package) -> None:
        self._package, self.album, self.page = package, Album(), 0

    @classmethod
    def read(cls, content: bytes) -> Converted:
        """Return the text of a file."""
        found, text, pages = cls(Package(content)), list[str](), list[int]()
        length = 0
        for block in filter(None, found.all_blocks()):
            pages += [length] if block.startswith("\f") else []
            text.append(block.removeprefix("\f") + "\n\n")
            length += len(text[-1])
        whole = "".join(text).rstrip("\n")
        return Converted(whole, pages, tuple(found.warnings()), found.album.pictures)

    def all_blocks(self) -> Iterator[str]:
        """Yield headers, body, footers, notes; each slide or sheet, a page, after a form feed."""
        raise NotImplementedError

    def warnings(self) -> Sequence[str]:
        """Return what was not read, when all blocks are."""
        return self.album.warnings

    def _show(self, part: str, caption: str) -> str:
        return self.album.add(self._package.read(part), part, caption.strip(), self.page)


class Drawing(OfficeDocument):
    """The text of parts of an Office file: paragraphs, tables, shapes, charts and pictures."""

    def __init__(self, package: Package) -> None:
        super().__init__(package)
        self._part = package.main()
        self._links = package.targets(self._part)
        self._counts: dict[int, int] = {}
        self._begun: dict[int, ListLevel] = {}
        self._styles: dict[str, Element] = {}
        self._described, self._address = "", ""

    def _read_part(
        self, part: str, *path: str, read: Callable[[Element], Iterable[str]] | None = None
    ) -> Iterator[str]:
        """Yield the blocks of a part, or of what stands at a path of names in it."""
        before, self._links = self._links, self._package.targets(part)
        root = child(self._package.parse(part), *path)
        if root is not None:
            yield from (read or self._blocks)(root)
        self._links = before

    def _part_of(self, entry: Element) -> str:
        """Return the part of a slide or sheet, by its entry in the list of all."""
        relation = next((value for key, value in entry.attrib.items() if key[:1] == "{"), "")
        return self._links.get(str(relation), ("", ""))[1]

    def _target(self, element: Element | None, *names: str) -> str:
        """Return the part or address that an element refers to by one of its attributes."""
        found = next(filter(None, (get(element, name) for name in names)), "")
        return self._links.get(found, ("", ""))[1]

    def _blocks(self, parent: Element) -> Iterator[str]:
        for element in parent:
            name = local(element)
            if name == "p":
                yield from self._paragraph(element)
            elif name == "tbl":
                yield self._table(element)
            elif name == "sp":
                yield from self._shape(element)
            elif name == "pic":
                part = self._target(child(element, "blipFill", "blip"), "embed")
                yield self._show(part, get(child(element, "nvPicPr", "cNvPr"), "descr"))
            elif name in {"chart", "relIds"}:
                yield _chart_text(self._package.parse(self._target(element, "dm", "id")))
            elif name in {"altChunk", "oleObj"}:
                self.album.objects += 1
            elif name == "AlternateContent":
                forms = ([*self._blocks(form)] for form in element)
                yield from next(filter(any, forms), [])
            elif name not in _LEFT_OUT:
                yield from self._blocks(element)

    def _shape(self, element: Element) -> Iterator[str]:
        place, self._counts = next(element.iter("{*}ph"), None), {}
        role = "" if place is None else get(place, "type", "body")
        text = "\n".join(filter(None, self._blocks(element)))
        if text and role not in _MARGINS:
            yield f"# {' '.join(text.split())}" if role in {"title", "ctrTitle"} else text

    def _paragraph(self, element: Element) -> Iterator[str]:
        boxes: list[str] = []
        text = write_scripts("".join(self._inline(element, boxes))).replace("\v", "\n").strip()
        settings = child(element, "pPr")
        at, numbered = _number(settings, "lvl"), child(settings, "buAutoNum")
        if numbered is None and child(settings, "buNone") is None:  # as the shape says
            style = child(element.getparent(), "lstStyle", f"lvl{at + 1}pPr")
            numbered = child(style, "buAutoNum")
        if text and numbered is None:
            self._counts = {key: count for key, count in self._counts.items() if key < at}
        elif text:
            level = _level_of_slide(numbered, at)
            if self._begun.get(at) != level:  # another kind of numbers begins anew
                self._counts.pop(at, None)
            self._begun[at] = level
            text = count_item({at: level}, at, self._counts) + text
        yield from filter(None, [text, *boxes])

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
            elif name in _FORMULAS and "/math}" in element.tag:
                yield _read_formula(element, partial(self._inline, boxes=boxes))
            elif name == "sym":
                yield symbol(get(element, "char"), get(element, "font"))
            elif name == "ffData":
                yield _form_field(element)
            elif name == "txbxContent":
                boxes += self._blocks(element)
            elif name in {"footnoteReference", "endnoteReference", "commentReference"}:
                mark = {"f": "^", "e": "^e", "c": "comment "}[name[0]]
                yield f"[{mark}{get(element, 'id')}]"
            elif name == "instrText":
                found = _HYPERLINK.search(element.text or "")
                self._address = found[1] if found else self._address
            elif name == "fldSimple":
                found = _HYPERLINK.search(get(element, "instr"))
                yield write_link("".join(self._inline(element, boxes)), found[1] if found else "")
            elif name == "fldChar" and get(element, "fldCharType") == "end":
                yield f" <{self._address}>" if self._address else ""
                self._address = ""
            elif name == "hyperlink":
                yield write_link("".join(self._inline(element, boxes)), self._target(element, "id"))
            elif name == "AlternateContent":
                yield from self._choose(element, boxes)
            elif name in {"docPr", "imagedata", "blip", "OLEObject", "control"}:
                yield from self._picture(element, name)
            elif name in {"chart", "relIds"}:
                boxes.append(_chart_text(self._package.parse(self._target(element, "id", "dm"))))
            elif name not in _LEFT_OUT:
                yield from self._inline(element, boxes)

    def _run(self, element: Element, boxes: list[str]) -> str:
        text, settings = "".join(self._inline(element, boxes)), child(element, "rPr")
        style = child(self._styles.get(get(child(settings, "rStyle"), "val")), "rPr")
        font = get(child(settings, "rFonts"), "ascii").lower()
        if font in TICKS:
            text = "".join(TICKS[font].get(ord(sign) & 0xFF, sign) for sign in text)
        raised = (get(child(place, "vertAlign"), "val") for place in (settings, style))
        baseline = get(settings, "baseline", "0")
        level = int(baseline) if baseline.lstrip("-").isdecimal() else 0
        text = raise_text(text, LEVELS.get(next(filter(None, raised), ""), level))
        address = self._target(child(settings, "hlinkClick"), "id")
        return write_link(text, address if ":" in address else "")

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
            described, self._described = self._described or get(element, "title"), ""
            yield self._show(self._target(element, "embed", "id"), described)
        else:
            self.album.objects += 1

    def _table(self, element: Element) -> str:
        def read(cell: Element) -> tuple[str, int, int]:
            width = _number(child(cell, "tcPr", "gridSpan"), "val", 1)
            return " ".join(self._blocks(cell)), width, 1

        rows = ([*map(read, _own(row, "tc", "tr"))] for row in _own(element, "tr", "tbl"))
        return write_table(spread_cells(rows))


def _own(parent: Element, name: str, kind: str) -> Iterator[Element]:
    """Yield the elements of a name whose nearest ancestor of a kind is this one."""
    for element in parent.iter(f"{{*}}{name}"):
        if next(element.iterancestors(f"{{*}}{kind}")) is parent:
            yield element


_MARGINS = {"sldNum", "dt", "hdr", "ftr", "sldImg"}
_AUTOMATIC = {"circle": "decimalEnclosedCircle", "ea1Ch": "chineseCounting"}
_AUTOMATIC |= {"alphaLc": STYLES["a"], "alphaUc": STYLES["A"]}
_AUTOMATIC |= {"romanLc": STYLES["i"], "romanUc": STYLES["I"]}
_ENCLOSING = {"Period": "%{}.", "ParenR": "%{})", "ParenBoth": "(%{})", "Minus": "%{} -"}


def _level_of_slide(element: Element, at: int) -> ListLevel:
    """Return how a paragraph of a slide on a level is numbered."""
    kind = get(element, "type")
    style = next((_AUTOMATIC[name] for name in _AUTOMATIC if kind.startswith(name)), "")
    text = next((_ENCLOSING[name] for name in _ENCLOSING if kind.endswith(name)), "%{}")
    return ListLevel(text.format(at + 1), style, _number(element, "startAt", 1))


class Word(Drawing):
    """The text of a DOCX, part by part."""

    def __init__(self, package: Package) -> None:
        super().__init__(package)
        self._parts = dict(self._links.values())
        styles = package.parse(self._parts.get("styles", "-"))
        for style in styles if styles is not None else ():
            self._styles[get(style, "styleId")] = style
        self._numbers = _Numbers(package.parse(self._parts.get("numbering", "-")))

    def all_blocks(self) -> Iterator[str]:
        """Yield headers, body, footers, notes and comments."""
        body = child(self._package.parse(self._part), "body")
        if body is None:
            raise ValueError("it has no text of its own, or is damaged")
        margins: dict[str, dict[str, None]] = {"headerReference": {}, "footerReference": {}}
        for reference in body.iter("{*}headerReference", "{*}footerReference"):
            text = "\n\n".join(self._read_part(self._target(reference, "id")))
            margins[local(reference)][text] = None
        yield from (*margins["headerReference"], *self._blocks(body), *margins["footerReference"])
        for kind, mark in (("footnotes", "^"), ("endnotes", "^e"), ("comments", "comment ")):
            notes = partial(self._notes, mark=mark)
            yield from self._read_part(self._parts.get(kind, ""), read=notes)

    def _notes(self, root: Element, mark: str) -> Iterator[str]:
        for note in root:
            text = " ".join(self._blocks(note)).strip()
            if text and get(note, "type") not in {"separator", "continuationSeparator"}:
                author = get(note, "author")
                yield f"[{mark}{get(note, 'id')}]: {author + ': ' if author else ''}{text}"

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


LEVELS = {"superscript": 1, "subscript": -1}


def _form_field(element: Element) -> str:
    """Return what a field of a form shows that is no text: a tick, or what was chosen."""
    box, choices = child(element, "checkBox"), child(element, "ddList")
    field = choices if box is None else box
    settings = (child(field, name) for name in ("checked", "result", "default"))
    setting = next((get(at, "val", "1") for at in settings if at is not None), "0")
    if box is not None:
        return "\u2610" if setting in _OFF else "\u2612"
    entries = [*choices.iter("{*}listEntry")] if choices is not None else []
    at = int(setting) if setting.isdecimal() else 0
    return get(entries[at], "val") if at < len(entries) else ""


_OFF = {"0", "false", "off"}


class _Numbers:
    """The numbers of paragraphs, counted as they are shown."""

    def __init__(self, root: Element | None) -> None:
        self._used: dict[str, tuple[str, dict[int, Element], dict[int, int]]] = {}
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        lists = dict[str, dict[int, Element]]()
        links, named = dict[str, str](), dict[str, str]()  # lists by the style that they take
        for element in root if root is not None else ():
            name = get(element, "abstractNumId")
            if local(element) == "abstractNum":
                inner = (level for level in element if local(level) == "lvl")
                lists[name] = {_number(level, "ilvl"): level for level in inner}
                links[name] = get(child(element, "numStyleLink"), "val")
                named[get(child(element, "styleLink"), "val")] = name
            elif local(element) == "num":
                name = get(child(element, "abstractNumId"), "val")
                name = named.get(links.get(name) or "-", name)
                levels, begins = {**lists.get(name, {})}, dict[int, int]()
                for own in element:
                    if (level := child(own, "lvl")) is not None:
                        levels[_number(own, "ilvl")] = level
                    if (begin := child(own, "startOverride")) is not None:
                        begins[_number(own, "ilvl")] = _number(begin, "val", 1)
                self._used[get(element, "numId")] = name, levels, begins

    def label(self, places: Sequence[Element | None], styles: Collection[str]) -> str:
        """Count a paragraph, and return its number or "-"; empty if it has none.

        `places` are its settings, and those of the styles of these names that it is based on.
        """
        settings = [child(place, "numPr") for place in places]
        used, depth = (
            next(filter(None, (get(child(at, name), "val") for at in settings)), "")
            for name in ("numId", "ilvl")
        )
        name, levels, begins = self._used.get(used, ("", {}, {}))
        fitting = (at for at in levels if get(child(levels[at], "pStyle"), "val") in styles)
        at = int(depth) if depth.isdecimal() else next(fitting, 0)
        if at not in levels:
            return ""
        if at in begins:  # once
            self._counts[name][at] = begins.pop(at) - 1
        shown = {key: _level_of_word(level, key) for key, level in levels.items()}
        return count_item(shown, at, self._counts[name])


def _level_of_word(element: Element, at: int) -> ListLevel:
    style = get(child(element, "numFmt"), "val")
    return ListLevel(
        "-" if style == "bullet" else get(child(element, "lvlText"), "val"),
        style,
        _number(child(element, "start"), "val", 1),
        _number(child(element, "lvlRestart"), "val", at),
        child(element, "isLgl") is not None,
    )


def _number(element: Element | None, name: str, default: int = 0) -> int:
    value = get(element, name)
    return int(value) if value.isdecimal() else default


class Slides(Drawing):
    """The text of a PPTX, slide by slide, with notes and comments."""

    def all_blocks(self) -> Iterator[str]:
        """Yield the blocks of each slide."""
        order = child(self._package.parse(self._part), "sldIdLst")
        for slide in order if order is not None else ():
            self.page += 1
            yield from self._slide(self._part_of(slide))

    def _slide(self, part: str) -> Iterator[str]:
        shown = get(self._package.parse(part), "show", "1")
        yield f"\f<!-- Slide number: {self.page}{' (hidden)' if shown in _OFF else ''} -->"
        yield from self._read_part(part, "cSld", "spTree")
        for kind, target in self._package.targets(part).values():
            if kind == "notesSlide":
                notes = "\n".join(filter(None, self._read_part(target, "cSld", "spTree")))
                yield f"Notes: {notes}" if notes else ""
            elif kind == "comments":
                root = self._package.parse(target)
                for text in root.iter("{*}text", "{*}t") if root is not None else ():
                    yield f"Comment: {text.text}" if text.text else ""


class OpenDocument(OfficeDocument):
    """The text of an ODT, ODS or ODP, also of one that is a single file of XML."""

    def __init__(self, package: Package) -> None:
        super().__init__(package)
        self._levels: dict[str, int] = {}
        self._hidden: set[str] = set()
        self._lists: dict[str, dict[int, ListLevel]] = {}
        self._counted: dict[str, dict[int, int]] = defaultdict(dict)
        self._style, self._depth, self._counts, self._label = "", -1, dict[int, int](), ""

    def all_blocks(self) -> Iterator[str]:
        """Yield headers, body and footers."""
        manifest = self._package.parse("META-INF/manifest.xml")
        if manifest is not None and next(manifest.iter("{*}encryption-data"), None) is not None:
            raise PasswordError
        body = child(self._package.parse("content.xml"), "body")
        if body is None:
            raise ValueError("it has no text of its own, or is damaged")
        styles = self._package.parse("styles.xml")
        for root in (styles, body.getparent()):
            if root is not None:
                self._learn_styles(root)
        margins: dict[str, list[str]] = {"header": [], "footer": []}
        for margin in styles.iter("{*}header", "{*}footer") if styles is not None else ():
            margins[local(margin)] += self._blocks(margin)
        yield from (*margins["header"], *self._blocks(body), *margins["footer"])

    def _learn_styles(self, root: Element) -> None:
        for style in root.iter("{*}style"):
            name = get(style, "name")
            position = get(child(style, "text-properties"), "text-position").split(" ")[0]
            self._levels[name] = _POSITIONS.get(position.strip("0123456789%"), 0)
            shown = get(child(style, "table-properties"), "display")
            seen = get(child(style, "drawing-page-properties"), "visibility")
            if shown == "false" or seen == "hidden":
                self._hidden.add(name)
        for style in root.iter("{*}list-style", "{*}outline-style"):
            name = get(style, "name") if local(style) == "list-style" else _OUTLINE
            self._lists[name] = {_number(at, "level", 1) - 1: _list_level(at) for at in style}

    def _blocks(self, parent: Element) -> Iterator[str]:
        for element in parent:
            name = local(element)
            if name in {"p", "h"}:
                yield from self._paragraph(element, name)
            elif name == "list":
                yield from self._list(element)
            elif name == "table":
                is_sheet = local(parent) == "spreadsheet"
                heading = f"\f## {get(element, 'name')}{self._say_hidden(element)}\n\n"
                yield heading * is_sheet + self._table(element)
            elif name == "page":
                self.page += 1
                yield f"\f<!-- Slide number: {self.page}{self._say_hidden(element)} -->"
                yield from self._blocks(element)
            elif name == "image":
                yield self._picture(element)
            elif name in {"object", "object-ole"}:
                yield from self._object(element)
            elif name not in _LEFT_OUT:
                yield from self._blocks(element)

    def _say_hidden(self, element: Element) -> str:
        return " (hidden)" if get(element, "style-name") in self._hidden else ""

    def _paragraph(self, element: Element, name: str) -> Iterator[str]:
        boxes: list[str] = []
        level = min(_number(element, "outline-level", 1), _DEEPEST) if name == "h" else 0
        outline = self._lists.get(_OUTLINE, {})
        label, self._label = self._label, ""
        if not label and level - 1 in outline and get(element, "is-list-header") != "true":
            label = count_item(outline, level - 1, self._counted[_OUTLINE])
        text = write_scripts(self._inline(element, boxes)).strip()
        yield f"{'#' * level} {label}{text}".lstrip(" ") if text else ""
        yield from boxes

    def _list(self, element: Element) -> Iterator[str]:
        before = self._style, self._depth, self._counts
        style = get(element, "style-name") or self._style
        if self._depth < 0:
            goes_on = style if get(element, "continue-numbering") == "true" else ""
            counts = self._counted[get(element, "continue-list") or goes_on]
            self._counts = counts if get(element, "continue-list") or goes_on else {}
            self._counted[get(element, "id")] = self._counted[style] = self._counts
        self._style, self._depth = style, self._depth + 1
        levels = self._lists.get(style, {})
        for item in element:
            if local(item) == "list-item" and self._depth in levels:
                begin = _number(item, "start-value", -1)
                if begin >= 0:
                    self._counts[self._depth] = begin - 1
                self._label = count_item(levels, self._depth, self._counts)
            yield from self._blocks(item)
            self._label = ""
        self._style, self._depth, self._counts = before

    def _object(self, element: Element) -> Iterator[str]:
        """Yield what a document within the document says, such as the values of a chart."""
        part = f"{get(element, 'href').removeprefix('./')}/content.xml"
        content = self._package.read(part)
        body = child(parse_xml(content, part), "body") if content else None
        if body is None:
            self.album.objects += 1
        else:
            yield from self._blocks(body)

    def _picture(self, element: Element) -> str:
        named = element.getparent().iter("{*}desc", "{*}title")
        caption = next((at.text for at in named if at.text), "")
        return self._show(get(element, "href").removeprefix("./"), caption)

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
            elif name == "a":
                pieces.append(write_link(self._inline(found, boxes), get(found, "href")))
            elif name not in _LEFT_OUT:
                level = self._levels.get(get(found, "style-name"), 0) if name == "span" else 0
                pieces.append(raise_text(self._inline(found, boxes), level))
            pieces.append(found.tail or "")
        return "".join(pieces)

    def _table(self, element: Element) -> str:
        rows, number, hidden = list[list[str]](), 0, list[int]()
        for row in _own(element, "table-row", "table"):
            cells: list[str] = []
            for cell in row:
                if local(cell) in {"table-cell", "covered-table-cell"}:
                    times = min(_number(cell, "number-columns-repeated", 1), MOST_REPEATED)
                    cells += [" ".join(self._blocks(cell)) or _value(cell)] * times
            number += (times := _number(row, "number-rows-repeated", 1))
            if any(cells):
                times = min(times, MOST_REPEATED)
                rows += [cells] * times
                is_hidden = get(row, "visibility") in _COLLAPSED
                hidden += range(number - times + 1, number + 1) if is_hidden else ()
        return "\n\n".join(filter(None, [write_table(rows), name_hidden(hidden)]))


_POSITIONS = {"super": 1, "sub": -1, "-": -1}
_COLLAPSED = {"collapse", "filter"}
_OUTLINE = "\n"
"""Stands for the numbers of headings in the place of a name, which has no line end."""


def _list_level(element: Element) -> ListLevel:
    """Return how a list of OpenDocument numbers a level."""
    style, at = get(element, "num-format"), _number(element, "level", 1)
    numbers = range(at - _number(element, "display-levels", 1) + 1, at + 1)
    text = ".".join(f"%{number}" for number in numbers) if style else ""
    text = f"{get(element, 'num-prefix')}{text}{get(element, 'num-suffix')}"
    text = "-" if "bullet" in local(element) else text.strip()
    return ListLevel(text, STYLES.get(style, ""), _number(element, "start-value", 1))


def _value(cell: Element) -> str:
    """Return the value of a cell that does not say how it is shown."""
    values = (get(cell, f"{kind}value") for kind in ("", "date-", "time-", "boolean-", "string-"))
    return next(filter(None, values), "")
