"""Find numbers in any form: digits, words, ordinals, months, fractions, Chinese numerals."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.readers.numerals import (
    HAN_DIGITS,
    HAN_SCALES,
    ORDINALS,
    OTHERS,
    SCALES,
    SMALL,
    in_han,
    in_words,
)
from memagent_graph.text.terms import stem

if TYPE_CHECKING:
    from collections.abc import Iterable


class Figure(NamedTuple):
    """A number that a text states.

    Attributes:
        text: the number, as the text has it.
        start: offset of its first code point.
        end: one past its last.
        values: the values that it may have: 1 and 1000 for "1.000".
        parts: other values that a note may take from it: 5 from "May", 1918 from "1914-18".
        spelled: whether it is written in words.
    """

    text: str
    start: int
    end: int
    values: frozenset[str]
    parts: frozenset[str]
    spelled: bool


_MONTH_NAMES = (
    "January Jan|February Feb|March Mar|April Apr|May|June Jun|July Jul|August Aug|"
    "September Sept Sep|October Oct|November Nov|December Dec"
)
_MONTHS = {
    name: month
    for month, names in enumerate(_MONTH_NAMES.split("|"), start=1)
    for name in names.split()
}
_CARDINAL = "|".join(sorted([*SMALL, *SCALES], key=len, reverse=True))
_ORDINAL = "|".join(sorted([*ORDINALS, *OTHERS], key=len, reverse=True))
_HAN = "".join([*HAN_DIGITS, *HAN_SCALES])
_FIGURE = regex.compile(
    r"(?P<digits>\d+(?:[.,]\d+)*)(?P<vulgar>[½¼¾⅓⅔])?"
    r"(?:[ -]?(?P<scale>(?i:hundred|thousand|million|billion|trillion)\b|[百千万萬亿億]+))?"
    rf"|\b(?P<words>(?i:(?:{_CARDINAL})(?:(?:[ -]|(?<=d|n) and )(?:{_CARDINAL}))*+"
    rf"(?:[ -](?:{_ORDINAL}))?)\b)"
    rf"|\b(?P<ordinal>(?i:(?:{_ORDINAL})s?)\b)"
    r"|\b(?P<roman>[IVXL]{2,})\b"
    rf"|\b(?P<month>{'|'.join(_MONTHS)})\b"
    rf"|(?P<han>[{_HAN}]++)"
)
_DAY_BESIDE = regex.compile(r"\.?,? ?\d")
_AMBIGUOUS_MONTHS = frozenset({"March", "May", "Mar", "Jan", "Jun"})
_GROUPED = regex.compile(r"\d{1,3}(?:,\d{3})++(?:\.\d++)?|\d{1,3}(?:\.\d{3}){2,}+")
_LATTER_YEAR = regex.compile(r"[-–/](\d\d)(?!\d)")
_YEAR_DIGITS = 4
_GROUP = 3
"""Digits between thousands separators."""
_MONTHS_A_YEAR = 12


def figures(text: str) -> list[Figure]:
    """Return all numbers of a text, in order."""
    found = []
    for match in _FIGURE.finditer(text):
        kind = match.lastgroup
        values, parts = _KINDS[_kind(match)](match, text)
        if values:
            spelled = kind in {"words", "ordinal", "han"}
            found.append(Figure(match[0], *match.span(), values, parts, spelled))
    return found


def _kind(match: regex.Match[str]) -> str:
    return next(kind for kind in _KINDS if match[kind])


_Values = tuple[frozenset[str], frozenset[str]]
_NONE: frozenset[str] = frozenset()


def _plain(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}".rstrip("0")


def _digits(match: regex.Match[str], text: str) -> _Values:
    token = unicodedata.normalize("NFKC", match["digits"])
    if _GROUPED.fullmatch(token):
        whole = token.replace(",", "")
        readings = {whole.replace(".", "") if whole.count(".") > 1 else whole}
    elif token.count(".") + token.count(",") > 1:  # a version, an address, or a list
        readings = {token, *token.replace(",", ".").split(".")}
    else:
        readings = {token.replace(",", ".")}
        head, _, tail = token.replace(",", ".").partition(".")
        if len(tail) == _GROUP and head != "0":
            readings.add(head + tail)
    values = {_trimmed(reading) for reading in readings}
    parts = {f"month:{value}" for value in values if value in _MONTH_NUMBERS}
    if match["vulgar"]:
        parts |= values
        values = {_plain(float(min(values)) + unicodedata.numeric(match["vulgar"]))}
    if match["scale"]:
        parts |= values
        values = {scaled for value in values if (scaled := _scaled(value, match["scale"]))}
    latter = _LATTER_YEAR.match(text, match.end())
    if latter and len(token) == _YEAR_DIGITS:
        parts.add(token[:2] + latter[1])
    return frozenset(values), frozenset(parts)


_MONTH_NUMBERS = frozenset(str(month) for month in range(1, _MONTHS_A_YEAR + 1))


def _trimmed(token: str) -> str:
    """A number without leading zeros and without trailing zeros after the point."""
    if token.count(".") > 1 or "," in token:
        return token
    head, _, tail = token.partition(".")
    tail = tail.rstrip("0")
    return (head.lstrip("0") or "0") + (f".{tail}" if tail else "")


_LONGEST = 18
"""Digits above which a number is compared as text."""


def _scaled(value: str, scale: str) -> str:
    if len(value) > _LONGEST or value.count(".") > 1 or "," in value:
        return value
    factor = SCALES.get(scale.lower(), 1)
    for sign in scale:
        factor = min(factor * HAN_SCALES.get(sign, 1), 10**_LONGEST)
    return _plain(round(float(value) * factor, 6))


def _words(match: regex.Match[str], _: str) -> _Values:
    values, parts = in_words(match["words"])
    return frozenset(values), frozenset(parts)


def _ordinal(match: regex.Match[str], _: str) -> _Values:
    word = match["ordinal"].lower()
    values = ORDINALS | OTHERS
    return frozenset({str(values.get(word) or values[word.removesuffix("s")])}), _NONE


def _roman(match: regex.Match[str], _: str) -> _Values:
    signs = [{"I": 1, "V": 5, "X": 10, "L": 50}[sign] for sign in match["roman"]]
    total = sum(
        -value if any(value < later for later in signs[place + 1 : place + 2]) else value
        for place, value in enumerate(signs)
    )
    return frozenset({str(total)}), _NONE


def _month(match: regex.Match[str], text: str) -> _Values:
    name = match["month"]
    beside = (
        _DAY_BESIDE.match(text, match.end()) or text[: match.start()].rstrip(" ")[-1:].isdigit()
    )
    if name in _AMBIGUOUS_MONTHS and not beside:
        return _NONE, _NONE
    return frozenset({f"month:{_MONTHS[name]}"}), frozenset({str(_MONTHS[name])})


def _han(match: regex.Match[str], _: str) -> _Values:
    return (frozenset({in_han(match[0])}), _NONE) if len(match[0]) <= _LONGEST else (_NONE, _NONE)


_KINDS = {
    "digits": _digits,
    "words": _words,
    "ordinal": _ordinal,
    "roman": _roman,
    "month": _month,
    "han": _han,
}


_STEM_VALUES = {stem(word): f"={value}" for word, value in (SMALL | ORDINALS).items()}
_HAN_NUMERAL = regex.compile(rf"[{_HAN}]++")


def simple_values(terms: Iterable[str], text: str) -> list[str]:
    """Return one-word numbers of a text as "=12", taken from its terms: fast but incomplete."""
    found = []
    for term in terms:
        if term in _STEM_VALUES:
            found.append(_STEM_VALUES[term])
        elif term[0].isdigit():
            found.append(f"={_trimmed(term)}")
    if not text.isascii():
        for match in _HAN_NUMERAL.finditer(text):
            found += [f"={value}" for value in _han(match, text)[0]]
    return found
