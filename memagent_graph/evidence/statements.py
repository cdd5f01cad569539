"""Cut texts into statements, memories into notes, and both into terms that compare them."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.evidence.claims import Piece
from memagent_graph.templates import count_line_ends, late, replace_surrogates, same_line_ends
from memagent_graph.text.source import JoinedSource
from memagent_graph.text.terms import (
    BROKEN_END,
    figures,
    join_lines,
    one_form,
    simple_values,
    specific_terms,
    terms,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from memagent_graph.text.chunks import Chunk

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
    r"[.!?…][\"”’')\]]*\s+(?=[\"“‘'(\[]*[\p{Lu}\p{N}\p{Lo}])"
    r"|[。！？｡][」』”’）]*(?![」』”’）。！？])\s*"
)
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


def statements_of(chunk: Chunk) -> Iterator[Statement]:
    """Cut a chunk into statements of its files, with offsets in the whole document."""
    begin, end, spans = chunk.start, chunk.end, [(chunk.start, chunk.end)]
    if isinstance(chunk.source, JoinedSource):
        parts = chunk.source.parts_between(begin, end)
        spans = [(max(start, begin), min(start + part.length, end)) for part, start in parts]
    for start, stop in spans:
        for text, first, last in statements(chunk.text[start - begin : max(stop - begin, 0)]):
            yield Statement(text, start + first, start + last)


@lru_cache(64)
def statements(text: str) -> tuple[Statement, ...]:
    """Cut `text` into statements, in order."""
    found = ((" ".join(join_lines(raw).split()), begin, len(raw)) for begin, raw in _cut(text))
    return tuple(Statement(said, begin, begin + length) for said, begin, length in found)


def _cut(text: str) -> Iterator[tuple[int, str]]:
    """Yield where each statement of a text starts, and what stands there."""
    text = same_line_ends(replace_surrogates(text))
    for content, start in _blocks(text):
        spans = _sentences(content) if _is_prose(content) else _lines(content)
        for first, last in spans:
            raw = content[first:last]
            stripped = raw.strip()
            if stripped:
                yield start + first + len(raw) - len(raw.lstrip()), stripped


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
    signs = sum(block.count(sign) for sign in "{}()[]=<>_#|;\t")
    widest = max(map(len, lines))
    full = sum(len(line) > widest * 0.6 or _breaks_off(line) for line in lines[:-1])
    return signs * 50 < len(block) and widest >= _NARROWEST and full * 3 >= 2 * (len(lines) - 1)


def _breaks_off(line: str) -> bool:
    """Whether a line ends within a word."""
    return BROKEN_END.search(line.rstrip()[-2:]) is not None


def _sentences(block: str) -> Iterator[tuple[int, int]]:
    start = 0
    ends = [
        match.end()
        for match in _SENTENCE_END.finditer(block)
        if block[match.start()] != "." or not _is_cut_short(block, match.start(), match.end())
    ]
    for end in [*ends, len(block)]:
        while end - start > LONGEST:
            within = start + 1, start + LONGEST
            middle = max(block.rfind("\n", *within), 0) or block.rfind(" ", *within)
            middle = middle if middle > 0 else start + LONGEST
            yield start, middle
            start = middle
        if end > start:
            yield start, end
        start = end


def _is_cut_short(block: str, stop: int, following: int) -> bool:
    """Whether a stop ends an abbreviation, and no sentence."""
    if not _ABBREVIATION.match(block, 0, stop):
        return False
    return bool(_NEVER_ENDS.match(block, 0, stop)) or not _OPENING.match(block, following)


def _lines(block: str) -> Iterator[tuple[int, int]]:
    """Lines; one that opens something is joined with the next, as a signature and its docstring."""
    start = position = 0
    joined = 0
    for line in block.split("\n"):
        position += len(line) + 1
        joined += 1
        opens = joined < _MOST_JOINED and (line.rstrip().endswith(_OPENERS) or _breaks_off(line))
        if not opens:
            for end in range(start + LONGEST, position, LONGEST):
                yield end - LONGEST, end
                start = end
            yield start, position
            start, joined = position, 0
    if start < position:
        yield start, position


_MARK = regex.compile(
    r"[ \t]*+(?:[-*+•‣◦–—>]+[ \t]|\d{1,3}[.)][ \t]|#{1,6}[ \t]|\[[ xX]\][ \t]|\d{1,3}、"
    r"|[一二三四五六七八九十]{1,3}、)[ \t]*+"
)
_MOST_MARKS = 4
_LABEL = regex.compile(r"[*_\"“]{0,3}[^\n:：.。!?]{1,60}+(?:[*_\"”]{0,3}[:：])[*_]{0,3}")
_FIELD = regex.compile(r"(?<=[\"\]}\p{L}\p{N}])[ ]?,[ ]?(?=\"[^\"\n]{1,60}+\"[ ]?:)")
_OBJECTS = ("{", "[{", "[")
_CONTEXT = 300
"""Code points of heading, and of text before a note, that are its context."""


@lru_cache(64)
def notes(memory: str) -> tuple[Piece, ...]:
    """Cut a memory into notes, in order. Headings and lines of punctuation are skipped."""
    found: list[Piece] = []
    heading, offset = "", 0
    for line in memory.splitlines(keepends=True):
        begin, is_heading = _content(line)
        content = line[begin:].rstrip()
        if is_heading or content.rstrip("*_").endswith((":", "：")):
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
        found = notes(line)
        out = [note for note in found if note.text in texts]
        if out and len(out) == len(found):
            continue
        for note in reversed(out):
            line = line[: note.start] + line[note.end :].lstrip(" ")  # noqa: PLW2901 - cut from its end
        kept.append(line)
    return "".join(kept).rstrip()


def _content(line: str) -> tuple[int, bool]:
    """Return the start of a line's own words, and whether it is marked as a heading."""
    begin, is_heading = 0, False
    for _ in range(_MOST_MARKS):
        mark = _MARK.match(line, begin)
        if mark is None:
            break
        is_heading |= "#" in mark[0]
        begin = mark.end()
    return begin + len(line[begin:]) - len(line[begin:].lstrip()), is_heading


def _spans(content: str) -> Iterator[tuple[int, int]]:
    """Sentences of a line, or the fields of an object written on it."""
    cuts = [0, len(content)]
    if content.startswith(_OBJECTS) and '":' in content:
        cuts[1:1] = [match.end() for match in _FIELD.finditer(content)]
    for first, last in pairwise(cuts):
        for begin, raw in _cut(content[first:last]):
            if any(map(str.isalnum, join_lines(raw))):
                yield first + begin, first + begin + len(raw)


def passages(text: str) -> Iterator[Piece]:
    """Cut a text into sentences that can be evidence."""
    block = last = 0
    for cut in statements(text):
        block += count_line_ends(text, last, cut.start) > 1
        last = cut.end
        yield Piece(cut.text, passage_terms(text[cut.start : cut.end]), cut.start, cut.end, block)


def passage_terms(text: str) -> dict[str, None]:
    """Return the terms of a text, including numbers of one word."""
    text = one_form(text)
    tokens = (_PLAIN_TOKEN if _PLAIN.match(text) else _TOKEN).findall(text)
    return dict.fromkeys(chain.from_iterable(map(_token_terms, tokens)))


_TOKEN = regex.compile(r"\w++(?:[.,:'’]\w++)*+")
_PLAIN_TOKEN = re.compile(_TOKEN.pattern)
_PLAIN = re.compile("[\x00-\x7f\xc0-\u024f\u2010-\u2027]*+\\Z")
"""Latin text, in which both libraries know the same words and `re` takes half the time."""


@lru_cache(1 << 16)
def _token_terms(token: str) -> tuple[str, ...]:
    found = specific_terms(token)
    values = simple_values(found, token)
    words = (term for term in found if not values or not simple_values([term], ""))
    return (*words, *values)


@lru_cache(1 << 11)
def note_terms(text: str) -> Mapping[str, None]:
    """Return the terms of a note; a number of several words is one term."""
    numbers = figures(text)
    plain, last = [], 0
    for number in numbers:
        if number.spelled and " " in number.text:
            plain.append(text[last : number.start])
            last = number.end
    found = passage_terms(" ".join([*plain, text[last:]]))
    found.update(
        dict.fromkeys(f"={value}" for number in numbers for value in sorted(number.values))
    )
    return found


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


_GIVEN = (
    r"(?:specified|mentioned|stated|given|provided|available|(?:yet\ )?known|found|listed"
    r"|indicated|disclosed|defined|described|reported|shared|set|applicable|determined|said|sure)"
)
_NOT_SAID = late(
    rf"""
    \W*(?:(?:is\ |was\ )?(?:not|none|nothing|never)[ _-](?:been\ |yet\ )?{_GIVEN}(?:\ yet)?
      |unspecified|unknown|undefined|undisclosed|n\W?/?\W?a|nil|null|nan|tb[ad]|k\.?\W?a
      |to\ be\ {_GIVEN}|no\ (?:information|info|mention|data|value|details)(?:\ {_GIVEN})?
      |nicht\ (?:angegeben|genannt|bekannt|erwähnt)|unbekannt|keine\ (?:angaben?|informationen)
      |(?:non|pas)\ (?:précisé|spécifié|indiqué|mentionné|renseigné|connu)e?s?|inconnue?s?
      |(?:no|não|non)\ (?:e?specific|mencion|indic|proporcion|menzion|inform)ad?t?[oae]
      |des(?:conoc|conhec)id[oa]|sconosciut[oa]|niet\ (?:opgegeven|vermeld|bekend)|onbekend
      |неизвестно|не\ указано|未提及|未知|未说明|未提供|不详|不明|无|無|なし|없음
    )?\W*(?:\ (?:in\ (?:the|this)|by\ the)\ (?:section|text|document|conversation|user)\W*)?
    """,
    regex.IGNORECASE | regex.VERBOSE,
)
_NONE = late(
    r"\W*(?:no|none|nothing|keine?[nrs]?|nichts|aucune?|ningun[oa]|nessun[oa])\W*", regex.I
)


def is_not_said(value: str) -> bool:
    """Return whether a value is what models write in place of one that the text does not name."""
    return bool(_NOT_SAID.fullmatch(value))


def is_none(value: str) -> bool:
    """Return whether a value is a word for none, which may be one of several to choose from."""
    return bool(_NONE.fullmatch(value))


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
