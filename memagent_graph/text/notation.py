"""Write raised numbers, formulas, numbers of lists, signs, links and tables as plain text."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


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
    "|\x0e(?P<raised>[^\x0e-\x12]*)\x0f|\x10(?P<lowered>[^\x0e-\x12]*)\x11|\x12+|[\x0e-\x11]"
)


def write_scripts(text: str) -> str:
    """Return a text whose raised and lowered numbers join no others: 10^6, log_10, 2 1/2.

    Raised words ("1st") and lowered figures of letters ("H2O") are written as they are.
    """
    for pair in ("\x0f\x0e", "\x11\x10", "\x14\x13"):
        text = text.replace(pair, "")
    return _SCRIPT.sub(_write_script, text).replace("\x13", "~~").replace("\x14", "~~")


def _write_script(found: re.Match[str]) -> str:
    begin, end = found.span()
    before, after = found.string[max(begin - 1, 0) : begin], found.string[end : end + 1]
    if found["top"]:
        return f"{' ' * before.isdigit()}{found['top']}/{found['bottom']}"
    if raised := found["raised"]:
        is_value = len(raised) == 1 or not raised.isalpha()
        begins = raised[0].isalnum() or raised[0] in _SIGNED
        is_power = before.strip() and is_value and begins
        return (f"^{_enclose(raised)}" if is_power else raised) + " " * after.isdigit()
    if lowered := found["lowered"]:
        joins = before.isdigit() or after.isdigit() or (before.strip() and not lowered.isalnum())
        return f"_{_enclose(lowered)}{' ' * after.isdigit()}" if joins else lowered
    return " " * (before.isdigit() and after.isdigit())


_SIGNED = "+-\u2212("


def _enclose(part: str) -> str:
    """Return a part of a formula so that it is one: in brackets if it is more than a number."""
    return part if _SINGLE.fullmatch(part) else f"({part})"


_SINGLE = re.compile(r"[-\u2212+]?[\w.,]*|\([^()]*\)|[^\w]")
FORMULAS = {"mfrac", "mmultiscripts", "mroot", "msqrt", "msub", "msubsup", "msup"}
FORMULAS |= {"mfenced", "mover", "munder", "munderover"}  # with parts above each other
_JOINED = {"eqArr": "; ", "func": " ", "oMathPara": "\n"}
_BETWEEN = {"f": "/", "mfrac": "/", "noBar": "\u00a6"}


def write_formula(kind: str, parts: Sequence[str]) -> str:
    """Return a formula of MathML or Office on one line, by its element and what those in it say."""
    if kind in {"mroot", "msqrt"}:
        parts = parts[::-1] if kind == "mroot" else ["", "".join(parts)]
    first, second, third = [_enclose(part.strip()) for part in [*parts, "", "", ""][:3]]
    if kind in {"mroot", "msqrt", "rad"}:
        return f"\x12{first}\u221a{second}\x12"
    if kind in _JOINED:
        return _JOINED[kind].join(parts)
    if kind == "m":
        return f"[{'; '.join(parts)}]"
    if kind == "sPre":
        return f"{f'_{first}' * bool(first)}{f'^{second}' * bool(second)} {third}"
    if kind in _BETWEEN:
        return f"\x12{first}{_BETWEEN[kind]}{second}\x12"
    is_above = kind in {"limUpp", "mover", "msup", "sSup"}
    lowered, raised = ("", second) if is_above else (second, third)
    written = first + f"_{lowered}" * bool(lowered) + f"^{raised}" * bool(raised)
    return f"\x12{written}\x12"


_ROMAN_END, _CIRCLED_END, _COUNTED_END = 4000, 21, 100
_ROMAN = {1000: "m", 900: "cm", 500: "d", 400: "cd", 100: "c", 90: "xc", 50: "l", 40: "xl"}
_ROMAN |= {10: "x", 9: "ix", 5: "v", 4: "iv", 1: "i"}
_LETTERS = {"Letter": "abcdefghijklmnopqrstuvwxyz", "russian": "абвгдежзиклмнопрстуфхцчшщыэюя"}
_ALPHABETS = {
    "Alpha": _LETTERS["Letter"],
    "Latin": _LETTERS["Letter"],
    "Greek": "αβγδεζηθικλμνξοπρστυφχψω",
}
"""Letters that are repeated after the last one ("aa", "bb"), and those that count ("aa", "ab")."""
_HAN = "零一二三四五六七八九"
_COUNTING = ("chineseCounting", "japaneseCounting", "taiwaneseCounting")


def _in_letters(count: int, style: str) -> str:
    if letters := next((_LETTERS[kind] for kind in _LETTERS if kind in style), ""):
        times, at = divmod(count - 1, len(letters))
        return letters[at] * (times + 1)
    found, letters = "", _ALPHABETS.get(style[5:], "")
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


_BARE = re.compile(r"^(?:https?://|mailto:|tel:)?(?:www\.)?|/$")
"""What people leave out of an address."""


def write_link(text: str, address: str) -> str:
    """Return the text of a link with its address, unless it is in the document or shown."""
    is_plain = address[:1] in {"", *"#./"} or shows_address(text, address)
    return text if is_plain else f"{text} <{address}>"


def name_hidden(rows: Iterable[int], columns: Iterable[int] = ()) -> str:
    """Return a line for hidden rows and one for columns: "Hidden rows: 3, 5-8."; "" for none."""
    from openpyxl.utils.cell import get_column_letter

    kinds = ("rows", rows, str), ("columns", columns, get_column_letter)
    found = ((kind, ", ".join(_write_runs(numbers, write))) for kind, numbers, write in kinds)
    return "\n".join(f"Hidden {kind}: {spans}." for kind, spans in found if spans)


def _write_runs(numbers: Iterable[int], write: Callable[[int], str]) -> Iterator[str]:
    for _, run in groupby(enumerate(numbers), key=lambda found: found[1] - found[0]):
        first, *others = [number for _, number in run]
        yield "-".join(map(write, (first, *others[-1:])))


_SYMBOLS = range(0xF020, 0xF07F)  # code points under which fonts of symbols have those of ASCII
TICKS = {
    "wingdings": dict(zip(b"o\xa8\xfb\xfc\xfd\xfe", "☐☐✗✓☒☑", strict=True)),
    "wingdings 2": dict(zip(b"OPQRST\xa3", "✗✓☒☑☒☒☐", strict=True)),
}
"""Boxes and ticks by the codes that fonts have them under."""


def symbol(code: str, font: str) -> str:
    """Return the sign that a font of symbols shows for a code; "" for none."""
    try:
        point = int(code, 16)
        known = TICKS.get(font.lower(), {}).get(point & 0xFF)
        return known or chr(point - 0xF000 if point in _SYMBOLS else point)
    except ValueError:
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
