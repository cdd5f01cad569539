"""Read workbooks with the cells as their number formats show them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, Any, TypeAlias

from openpyxl.formula.translate import Translator, TranslatorError
from openpyxl.styles.numbers import BUILTIN_FORMATS, is_date_format, is_timedelta_format
from openpyxl.utils.cell import column_index_from_string
from openpyxl.utils.datetime import MAC_EPOCH, WINDOWS_EPOCH, from_excel, from_ISO8601
from openpyxl.utils.escape import unescape

from memagent_graph.templates import plural
from memagent_graph.text import notation
from memagent_graph.text.office import LEVELS, Drawing
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
        self._shared: dict[str, tuple[str, str]] = {}
        self._unknown = 0

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
        links, at, unseen, self._ticks = self._package.targets(part), 0, set[int](), {}
        for element in self._package.stream(part, *_READ):
            is_hidden = get(element, "hidden") in {"1", "true"}
            if local(element) == "col":
                last = min(get_integer(element, "max"), _MOST_COLUMNS)
                unseen |= {*range(get_integer(element, "min"), last + 1)} if is_hidden else set()
            elif local(element) == "control":
                control = self._package.parse(links.get(get(element, "id"), ("", "-"))[1])
                tick = "\u2612 " if get(control, "checked") == "Checked" else "\u2610 "
                is_box = get(control, "objectType") in {"CheckBox", "Radio"}
                self._ticks[get(element, "shapeId")] = tick * is_box
            elif local(element) == "headerFooter":
                margins |= dict.fromkeys(_CODES.sub(" ", said.text or "") for said in element)
            elif local(element) == "hyperlink":
                letters, row = _split(get(element, "ref"))
                column, cells = column_index_from_string(letters or "A") - 1, rows.get(row, [])
                if column < len(cells):
                    address = links.get(get(element, "id"), ("", ""))[1]
                    cells[column] = notation.write_link(cells[column], address)
            else:
                at = get_integer(element, "r", at + 1)
                rows[at] = self._row(element)
                hidden += [at] if is_hidden and any(rows[at]) else []
        filled = {at for row in rows.values() for at, cell in enumerate(row, 1) if cell}
        yield notation.write_table(rows.values())
        yield notation.name_hidden(hidden, sorted(unseen & filled))
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
            letters, _ = _split(cell.get("r", ""))
            column = column_index_from_string(letters) - 1 if letters else len(cells)
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
        if formula is not None:
            shared = get(formula, "si")
            if formula.text and shared:
                self._shared[shared] = formula.text, cell.get("r", "")
            if not text and kind != "str":
                self._unknown += 1
                return self._formula(formula.text or "", shared, cell.get("r", ""))
        at = notation.as_integer(text, -1)
        if kind == "s":
            return self._strings[at] if 0 <= at < len(self._strings) else ""
        if kind == "b":
            return str(text in {"1", "true"}).upper()
        if kind in {"str", "e"} or not text:
            return str(unescape(text))
        style = notation.as_integer(cell.get("s", ""), 0)
        number_format = self._formats[style] if style < len(self._formats) else "General"
        return show(_value(text, kind, number_format, self._epoch), number_format)

    def _formula(self, text: str, shared: str, cell: str) -> str:
        text, origin = (text, cell) if text else self._shared.get(shared, ("", cell))
        try:
            return str(Translator(f"={text}", origin=origin).translate_formula(cell))
        except (TranslatorError, ValueError):
            return f"={text}"


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
_MOST_COLUMNS = 16_384
_LINKED = re.compile(r'HYPERLINK\("([^"]{1,2000})"')
_is_date, _is_span = cache(is_date_format), cache(is_timedelta_format)
_CODES = re.compile(r'&(?:"[^"]{0,99}"|K[\dA-F]{6}|K\d\d[+-]\d{3}|\d{1,3}|[A-Z])')
"""Codes for the place, font and fields of what stands in the margins of a printed sheet."""
_CELL = re.compile(r"([A-Z]{1,3})(\d{1,7})")


def _split(reference: str) -> tuple[str, int]:
    found = _CELL.match(reference)
    return (found[1], int(found[2])) if found else ("", 0)


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


_Shown: TypeAlias = str | int | float | datetime | date | time | timedelta


def _value(text: str, kind: str, number_format: str, epoch: datetime) -> _Shown:
    value: _Shown = text
    with suppress(OverflowError, ValueError):  # a number that is no day, or no number
        if kind == "d":
            value = from_ISO8601(text)
        else:
            value = number = float(text) if {*text} & set(".eE") else int(text)
            if _is_date(number_format):
                value = from_excel(number, epoch, _is_span(number_format))
    return value


_TOKEN = re.compile(
    r'"(?P<quoted>[^"]{0,255})"|\\(?P<escaped>.)|_.|\*.|\[(?P<bracket>[^\]\[]{0,255})\]|(?P<general>General)'
    r"|(?P<half>AM/PM|A/P)|(?P<time>[yY]+|[eE]+(?![+-])|[gG]+|[mM]+|[dD]+|[hH]+|[sS]+(?:\.0+)?)|(?P<power>E[+-])"
    r"|(?P<digit>[0#?]|[.,](?=[0#?,.]|$)|[.,])|(?P<other>.)"
)
_DATES = {"mm-dd-yy": "m/d/yyyy"}
"""The format with number 14, as it is shown where it was made; openpyxl has its name only."""


def show(value: _Shown, number_format: str) -> str:
    """Return a value as a cell with this number format shows it.

    A number without a format is written in full: a cell cuts it to its width.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, (datetime, date, time, timedelta)):
        return _show_date(value, number_format)
    number = Decimal(repr(value))
    section, number = _choose(number, number_format)
    tokens = [*_TOKEN.finditer(section)]
    if not tokens or any(token["time"] for token in tokens):
        return _plain(number)
    if any(token["general"] or token[0] == "@" for token in tokens):
        parts = (_plain(number) if at["general"] or at[0] == "@" else _literal(at) for at in tokens)
        return "".join(parts).strip()
    return _show_number(number, tokens).strip() or _plain(number) * (not section)


_IN_FULL = range(-12, 21)
"""Powers of ten of the first digit of numbers that are written without a power."""


def _plain(number: Decimal) -> str:
    if not number.as_tuple().exponent:  # an integer, as it is stored
        return f"{number:f}"
    text = f"{number.normalize():f}" if number.adjusted() in _IN_FULL else f"{number.normalize():E}"
    return text.replace("-0", "0") if not number else text


@cache
def _sections(number_format: str) -> list[str]:
    tokens = _TOKEN.finditer(number_format)
    return "".join("\0" if token[0] == ";" else token[0] for token in tokens).split("\0")


_CONDITION = re.compile(r"\[(<=|>=|<>|<|>|=)(-?[\d.]{1,30})\]")


def _choose(number: Decimal, number_format: str) -> tuple[str, Decimal]:
    sections = _sections(number_format)[:3]
    conditions = {section: _CONDITION.search(section) for section in sections}
    for section, condition in conditions.items():
        if condition and _COMPARED[condition[1]](number, Decimal(condition[2])):
            return section, abs(number) if number < 0 and len(sections) > 1 else number
    if any(conditions.values()):
        return ([""] + [at for at, found in conditions.items() if not found])[-1], number
    first, *others = sections
    if number < 0 and others:
        return others[0], -number
    return first if number or not others[1:] else others[1], number


_COMPARED = {"<": lt, "<=": le, ">": gt, ">=": ge, "=": eq, "<>": ne}


def _literal(token: re.Match[str]) -> str:
    bracket = token["bracket"]
    if bracket is not None:
        return bracket[1:].partition("-")[0] if bracket.startswith("$") else ""
    return token["quoted"] or token["escaped"] or token["other"] or ""


def _show_number(number: Decimal, tokens: list[re.Match[str]]) -> str:
    places = [at for at, token in enumerate(tokens) if token["digit"]]
    if not places:
        return ("-" if number < 0 else "") + "".join(map(_literal, tokens))
    if any(token["other"] == "/" for token in tokens):  # a fraction, which may be rounded
        return _plain(number)
    first, last = places[0], places[-1]
    power = next((at for at, token in enumerate(tokens) if token["power"]), None)
    number *= 100 ** sum(token["other"] == "%" for token in tokens)
    end = last if power is None else power - 1
    pattern = "".join(tokens[at]["digit"] or "" for at in range(first, end + 1))
    while pattern.endswith(","):
        pattern, number = pattern[:-1], number / 1000
    whole, point, decimals = pattern.partition(".")
    exponent = ""
    if power is not None:
        shift = number.adjusted() if number else 0
        number = number.scaleb(-shift)
        least = "".join(tokens[at]["digit"] or "" for at in range(power, last + 1)).count("0")
        sign = "-" if shift < 0 else "+" if tokens[power][0] == "E+" else ""
        exponent = f"E{sign}{abs(shift):0{least}}"
    rounded = number.quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    digits, _, rest = f"{abs(rounded):f}".partition(".")
    while rest and decimals[len(rest) - 1] in "#?" and rest.endswith("0"):
        rest = rest[:-1]
    least = whole.replace(",", "").count("0")
    digits = digits.lstrip("0").rjust(least, "0")
    sign = "-" if rounded < 0 else ""
    ends = next((at for at in places if tokens[at][0] == "."), end + 1)
    shown = _fill(digits, tokens[first:ends])
    if "," in whole:
        shown = f"{int(digits):,}".rjust(least, "0") if digits else ""
    shown += (point + rest if rest or decimals else point) + exponent
    before, after = tokens[:first], tokens[last + 1 :]
    return sign + "".join(map(_literal, before)) + shown + "".join(map(_literal, after))


def _fill(digits: str, tokens: list[re.Match[str]]) -> str:
    left, written = [*digits], ""
    for token in reversed(tokens):
        taken = left.pop() if token["digit"] and left else ""
        written = (taken if token["digit"] else _literal(token)) + written
    return "".join(left) + written


def _show_date(value: datetime | date | time | timedelta, number_format: str) -> str:
    tokens = [*_TOKEN.finditer(_sections(_DATES.get(number_format, number_format))[0])]
    if not any(token["time"] or token["bracket"] in _ELAPSED for token in tokens):
        return str(value)
    if isinstance(value, time):
        value = datetime.combine(_DAY, value)
    elif not isinstance(value, (datetime, timedelta)):
        value = datetime.combine(value, time())
    elapsed = value - _DAY if isinstance(value, datetime) else value
    half = any(token["half"] for token in tokens)
    shown = before = ""
    for at, token in enumerate(tokens):
        unit = (token["time"] or token["bracket"] or "").lower()
        if token["half"]:
            shown += f"{_DAY + elapsed:%p}"[: len(token[0]) // 2]
        elif unit in _ELAPSED and not token["time"]:
            shown += f"{int(elapsed.total_seconds()) // _ELAPSED[unit]:0{len(unit)}}"
        elif token["time"]:
            following = next((other["time"] for other in tokens[at + 1 :] if other["time"]), "")
            minutes = unit in {"m", "mm"} and (before == "h" or following[:1].lower() == "s")
            shown += _show_part(_DAY + elapsed, "n" * len(unit) if minutes else unit, half=half)
        else:
            shown += token["digit"] or _literal(token)
        before = unit[:1] if token["time"] or unit in _ELAPSED else before
    return shown.strip()


_DAY = datetime(1899, 12, 30)  # noqa: DTZ001 - cells have no time zone
"""The day from which spreadsheets count."""
_ELAPSED = {"h": 3600, "hh": 3600, "m": 60, "mm": 60, "s": 1, "ss": 1}
"""Seconds of a unit that counts on past its day, hour or minute."""


def _show_part(moment: datetime, code: str, *, half: bool) -> str:
    """Return a part of a moment by its code in a format; "n" is minutes."""
    unit, _, fraction = code.partition(".")
    if unit in _NAMES:
        return moment.strftime(_NAMES[unit])
    if unit == "mmmmm":
        return moment.strftime("%B")[:1]
    number = moment.strftime("%I" if half and unit[0] == "h" else _PARTS[unit[0]])
    shown = number if unit[1:] else number.lstrip("0") or "0"
    return f"{shown}.{f'{moment.microsecond:06}'[: len(fraction)]}" if fraction else shown


_PARTS = {"m": "%m", "d": "%d", "h": "%H", "n": "%M", "s": "%S"}
_NAMES = {"y": "%y", "yy": "%y", "yyy": "%Y", "yyyy": "%Y"}
_NAMES |= {"mmm": "%b", "mmmm": "%B", "ddd": "%a", "dddd": "%A"}
_NAMES |= {"e": "%Y", "ee": "%Y"} | dict.fromkeys(("g", "gg", "ggg"), "")
"""Of an era, the year that all calendars share."""
