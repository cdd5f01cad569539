"""The names and numbers that a note states, and whether a text has them in any form."""

from __future__ import annotations

import unicodedata
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.readers.figures import Figure, figures
from memagent_graph.text.terms import stem, telling_terms, word_terms

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_NAME_WORD = regex.compile(
    r"(?<![\p{Lu}\p{Ll}\p{N}_])(?P<word>\p{Lu}[\p{Lu}\p{Ll}\p{M}\p{N}]*+)"
    r"(?:['’](?P<tail>[\p{Lu}\p{Ll}]++))?"
)
_WORD = regex.compile(r"[\p{Lu}\p{Ll}\p{N}][\p{Lu}\p{Ll}\p{M}\p{N}]*+")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]{2,}+")
_JOINTS = frozenset(
    [" ", "-", "–", "/", "&", ". ", ", ", "’", "'", " and ", " & "]
    + [f" {word} " for word in ("of", "de", "van", "von", "da", "the", "of the", "to", "in", "on")]
)
_OPENERS = frozenset(".!?:—…*#>|\"“‘'{=")
_ORDINARY = (
    "mr mrs ms dr prof professor sir dame lord lady president king queen prince princess saint st "
    "coach judge justice senator governor general captain colonel father sister brother yes no "
    "there then than their both however although though since because despite until within "
    "without whether according note notes answer question unknown unclear relevant none key fact "
    "facts summary source section chapter document text passage information meanwhile today later "
    "born died former early late here now thus hence once only even every many most several "
    "additionally furthermore moreover overall currently originally known"
)
_NO_NAMES = frozenset(_ORDINARY.split())


class Claim(NamedTuple):
    """A name, word by word, or a number in a note.

    Attributes:
        text: the name or number, as the note has it.
        start: offset in the note.
        end: one past its last code point.
        figure: the number; None for a name.
        doubtful: whether it may be an ordinary word, capitalized because it opens a sentence.
    """

    text: str
    start: int
    end: int
    figure: Figure | None = None
    doubtful: bool = False


def claims(text: str, numbers: Sequence[Figure]) -> list[Claim]:
    """Return the numbers, then the names, of a note; names only in scripts with capitals."""
    taken = {number.start for number in numbers}
    found = [Claim(*item[:3], item) for item in numbers if _states(item, text)]
    for match in _NAME_WORD.finditer(text):
        word = match[0] if match["tail"] and match["tail"] != "s" else match["word"]
        if match.start() in taken or word.lower() in _NO_NAMES or not telling_terms(word):
            continue
        before = text[max(match.start() - 9, 0) : match.start()].rstrip(" (")
        doubtful = not before or before[-1] in _OPENERS
        found.append(Claim(word, match.start(), match.end(), None, doubtful))
    return found


_IN_PASSING = (
    "second seconds both half double couple pair decade decades century dozen dozens quarter "
    "quarters twice first firsts hundred thousand million billion one 千万 万一 十分 百万 一一"
)
_MANNERS = frozenset(_IN_PASSING.split())


def _states(figure: Figure, text: str) -> bool:
    """Whether a number is a claim, not a turn of phrase such as "one of" or "both"."""
    if not figure.spelled:
        return True
    if figure.text.lower() in _MANNERS:
        return False
    if not figure.text.isascii():
        return len(figure.text) > 1 or text[figure.end : figure.end + 1] in set("年月日号")
    return True


def runs(text: str, numbers: Sequence[Figure]) -> list[set[str]]:
    """Return the terms of each name, and of each run of numbers (a date, say), in a note."""
    found = [{term for word in run for term in word_terms(word)} for run in name_runs(text)]
    last = -1
    rows: list[set[str]] = []
    for figure in numbers:
        terms = {*telling_terms(figure.text), *(f"={value}" for value in figure.values)}
        if rows and text[last : figure.start].strip(" -–,/") in {"", "and", "to"}:
            rows[-1] |= terms
        else:
            rows.append(terms)
        last = figure.end
    return found + rows


def name_runs(text: str) -> list[list[str]]:
    """Return the names in a text, each as the list of its capitalized words."""
    found: list[list[str]] = []
    last = 0
    for match in _NAME_WORD.finditer(text):
        if found and text[last : match.start()] in _JOINTS:
            found[-1].append(match["word"])
        else:
            found.append([match["word"]])
        last = match.end()
    return found


class Known:
    """Texts in which claims are looked up.

    Args:
        texts: sentences, older notes, the question.
        terms: the terms of these texts.
    """

    def __init__(self, texts: Sequence[str], terms: Collection[str]) -> None:
        self.texts = texts
        self.terms = frozenset(terms)

    def has(self, claim: Claim) -> bool:
        """Whether the texts have the name or number, in any of its forms."""
        if claim.figure is None:
            return self._has_name(claim.text)
        if any(f"={value}" in self.terms for value in claim.figure.values):
            return True
        return not self._values.isdisjoint(claim.figure.values)

    @cached_property
    def letters(self) -> set[str]:
        """Pairs of adjacent characters in scripts without spaces."""
        return {
            run[place : place + 2]
            for text in self.texts
            if not text.isascii()
            for run in _UNSPACED.findall(text)
            for place in range(len(run) - 1)
        }

    @cached_property
    def _values(self) -> set[str]:
        found = [figure for text in self.texts for figure in figures(text)]
        return {value for figure in found for value in (*figure.values, *figure.parts)}

    def _has_name(self, word: str) -> bool:
        if self.terms.issuperset(word_terms(word)):
            return True
        plain = _fold(word)
        if len(plain) == 1:
            return any(each.startswith(plain) for each in self._words)
        return (
            plain in self._words
            or plain.removesuffix("s") in self._words
            or stem(plain) in self._stems
            or _kin(plain) in self._kin
            or plain in self._acronyms
        )

    @cached_property
    def _words(self) -> set[str]:
        return {_fold(word) for text in self.texts for word in _WORD.findall(text)}

    @cached_property
    def _stems(self) -> set[str]:
        return {stem(word) for word in self._words}

    @cached_property
    def _kin(self) -> set[str]:
        return {_kin(word) for word in self._words}

    @cached_property
    def _acronyms(self) -> set[str]:
        """Acronyms of the names in the texts."""
        return {
            "".join(initials[start:end]).casefold()
            for text in self.texts
            for run in name_runs(text)
            for initials in [[word[0] for word in run]]
            for start in range(len(initials))
            for end in range(start + 2, min(start + _LONGEST_ACRONYM, len(initials)) + 1)
        }


_LONGEST_ACRONYM = 8
_ENDINGS = ("ians", "ian", "ans", "an", "ese", "ish", "ic", "ies", "ia", "any", "y", "a", "o")
_SHORTEST_KIN = 4


def _fold(word: str) -> str:
    folded = word.replace("’", "'").removesuffix("'s").casefold()
    if folded.isascii():
        return folded
    marks = unicodedata.normalize("NFKD", folded)
    return "".join(sign for sign in marks if not unicodedata.combining(sign))


def _kin(word: str) -> str:
    """Return the stem that the names of a country and its people share: "canad"."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_KIN:
            return word.removesuffix(ending)
    return word
