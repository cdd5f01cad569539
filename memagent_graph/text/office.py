"""Read Office and OpenDocument files from the XML of their parts: all that they show, in order."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from openpyxl.styles.numbers import is_date_format, is_timedelta_format
from openpyxl.utils.datetime import WINDOWS_EPOCH, from_excel

from memagent_graph.pictures import write_mark
from memagent_graph.text import notation
from memagent_graph.text.package import (
    Block,
    OfficeDocument,
    Package,
    child,
    get,
    get_integer,
    local,
    own_parts,
    split_blocks,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from memagent_graph.text.package import Element

_FORMULAS = {"acc", "bar", "borderBox", "d", "eqArr", "f", "func", "groupChr", "limLow", "limUpp"}
_FORMULAS |= {"m", "nary", "oMathPara", "phant", "rad", "sPre", "sSub", "sSubSup", "sSup"}
_STRIKES = [f"{{*}}strike{line}" for line in ("H", "V", "BLTR", "TLBR")]
_ACCENTS = {"acc": "^", "bar": "_", "groupChr": "\u23df"}


def _read_formula(element: Element, inline: Callable[[Element], Iterable[str]]) -> str:
    name, settings = local(element), child(element, f"{local(element)}Pr")
    inner = [part for part in element if part is not settings]
    rows = [part if name == "m" else [part] for part in inner]
    parts = [" ".join("".join(inline(cell)) for cell in row) for row in rows]
    if name == "d":
        signs = (("begChr", "("), ("sepChr", "|"), ("endChr", ")"))
        begin, between, end = (get(child(settings, key), "val", usual) for key, usual in signs)
        return f"{begin}{between.join(parts)}{end}"
    if name == "nary":
        said = {"sub": "", "sup": "", "e": "", **dict(zip(map(local, inner), parts, strict=True))}
        bounded = [get(child(settings, "chr"), "val", "\u222b"), said["sub"], said["sup"]]
        return f"{notation.write_formula('sSubSup', bounded)} {said['e']}"
    if name in _ACCENTS:
        is_line = name == "bar" and value_of(settings, "pos") == "top"
        usual = "\u203e" if is_line else _ACCENTS[name]
        parts.append(get(child(settings, "chr"), "val", usual))
        name = "acc"
    if name in {"borderBox", "phant"}:
        is_struck = next(element.iter(*_STRIKES), None) is not None
        shown = "".join(parts) * (value_of(settings, "show") not in OFF)
        return notation.strike_text(shown) if is_struck else shown
    return notation.write_formula("noBar" if value_of(settings, "type") == "noBar" else name, parts)


def _points(part: Element) -> list[str]:
    found, formats = dict[int, str](), part.iter("{*}formatCode")
    number_format = next((code.text for code in formats if code.text), "")
    for point in part.iter("{*}pt"):
        value = child(point, "v")
        said = point if value is None else value
        own = get(point, "formatCode") or number_format
        found[get_integer(point, "idx", len(found))] = show_number(said.text or "", own)
    if not found:
        return [value.text for value in part.iter("{*}v") if value.text]
    return [found.get(at, "") for at in range(min(max(found) + 1, notation.MOST_REPEATED))]


def show_number(text: str, number_format: str, epoch: datetime = WINDOWS_EPOCH) -> str:
    """Return a number of a cell or chart as its format shows it; other text as it is."""
    with suppress(ArithmeticError, ValueError):  # no number, or one that no format shows
        number = float(text) if {*text} & set(".eE") else int(text)
        if number_format and _is_date(number_format):
            day = from_excel(number, epoch, _is_span(number_format))
            return notation.show_value(day, number_format)
        return notation.show_value(number, number_format) if number_format else text
    return text


_is_date, _is_span = cache(is_date_format), cache(is_timedelta_format)


SIGNS = {"noBreakHyphen": "-", "ptab": "\t", "s": " ", "tab": "\t"}
SIGNS |= dict.fromkeys(("br", "cr", "line-break"), "\n")
LEFT_OUT = {
    "del", "moveFrom", "rPr", "pPr", "tblPr", "tcPr", "trPr", "sectPr",
    "sdtPr", "Fallback", "tblGrid", "proofErr", "tracked-changes", "forms",
}  # fmt: skip
DEEPEST = 6  # deepest level of a heading


class Drawing(OfficeDocument):
    """The text of parts of an Office file: paragraphs, tables, shapes, charts and pictures."""

    def __init__(self, package: Package) -> None:
        super().__init__(package)
        self._part = package.main()
        self._links = package.targets(self._part)
        self._counts, self._begun = dict[int, int](), dict[int, notation.ListLevel]()
        self._styles, self._margins = dict[str, Any](), set[str]()
        self._described, self._fields, self._ticks = "", list[str](), dict[str, str]()
        self._noted: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._layouts, self._usual = list[Any](), list[Any]()  # of a slide, of its lists

    def _read_part(self, part: str, *path: str) -> Iterator[str]:
        before, self._links = self._links, self._package.targets(part)
        root = child(self._package.parse(part), *path)
        if root is not None:
            yield from self._blocks(root)
        self._links = before

    def _chart(self, part: str) -> Iterator[str]:
        root, words = self._package.parse(part), dict[str, None]()
        if root is None:
            return
        for at in root.iter("{*}p", "{*}title", "{*}txData"):
            said = self._walk(at) if local(at) == "p" else (v.text or "" for v in at.iter("{*}v"))
            words[notation.write_scripts("".join(said)).strip()] = None
        rows = list[list[str]]()
        for series in root.iter("{*}ser", "{*}data"):
            name = " ".join(point for tx in series.iter("{*}tx") for point in _points(tx))
            for inner in (inner for inner in series if local(inner) != "tx"):
                is_value = local(inner) in {"bubbleSize", "numDim", "val", "yVal"}
                for level in [*inner.iter("{*}lvl")] or [inner]:  # of categories in categories
                    row = [name if is_value else "", *_points(level)]
                    if row[1:] and (is_value or row not in rows):
                        rows.append(row)
        found = [" | ".join(filter(None, words)), notation.write_table(rows)]
        yield "\n\n".join(filter(None, found))
        for kind, target in self._package.targets(part).values():
            if kind == "chartUserShapes":
                yield from self._read_part(target)

    def _target(self, element: Element | None, *names: str) -> str:
        given = {} if element is None else element.attrib  # a slide has an "id" of its own, too
        ids = {key.rpartition("}")[2]: value for key, value in given.items() if key[0] == "{"}
        return self._links.get(next(filter(None, map(ids.get, names)), ""), ("", ""))[1]

    def _shape(self, element: Element) -> Iterator[str]:
        place, self._counts = next(element.iter("{*}ph"), None), {}
        role = "" if place is None else get(place, "type", "body")
        self._usual = [] if place is None else [*self._styles_of(place, role)]
        text = "\n".join(self._blocks(element))
        text = self._ticks.get(get(next(element.iter("{*}cNvPr"), None), "id"), "") + text
        known = self._margins if role in _MARGINS else set[str]()
        if text and role != "sldNum" and text not in known:
            known.add(text)
            yield f"# {' '.join(text.split())}" if role in _TITLES else text

    def _styles_of(self, place: Element, role: str) -> Iterator[Element]:
        for root, key in zip(self._layouts, ("idx", "type"), strict=False):
            own = get(place, key, _USUALLY[key])
            for one in root.iter("{*}ph") if root is not None else ():
                if get(one, key, _USUALLY[key]) == own:
                    yield child(next(one.iterancestors("{*}sp"), None), "txBody", "lstStyle")
            if role not in _TITLES | _MARGINS:
                yield child(root, "txStyles", "bodyStyle")

    def _paragraph(self, element: Element, text: str) -> str:
        settings = child(element, "pPr")
        at = get_integer(settings, "lvl")
        if not text:  # which has no number
            return ""
        styles = (child(element.getparent(), "lstStyle"), *self._usual)
        places = (settings, *(child(style, f"lvl{at + 1}pPr") for style in styles))
        marks = (mark for place in places if place is not None for mark in place)
        numbered = next((mark for mark in marks if local(mark) in _BULLETS), None)
        if numbered is None or local(numbered) != "buAutoNum":
            self._counts = {key: count for key, count in self._counts.items() if key < at}
            return text
        first = get_integer(numbered, "startAt", 1)
        level = notation.level_of_slide(get(numbered, "type"), first, at)
        if self._begun.get(at) != level:  # another kind of numbers begins anew
            self._counts.pop(at, None)
        self._begun[at] = level
        return notation.count_item({at: level}, at, self._counts) + text

    def _walk(self, parent: Element) -> Iterator[str]:  # noqa: C901, PLR0912, PLR0915 - a list
        for element in parent:
            name = local(element)
            if name == "t" or name in SIGNS:
                yield SIGNS.get(name) or element.text or ""
            elif name == "r":
                yield from self._run(element)
            elif name == "p":
                text, blocks = split_blocks(self._walk(element))
                text = notation.write_scripts(text).replace("\v", "\n").strip()
                yield Block(self._paragraph(element, text))
                yield from blocks
            elif name == "tbl":
                yield Block(self._table(element))
            elif name == "sp":
                yield from map(Block, self._shape(element))
            elif name in _FORMULAS and "/math}" in element.tag:
                yield _read_formula(element, self._walk)
            elif name in _DRAWN:
                yield _DRAWN[name](element)
            elif name in _NOTES:
                yield from map(Block, self._note(element, name))
            elif name.endswith("Reference") and name[:-9] in _NOTES:
                yield f"[{self._mark(element, name[:-9])}]"
            elif name == "instrText":
                self._fields[-1:] = ["".join([*self._fields[-1:], element.text or ""])]
            elif name == "fldChar":
                yield self._field(get(element, "fldCharType"))
                yield from self._walk(element)
            elif name == "ruby":
                for part in sorted(element, key=local, reverse=True):  # the base before its `rt`
                    text = "".join(self._walk(part))
                    yield notation.write_ruby(text) if local(part) == "rt" else text
            elif name in {"fldSimple", "hyperlink"}:
                found = notation.HYPERLINK.search(get(element, "instr"))
                text, blocks = split_blocks(self._walk(element))
                yield notation.write_link(text, found[1] if found else self._target(element, "id"))
                yield from blocks
            elif name == "AlternateContent":  # forms of the same content
                forms = ([*self._walk(form)] for form in element)
                yield from next((form for form in forms if "".join(form).strip()), ())
            elif name in {"altChunk", "objectEmbed", "OLEObject", "oleObj", "subDoc"}:
                yield Block(self._read_embedded(self._target(element, "id")))
            elif name == "hlinkClick" and local(parent) in {"cNvPr", "docPr"}:
                address = self._target(element, "id")
                yield Block(f"<{address}>" if ":" in address else "")
            elif name == "control":
                self.album.objects += 1
            elif name in {"blip", "docPr", "imagedata", "pic"}:
                yield from self._picture(element, name)
            elif name in {"chart", "relIds"}:
                yield from map(Block, self._chart(self._target(element, "id", "dm")))
            elif name not in LEFT_OUT:
                yield from self._walk(element)

    def _mark(self, note: Element, kind: str) -> str:
        """Return the mark of a note, with its number as it is shown, or of a reference to it."""
        name, numbers = get(note, "id"), self._noted[kind]
        if local(note) != kind and kind != "comment" and not get(note, "customMarkFollows"):
            numbers.setdefault(name, len(numbers) + 1)
        other = name if kind == "comment" else f"*{name}"
        return f"{_NOTES[kind]}{numbers.get(name, other)}"

    def _note(self, note: Element, kind: str) -> Iterator[str]:
        text = " ".join(self._blocks(note)).strip()
        if text and get(note, "type") not in {"separator", "continuationSeparator"}:
            author = get(note, "author")
            yield f"[{self._mark(note, kind)}]: {author + ': ' if author else ''}{text}"

    def _field(self, event: str) -> str:
        if event == "begin":
            self._fields.append("")
        code = self._fields.pop() if event == "end" and self._fields else ""
        if {*code.upper().split()[:1]} & _UNWRITTEN:
            self.album.objects += 1
            return code
        address = notation.HYPERLINK.search(code)
        return f" <{address[1]}>" if address else ""

    def _run(self, element: Element) -> Iterator[str]:
        (text, blocks), settings = split_blocks(self._walk(element)), child(element, "rPr")
        styles = self._style_chain(value_of(settings, "rStyle"))
        places = [settings, *(child(style, "rPr") for style in styles)]
        named = (get(child(place, "rFonts"), key) for place in places for key in ("ascii", "hAnsi"))
        font = next(filter(None, named), get(child(settings, "latin"), "typeface"))
        text = text.translate(notation.SIGNS.get(font.lower(), {}))
        drawn = notation.SIGNS.get(get(child(settings, "sym"), "typeface").lower(), {})  # arrows
        text = text.translate({code: drawn[code] for code in drawn if not chr(code).isascii()})
        raised = next(filter(None, (value_of(place, "vertAlign") for place in places)), "")
        level = get_integer(settings, "baseline") or get_integer(child(settings, "position"), "val")
        marks = [child(place, name) for name in ("strike", "dstrike") for place in places]
        first = next((get(mark, "val", "1") for mark in marks if mark is not None), "0")
        if first not in OFF or get(settings, "strike", "noStrike") != "noStrike":
            text = notation.strike_text(text)
        text = notation.raise_text(text, LEVELS.get(raised, level))
        address = self._target(child(settings, "hlinkClick"), "id")
        yield notation.write_link(text, address if ":" in address else "")
        yield from blocks

    def _style_chain(self, name: str) -> Iterator[Element]:
        seen = set()
        while name in self._styles and name not in seen:
            seen.add(name)
            yield self._styles[name]
            name = value_of(self._styles[name], "basedOn")

    def _picture(self, element: Element, name: str) -> Iterator[str]:
        if name == "docPr":
            described = get(element, "descr").strip()
            if next(element.getparent().iter("{*}blip"), None) is not None:
                self._described = described
            else:
                yield write_mark(described) if described else ""  # of a chart
                yield from self._walk(element)
        elif name == "pic":
            self._described = self._described or get(child(element, "nvPicPr", "cNvPr"), "descr")
            yield from self._walk(element)
        else:
            described, self._described = self._described or get(element, "title"), ""
            yield self._show(self._target(element, "embed", "id"), described)

    def _table(self, element: Element) -> str:
        rows = []
        for row in own_parts(element, "tr", "tbl"):
            before = get_integer(child(row, "trPr", "gridBefore"), "val")
            rows.append([("", before, 1)] * bool(before))
            for cell in own_parts(row, "tc", "tr"):
                width = get_integer(child(cell, "tcPr", "gridSpan"), "val", 1)
                rows[-1].append((" ".join(self._blocks(cell)), width, 1))
        return notation.write_table(notation.spread_cells(rows))


_TITLES, _MARGINS = {"title", "ctrTitle"}, {"dt", "hdr", "ftr"}
_USUALLY = {"idx": "0", "type": "body"}
_UNWRITTEN = {"AUTONUM", "AUTONUMLGL", "AUTONUMOUT", "EQ", "LISTNUM", "MACROBUTTON"}
"""Fields that have no result, since Word draws them."""
_NOTES = {"footnote": "^", "endnote": "^e", "comment": "comment "}
_BULLETS = {"buAutoNum", "buBlip", "buChar", "buNone"}


class Word(Drawing):
    """The text of a DOCX, part by part."""

    def __init__(self, package: Package) -> None:
        super().__init__(package)
        self._parts = dict(self._links.values())
        for style in package.find(self._parts.get("styles", "-"), "style"):
            self._styles[get(style, "styleId")] = style
        numbering = self._parts.get("numbering", "-")
        self._numbers = _Numbers(package.find(numbering, "abstractNum", "num"))

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
        for kind in _NOTES:
            yield from self._read_part(self._parts.get(f"{kind}s", ""))

    def _paragraph(self, element: Element, text: str) -> str:
        settings = child(element, "pPr")
        chain = self._style_chain(value_of(settings, "pStyle"))
        named = {get(style, "styleId"): child(style, "pPr") for style in chain}
        is_gone = not text and child(settings, "rPr", "del") is not None
        label = "" if is_gone else self._numbers.label([settings, *named.values()], named)
        level = self._level(settings, [*named.values()])
        shown = f"{'#' * level} {label}{' '.join(text.split())}" if level else f"{label}{text}"
        return shown if text else ""  # its number counts

    def _level(self, settings: Element | None, styles: Sequence[Element | None]) -> int:
        name = value_of(settings, "pStyle")
        title = (value_of(self._styles.get(name), "name") or name).lower().replace(" ", "")
        if title.startswith("heading") and title[7:].isdigit():
            return min(int(title[7:]), DEEPEST)
        if title == "title":
            return 1
        for place in (settings, *styles):
            if (level := child(place, "outlineLvl")) is not None:
                number = get_integer(level, "val", DEEPEST)
                return number + 1 if number < DEEPEST else 0
        return 0


def _form_field(element: Element) -> str:
    box, choices = child(element, "checkBox"), child(element, "ddList")
    field = choices if box is None else box
    settings = (child(field, name) for name in ("checked", "result", "default"))
    setting = next((get(at, "val", "1") for at in settings if at is not None), "0")
    if box is not None:
        return "\u2610" if setting in OFF else "\u2612"
    entries = [] if choices is None else [get(at, "val") for at in choices.iter("{*}listEntry")]
    return "".join(entries[notation.as_integer(setting, 0) :][:1])


_DRAWN: dict[str, Callable[[Element], str]] = {
    "ffData": _form_field,
    "sym": lambda element: notation.symbol(get(element, "char"), get(element, "font")),
    "textpath": lambda element: get(element, "string"),
}
OFF, LEVELS = {"0", "false", "off"}, {"superscript": 1, "subscript": -1}


class _Numbers:
    def __init__(self, elements: Iterable[Element]) -> None:
        self._used: dict[str, tuple[str, dict[int, Element], dict[int, int]]] = {}
        self._counts: defaultdict[str, dict[int, int]] = defaultdict(dict)
        lists = dict[str, dict[int, Any]]()
        links, named = dict[str, str](), dict[str, str]()  # lists by the style that they take
        for element in elements:
            name = get(element, "abstractNumId")
            if local(element) == "abstractNum":
                inner = (level for level in element if local(level) == "lvl")
                lists[name] = {get_integer(level, "ilvl"): level for level in inner}
                links[name] = value_of(element, "numStyleLink")
                named[value_of(element, "styleLink")] = name
            else:
                name = value_of(element, "abstractNumId")
                name = named.get(links.get(name) or "-", name)
                levels, begins = {**lists.get(name, {})}, dict[int, int]()
                for own in element:
                    if (level := child(own, "lvl")) is not None:
                        levels[get_integer(own, "ilvl")] = level
                    if (begin := child(own, "startOverride")) is not None:
                        begins[get_integer(own, "ilvl")] = get_integer(begin, "val", 1)
                self._used[get(element, "numId")] = name, levels, begins

    def label(self, places: Sequence[Element | None], styles: Collection[str]) -> str:
        """Count a paragraph, and return its number or "-"; empty if it has none.

        `places` are its settings, and those of the styles of these names that it is based on.
        """
        named = ((value_of(at, "numPr", name) for at in places) for name in ("numId", "ilvl"))
        used, depth = (next(filter(None, found), "") for found in named)
        name, levels, begins = self._used.get(used, ("", {}, {}))
        fitting = (at for at in levels if value_of(levels[at], "pStyle") in styles)
        at = notation.as_integer(depth, -1) if depth else next(fitting, 0)
        if at not in levels:
            return ""
        if at in begins:  # once
            self._counts[name][at] = begins.pop(at) - 1
        shown = {key: _level_of_word(level, key) for key, level in levels.items()}
        begun = {key: level.start for key, level in shown.items() if key < at}
        self._counts[name] = {**begun, **self._counts[name]}  # a level that is passed over counts
        return notation.count_item(shown, at, self._counts[name])


def _level_of_word(element: Element, at: int) -> notation.ListLevel:
    number = next(element.iter("{*}numFmt"), None)  # or forms of one
    style = get(number, "format") or get(number, "val")
    return notation.ListLevel(
        "-" if style == "bullet" else value_of(element, "lvlText"),
        style,
        get_integer(child(element, "start"), "val"),
        get_integer(child(element, "lvlRestart"), "val", at),
        child(element, "isLgl") is not None,
    )


class Slides(Drawing):
    """The text of a PPTX, slide by slide, with notes and comments."""

    def all_blocks(self) -> Iterator[str]:
        """Yield the blocks of each slide."""
        for slide in self._package.find(self._part, "sldId"):
            self.page += 1
            yield from self._slide(self._target(slide, "id"))

    def _slide(self, part: str) -> Iterator[str]:
        above, self._layouts = part, []
        for kind in ("slideLayout", "slideMaster"):
            above = dict(self._package.targets(above).values()).get(kind, "-")
            self._layouts.append(self._package.parse(above))
        shown = get(self._package.parse(part), "show", "1")
        yield f"\f<!-- Slide number: {self.page}{' (hidden)' if shown in OFF else ''} -->"
        yield from self._read_part(part, "cSld", "spTree")
        roots = [] if get(self._package.parse(part), "showMasterSp") in OFF else self._layouts
        shapes = (shape for root in roots if root is not None for shape in root.iter("{*}sp"))
        own = (shape for shape in shapes if next(shape.iter("{*}ph"), None) is None)
        fixed = dict.fromkeys(text for shape in own for text in self._shape(shape))
        yield from (text for text in fixed if text not in self._margins)
        self._margins |= {*fixed}
        self._layouts = []
        for kind, target in self._package.targets(part).values():
            if kind == "notesSlide":
                notes = "\n".join(self._read_part(target, "cSld", "spTree"))
                yield f"Notes: {notes}" if notes else ""
            elif kind == "comments":
                for found in self._package.find(target, "text", "p"):
                    said = "".join(filter(None, (at.text for at in found.iter("{*}t", "{*}text"))))
                    yield f"Comment: {said}" if said else ""
