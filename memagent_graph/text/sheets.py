"""Read workbooks with the cells as their number formats show them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from openpyxl.formula.translate import Translator
from openpyxl.styles.numbers import BUILTIN_FORMATS
from openpyxl.utils.cell import column_index_from_string
from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH, from_ISO8601
from openpyxl.utils.escape import unescape

from memagent_graph.templates import plural
from memagent_graph.text import notation
from memagent_graph.text.office import LEVELS, Drawing, show_number
from memagent_graph.text.package import child, get, get_integer, local, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memagent_graph.text.package import Package


class Workbook(Drawing):
    """The cells of a workbook, from the XML of its parts; each sheet is a page.

    A library that reads the whole workbook refuses one with a blemish in a style or property. A
    formula without a stored value, as programs write it, is shown itself.
    """

    def __init__(self, package: Package) -> None:
        super().__init__(package)
        parts = dict(self._links.values())
        strings = parts.get("sharedStrings", "xl/sharedStrings.xml")
        self._strings = [*map(_rich_text, package.stream(strings, "si"))]
        self._formats = [*_formats(package, parts.get("styles", "-"))]
        since = [get(at, "date1904") for at in package.find(self._part, "workbookPr")]
        self._epoch = MAC_EPOCH if {"1", "true"} & {*since} else WINDOWS_EPOCH
        self._unknown, self._shared = 0, dict[str, tuple[str, str]]()

    def all_blocks(self) -> Iterator[str]:
        """Yield the blocks of each sheet, with its name as the heading."""
        for sheet in self._package.find(self._part, "sheet"):
            hidden = " (hidden)" if get(sheet, "state", "visible") != "visible" else ""
            yield f"\f## {get(sheet, 'name')}{hidden}"
            yield from self._sheet(self._target(sheet, "id"))
        formulas = plural(self._unknown, "formula")
        said = f"did not compute {formulas}: save the file in a spreadsheet program."
        self.album.said += [said] if self._unknown else []

    def _sheet(self, part: str) -> Iterator[str]:
        rows, hidden, margins = dict[int, list[str]](), list[int](), dict[str, None]()
        links, at, unseen, self._ticks = self._package.targets(part), 0, list[range](), {}
        for element in self._package.stream(part, *_READ):
            is_hidden = get(element, "hidden") in {"1", "true"}
            if local(element) == "col":
                span = range(get_integer(element, "min"), get_integer(element, "max") + 1)
                unseen += [span] * is_hidden
            elif local(element) == "control":
                control = self._package.parse(links.get(get(element, "id"), ("", "-"))[1])
                tick = "\u2612 " if get(control, "checked") == "Checked" else "\u2610 "
                is_box = get(control, "objectType") in {"CheckBox", "Radio"}
                self._ticks[get(element, "shapeId")] = tick * is_box
            elif local(element) == "headerFooter":
                margins |= dict.fromkeys(_CODES.sub(" ", said.text or "") for said in element)
            elif local(element) == "hyperlink":
                column, row = _split(get(element, "ref"), 0)
                if column < len(cells := rows.get(row, [])):
                    address = links.get(get(element, "id"), ("", ""))[1]
                    cells[column] = notation.write_link(cells[column], address)
            else:
                at = get_integer(element, "r", at + 1)
                rows[at] = self._row(element)
                hidden += [at] * (is_hidden and any(rows[at]))
        yield notation.write_sheet(rows, hidden, unseen)
        yield from (" ".join(said.split()) for said in margins)
        comments = _comments_of(self._package, part)
        yield from (f"Comment on {cell}: {said}" for cell, said in comments.items())
        for kind, target in links.values():
            if kind == "drawing":
                yield from self._read_part(target)
            elif kind in {"oleObject", "package"}:
                yield self._read_embedded(target)

    def _row(self, row: Any) -> list[str]:
        cells: list[str] = []
        for cell in row.iter("{*}c"):
            column, _ = _split(cell.get("r", ""), len(cells))
            cells += [""] * (column + 1 - len(cells))
            found = child(cell, "f")
            linked = _LINKED.match(found.text or "") if found is not None else None
            cells[column] = notation.write_link(self._cell(cell), linked[1] if linked else "")
        return cells

    def _cell(self, cell: Any) -> str:
        kind, value, formula = cell.get("t", "n"), child(cell, "v"), child(cell, "f")
        text = value.text or "" if value is not None else ""
        if kind == "inlineStr":
            return _rich_text(child(cell, "is"))
        if formula is not None and not text and kind != "str":
            self._unknown += 1
            named, place = get(formula, "si", "-"), cell.get("r", "A1")
            if formula.text:
                self._shared[named] = f"={formula.text}", place
                return f"={formula.text}"
            master, of = self._shared.get(named, ("=", place))
            return str(Translator(master, of).translate_formula(place))
        at = notation.as_integer(text, -1)
        if kind == "s":
            return self._strings[at] if 0 <= at < len(self._strings) else ""
        if kind == "b":
            return str(text in {"1", "true"}).upper()
        if kind in {"str", "e"} or not text:
            return str(unescape(text))
        style = notation.as_integer(cell.get("s", ""), 0)
        number_format = self._formats[style] if style < len(self._formats) else "General"
        with suppress(ValueError):
            if kind == "d":
                return notation.show_value(from_ISO8601(text), number_format)
        return show_number(text, number_format, self._epoch)


def _comments_of(package: Package, part: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, target in package.targets(part).values():
        part = target if kind in {"comments", "threadedComment"} else "-"
        for comment in package.find(part, "comment", "threadedComment"):
            said = "".join(run.text or "" for run in comment.iter("{*}t", "{*}text")).strip()
            if said and (kind == "threadedComment" or get(comment, "ref") not in found):
                found[get(comment, "ref")] = said
    return found


_READ = ("col", "row", "hyperlink", "headerFooter", "control")
_LINKED = re.compile(r'HYPERLINK\("([^"]{1,2000})"')
_CODES = re.compile(r'&(?:"[^"]{0,99}"|K[\dA-F]{6}|K\d\d[+-]\d{3}|\d{1,3}|[A-Z])')
"""Codes for the place, font and fields of what stands in the margins of a printed sheet."""
_CELL = re.compile(r"([A-Z]{1,3})(\d{1,7})")


def _split(reference: str, usual: int) -> tuple[int, int]:
    """Return the column of a cell, from 0, and its row; the usual column and 0 without any."""
    found = _CELL.match(reference)
    return (column_index_from_string(found[1]) - 1, int(found[2])) if found else (usual, 0)


def _rich_text(element: Any) -> str:
    pieces = []
    for part in element if element is not None else ():
        level = LEVELS.get(value_of(part, "rPr", "vertAlign"), 0)
        said = part if local(part) == "t" else child(part, "t") if local(part) == "r" else None
        text = unescape(said.text or "") if said is not None else ""  # "_x000D_": a line end
        pieces.append(notation.raise_text(text, level))
    return notation.write_scripts("".join(pieces))


def _formats(package: Package, part: str) -> Iterator[str]:
    made = package.find(part, "numFmt")
    own = {get(element, "numFmtId"): get(element, "formatCode") for element in made}
    for style in (style for used in package.find(part, "cellXfs") for style in used):
        number = get(style, "numFmtId", "0")
        known = _FORMATS.get(notation.as_integer(number, 0))
        yield own.get(number) or known or "General"


_FORMATS = dict.fromkeys((*range(27, 32), 36, *range(50, 55), 57, 58), "yyyy-mm-dd")
_FORMATS |= {32: "h:mm", 33: "h:mm:ss"} | BUILTIN_FORMATS
"""Formats by number; the first ones are those of East Asia, which no standard writes out."""
