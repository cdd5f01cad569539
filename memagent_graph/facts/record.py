"""Facts and their lines: what a fact is, which ones are wanted, and how they stand in a memory.

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
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import regex
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Evidence, Memory, Unsupported
from memagent_graph.evidence.statements import is_not_said
from memagent_graph.pictures.picture import MARK
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
    if len(text) > _LONGEST_DATE:
        return None
    found = _NUMERIC.fullmatch(text) or _NAMED.fullmatch(text) or _DAY_FIRST.fullmatch(text)
    if found is None:
        return None
    values = found.groupdict()
    said = [values["year"], values["month"], values.get("day") or values.get("later")]
    parts = [int(part) if part.isdecimal() else _month(part) for part in said if part]
    try:
        date(*[*parts, 1, 1][:3])
    except ValueError:
        return None
    return "-".join(f"{part:02}" for part in parts)


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
    cleaned = [_clean(_ESCAPED.sub(r"\1", _LABEL.sub("", part))) for part in parts]
    while cleaned and not cleaned[0]:
        cleaned.pop(0)
    is_padded = len(cleaned) > _LEAST and cleaned[1].lower() in _HAS
    if is_padded and not (_BEHIND.fullmatch(cleaned[3]) or read_date(cleaned[3])):
        del cleaned[1]  # "Lease 7 | has | rent | 900 euros"
    subject, relation, thing, *behind = [*cleaned, "", "", ""]
    relation = _words(relation)
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


def _words(relation: str) -> str:
    return " ".join(relation.replace("_", " ").lower().split())


def _qualify(fact: Fact, behind: Iterable[str]) -> Fact:
    """A fact with what stands behind its object."""
    for part in behind:
        match = _BEHIND.fullmatch(part.strip())
        word, rest = (match["word"].lower(), _clean(match["rest"])) if match else ("", "")
        time = (
            _time(rest.removeprefix("on ").removeprefix("in ")) if word in _ENDED else _time(rest)
        )
        span = read_span(rest) or (time, None) if word in _BEGINS and time else None
        changes: dict[str, Any] = {}
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
            changes = {"since": span[0]} | (
                {"until": span[1], "status": "ended"} if span[1] else {}
            )
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
    marked = {item.text: item.missing for item in found.unsupported}
    by_line: dict[str, list[Evidence]] = {}
    for item in found.evidence:
        by_line.setdefault(item.text, []).append(item)
    sources = {item.line: item for item in getattr(memory, "told", ())}
    facts = []
    for fact in read_lines(found.text).facts:
        line, source = fact.line, sources.get(fact.line)
        known: dict[str, Any] = {"evidence": (*by_line.get(line, ()),)}
        known |= {"unsupported": line in marked, "missing": marked.get(line, ())}
        if source is not None:
            known |= {"message": source.message, "thread": source.thread, "told_at": source.at}
        facts.append(replace(fact, **known))
    return facts


def memory_of_facts(facts: Iterable[Fact], others: Iterable[str] = (), dropped: int = 0) -> Memory:
    """Return the memory of some facts; lines that are none come first."""
    lines = [(fact.line, fact) for fact in facts]
    evidence = [replace(item, text=line) for line, fact in lines for item in fact.evidence]
    marks = [Unsupported(line, fact.missing) for line, fact in lines if fact.unsupported]
    text = "\n".join([*others, *(line for line, _ in lines)])
    return Memory(text, tuple(dict.fromkeys(evidence)), tuple(dict.fromkeys(marks)), dropped)


def is_facts(text: str) -> bool:
    """Whether a memory is one of facts: each line begins with the fields of one."""
    lines = text.splitlines()
    facts = map(read_fact, lines)
    read = [fact.line.split(" | ")[:_LEAST] if fact else None for fact in facts]
    return bool(lines) and read == [line.split(" | ")[:_LEAST] for line in lines]


# --- What is wanted

_SINGLE = """
works at, works for, employer, job, job title, position, lives in, born in, born on, died in,
died on, birthday, date of birth, place of birth, age, name, married to, spouse, partner,
status, ceo, capital, population, headquarters, seat, based in, located in, address, phone,
email, owner, owned by, landlord, tenant, reports to, manager, price, rent, monthly rent,
salary, fee, budget, deadline, due date, start date, end date, term, duration, notice period,
interest rate, governing law, jurisdiction, currency, version, diet, time zone,
miete, monatliche miete, kaltmiete, kaution, preis, gehalt, laufzeit, kündigungsfrist, mieter,
vermieter, eigentümer, adresse, loyer, loyer mensuel, caution, prix, salaire, durée, préavis,
locataire, bailleur, propriétaire, 租金, 月租金, 押金, 价格, 工资, 月薪, 租期, 期限, 通知期,
承租人, 出租人, 所有人, 地址
"""
"""Relations that have one object at a time, where no schema says otherwise."""
SINGLE = frozenset(" ".join(_SINGLE.split()).split(", "))


_MEASURED = "age budget duration fee interest_rate monthly_rent notice_period price rent salary"
_AMOUNTS = frozenset(name.replace("_", " ") for name in _MEASURED.split())
"""Relations whose objects are no dates."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation of a schema.

    Its name is that of lines ("works at" for a field `works_at`); its subject and object are names
    of models, or "date", "number" or "text"; with choices, no other object is allowed.
    """

    name: str
    subject: str
    object: str
    single: bool
    description: str = ""
    choices: tuple[str, ...] = ()

    @property
    def described(self) -> str:
        """The words that describe it to a model."""
        objects = " or ".join(self.choices) or ("" if self.object == "text" else f"a {self.object}")
        about = "; ".join(filter(None, (objects, self.description)))
        return f"{self.name} ({about})" if about else self.name


class Facts:
    """The facts that a memory keeps: `schema=Facts` for any, `Facts(Person, Company)` for those.

    A pydantic model is a kind of entity; its fields are the relations that it may have. A list or
    set has several objects at once; of any other type, a new object closes the old one. Enums and
    literals are the objects to choose from. Descriptions are shown to the model.

    Args:
        entities: the models; models that their fields refer to are added. Without any, every
            relation is kept; some, such as "works at" and "price", have one object at a time.

    Attributes:
        relations: the relations of the models, by name; none if all are kept.

    Raises:
        ConfigurationError: One is no pydantic model, or none has a field.

    Examples:
        >>> from pydantic import BaseModel, Field
        >>> from memagent_graph import Facts
        >>> class Lease(BaseModel):
        ...     rent: str = Field(description="rent a month")
        ...     tenant: list[str] = []
        >>> print(Facts(Lease).described)
        Lease: rent (rent a month), tenant
    """

    def __init__(self, *entities: type[BaseModel]) -> None:
        self.relations: dict[str, Relation] = {}
        for entity in entities:
            if not (isinstance(entity, type) and issubclass(entity, BaseModel)):
                message = f"Facts takes pydantic models of entities, not {entity!r}."
                raise ConfigurationError(message)
        refs, plain = models_json_schema([(entity, "validation") for entity in entities])
        kinds = plain.get("$defs", {})
        waiting = [_name_of(refs[entity, "validation"]) for entity in entities]
        for kind in waiting:  # grows within the loop
            for name, field in kinds[kind].get("properties", {}).items():
                relation, others = _relation(kind, name, field, kinds)
                known = self.relations.get(relation.name)
                if known is not None and not (known.single and relation.single):
                    relation = replace(relation, single=False)
                self.relations[relation.name] = relation
                waiting += [one for one in others if one not in waiting]
        if entities and not self.relations:
            names = ", ".join(entity.__name__ for entity in entities)
            message = f"No relation to keep: {names} has no field. Add one for each relation."
            raise ConfigurationError(message)

    @classmethod
    def of(cls, schema: type[Facts] | Facts) -> Facts:
        """Return the schema itself, or that of any facts for the class."""
        return schema() if isinstance(schema, type) else schema

    @property
    def described(self) -> str:
        """The relations of each kind of entity, for a model; "" if all are kept."""
        kinds: dict[str, list[str]] = {}
        for relation in self.relations.values():
            kinds.setdefault(relation.subject, []).append(relation.described)
        return "\n".join(f"{kind}: {', '.join(told)}" for kind, told in kinds.items())

    def is_single(self, relation: str) -> bool:
        """Whether a subject has one object of this relation at a time."""
        known = self.relations.get(relation)
        return relation in SINGLE if known is None else known.single

    def fit(self, fact: Fact) -> Fact | None:
        """Return the fact as the schema writes it; None if it has no place for it."""
        if not self.relations or fact.relation == SAME_AS:
            return fact
        bare = fact.relation.removeprefix("is ").removeprefix("has ").removeprefix("the ")
        relation = self.relations.get(fact.relation) or self.relations.get(bare)
        if relation is None:
            return None
        chosen = {one.lower(): one for one in relation.choices}
        thing = chosen.get(fact.object.lower()) if chosen else fact.object
        is_number = any(map(str.isdigit, fact.object)) and not _is_day(fact.object)
        is_of_kind = {"date": bool(read_date(fact.object)), "number": is_number}
        if thing is None or not is_of_kind.get(relation.object, True):
            return None
        return replace(fact, relation=relation.name, object=thing)


def lacks_object(fact: Fact, schema: Facts) -> bool:
    """Return whether a fact's object is none, and no choice of the schema.

    It says that it is not said, or it is a date where an amount belongs.
    """
    known = schema.relations.get(fact.relation)
    choices = map(str.lower, known.choices) if known else ()
    is_none = is_not_said(fact.object) or (fact.relation in _AMOUNTS and _is_day(fact.object))
    return bool(is_none) and fact.object.lower() not in choices


def _is_day(text: str) -> bool:
    """Whether a text is a day or a month, maybe with "since" before it; a year may be a number."""
    found = _BEHIND.fullmatch(text)
    return "-" in (read_date(found["rest"] if found else text) or "")


def _name_of(schema: Mapping[str, Any]) -> str:
    """The name of the definition that a JSON schema refers to; "" if it refers to none."""
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _relation(
    kind: str, name: str, field: Mapping[str, Any], kinds: Mapping[str, Any]
) -> tuple[Relation, list[str]]:
    """The relation of a field, from its JSON schema, and the models that it refers to."""
    many, parts, choices, models, thing = False, [field], list[str](), list[str](), "text"
    for one in parts:  # grows within the loop
        inner = [*one.get("anyOf", ()), one.get("items"), one.get("additionalProperties")]
        parts += [part for part in inner if isinstance(part, Mapping)]
        other, values = _name_of(one), [one["const"]] if "const" in one else one.get("enum", ())
        if other and "properties" in kinds[other]:
            models.append(other)
        elif other:
            parts.append(kinds[other])
        many |= one.get("type") in {"array", "object"}
        choices += map(str, values)
        if one.get("format") in {"date", "date-time"}:
            thing = "date"
        elif one.get("type") in {"integer", "number"} and not values:
            thing = "number"
    objects = " or ".join(kinds[model]["title"] for model in models) or thing
    # What stands in braces or tags would be read as a field or a delimiter of the prompt.
    described = " ".join(field.get("description", "").translate(_PLAIN).split())
    return Relation(
        _words(name), kinds[kind]["title"], objects, not many, described, (*choices,)
    ), models


_PLAIN = str.maketrans("{}<>", "()()")


def drop_facts(text: str, subject: Collection[str]) -> tuple[str, list[str]]:
    """Return a memory without the lines that have all of some terms, and these lines."""
    lines = text.splitlines()
    gone = [line for line in lines if {*terms(line)}.issuperset(subject)]
    return "\n".join(line for line in lines if line not in gone), gone
