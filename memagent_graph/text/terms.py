"""Terms by which texts are compared: stems, parts of identifiers, unspaced bigrams, and numbers.

Numbers are found in any form: digits, words, ordinals, months, fractions, Chinese numerals.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from itertools import chain
from operator import add
from typing import TYPE_CHECKING, NamedTuple

import regex
import Stemmer

from memagent_graph.templates import late

if TYPE_CHECKING:
    from collections.abc import Iterable

_SURROGATE = re.compile("[\ud800-\udfff]")


def count_line_ends(text: str, start: int = 0, end: int | None = None) -> int:
    """Return the number of line ends: LF, CRLF or CR alone."""
    alone = text.count("\r", start, end) - text.count("\r\n", start, end)
    return text.count("\n", start, end) + alone


def same_line_ends(text: str) -> str:
    """Return a text of the same length in which a line that ended with CR alone ends with LF."""
    return _LONE_CR.sub("\n", text) if "\r" in text else text


_LONE_CR = re.compile(r"\r(?!\n)")


def replace_surrogates(text: str) -> str:
    """Return `text` with U+FFFD for each lone surrogate, which UTF-8 does not have.

    JSON that cut an emoji in half has them, and file names that are not UTF-8.
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


# Line_Break=SA: Thai, Lao, Khmer, Burmese, and the other Tai and Mon scripts.
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Bopomofo}\p{Yi}\p{Tangut}\p{Nushu}"
    r"\p{Javanese}\p{Balinese}\p{Line_Break=SA}"
)
_TOKEN = late(
    rf"(?P<unspaced>[{_UNSPACED}]+)"
    r"|(?P<number>\d+(?:[.,:]\d+)*)"
    rf"|(?P<word>[^\W\d{_UNSPACED}][^\W{_UNSPACED}]*(?:['’][\p{{L}}]+)?)"
)
LATIN = re.compile("[\x00-\x7f\xc0-\u024f\u2010-\u2027]*+\\Z")
"""Latin text, in which `re` and `regex` know the same words and `re` takes a quarter of it."""
_LATIN_TOKEN = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d]\w*+(?:['’][^\W\d_]++)?")
_LETTER, _MARKED = regex.compile(r"\X"), regex.compile(r"\p{M}")
_PARTS = regex.compile(r"\p{Lu}+(?=\p{Lu}\p{Ll})|\p{Lu}?\p{Ll}+|\p{Lu}+|\p{N}+|[\p{Lo}\p{M}]+")
_SHORTEST_AGENT = 5
_SNOWBALL = Stemmer.Stemmer("english").stemWord


def stem(word: str) -> str:
    """Return the stem of a lower-case word; "director" and "directed" share theirs."""
    found: str = _SNOWBALL(word)
    return found[:-2] if found.endswith("tor") and len(found) > _SHORTEST_AGENT else found


# Stop words: words of questions that answers do not repeat, and words without content.
_EMPTY_WORDS = """
a about after all also am an and another any are as at be been before being between but by can
could did do does doing done during each either for from get had has have having he her him his
how i if in into is it its just kind many may me might more most much must my name nor not of on
one or other our out over own part please say shall she should so some such tell than that the
their them then there these they this those through to type under up upon us was we were what when
where which while who whom whose why will with would you your
"""
_EMPTY = frozenset(_EMPTY_WORDS.split())
_EMPTY_CJK = frozenset("的了吗呢吧和与或在是有为被从到把对于及其这那之所由着过们个种些以而")
_QUESTION_CJK = regex.compile(
    "什么时候|什么|多少|怎么|怎样|如何|哪里|哪些|哪个|哪种|哪位|哪年|哪|谁|几|为何|何时|何"
)


@lru_cache(1 << 16)
def word_terms(word: str) -> tuple[str, ...]:
    """Return the terms of a word: its stem; for an identifier, itself and its parts' stems.

    A number is one term, without the commas between its digits.
    """
    if word[0].isdecimal():
        return (word.replace(",", ""),)
    lower = word.lower()
    if word.isalpha() and (word[1:].islower() or word.isupper() or len(word) == 1):
        return (stem(lower),)
    plain = lower.replace("’", "'").removesuffix("'s").strip("_")
    parts = _PARTS.findall(word.replace("’s", "").replace("'s", ""))
    parts = [stem(part.lower()) for part in parts]
    if len(parts) <= 1:
        return (stem(plain),) if plain else ()
    return (plain, *parts)


_HYPHEN = r"[-\u00ad\u2010][ \t\r]*+\n[ \t]*+"
BROKEN_END = regex.compile(r"\p{L}[-\u00ad\u2010]\Z")
"""The end of a line that breaks off within a word."""
_BROKEN = regex.compile(rf"(?<=\p{{L}}){_HYPHEN}(?=\p{{Ll}})")
_LINE_HYPHEN = regex.compile(_HYPHEN)
_BROKEN_WORD = regex.compile(rf"(?<!\p{{L}})(\p{{L}}++){_HYPHEN}(\p{{Ll}}\p{{L}}*+)")
_INVISIBLE = re.compile("[\u00ad\u200b\u2060\ufeff]")
_WIDE = re.compile(
    "[\ufb00-\ufb06\ufb13-\ufdff\ufe70-\ufefc\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uff9f"
    "\U0001d400-\U0001d7ff]+"
)
"""Ligatures, forms of Arabic letters, full-width letters and digits, half-width Katakana, letters
of formulas; full-width marks are those of Chinese."""
_POINTS = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u200c\u200d]"
)
"""Vowel points of Hebrew and Arabic, which most texts leave out, the stroke in wide words, and what
joins letters."""


def join_lines(text: str) -> str:
    """Return a text as it reads: words are not broken at a line's end, nothing is invisible.

    Ligatures, full-width letters and full-width digits are plain, and letters composed (NFC).
    """
    text = same_line_ends(text)
    if "\n" in text and _LINE_HYPHEN.search(text):
        text = _BROKEN.sub("", text)
    if text.isascii():
        return text
    text = _WIDE.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    return unicodedata.normalize("NFC", _INVISIBLE.sub("", text))


def one_form(text: str) -> str:
    """Return a text in the one form in which texts are compared.

    A word that is broken at a line's end comes whole and in its parts: only a reader knows whether
    "well-known" or "lighthouse" was broken.
    """
    text = same_line_ends(text)
    if "\n" in text and _LINE_HYPHEN.search(text):
        text = _BROKEN_WORD.sub(r"\1\2 \1 \2", text)
    text = join_lines(text)
    if text.isascii():
        return text
    return _POINTS.sub("", text).replace("ё", "е").replace("Ё", "Е")


def terms(text: str) -> list[str]:
    """Return all terms of a text, in order, with repetitions."""
    text = one_form(text)
    if LATIN.match(text):
        return [*chain.from_iterable(map(word_terms, _LATIN_TOKEN.findall(text)))]
    found: list[str] = []
    for match in _TOKEN.finditer(text):
        kind, token = match.lastgroup, match[0]
        if kind != "unspaced":
            found += word_terms(token)
        else:
            # A vowel or tone mark belongs to its letter.
            letters = _LETTER.findall(token) if _MARKED.search(token) else token
            found += map(add, letters, letters[1:]) if len(letters) > 1 else letters
    return found


def content_terms(question: str) -> list[str]:
    """Return the terms of a question that an answer is likely to repeat, each once."""
    return specific_terms(_QUESTION_CJK.sub(" ", question)) or list(dict.fromkeys(terms(question)))


def specific_terms(text: str) -> list[str]:
    """Return the terms of a text without stop words, each once."""
    return [*(_of_long if len(text) >= _LONG else _of_short)(text)]


def _select_terms(text: str) -> dict[str, None]:
    return dict.fromkeys(filter(_is_specific, terms(text)))


def _is_specific(term: str) -> bool:
    return term not in _EMPTY_STEMS and (term.isascii() or _EMPTY_CJK.isdisjoint(term))


_LONG = 500  # code points from which on few texts have their terms kept: those of a chunk are many
_of_long, _of_short = lru_cache(128)(_select_terms), lru_cache(1 << 12)(_select_terms)
_EMPTY_STEMS = _EMPTY | {stem(word) for word in _EMPTY}

_SOLID = rf"(?![{''.join(sorted(_EMPTY_CJK))}])[\p{{Han}}\p{{Katakana}}\p{{Hangul}}]"
_NAME = regex.compile(
    r"(?<![.!?]\s|^)\b\p{Lu}[\p{L}\p{M}'’-]+(?:\s+(?:(?:of|de|van|von|da|the)\s*)?\p{Lu}[\p{L}\p{M}'’-]+)*"
    r"|\b\p{Lu}[\p{L}\p{M}'’-]+(?:\s+\p{Lu}[\p{L}\p{M}'’-]+)+"
    r"|\b\p{L}+(?:_\p{L}+)+\b|\b\p{Ll}+(?:\p{Lu}\p{Ll}+)+\b|\b(?:\p{Lu}\p{Ll}+){2,}\b"
    r"|[《「“\"]([^》」”\"]{2,40})[》」”\"]"
    rf"|(?<!{_SOLID}){_SOLID}{{2,4}}(?!{_SOLID})"
)


def names(text: str) -> list[str]:
    """Return the names, titles and identifiers in a text."""
    return [match[0] for match in _NAME.finditer(join_lines(text))]


_ONES = "zero one two three four five six seven eight nine ten eleven twelve"
_TEENS = "thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_FIRST = "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
_LAST_IRREGULAR = 12
SMALL = {word: value for value, word in enumerate(f"{_ONES} {_TEENS}".split())}  # below a 100
ORDINALS = {word: value for value, word in enumerate(_FIRST.split())}
ORDINALS |= {f"{word}th": value for word, value in SMALL.items() if value > _LAST_IRREGULAR}
ORDINALS |= {f"{word[:-1]}ieth": 10 * tens for tens, word in enumerate(_TENS.split(), start=2)}
SMALL |= {word: 10 * tens for tens, word in enumerate(_TENS.split(), start=2)}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
OTHERS = {"half": 2, "halves": 2, "quarter": 4, "twice": 2, "double": 2, "both": 2, "dozen": 12}
"""Other words that stand for a number."""
OTHERS |= {"pair": 2, "couple": 2, "triple": 3, "thrice": 3, "decade": 10, "century": 100}
HAN_DIGITS = {sign: value for value, sign in enumerate("零一二三四五六七八九")}
HAN_DIGITS |= {"〇": 0, "两": 2, "兩": 2}
HAN_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}


_TEN, _TWENTY, _HUNDRED = 10, 20, 100


def in_words(text: str) -> tuple[set[str], set[str]]:
    """Return the values of a run of English number words, and the values of its single words.

    If the run is not one number ("five six"), its values are those of the single words.
    """
    words = text.lower().replace("-", " ").replace(" and ", " ").split()
    parts, below = {str(SMALL[word]) for word in words if word in SMALL}, ORDINALS | SMALL
    total = current = 0
    for word in words:
        if word in below:
            value = below[word]
            rest = current % _HUNDRED
            if _TEN <= current < _HUNDRED and value >= _TEN:  # "nineteen eleven" is a year
                current = current * _HUNDRED + value
            elif rest and (rest < _TWENTY or rest % _TEN or value >= _TEN):
                return parts, set()  # "five six" are two numbers
            else:
                current += value
        elif word == "hundred":
            current = max(current, 1) * _HUNDRED
        elif word in SCALES:
            total += max(current, 1) * SCALES[word]
            current = 0
    return {str(total + current)}, parts


def in_han(signs: str) -> str:
    """Return the value of a Chinese numeral, by place ("二〇一五") or by scale ("三百五十")."""
    if all(sign in HAN_DIGITS for sign in signs):
        return str(int("".join(str(HAN_DIGITS[sign]) for sign in signs)))
    total = section = digit = 0
    for sign in signs:
        if sign in HAN_DIGITS:
            digit = HAN_DIGITS[sign]
        elif (scale := HAN_SCALES[sign]) < HAN_SCALES["万"]:
            section += (digit or 1) * scale
            digit = 0
        else:
            total = (total + (section + digit or 1)) * scale
            section = digit = 0
    return str(total + section + digit)


class Figure(NamedTuple):
    """A number that a text states, with its place.

    `values` are those that it may have, such as 1 and 1000 for "1.000", and `parts` others that a
    note may take from it: 5 from "May", 1918 from "1914-18". If `spelled`, it is in words.
    """

    text: str
    start: int
    end: int
    values: frozenset[str]
    parts: frozenset[str]
    spelled: bool


_NAMED = "January February March April May June July August September October November December"
_MONTHS = {name: month for month, name in enumerate(_NAMED.split(), start=1)}
_MONTHS |= {name[:3]: month for name, month in _MONTHS.items()} | {"Sept": 9}
_CARDINAL = "|".join(sorted([*SMALL, *SCALES], key=len, reverse=True))
_ORDINAL = "|".join(sorted([*ORDINALS, *OTHERS], key=len, reverse=True))
_HAN = "".join([*HAN_DIGITS, *HAN_SCALES])
_FIGURE = late(
    r"(?P<digits>\d+(?:[.,]\d+)*)(?P<vulgar>[½¼¾⅓⅔])?"
    r"(?:[ -]?(?P<scale>(?i:hundred|thousand|million|billion|trillion)\b|[百千万萬亿億]+))?"
    rf"|\b(?P<words>(?i:(?:{_CARDINAL})(?:(?:[ -]|(?<=d|n) and )(?:{_CARDINAL}))*+"
    rf"(?:[ -](?:{_ORDINAL}))?)\b)"
    rf"|\b(?P<ordinal>(?i:(?:{_ORDINAL})s?)\b)"
    r"|\b(?P<roman>[IVXL]{2,})\b"
    rf"|\b(?P<month>{'|'.join(_MONTHS)})\b"
    rf"|(?P<han>[{_HAN}]++)"
)
_NUMBERS = {*SMALL, *SCALES, *ORDINALS, *OTHERS, *map(str.lower, _MONTHS)}
_NUMBERS |= {f"{word}s" for word in _NUMBERS}
_SIGNS = regex.compile(rf"\d|\b[IVXL]{{2}}|[{_HAN}]")
_LETTERS_ONLY = re.compile("[a-z]+")
_DAY_BESIDE = regex.compile(r"\.?,? ?\d")
_AMBIGUOUS_MONTHS = frozenset({"March", "May", "Mar", "Jan", "Jun"})
_GROUPED = regex.compile(r"\d{1,3}(?:,\d{3})++(?:\.\d++)?|\d{1,3}(?:\.\d{3}){2,}+")
_LATTER_YEAR = regex.compile(r"[-–/](\d\d)(?!\d)")
_YEAR_DIGITS = 4
_GROUP = 3  # digits between thousands separators


@lru_cache(1 << 12)
def figures(text: str) -> tuple[Figure, ...]:
    """Return all numbers of a text, in order."""
    found = list[Figure]()
    if _NUMBERS.isdisjoint(_LETTERS_ONLY.findall(text.casefold())) and not _SIGNS.search(text):
        return ()
    for match in _FIGURE.finditer(text):
        kind = match.lastgroup
        values, parts = _read_figure(match, text)
        if values:
            spelled = kind in {"words", "ordinal", "han"}
            sets = frozenset(values), frozenset(parts)
            found.append(Figure(match[0], *match.span(), *sets, spelled))
    return (*found,)


_Values = tuple[set[str], set[str]]


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
    values = {_trim_zeros(reading) for reading in readings}
    parts = {f"month:{value}" for value in values if value in _MONTH_NUMBERS}
    if match["vulgar"]:
        parts |= values
        values = {_plain(float(min(values)) + unicodedata.numeric(match["vulgar"]))}
    if match["scale"]:
        parts |= values
        values = {scaled for value in values if (scaled := _scale(value, match["scale"]))}
    latter = _LATTER_YEAR.match(text, match.end())
    if latter and len(token) == _YEAR_DIGITS:
        parts.add(token[:2] + latter[1])
    return values, parts


_MONTH_NUMBERS = frozenset(map(str, _MONTHS.values()))


def _trim_zeros(token: str) -> str:
    if token.count(".") > 1 or "," in token:
        return token
    head, _, tail = token.partition(".")
    tail = tail.rstrip("0")
    return (head.lstrip("0") or "0") + (f".{tail}" if tail else "")


_LONGEST = 18  # digits above which a number is compared as text


def _scale(value: str, scale: str) -> str:
    if len(value) > _LONGEST or value.count(".") > 1 or "," in value:
        return value
    factor = SCALES.get(scale.lower(), 1)
    for sign in scale:
        factor = min(factor * HAN_SCALES.get(sign, 1), 10**_LONGEST)
    return _plain(round(float(value) * factor, 6))


def _read_figure(match: regex.Match[str], text: str) -> _Values:
    if match["digits"]:
        return _digits(match, text)
    if match["words"]:
        return in_words(match["words"])
    if word := (match["ordinal"] or "").lower():
        known = ORDINALS | OTHERS
        return {str(known.get(word) or known[word.removesuffix("s")])}, set()
    if match["roman"]:
        signs = [{"I": 1, "V": 5, "X": 10, "L": 50}[sign] for sign in match["roman"]]
        pairs = zip(signs, [*signs[1:], 0], strict=True)
        value = sum(-sign if sign < later else sign for sign, later in pairs)
        return {str(value)}, set()
    if name := match["month"]:
        before = text[: match.start()].rstrip(" ")[-1:].isdigit()
        if name in _AMBIGUOUS_MONTHS and not (before or _DAY_BESIDE.match(text, match.end())):
            return set(), set()
        return {f"month:{_MONTHS[name]}"}, {str(_MONTHS[name])}
    return {in_han(match["han"])} if len(match["han"]) <= _LONGEST else set(), set()


_STEM_VALUES = {stem(word): f"={value}" for word, value in (SMALL | ORDINALS).items()}
_HAN_NUMERAL = regex.compile(rf"[{_HAN}]++")


def simple_values(terms: Iterable[str], text: str) -> list[str]:
    """Return one-word numbers of a text as "=12", taken from its terms: fast but incomplete."""
    found = []
    for term in terms:
        if term in _STEM_VALUES:
            found.append(_STEM_VALUES[term])
        elif term[0].isdigit():
            found.append(f"={_trim_zeros(term)}")
    if not text.isascii():
        numerals = _HAN_NUMERAL.findall(text)
        found += [f"={in_han(signs)}" for signs in numerals if len(signs) <= _LONGEST]
    return found
