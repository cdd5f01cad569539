"""Cut texts, once, into statements with their terms, names and numbers, and memories into notes."""

from __future__ import annotations

import math
import re
import unicodedata
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.text.source import parts_with_offsets
from memagent_graph.text.terms import (
    BROKEN_END,
    LATIN,
    Figure,
    figures,
    join_lines,
    one_form,
    replace_surrogates,
    same_line_ends,
    simple_values,
    specific_terms,
    stem,
    terms,
    word_terms,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from memagent_graph.text.chunks import Chunk


_NAME_WORD = regex.compile(
    r"(?<![\p{Lu}\p{Ll}\p{N}_])(?P<word>\p{Lu}[\p{Lu}\p{Ll}\p{M}\p{N}]*+)"
    r"(?:['’](?P<tail>[\p{Lu}\p{Ll}]++))?"
)
_ANY_WORD = regex.compile(r"[\p{Lu}\p{Ll}\p{N}][\p{Lu}\p{Ll}\p{M}\p{N}]*+")
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]{2,}+")
_JOINTS = frozenset([" ", "-", "–", "/", "&", ". ", "'", "’", " of ", " and ", " & "])
_BEFORE_A_NAME = frozenset(".!?:—…*#>|\"“‘'{=")
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

    It is doubtful if it may be an ordinary word, capitalized because it opens a sentence.
    """

    text: str
    start: int
    end: int
    figure: Figure | None = None
    doubtful: bool = False


def _states(figure: Figure, text: str) -> bool:
    """Whether a number is a claim, not a turn of phrase such as "one of", "both" or "一起"."""
    if not figure.spelled:
        return True
    if not figure.text.isascii() and len(figure.text) == 1:
        return text[figure.end : figure.end + 1] in set("年月日号")
    return not figure.values <= {"1", "2"}


@dataclass(frozen=True, eq=False)
class Piece:
    """A sentence of a text, on one line, or a note of a memory; its words are found once.

    Its terms are stems, pairs of characters, and numbers as "=12", in order. Its block is the
    number of its paragraph, or of the note; its label the length of one such as "**Born**:", and
    its context the heading above and the text before it in its line.
    """

    text: str
    terms: Mapping[str, None] = field(repr=False)
    start: int = 0
    end: int = 0
    block: int = 0
    label: int = 0
    line: str = ""
    context: str = ""

    @classmethod
    def of(cls, text: str) -> Piece:
        """Return a text that claims are looked up in."""
        return cls(text, dict.fromkeys(specific_terms(text)))

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """Its numbers."""
        return figures(self.text)

    @cached_property
    def claims(self) -> list[Claim]:
        """The numbers that it states, then the names; names only in scripts with capitals."""
        text, numbers = self.text, self.figures
        taken = {number.start for number in numbers}
        found = [Claim(*item[:3], item) for item in numbers if _states(item, text)]
        for match in _NAME_WORD.finditer(text):
            word = match[0] if match["tail"] and match["tail"] != "s" else match["word"]
            if match.start() in taken or word.lower() in _NO_NAMES or not specific_terms(word):
                continue
            before = text[max(match.start() - 9, 0) : match.start()].rstrip(" (")
            is_doubtful = not before or before[-1] in _BEFORE_A_NAME
            found.append(Claim(word, *match.span(), None, is_doubtful))
        return found

    @cached_property
    def whole_line(self) -> Piece:
        """The line of a note, with its context."""
        return Piece.of(f"{self.context} {self.line}")

    @cached_property
    def runs(self) -> list[set[str]]:
        """The terms of each name, and of each run of numbers (a date, say)."""
        last, rows = -1, list[set[str]]()
        for figure in self.figures:
            if not rows or self.text[last : figure.start].strip(" -–,/") not in {"", "and", "to"}:
                rows.append(set())
            rows[-1] |= {*specific_terms(figure.text), *(f"={value}" for value in figure.values)}
            last = figure.end
        return [{*chain.from_iterable(map(word_terms, run))} for run in self._names] + rows

    def has(self, claim: Claim) -> bool:
        """Whether it has the name or number, in any of its forms."""
        if claim.figure is not None:
            return not self._values.isdisjoint(claim.figure.values)
        if self.terms.keys() >= {*word_terms(claim.text)}:
            return True
        plain = _fold(claim.text)
        if len(plain) == 1:
            return any(each.startswith(plain) for each in self._words)
        has_word = plain in self._words or plain.removesuffix("s") in self._words
        is_akin = stem(plain) in self._stems or _kin(plain) in self._kin
        return has_word or is_akin or plain in self._acronyms

    @cached_property
    def letters(self) -> set[str]:
        """Pairs of adjacent characters in scripts without spaces."""
        rows = [] if self.text.isascii() else _UNSPACED.findall(self.text)
        return {row[place : place + 2] for row in rows for place in range(len(row) - 1)}

    @cached_property
    def _values(self) -> set[str]:
        simple = (term[1:] for term in self.terms if term[0] == "=")
        return {*simple, *(value for one in self.figures for value in (*one.values, *one.parts))}

    @cached_property
    def _names(self) -> list[list[str]]:
        """The names, each as the list of its capitalized words."""
        found, last = list[list[str]](), 0
        for match in _NAME_WORD.finditer(self.text):
            if not found or self.text[last : match.start()] not in _JOINTS:
                found.append([])
            found[-1].append(match["word"])
            last = match.end()
        return found

    @cached_property
    def _words(self) -> set[str]:
        return {_fold(word) for word in _ANY_WORD.findall(self.text)}

    @cached_property
    def _stems(self) -> set[str]:
        return {stem(word) for word in self._words}

    @cached_property
    def _kin(self) -> set[str]:
        return {_kin(word) for word in self._words}

    @cached_property
    def _acronyms(self) -> set[str]:
        return {
            "".join(word[0] for word in run[start:end]).casefold()
            for run in self._names
            for start in range(len(run))
            for end in range(start + 2, min(start + _LONGEST_ACRONYM, len(run)) + 1)
        }


_LONGEST_ACRONYM = 8
_ENDINGS = ("ians", "ian", "ans", "an", "ese", "ish", "ic", "ies", "ia", "any", "y", "a", "o")
_SHORTEST_KIN = 4


@lru_cache(1 << 12)
def _fold(word: str) -> str:
    folded = word.replace("’", "'").removesuffix("'s").casefold()
    if folded.isascii():
        return folded
    marks = unicodedata.normalize("NFKD", folded)
    return "".join(sign for sign in marks if not unicodedata.combining(sign))


def _kin(word: str) -> str:
    """Return the stem that the names of a country and its people share: "canad"."""
    for ending in _ENDINGS if word.endswith(_ENDINGS) else ():
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_KIN:
            return word.removesuffix(ending)
    return word


NOWHERE = -1
"""Start and end of a statement that a person wrote, and that stands in no document."""


class Statement(NamedTuple):
    """A sentence, or a line of code or of a list, as it reads on one line, and its code points."""

    text: str
    start: int
    end: int


_NARROWEST = 40
"""Columns of the widest line below which a block is a list, not wrapped prose."""
_MOST_JOINED = 4
"""Most lines of code in one statement."""
LONGEST = 600
"""Code points after which a longer sentence is cut at a line or word."""
_INK = regex.compile(r"\S")
_BLANK_LINE = regex.compile(r"\n[^\S\n]*\n")
_SENTENCE_END = regex.compile(
    r"[.!?…؟۔।][\"”’')\]]*\s+(?=[\"“‘'(\[]*[\p{Lu}\p{N}\p{Lo}¿¡])|\?\s++(?=\p{Ll})"
    r"|[。！？｡][」』”’）]*(?![」』”’）。！？])\s*"
)
_CASUAL_END = regex.compile(rf"[.!…]\s++(?=\p{{Ll}})|{_SENTENCE_END.pattern}")
"""In a text that begins in lower case, and so is written so throughout."""
_ABBREVIATION = regex.compile(
    r"(?r)\b(?:Mr|Mrs|Ms|Mme|Mlle|Messrs|Dr|St|Mt|Ft|Jr|Sr|vs|No|Fig|Inc|Ltd|Pty|Co|Corp|Bros|Prof"
    r"|Gen|Col|Capt|Lt|Sgt|Maj|Sen|Rep|Gov|Rev|Hon|e\.g|i\.e|[ap]\.m|cf|ca|al|etc|approx|bzw"
    r"|Art|Sec|Vol|Nr|pp?|para|Abs|Ziff|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
    r"|\p{L}{0,30}[Ss]tr|z|Hr|Fr|\p{Lu}"
    r"|(?:de[rmns]|d[ai][es]|[ai]m|ins|zu[mr]|vom|beim|seit|ab|bis)\s\d\d?)"
)
"""Among them ordinals of German, behind an article or a preposition."""
_NEVER_ENDS = regex.compile(r"(?r)\b(?:Mr|Mrs|Ms|Dr|Prof|e\.g|i\.e|z|\d\d?)")
_OPENING = regex.compile(
    r"(?:The|This|That|These|Those|There|An?|It|Its|He|His|She|Her|They|Their|We|Our|My|In|On|At"
    r"|For|From|With|Under|After|Before|Since|But|And|If|When|However|Mr\.|Mrs\.|Ms\.|Dr\.|Prof\.)\s"
)
"""Words that begin a sentence more often than they are part of a name."""
_OPENERS = (":", "{", "(", "[", ",", "\\")


def statements_of(chunk: Chunk) -> list[Statement]:
    """Cut a chunk into statements of its files, with offsets in the whole document."""
    begin, found = chunk.start, list[Statement]()
    for part, start in parts_with_offsets(chunk.source, begin, chunk.end):
        first, last = max(start - begin, 0), max(start + part.length - begin, 0)
        cut = statements(chunk.text[first:last])
        found += [Statement(text, begin + first + at, begin + first + end) for text, at, end in cut]
    return found


@lru_cache(128)
def statements(text: str) -> tuple[Statement, ...]:
    """Cut `text` into statements, in order."""
    join = str if join_lines(text) == text else join_lines  # of what reads well, each part does
    cut = [(" ".join(join(raw).split()), at, at + len(raw)) for at, raw in _cut(text)]
    return (*map(Statement._make, [one for one in cut if one[0]]),)  # invisible signs say nothing


def _cut(text: str) -> list[tuple[int, str]]:
    """Return where each statement of a text starts, and what stands there."""
    text, found = same_line_ends(replace_surrogates(text)), list[tuple[int, str]]()
    for content, start in _blocks(text):
        found += _strip(content, start, (_sentences if _is_prose(content) else _lines)(content))
    return found


def _strip(text: str, offset: int, spans: Iterable[tuple[int, int]]) -> list[tuple[int, str]]:
    """Return where spans of a text start without the space around them, and what stands there."""
    cut = [(first, text[first:last].rstrip()) for first, last in spans]
    return [(offset + at + len(raw) - len(raw.lstrip()), raw.lstrip()) for at, raw in cut if raw]


def _blocks(text: str) -> Iterator[tuple[str, int]]:
    """Yield what stands between blank lines, and where it starts."""
    end = 0
    while ink := _INK.search(text, end):
        blank = _BLANK_LINE.search(text, ink.end())
        end = blank.start() if blank else len(text)
        yield text[ink.start() : end], ink.start()


def _is_prose(block: str) -> bool:
    """Whether line ends mean nothing in this block: it is one line, or wrapped prose."""
    lines = block.split("\n")
    if len(lines) == 1:
        return True
    signs = sum(map(block.count, "{}()[]=<>_#|;\t"))
    widest = max(map(len, lines))
    full = sum(len(line) > widest * 0.6 or _breaks_off(line) for line in lines[:-1])
    return signs * 50 < len(block) and widest >= _NARROWEST and full * 3 >= 2 * (len(lines) - 1)


def _breaks_off(line: str) -> bool:
    return BROKEN_END.search(line.rstrip()[-2:]) is not None


def _sentences(block: str) -> list[tuple[int, int]]:
    start, found = 0, list[tuple[int, int]]()
    pattern = _CASUAL_END if block.lstrip()[:1].islower() else _SENTENCE_END
    ends = [
        match.end()
        for match in pattern.finditer(block)
        if block[match.start()] != "." or not _is_cut_short(block, match.start(), match.end())
    ]
    for end in [*ends, len(block)]:
        while end - start > LONGEST:
            within = start + 1, start + LONGEST
            middle = max(block.rfind("\n", *within), 0) or block.rfind(" ", *within)
            middle = middle if middle > 0 else start + LONGEST
            found.append((start, middle))
            start = middle
        if end > start:
            found.append((start, end))
        start = end
    return found


def _is_cut_short(block: str, stop: int, following: int) -> bool:
    """Whether a stop ends an abbreviation, and no sentence."""
    if not _ABBREVIATION.match(block, 0, stop):
        return False
    return bool(_NEVER_ENDS.match(block, 0, stop)) or not _OPENING.match(block, following)


def _lines(block: str) -> Iterator[tuple[int, int]]:
    """Lines; one that opens something is joined with the next, as a signature and its docstring."""
    start = position = joined = 0
    for line in block.split("\n"):
        position, joined = position + len(line) + 1, joined + 1
        opens = joined < _MOST_JOINED and (line.rstrip().endswith(_OPENERS) or _breaks_off(line))
        if not opens:
            long = position - start > LONGEST
            cut = _sentences(block[start:position]) if long else [(0, position - start)]
            yield from ((start + first, start + last) for first, last in cut)
            start, joined = position, 0
    if start < position:
        yield start, position


_MARKS = regex.compile(
    r"(?:[ \t]*+(?:[-*+•‣◦–—>]+[ \t]|\d{1,3}[.)][ \t]|#{1,6}[ \t]|\[[ xX]\][ \t]|\d{1,3}、"
    r"|[一二三四五六七八九十]{1,3}、)[ \t]*+){0,4}+\s*+"
)
"""Bullets, numbers and boxes at the beginning of a line."""
_LABEL = regex.compile(r"[*_\"“]{0,3}[^\n:：.。!?]{1,60}+(?:[*_\"”]{0,3}[:：])[*_]{0,3}")
_FIELD = regex.compile(r"(?<=[\"\]}\p{L}\p{N}])[ ]?,[ ]?(?=\"[^\"\n]{1,60}+\"[ ]?:)")
_OBJECTS = ("{", "[{", "[")
_CONTEXT = 300
"""Code points of heading, and of text before a note, that are its context."""


@lru_cache(128)
def notes(memory: str) -> tuple[Piece, ...]:
    """Cut a memory into notes, in order. Headings and lines of punctuation are skipped."""
    found: list[Piece] = []
    heading, offset = "", 0
    for line in memory.splitlines(keepends=True):
        marks = _MARKS.match(line)
        begin = marks.end() if marks else 0
        content = line[begin:].rstrip()
        if "#" in line[:begin] or content.rstrip("*_").endswith((":", "：")):
            heading = content
        else:
            for start, end in _spans(content):
                text, at = content[start:end], offset + begin + start
                context = f"{heading[:_CONTEXT]} {content[max(start - _CONTEXT, 0) : start]}"
                label = _LABEL.match(text)
                size = label.end() if label and label.end() < len(text) else 0
                place = at, at + len(text), len(found), size
                found.append(Piece(text, note_terms(text), *place, line, context))
        offset += len(line)
    return (*found,)


def leave_out(memory: str, texts: Collection[str]) -> str:
    """Return a memory without some of its notes; lines left empty are removed."""
    kept: list[str] = []
    if not texts:
        return memory.rstrip()
    for line in memory.splitlines(keepends=True):
        left, out = line, [note for note in notes(line) if note.text in texts]
        for note in reversed(out):
            left = left[: note.start] + left[note.end :].lstrip(" ")
        kept += [] if out and len(out) == len(notes(line)) else [left]
    return "".join(kept).rstrip()


def _spans(content: str) -> Iterator[tuple[int, int]]:
    """Sentences of a line, or the fields of an object written on it."""
    cuts = [0, len(content)]
    if content.startswith(_OBJECTS) and '":' in content:
        cuts[1:1] = [match.end() for match in _FIELD.finditer(content)]
    for first, last in pairwise(cuts):
        part = content[first:last]
        for begin, raw in _strip(part, first, _sentences(part)):
            if any(map(str.isalnum, raw)):
                yield begin, begin + len(raw)


def passages(text: str) -> list[Piece]:
    """Cut a text into sentences that can be evidence."""
    cut, block, last, found = statements(text), 0, 0, list[Piece]()
    text = same_line_ends(text)
    find_terms = _terms_in if one_form(text) == text else passage_terms
    for said, start, end in cut:
        block += text.count("\n", last, start) > 1
        last = end
        found.append(Piece(said, find_terms(text[start:end]), start, end, block))
    return found


def passage_terms(text: str) -> dict[str, None]:
    """Return the terms of a text, including numbers of one word."""
    return _terms_in(one_form(text))


def _terms_in(text: str) -> dict[str, None]:
    """Return the terms of a text that is in one form."""
    tokens = (_PLAIN_TOKEN if LATIN.match(text) else _TOKEN).findall(text)
    return dict.fromkeys(chain.from_iterable(map(_token_terms, tokens)))


_TOKEN = regex.compile(r"\w++(?:[.,:'’]\w++)*+")
_PLAIN_TOKEN = re.compile(_TOKEN.pattern)


@lru_cache(1 << 16)
def _token_terms(token: str) -> tuple[str, ...]:
    found = specific_terms(token)
    values = simple_values(found, token)
    words = (term for term in found if not values or not simple_values([term], ""))
    return (*words, *values)


@lru_cache(1 << 12)
def note_terms(text: str) -> Mapping[str, None]:
    """Return the terms of a note; a number of several words is one term."""
    numbers, plain, last = figures(text), list[str](), 0
    for number in numbers:
        if number.spelled and " " in number.text:
            plain.append(text[last : number.start])
            last = number.end
    values = (f"={value}" for number in numbers for value in sorted(number.values))
    return passage_terms(" ".join([*plain, text[last:]])) | dict.fromkeys(values)


def drop_statements(
    text: str, goes: Callable[[set[str]], bool], may: Callable[[str], bool] = bool
) -> tuple[str, list[str]]:
    """Return a text without the statements that may go and whose terms say so, and these."""
    left, end, gone = "", 0, list[str]()
    for statement in statements(text):
        if may(statement.text) and goes({*terms(statement.text)}):
            left += text[end : statement.start]
            end = statement.end
            gone.append(statement.text)
    return (left + text[end:]).strip() if gone else text, gone


@lru_cache(1 << 14)
def instant(at: str) -> float:
    """Return a time as seconds since 1970, in UTC without a zone; minus infinity if it is none."""
    try:
        found = datetime.fromisoformat(at)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return -math.inf


def is_later(one: str, other: str) -> bool:
    """Whether a time is later than another; if one is only a day, their days decide."""
    if min(len(one), len(other)) <= len("2026-03-05"):
        return one[:10] > other[:10]
    return instant(one) > instant(other)
