"""Facts and their lines: what a fact is, and how facts stand in a memory.

A fact is one line, which a small model can write and a person can read and edit:

    Anna Bell | works at | Acme | since 2021-03

A bar is one token, hardly ever part of a name, and known to every model from tables. Behind the
object stands what else is known, in any order, with semicolons between:

    since 2021-03     it holds since then
    until 2024-05     it held until then; `ended` if the day is not known
    replaced          a newer fact took its place
    replaces Acme     it took the place of that
    disputed          another source says otherwise, and neither is known to be newer
    says Bob          who said it in a conversation, if neither its subject nor the user
"""

from __future__ import annotations

from calendar import month_name
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import regex

from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Evidence, Memory, Unsupported
from memagent_graph.pictures import MARK
from memagent_graph.text.terms import HAN_DIGITS, HAN_SCALES, in_han, specific_terms, terms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

SAME_AS = "same as"
"""The relation of two names of one thing."""

Status = Literal["holds", "replaced", "ended"]


@dataclass(frozen=True, slots=True)
class Fact:
    """A subject, a relation and an object, with the time in which it holds.

    Attributes:
        subject: name of what it is about.
        relation: what it says of the subject, in lower case: "works at".
        object: name or value.
        since: when it began to hold: "2021", "2021-03" or "2021-03-15", or as the text says it;
            None if not known.
        until: when it ended, likewise. It still holds on that day, unless it was replaced.
        status: "replaced" if a newer fact took its place, "ended" if it was withdrawn or has an end
            without a successor, otherwise "holds".
        replaces: objects that the text names as those whose place it took.
        disputed: whether another source says otherwise, and neither is known to be newer.
        evidence: its places in the document.
        unsupported: whether nothing that was read supports it.
        missing: its names and numbers that nothing accounts for.
        message: id of the message that says so, in the memory of a user.
        thread: id of that message's conversation.
        told_at: time of that message (ISO 8601).
        speaker: who said it in a conversation; "" for its subject, or the user.

    Examples:
        >>> from memagent_graph import Fact
        >>> fact = Fact("Lease 7", "rent", "900 euros", since="2022", until="2023-05")
        >>> print(fact.line)
        Lease 7 | rent | 900 euros | since 2022; until 2023-05
        >>> fact.holds("2023"), fact.holds("2024")
        (True, False)
    """

    subject: str
    relation: str
    object: str
    since: str | None = None
    until: str | None = None
    status: Status = "holds"
    replaces: tuple[str, ...] = ()
    disputed: bool = False
    evidence: tuple[Evidence, ...] = ()
    unsupported: bool = False
    missing: tuple[str, ...] = ()
    message: str = ""
    thread: str = ""
    told_at: str = ""
    speaker: str = ""

    @property
    def line(self) -> str:
        """The line of the memory."""
        is_said = self.status == "replaced" or (self.status == "ended" and self.until is None)
        parts = [
            self.since and f"since {self.since}",
            self.until and f"until {self.until}",
            self.status if is_said else "",
            *(f"replaces {name}" for name in self.replaces),
            "disputed" if self.disputed else "",
            self.speaker and f"says {self.speaker}",
        ]
        behind = "; ".join(filter(None, parts))
        fields = [*self.triple, *([behind] if behind else ())]
        return " | ".join(_BARS.sub(r"\\\g<0>", field) for field in fields)

    @property
    def triple(self) -> tuple[str, str, str]:
        """Subject, relation and object."""
        return self.subject, self.relation, self.object

    def holds(self, at: str | date | None = None) -> bool:
        """Whether it holds at a time.

        Args:
            at: a day, a month or a year ("2023-05"); None for today. A fact whose beginning is not
                known has always held; one that was replaced at an unknown time never did.

        Raises:
            ConfigurationError: The time is no date.
        """
        day = read_date(str(at or date.today()))  # noqa: DTZ011 - a day of the user's
        if day is None:
            message = f'{at!r} is no date: give a day, a month or a year, such as "2023-05".'
            raise ConfigurationError(message)
        times = (self.since, self.until)
        begins, ends = (time if time and _ISO.fullmatch(time) else None for time in times)
        if begins and at and not (begins <= day or begins.startswith(day)):
            return False
        if ends is None:
            return self.status == "holds"
        is_on_last_day = day.startswith(ends) or ends.startswith(day)
        return ends > f"{day}-01-01"[:10] or (self.status != "replaced" and is_on_last_day)


_ISO = regex.compile(r"\d{4}(?:-\d\d(?:-\d\d)?)?")
_ENGLISH = " ".join(month_name)
_GERMAN = "januar februar märz april mai juni juli august september oktober november dezember"
_FRENCH = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre"
_YEARS = (names.lower().split() for names in (_ENGLISH, _GERMAN, _FRENCH))
_MONTHS = [(month, number) for names in _YEARS for number, month in enumerate(names, 1)]
_NUMERIC = regex.compile(
    r"(?P<year>\d{4})(?:[-/.年](?P<month>\d\d?)(?:[-/.月](?P<day>\d\d?))?)?[年月日]?"
    r"(?:[T ]\d\d:\d\d[\d:.Z+-]*)?"
)
_DAY_FIRST = regex.compile(r"(?P<day>\d\d?)\.\s?(?P<month>\d\d?)\.\s?(?P<year>\d{4})")
_NAMED = regex.compile(
    r"(?:(?P<day>\d\d?)(?:st|nd|rd|th|er)?\.?\s)?(?:of\s)?(?P<month>\p{L}{3,9})\.?"
    r"(?:\s(?P<later>\d\d?)(?:st|nd|rd|th)?(?=[\s,]))?,?\s(?P<year>\d{4})",
    regex.IGNORECASE,
)
_LONGEST_DATE = 40


def read_date(text: str) -> str | None:
    """Return a date as "2021", "2021-03" or "2021-03-15"; None if the text is no date."""
    text = " ".join(text[: _LONGEST_DATE + 1].split()).strip(" .,()").removeprefix("the ")
    found = _NUMERIC.fullmatch(text) or _NAMED.fullmatch(text) or _DAY_FIRST.fullmatch(text)
    if found is None or len(text) > _LONGEST_DATE:
        return None
    values = found.groupdict()
    said = [values["year"], values["month"], values.get("day") or values.get("later")]
    parts = [int(part) if part.isdecimal() else _month(part) for part in said if part]
    with suppress(ValueError):
        date(*[*parts, 1, 1][:3])
        return "-".join(f"{part:02}" for part in parts)
    return None


def _month(name: str) -> int:
    """The number of an English, German or French month, which may be cut; 0 if it is none."""
    named = [number for month, number in _MONTHS if month.startswith(name.lower())]
    return named[0] if len({*named}) == 1 else 0


_DATE_IN = regex.compile(
    r"\b\d{4}-\d\d(?:-\d\d)?\b|\b\d{1,2}\.\s?\d{1,2}\.\s?\d{4}\b"
    r"|\b(?:\d{1,2}(?:st|nd|rd|th|er|\.)?\s)?\p{L}{3,9}\s(?:\d{1,2},\s)?\d{4}\b"
    r"|(?<=\b[Ii]n\s)\d{4}\b"
)


def dates_in(text: str) -> set[str]:
    """Return the dates that a text names, as `read_date` does."""
    return {date for found in _DATE_IN.findall(text) if (date := read_date(found))}


_NUMBER = regex.compile(r"(?<!\d)\d\d?(?!\d)")
_WORD = regex.compile(r"\p{L}{3,9}")
_YEAR = regex.compile(r"(?<!\d)[12]\d{3}(?!\d)")
_WITH_MONTH = regex.compile(
    r"(?<!\d)(?:(?:\d\d?[-/.]\s?){2}(?:(?:\d\d)?(?P<year>\d\d))?|[12]\d{3}\s?[-/.年]\s?\d\d?"
    r"|\d\d?[-/.][12]\d{3}|\d\d?(?=\s?月))(?!\d)"
)
_HAN = "".join([*HAN_DIGITS, *HAN_SCALES])
_HAN_DATE = regex.compile(rf"(?<![{_HAN}])[{_HAN}]++(?=\s?[年月日号])")


@lru_cache(1 << 10)
def find_times(sentence: str) -> tuple[set[int], set[int], set[int]]:
    """Return the years, months and days that a sentence may name."""
    said = _HAN_DATE.sub(lambda han: in_han(han[0]), sentence)
    numeric = [*_WITH_MONTH.finditer(said)]
    short = [int(one["year"]) for one in numeric if one["year"]]
    years = {*map(int, _YEAR.findall(said)), *(1900 + year for year in short)}
    years |= {2000 + year for year in short}
    months = {int(number) for one in numeric for number in _NUMBER.findall(one[0])}
    months |= {*map(_month, _WORD.findall(said))} - {0}
    return years, months, {*map(int, _NUMBER.findall(said))}


def find_said(sentences: Sequence[str], time: str, text: str) -> str:
    """Return a time as far as sentences say it in any form: its year, month and day; "" if not.

    Of a sentence that says another month of a year, the year is not said. A sentence without a year
    may mean each of its text.
    """
    if read_date(time) is None:
        whole = {*specific_terms("\n".join(sentences))}
        return time if whole.issuperset(specific_terms(time)) else ""
    parts, most, all_years = time.split("-"), 0, {*map(int, _YEAR.findall(text))}
    for years, months, days in map(find_times, sentences):
        known = zip(parts, (years or (months and all_years), months, days), strict=False)
        said = len([*takewhile(lambda pair: int(pair[0]) in pair[1], known)])
        most = max(most, 0 if said == 1 < len(parts) and months else said)
    return "-".join(parts[:most])


_FROM_TO = regex.compile(
    r"(?P<since>.{4,40}?)(?:\s\(.*|\s?(?:[-–—]|until|till|to|through)\s(?P<until>.*))"
)


def read_span(text: str) -> tuple[str, str | None] | None:
    """Return when a text says that something begins and ends; None if it begins with no date.

    It reads "2021-03", "2021-03 to 2024", "2021-03 - present" and "2021-03 (section 2)".
    """
    if begins := read_date(text):
        return begins, None
    found = _FROM_TO.fullmatch(text[:_LONGEST_LINE])
    begins = read_date(found["since"]) if found else None
    return (begins, read_date(found["until"] or "")) if found and begins else None


# --- Lines

_BAR = regex.compile(r"(?<!\\)[|｜¦│]|\t")
_ESCAPED = regex.compile(r"\\([|｜¦│])")
_BARS = regex.compile(r"[|｜¦│]")
_OTHERS = (" -> ", " => ", " → ", " — ", " – ", " -- ", " - ")
"""What models put in place of the bars."""
_LIST_MARK = regex.compile(r"\A(?:[-*+•‣◦>#]+|\d{1,3}[.)])\s+")
_AROUND = " \t*_`\"“”„'‘’,;:([{"
_LABEL = regex.compile(
    r"\A[\s*_]*(?:subject|entity|relation|predicate|object|value)[*_]*\s*[:=](?=\s)",
    regex.IGNORECASE,
)
"""What models put before a field."""
_ASIDE = regex.compile(
    r"(?:source|section|page|evidence|quote|note|confidence)s?\s*[:=].*", regex.IGNORECASE
)
"""What models put behind a fact, and is none of it."""
_RULE = regex.compile(r"[\s|:=_*`~+-]+")
_WORDLESS = regex.compile(r"\W*")
_SPLIT = regex.compile(
    r"[;,]\s(?=(?:since|from|as of|until|till|through|to|not|replace[sd]|ended|disputed)\b)"
    r"|;\s?|\s(?=(?:until|till|to|through)\s\d)",
    regex.IGNORECASE,
)
_BEHIND = regex.compile(
    r"(?P<word>since|from|as of|starting|until|till|through|to|not|replaces|instead of"
    r"|replaced|ended|disputed|amends|says|current|present|ongoing)\b:?\s*(?P<rest>.*)",
    regex.IGNORECASE,
)
_AFTER_OBJECT = regex.compile(
    r"[ ,(]\(?(?P<word>since|as of|until)\s(?P<date>[^()]{4,30})\)?\.?$", regex.IGNORECASE
)
_HAS = frozenset({"has", "have", "had"})
_HEADER = frozenset({"subject", "entity", "name", "who"})
_LEAST, _MOST = 3, 12
_LONGEST_LINE, _LONGEST_FIELD = 2_000, 300
"""Code points above which a line, or one of its fields, is no fact."""


def read_fact(line: str) -> Fact | None:
    """Return the fact of a line as a model or a person writes it; None if it is none.

    Bullets, a table's outer bars, white space, quotes and dashes in place of bars are tolerated.
    """
    if len(line) > _LONGEST_LINE:
        return None
    bare = _LIST_MARK.sub("", line.strip(), count=1)
    parts = _BAR.split(bare)
    if len(parts) < _LEAST:
        marks = (mark for mark in _OTHERS if bare.count(mark) >= _LEAST - 1)
        parts = bare.split(next(marks, "\n"))
    if len(parts) < _LEAST and bare.startswith("(") and bare.rstrip(" .;,").endswith(")"):
        parts = bare.rstrip(" .;,")[1:-1].split(", ", 3)
    fields = (_clean(_ESCAPED.sub(r"\1", _LABEL.sub("", part))) for part in parts)
    cleaned = [*dropwhile(lambda field: not field, fields)]
    is_padded = len(cleaned) > _LEAST and cleaned[1].lower() in _HAS
    if is_padded and not (_BEHIND.fullmatch(cleaned[3]) or read_date(cleaned[3])):
        del cleaned[1]  # "Lease 7 | has | rent | 900 euros"
    subject, relation, thing, *behind = [*cleaned, "", "", ""]
    relation = to_words(relation)
    word, _, rest = relation.partition(" ")
    if (
        not (_has_word(subject) and _has_word(thing) and any(map(str.isalpha, relation)))
        or not _LEAST <= len(cleaned) <= _MOST
        or max(map(len, cleaned[:3])) > _LONGEST_FIELD
        # What belongs behind the object stands in the relation's place.
        or (word in _MISPLACED and (rest == subject.lower() or any(map(str.isdigit, rest))))
    ):
        return None
    found = Fact(subject, relation, thing)
    if (late := _AFTER_OBJECT.search(thing)) and read_date(late["date"]):
        found = replace(found, object=_clean(thing[: late.start()]) or thing)
        behind = [f"{late['word']} {late['date']}", *behind]
    return _qualify(found, [one for part in behind for one in _SPLIT.split(part) if one.strip()])


_MISPLACED = frozenset({"since", "until", "not", "replaces"})


def _has_word(text: str) -> bool:
    return not _WORDLESS.fullmatch(text)


def _clean(text: str) -> str:
    """A field on one line, without what is put around it."""
    text = " ".join(text[:_LONGEST_LINE].split())
    while True:
        if MARK.match(bare := text.lstrip(_AROUND.replace("[", ""))):
            return bare.rstrip(_AROUND)  # it refers to a picture
        bare = _LIST_MARK.sub("", text.lstrip(_AROUND), count=1)
        for opening, closing in ("()", "[]", "{}"):
            if bare.endswith(closing) and bare.count(opening) < bare.count(closing):
                bare = bare[:-1]
        bare = bare.rstrip(_AROUND)
        if bare == text:
            return text
        text = bare


def to_words(relation: str) -> str:
    """Return a relation in words: "works at" for `works_at`."""
    return " ".join(relation.replace("_", " ").lower().split())


def _qualify(fact: Fact, behind: Iterable[str]) -> Fact:
    for part in behind:
        match = _BEHIND.fullmatch(part.strip())
        word, rest = (match["word"].lower(), _clean(match["rest"])) if match else ("", "")
        day = rest.removeprefix("on ").removeprefix("in ") if word in _ENDED else rest
        time, changes = _time(day), dict[str, Any]()
        span = read_span(rest) or (time, None) if word in _BEGINS and time else None
        if word in _ENDED:
            changes = {"status": word, "until": fact.until or time or None}
        elif word == "disputed":
            changes = {"disputed": True}
        elif word == "says" and _has_word(rest):
            changes = {"speaker": rest}
        elif word in _OF_OTHERS and _has_word(rest):
            changes = {"replaces": (*fact.replaces, rest)}
        elif word in _ENDS and time:
            changes = {"until": time, "status": "ended" if fact.status == "holds" else fact.status}
        elif span := span or read_span(part):
            ends = {"until": span[1], "status": "ended"} if span[1] else {}
            changes = {"since": span[0], **ends}
        elif match or _ASIDE.fullmatch(part) or not _has_word(part):
            continue
        elif len(fact.object) + len(part) < _LONGEST_FIELD:
            changes = {"object": f"{fact.object}, {_clean(part)}"}
        fact = replace(fact, **changes)
    return fact


_ENDED, _OF_OTHERS = {"replaced", "ended"}, {"replaces", "instead of", "not"}
_BEGINS, _ENDS = {"since", "from", "as of", "starting"}, {"until", "till", "through", "to"}


def _time(text: str) -> str:
    """A time as it is compared, or else as the text says it; "" if it says none."""
    if text.lower() in _NO_TIME:
        return ""
    return read_date(text) or (text if 0 < len(text) <= _LONGEST_DATE else "")


_NO_TIME = {"now", "today", "present", "unknown", "date", "n/a", "none", "further notice"}


class Lines(NamedTuple):
    """The facts of a text, in order and each once, and its lines that are none."""

    facts: list[Fact]
    others: list[str]


def read_lines(text: str) -> Lines:
    """Return the facts in a text, and its other lines but headings, fences, rules and tags."""
    facts: dict[str, Fact] = {}
    others = []
    for line in text.splitlines():
        bare = line.strip()
        if not bare or _RULE.fullmatch(bare) or bare.endswith((":", "：")):
            continue
        if bare.startswith(("```", "#")) or (bare.startswith("<") and bare.endswith(">")):
            continue
        fact = read_fact(bare)
        if fact is None:
            others.append(bare)
        elif fact.subject.lower() not in _HEADER or fact.relation not in {"relation", "predicate"}:
            facts.setdefault(fact.line, fact)
    return Lines([*facts.values()], others)


def facts_of(memory: str | Memory | Mapping[str, Any] | Any) -> list[Fact]:
    """Return the facts of a memory, with their evidence, in reading order.

    Args:
        memory: the output of a reading, a `MemoryVersion`, a `Memory` or its text.

    Examples:
        >>> from memagent_graph import Facts, create_memagent, facts_of
        >>> agent = create_memagent("openai:gpt-4o-mini", schema=Facts)
        >>> text = "The rent of Lease 7 is 900 euros. The rent of Lease 7 is 950 euros since 2024."
        >>> out = agent.invoke({"question": "What is the rent of Lease 7?", "document": text})
        >>> for fact in facts_of(out):
        ...     print(fact.line)
        Lease 7 | rent | 900 euros | until 2024; replaced
        Lease 7 | rent | 950 euros | since 2024
    """
    if isinstance(memory, Mapping):
        places = tuple(Evidence(**item) for item in memory.get("evidence", ()))
        memory = Memory(str(memory.get("memory", "")), places)
    elif isinstance(memory, str):
        memory = Memory(memory)
    found = memory if isinstance(memory, Memory) else memory.memory
    known: dict[str, dict[str, Any]] = {}
    for item in found.evidence:
        own = known.setdefault(item.text, {})
        own["evidence"] = (*own.get("evidence", ()), item)
    for mark in found.unsupported:
        known.setdefault(mark.text, {}).update(unsupported=True, missing=mark.missing)
    for one in getattr(memory, "told", ()):
        said = {"message": one.message, "thread": one.thread, "told_at": one.at}
        known.setdefault(one.line, {}).update(said)
    return [replace(fact, **known.get(fact.line, {})) for fact in read_lines(found.text).facts]


def memory_of_facts(facts: Iterable[Fact], others: Iterable[str] = (), dropped: int = 0) -> Memory:
    """Return the memory of some facts; lines that are none come first."""
    lines = [(fact.line, fact) for fact in facts]
    evidence = [replace(item, text=line) for line, fact in lines for item in fact.evidence]
    marks = [Unsupported(line, fact.missing) for line, fact in lines if fact.unsupported]
    text = "\n".join([*others, *(line for line, _ in lines)])
    return Memory(text, tuple(dict.fromkeys(evidence)), tuple(dict.fromkeys(marks)), dropped)


def names_day(text: str) -> bool:
    """Whether a text is a day or a month, maybe with "since" before it; a year may be a number."""
    found = _BEHIND.fullmatch(text)
    return "-" in (read_date(found["rest"] if found else text) or "")


def drop_facts(text: str, subject: Collection[str]) -> tuple[str, list[str]]:
    """Return a memory without the lines that have all of some terms, and these lines."""
    lines = text.splitlines()
    gone = [line for line in lines if {*terms(line)}.issuperset(subject)]
    return "\n".join(line for line in lines if line not in gone), gone
