"""Write raised and formatted numbers, formulas, lists, signs, links and tables as plain text."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import cache
from itertools import groupby
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


def count_words(text: str) -> Counter[str]:
    """Return the words and numbers of a text, in lower case, with how often it has them."""
    return Counter(_WORD.findall(text.lower()))


_WORD = re.compile(r"\w+")


def raise_text(text: str, level: float) -> str:
    """Return text between signs of its level for `write_scripts`: above 0 raised, below lowered."""
    begin, end = ("\x0e", "\x0f") if level > 0 else ("\x10", "\x11")
    inner = text.strip()
    raised = text.replace(inner, f"{begin}{write_scripts(inner)}{end}", 1)
    return raised if level and inner else text


def strike_text(text: str) -> str:
    """Return text that is struck through between signs for `write_scripts`: ~~900~~950."""
    return f"\x13{text}\x14" if text.strip() else text


def write_ruby(text: str) -> str:
    """Return how a word is pronounced, for behind it."""
    return f"({text.strip()})" if text.strip() else ""


_SCRIPT = re.compile(
    "\x0e(?P<top>[0-9]{1,9})\x0f[/\u2044]\x10(?P<bottom>[0-9]{1,9})\x11"
    "|\x0e(?P<raised>[^\x0e-\x12]*)\x0f|\x10(?P<lowered>[^\x0e-\x12]*)\x11|\x12+"
)


def write_scripts(text: str) -> str:
    """Return a text whose raised and lowered numbers join no others: 10^6, log_10, 2 1/2.

    Raised words ("1st") and lowered figures of letters ("H2O") are written as they are.
    """
    for pair in ("\x0f\x0e", "\x11\x10", "\x14\x13"):
        text = text.replace(pair, "")
    before = ""
    for _ in range(MOST_LEVELS):
        if before == text:
            break
        before, text = text, _SCRIPT.sub(_write_script, text)
    return text.translate(_REST)


MOST_LEVELS = 9  # most levels of raised numbers within raised ones
_REST = dict.fromkeys(range(0x0E, 0x12)) | dict.fromkeys((0x13, 0x14), "~~")


def _write_script(found: re.Match[str]) -> str:
    begin, end = found.span()
    before, after = found.string[max(begin - 1, 0) : begin], found.string[end : end + 1]
    if found["top"]:
        return f"{' ' * before.isdigit()}{found['top']}/{found['bottom']}"
    if raised := found["raised"]:
        inner, space = raised.strip(), raised[len(raised.rstrip()) :]
        is_value = len(inner) == 1 or not inner.isalpha()
        begins = inner[:1].isalnum() or inner[:1] in _SIGNED
        is_power = before.strip() and is_value and begins
        return (f"^{_enclose(inner)}{space}" if is_power else raised) + " " * after.isdigit()
    if lowered := found["lowered"]:
        joins = before.isdigit() or after.isdigit() or (before.strip() and not lowered.isalnum())
        return f"_{_enclose(lowered)}{' ' * after.isdigit()}" if joins else lowered
    return " " * (before.isdigit() and after.isdigit())


_SIGNED = {*"+-\u2212("}


def _enclose(part: str) -> str:
    """Return a part of a formula so that it is one: in brackets if it is more than a number."""
    return part if _SINGLE.fullmatch(part) else f"({part})"


_SINGLE = re.compile(r"[-\u2212+]?[\w.,]*|\([^()]*\)|[^\w]")
FORMULAS = {"mfrac", "mmultiscripts", "mroot", "msqrt", "msub", "msubsup", "msup"}
FORMULAS |= {"mfenced", "mover", "mtable", "munder", "munderover"}  # with parts above each other
_ROOTS = {"": "\u221a", "3": "\u221b", "4": "\u221c"}
_COMBINED = "\u0302\u0302\u0303\u0303\u0304\u0305\u0332\u0307\u0308\u20d7"
_JOINED = {"eqArr": "; ", "func": " ", "oMathPara": "\n"}
_BETWEEN = {"f": "/", "mfrac": "/", "noBar": "\u00a6"}


def write_formula(kind: str, parts: Sequence[str]) -> str:
    """Return a formula of MathML or Office on one line, by its element and what those in it say."""
    if kind in {"mroot", "msqrt"}:
        parts = parts[::-1] if kind == "mroot" else ["", "".join(parts)]
    first, second, third = [_enclose(part.strip()) for part in [*parts, "", "", ""][:3]]
    if kind in {"mroot", "msqrt", "rad"}:
        return f"\x12{_ROOTS.get(first, first + _ROOTS[''])}{second}\x12"
    if kind in _JOINED:
        return _JOINED[kind].join(parts)
    if kind in {"m", "mtable"}:
        return f"[{'; '.join(' '.join(row.split()) for row in parts)}]"
    if kind == "acc" or (kind in {"mover", "munder"} and not any(map(str.isalnum, second))):
        base, sign = [*(part.strip() for part in parts), ""][:2]
        return (f"({base})" if base[1:] else base) + sign.translate(_ACCENTS)
    if kind == "sPre":
        return f"{f'_{first}' * bool(first)}{f'^{second}' * bool(second)} {third}"
    if kind in _BETWEEN:
        return f"\x12{first}{_BETWEEN[kind]}{second}\x12"
    is_above = kind in {"limUpp", "mover", "msup", "sSup"}
    lowered, raised = ("", second) if is_above else (second, third)
    written = first + f"_{lowered}" * bool(lowered) + f"^{raised}" * bool(raised)
    return f"\x12{written}\x12{' ' * kind.startswith('munder')}"


_ACCENTS = str.maketrans("^\u02c6~\u02dc\xaf\u203e_\u02d9\xa8\u2192", _COMBINED)
"""Signs above or below a letter, and those that join it."""
_ROMAN_END, _CIRCLED_END, _COUNTED_END = 4000, 21, 100
_ROMAN = {1000: "m", 900: "cm", 500: "d", 400: "cd", 100: "c", 90: "xc", 50: "l", 40: "xl"}
_ROMAN |= {10: "x", 9: "ix", 5: "v", 4: "iv", 1: "i"}
_LETTERS = dict.fromkeys(("Alpha", "Latin", "Letter"), "abcdefghijklmnopqrstuvwxyz")
_LETTERS |= {"Greek": "αβγδεζηθικλμνξοπρστυφχψω", "russian": "абвгдежзиклмнопрстуфхцчшщыэюя"}
"""Letters that count: "a" is followed by "b", "z" by "aa"."""
_HAN = "零一二三四五六七八九"
_COUNTING = ("chineseCounting", "japaneseCounting", "taiwaneseCounting")


def _in_letters(count: int, style: str) -> str:
    found, kind = "", next((kind for kind in _LETTERS if kind in style), "")
    letters = _LETTERS.get(kind, "")
    if kind in {"Letter", "russian"}:  # which repeats them: "aa", "bb"
        times, at = divmod(count - 1, len(letters))
        return letters[at] * (times + 1)
    while letters and count > 0:
        count, at = divmod(count - 1, len(letters))
        found = letters[at] + found
    return found


def in_style(count: int, style: str) -> str:
    """Return a number as a list shows it, by Word's name of its style; others are in digits."""
    found = str(count)
    if count > 0 and (written := _in_letters(count, style)):
        found = written
    elif style.endswith("Roman") and 0 < count < _ROMAN_END:
        found = ""
        for value, signs in _ROMAN.items():
            times, count = divmod(count, value)
            found += signs * times
    elif style == "ordinal":
        last = 0 if count // 10 % 10 == 1 else count % 10
        found += {1: "st", 2: "nd", 3: "rd"}.get(last, "th")
    elif style.startswith("decimalEnclosedCircle") and 0 < count < _CIRCLED_END:
        found = chr(0x245F + count)
    elif style.startswith(_COUNTING) and 0 < count < _COUNTED_END:
        tens, ones = divmod(count, 10)
        found = _HAN[tens] * (tens > 1) + "十" * (tens > 0) + _HAN[ones] * (ones > 0)
    elif style[:1] == "0":  # "001, 002, ..."
        found = found.zfill(len(style.partition(",")[0]))
    elif style in {"decimalZero", "numberInDash", "none"}:
        found = {"decimalZero": f"{count:02}", "numberInDash": f"- {count} -"}.get(style, "")
    return found.upper() if "pper" in style else found


def as_integer(text: str | None, default: int) -> int:
    """Return the integer that a text is, or else the default."""
    return int(text) if text and _INTEGER.fullmatch(text.strip()) else default


_INTEGER = re.compile(r"-?[0-9]{1,9}")


class ListLevel(NamedTuple):
    """How a list numbers the items of one level.

    `text` stands before an item, with "%1" for the number on the first level, in the style of
    `in_style`. An item of a level above `restart` makes it start again. If it `is_legal`, the
    numbers of all levels are written in digits.
    """

    text: str
    style: str = ""
    start: int = 1
    restart: int = 99
    is_legal: bool = False


def count_item(levels: Mapping[int, ListLevel], at: int, counts: dict[int, int]) -> str:
    """Count an item of a list at a level, from 0, and return what is shown before it.

    `counts` has the number of the last item of each level, and is changed.
    """
    level, none = levels[at], ListLevel("")
    counts[at] = counts.get(at, level.start - 1) + 1
    for deeper in [key for key in counts if key > at]:
        if at < levels.get(deeper, none).restart:
            del counts[deeper]
    text = level.text
    for above in range(at + 1):
        found = levels.get(above, none)
        style = "" if level.is_legal else found.style
        text = text.replace(f"%{above + 1}", in_style(counts.get(above, found.start), style))
    return f"{text} " if text.strip() else ""


STYLES = {"a": "lowerAlpha", "A": "upperAlpha", "i": "lowerRoman", "I": "upperRoman"}
"""Styles of numbers by the names that HTML and OpenDocument have for them."""
_AUTOMATIC = {"circle": "decimalEnclosedCircle", "ea1Ch": "chineseCounting"}
_AUTOMATIC |= {"alphaLc": "lowerLetter", "alphaUc": "upperLetter"}
_AUTOMATIC |= {"romanLc": STYLES["i"], "romanUc": STYLES["I"]}
_ENCLOSING = {"Period": "%{}.", "ParenR": "%{})", "ParenBoth": "(%{})", "Minus": "%{} -"}


def level_of_slide(kind: str, start: int, at: int) -> ListLevel:
    """Return how paragraphs of a slide on a level are numbered, by PowerPoint's name of it."""
    style = next((_AUTOMATIC[name] for name in _AUTOMATIC if kind.startswith(name)), "")
    text = next((_ENCLOSING[name] for name in _ENCLOSING if kind.endswith(name)), "%{}")
    return ListLevel(text.format(at + 1), style, start)


def shows_address(text: str, address: str) -> bool:
    """Whether the text of a link says its whole address, or one of both is empty."""
    said, meant = (_BARE.sub("", one.strip().lower()) for one in (text, address))
    return not said or meant in said


HYPERLINK = re.compile(r'HYPERLINK[ \t]{1,9}"?((?<=")[^"]{1,2000}|[^"\s\\]{1,2000})')
_BARE = re.compile(r"^(?:https?://|mailto:|tel:)?(?:www\.)?|/$")
"""What people leave out of an address."""


def write_link(text: str, address: str) -> str:
    """Return the text of a link with its address, unless it is in the document or shown."""
    is_plain = address[:1] in {"", *"#./"} or shows_address(text, address)
    return text if is_plain else f"{text} <{address}>"


def write_sheet(
    rows: Mapping[int, Sequence[str]], hidden: Iterable[int], columns: Sequence[range]
) -> str:
    """Return rows as a table, and a line on those that are hidden ("Hidden rows: 3, 5-8.").

    Rows have their numbers; `columns` are the spans of hidden columns.
    """
    from openpyxl.utils.cell import get_column_letter

    used = {at for row in rows.values() for at, cell in enumerate(row, 1) if cell}
    unseen = sorted(at for at in used if any(at in span for span in columns))
    kinds = ("rows", hidden, str), ("columns", unseen, get_column_letter)
    found = ((kind, ", ".join(_write_runs(numbers, write))) for kind, numbers, write in kinds)
    said = "\n".join(f"Hidden {kind}: {spans}." for kind, spans in found if spans)
    return "\n\n".join(filter(None, [write_table(rows.values()), said]))


def _write_runs(numbers: Iterable[int], write: Callable[[int], str]) -> Iterator[str]:
    for _, run in groupby(enumerate(numbers), key=lambda found: found[1] - found[0]):
        first, *others = [number for _, number in run]
        yield "-".join(map(write, (first, *others[-1:])))


_GREEK_CODES = (*range(0x20, 0x7F), *range(0xA0, 0xF0), *range(0xF1, 0xFF))
_GREEK = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_"
    "‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…⏐⎯↵"
    "ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊⟨®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪⟩∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"
)
_CIRCLED = "⓪①②③④⑤⑥⑦⑧⑨⑩⓿❶❷❸❹❺❻❼❽❾❿"
_CODES: tuple[tuple[str, Iterable[int], str], ...] = (
    ("symbol", _GREEK_CODES, _GREEK),
    ("wingdings", b"JKLo\xa8\xfb\xfc\xfd\xfe", "☺😐☹☐☐✗✓☒☑"),
    ("wingdings", range(0x80, 0x96), _CIRCLED),
    ("wingdings", range(0xDF, 0xE9), "←→↑↓↖↗↙↘←→"),
    ("wingdings 2", b"OPQRST\xa3", "✗✓☒☑☒☒☐"),
    ("wingdings 2", range(0x69, 0x7F), _CIRCLED),
)
SIGNS: dict[str, dict[int, str]] = {font: {} for font, *_ in _CODES}
"""Signs by the code points under which fonts of signs have them, there or for private use."""
for _font, _codes, _drawn in _CODES:
    for _code, _sign in zip(_codes, _drawn, strict=True):
        SIGNS[_font] |= {_code: _sign, 0xF000 + _code: _sign}


def symbol(code: str, font: str) -> str:
    """Return the sign that a font of symbols shows for a code; "" for none."""
    with suppress(OverflowError, ValueError):
        return chr(int(code, 16)).translate(SIGNS.get(font.lower(), {}))
    return ""


def write_table(rows: Iterable[Sequence[str]]) -> str:
    """Return the rows as lines of a Markdown table; empty ones and empty last cells are dropped."""
    kept = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows]
    kept = [row for row in kept if any(row)]
    width = max((number for row in kept for number, cell in enumerate(row, 1) if cell), default=0)
    lines = [f"| {' | '.join((row + [''] * width)[:width])} |" for row in kept]
    return "\n".join([*lines[:1], "|" + " --- |" * width, *lines[1:]]) if lines else ""


def spread_cells(rows: Iterable[Iterable[tuple[str, int, int]]]) -> list[list[str]]:
    """Return the texts of cells in their columns, below and beside cells that span several.

    Each cell has its text, and the numbers of columns and rows that it spans; 0 rows are all.
    """
    found, covered = [], dict[int, int]()  # rows that a cell above still covers, by column
    for row in rows:
        cells: list[str] = []
        for text, columns, height in row:
            width = min(max(columns, 1), MOST_REPEATED)
            while covered.get(len(cells)):
                covered[len(cells)] -= 1
                cells.append("")
            covered |= dict.fromkeys(range(len(cells), len(cells) + width), height - 1)
            cells += [text, *[""] * (width - 1)]
        covered |= {at: left - 1 for at, left in covered.items() if at >= len(cells) and left}
        found.append(cells)
    return found


MOST_REPEATED = 1000
"""Times that an equal cell or row is written: empty ones are repeated up to the last of a sheet."""


Shown: TypeAlias = int | float | datetime | date | time | timedelta
_NUMBER_PART = re.compile(
    r'"(?P<quoted>[^"]{0,255})"|\\(?P<escaped>.)|_.|\*.|\[(?P<bracket>[^\]\[]{0,255})\]|(?P<general>General)'
    r"|(?P<half>AM/PM|A/P)|(?P<time>[yY]+|[eE]+(?![+-])|[gG]+|[mM]+|[dD]+|[hH]+|[sS]+(?:\.0+)?)|(?P<power>E[+-])"
    r"|(?P<digit>[0#?]|[.,](?=[0#?,.]|$)|[.,])|(?P<other>.)"
)
_DATES = {"mm-dd-yy": "m/d/yyyy"}
"""The format with number 14, as it is shown where it was made; openpyxl has its name only."""


def show_value(value: Shown, number_format: str) -> str:
    """Return a value as a cell with this number format shows it.

    A number without a format is written in full: a cell cuts it to its width.
    """
    if isinstance(value, (datetime, date, time, timedelta)):
        return _show_date(value, number_format)
    number = Decimal(repr(value))
    section, number = _choose(number, number_format)
    tokens = [*_NUMBER_PART.finditer(section)]
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
    tokens = _NUMBER_PART.finditer(number_format)
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
    whole, point, decimals = pattern.rstrip(",").partition(".")
    number /= 1000 ** (len(pattern) - len(pattern.rstrip(",")))
    form = f"{',' * (',' in whole)}.{len(decimals)}{'f' if power is None else 'E'}"
    with localcontext(rounding=ROUND_HALF_UP):
        digits, _, exponent = f"{abs(number) or 0.0:{form}}".partition("E")
    digits, _, rest = digits.partition(".")
    sign = "-" if number < 0 and {*digits, *rest} - {*"0,"} else ""
    while rest and decimals[len(rest) - 1] in "#?" and rest.endswith("0"):
        rest = rest[:-1]
    digits = digits.lstrip("0").rjust(whole.count("0"), "0")
    ends = next((at for at in places if tokens[at][0] == "."), end + 1)
    shown = (digits if "," in whole else _fill(digits, tokens[first:ends])) + point + rest
    if power is not None:
        least = sum(tokens[at][0] == "0" for at in range(power, last + 1))
        is_signed = exponent[0] == "-" or tokens[power][0] == "E+"
        shown += "E" + exponent[0] * is_signed + exponent[1:].lstrip("0").zfill(least)
    before, after = tokens[:first], tokens[last + 1 :]
    return sign + "".join(map(_literal, before)) + shown + "".join(map(_literal, after))


def _fill(digits: str, tokens: list[re.Match[str]]) -> str:
    left, written = [*digits], ""
    for token in reversed(tokens):
        taken = left.pop() if token["digit"] and left else ""
        written = (taken if token["digit"] else _literal(token)) + written
    return "".join(left) + written


def _show_date(value: datetime | date | time | timedelta, number_format: str) -> str:
    tokens = [*_NUMBER_PART.finditer(_sections(_DATES.get(number_format, number_format))[0])]
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
