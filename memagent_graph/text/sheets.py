"""Read workbooks with the cells as their number formats show them.

This runs in the process that converts documents.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import cache
from io import BytesIO
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from openpyxl import load_workbook
from openpyxl.utils.escape import unescape

from memagent_graph.templates import plural
from memagent_graph.text.notation import write_scripts, write_table
from memagent_graph.text.office import (
    Package,
    comments_of,
    drawings_of,
    get,
)
from memagent_graph.text.source import Converted, warn_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openpyxl import Workbook


def read_xlsx(content: bytes) -> Converted:
    """Read a workbook; each sheet is a page with its name as the heading.

    A formula without a stored value, as programs write it, is shown itself.
    """
    package = Package(content)
    if not package.is_usual:
        content = package.repack().getvalue()
    values = load_workbook(BytesIO(content), read_only=True, data_only=True)
    formulas = load_workbook(BytesIO(content), read_only=True) if _has_formulas(package) else None
    text, pages, unknown, pictures = "", [], 0, 0
    for name, part in _sheet_parts(package).items():
        rows = []
        for row, same in zip_longest(_rows(values, name), _rows(formulas, name), fillvalue=()):
            cells = [*map(_text, row)]
            for column, cell in enumerate(same):
                if cell.data_type == "f" and not (column < len(cells) and cells[column]):
                    cells += [""] * (column + 1 - len(cells))
                    cells[column] = str(getattr(cell.value, "text", cell.value))
                    unknown += 1
            rows.append(cells)
        drawn, shown = drawings_of(package, part)
        pictures += shown
        notes = [f"Comment on {at}: {said}" for at, said in comments_of(package, part).items()]
        pages.append(len(text))
        text += (
            "\n\n".join(filter(None, [f"## {name}", write_table(rows), *notes, *drawn])) + "\n\n"
        )
    warnings = [*warn_of(picture=pictures)]
    if unknown:
        warnings.append(
            f"did not compute {plural(unknown, 'formula')}: save the file in a spreadsheet program."
        )
    return Converted(text.rstrip("\n"), pages, warnings)


def _has_formulas(package: Package) -> bool:
    parts = filter(package.holds, _sheet_parts(package).values())
    return any(b"<f" in package.read(part) for part in parts)


def _sheet_parts(package: Package) -> dict[str, str]:
    """Return the parts of the sheets by name, in order."""
    main = package.main()
    targets = package.targets(main)
    found = {}
    root = package.parse(main)
    for sheet in root.iter("{*}sheet") if root is not None else ():
        relation = next((value for key, value in sheet.attrib.items() if key[:1] == "{"), "")
        found[get(sheet, "name")] = targets.get(str(relation), ("", ""))[1]
    return found


def _rows(book: Workbook | None, name: str) -> Iterator[tuple[Any, ...]]:
    if book is None or name not in book.sheetnames or not hasattr(book[name], "rows"):
        return iter(())  # a sheet that is a chart
    book[name].reset_dimensions()  # programs write wrong ones
    rows: Iterator[tuple[Any, ...]] = book[name].rows
    return rows


def _text(cell: Any) -> str:
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, str):
        value = write_scripts(unescape(value))  # "_x000D_" is a carriage return
    try:
        number_format = cell.number_format
    except (IndexError, TypeError):  # the workbook lacks the style that the cell names
        number_format = None
    return show(value, number_format or "General")


_TOKEN = re.compile(
    r'"(?P<quoted>[^"]{0,255})"|\\(?P<escaped>.)|_.|\*.|\[(?P<bracket>[^\]\[]{0,255})\]|(?P<general>General)'
    r"|(?P<half>AM/PM|A/P)|(?P<time>[yY]+|[mM]+|[dD]+|[hH]+|[sS]+(?:\.0+)?)|(?P<power>E[+-])"
    r"|(?P<digit>[0#?]|[.,](?=[0#?,.]|$)|[.,])|(?P<other>.)"
)
_DATES = {"mm-dd-yy": "m/d/yyyy"}
"""The format with number 14, as it is shown where it was made; openpyxl has its name only."""


def show(value: object, number_format: str) -> str:
    """Return a value as a cell with this number format shows it.

    A number without a format is written in full: a cell cuts it to its width.
    """
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return value
    if isinstance(value, (datetime, date, time, timedelta)):
        return _show_date(value, number_format)
    if not isinstance(value, (int, float, Decimal)):
        return str(value)
    number = Decimal(repr(value))
    section, number = _choose(number, number_format)
    tokens = [*_TOKEN.finditer(section)]
    if not tokens or any(token["general"] or token["time"] for token in tokens):
        return _plain(number)
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
    found = [""]
    for token in _TOKEN.finditer(number_format):
        if token[0] == ";":
            found.append("")
        else:
            found[-1] += token[0]
    return found


_CONDITION = re.compile(r"\[(<=|>=|<>|<|>|=)(-?[\d.]{1,30})\]")


def _choose(number: Decimal, number_format: str) -> tuple[str, Decimal]:
    """Return the section of a format that holds for a number, and the number to write in it."""
    sections = _sections(number_format)[:3]
    conditions = [_CONDITION.search(section) for section in sections]
    for section, condition in zip(sections, conditions, strict=True):
        if condition and _holds(number, condition[1], Decimal(condition[2])):
            return section, abs(number) if number < 0 and len(sections) > 1 else number
    if any(conditions):
        others = [at for at, condition in zip(sections, conditions, strict=True) if not condition]
        return (others or [""])[-1], number
    first, *others = sections
    if number < 0 and others:
        return others[0], -number
    return first if number or not others[1:] else others[1], number


def _holds(number: Decimal, sign: str, other: Decimal) -> bool:
    return {
        "<": number < other,
        "<=": number <= other,
        ">": number > other,
        ">=": number >= other,
        "=": number == other,
        "<>": number != other,
    }[sign]


def _literal(token: re.Match[str]) -> str:
    """Return what a part of a format shows that stands for no digit."""
    bracket = token["bracket"]
    if bracket is not None:
        return bracket[1:].partition("-")[0] if bracket.startswith("$") else ""
    return token["quoted"] or token["escaped"] or token["other"] or ""


def _show_number(number: Decimal, tokens: list[re.Match[str]]) -> str:
    places = [at for at, token in enumerate(tokens) if token["digit"]]
    if not places:
        return ("-" if number < 0 else "") + "".join(map(_literal, tokens))
    if any(token["other"] == "/" for token in tokens):
        return _show_fraction(number, tokens)
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
    shown = _fill(digits, tokens[first : end + 1], grouped="," in whole)
    shown += (point + rest if rest or decimals else point) + exponent
    before, after = tokens[:first], tokens[last + 1 :]
    return sign + "".join(map(_literal, before)) + shown + "".join(map(_literal, after))


def _fill(digits: str, tokens: list[re.Match[str]], *, grouped: bool) -> str:
    """Write digits into the places before the point, with what stands between them."""
    if grouped:
        return f"{int(digits):,}".rjust(len(digits), "0") if digits else ""
    ends = next((at for at, token in enumerate(tokens) if token[0] == "."), len(tokens))
    written, left = "", digits
    between = [token for token in tokens[:ends] if token[0] != ","]
    open_places = sum(bool(token["digit"]) for token in between)
    for token in reversed(between):
        if not token["digit"]:
            written = _literal(token) + written
            continue
        open_places -= 1
        take = left if not open_places else left[-1:]
        written, left = take + written, left[: len(left) - len(take)]
    return written


def _show_fraction(number: Decimal, tokens: list[re.Match[str]]) -> str:
    slash = next(at for at, token in enumerate(tokens) if token["other"] == "/")
    below = [token[0] for token in tokens[slash + 1 :] if token[0].strip()]
    fixed = "".join(below)
    whole, rest = divmod(abs(Fraction(number)), 1)
    if not any(token["other"] == " " for token in tokens[:slash]):
        whole, rest = 0, whole + rest
    if fixed.isdigit() and int(fixed):
        top, bottom = round(rest * int(fixed)), int(fixed)
    else:
        found = rest.limit_denominator(10 ** len(below) - 1)
        top, bottom = found.numerator, found.denominator
    if top == bottom and top:
        whole, top = whole + 1, 0
    parts = [str(whole)] if whole or not top else []
    return "-" * (number < 0) + " ".join([*parts, f"{top}/{bottom}"] if top else parts)


def _show_date(value: datetime | date | time | timedelta, number_format: str) -> str:
    section = _sections(_DATES.get(number_format, number_format))[0]
    tokens = [*_TOKEN.finditer(section)]
    if not any(token["time"] or token["bracket"] in _ELAPSED for token in tokens):
        return str(value)
    moment, elapsed = _moment(value)
    half = any(token["half"] for token in tokens)
    shown: list[str] = []
    before = ""
    for at, token in enumerate(tokens):
        code = (token["time"] or "").lower()
        if token["half"]:
            shown.append(moment.strftime("%p")[: 2 if "M" in token["half"] else 1])
        elif (token["bracket"] or "").lower() in _ELAPSED:
            unit = token["bracket"].lower()
            seconds = int(elapsed.total_seconds())
            shown.append(f"{seconds // _ELAPSED[unit[0]]:0{len(unit)}}")
            before = unit[0]
        elif code:
            following = next((other["time"] for other in tokens[at + 1 :] if other["time"]), "")
            minutes = code in {"m", "mm"} and (before == "h" or following[:1].lower() == "s")
            shown.append(_show_part(moment, "n" * len(code) if minutes else code, half=half))
            before = code[0]
        else:
            shown.append(token["digit"] or _literal(token))
    return "".join(shown).strip()


_ELAPSED = {"h": 3600, "hh": 3600, "m": 60, "mm": 60, "s": 1, "ss": 1}
"""Seconds of a unit that counts on past its day, hour or minute."""


def _moment(value: datetime | date | time | timedelta) -> tuple[datetime, timedelta]:
    """Return a value as a moment, and as the time since the day from which spreadsheets count."""
    day = datetime(1899, 12, 30)  # noqa: DTZ001 - cells have no time zone
    if isinstance(value, timedelta):
        return day + value, value
    if isinstance(value, time):
        value = datetime.combine(day, value)
    elif not isinstance(value, datetime):
        value = datetime.combine(value, time())
    return value, value - day


def _show_part(moment: datetime, code: str, *, half: bool) -> str:
    """Return a part of a moment by its code in a format; "n" is minutes."""
    hour = (moment.hour % 12 or 12) if half else moment.hour
    unit, _, fraction = code.partition(".")
    if fraction:
        return f"{moment.second:0{len(unit)}}.{f'{moment.microsecond:06}'[: len(fraction)]}"
    number = {
        "m": moment.month,
        "d": moment.day,
        "h": hour,
        "n": moment.minute,
        "s": moment.second,
    }
    if unit[0] == "y":
        return f"{moment.year % 100:02}" if unit in {"y", "yy"} else f"{moment.year:04}"
    if unit in {"m", "mm", "d", "dd"} | _CLOCK:
        return f"{number[unit[0]]:0{min(len(unit), 2)}}"
    name = moment.strftime("%B" if unit[0] == "m" else "%A")
    return {"mmm": name[:3], "ddd": name[:3], "mmmmm": name[:1]}.get(unit, name)


_CLOCK = {"h", "hh", "n", "nn", "s", "ss"}
