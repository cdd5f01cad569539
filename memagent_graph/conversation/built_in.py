"""The built-in reader of conversations: keeps what people tell of themselves.

A conversation has no question whose words could be looked for. What is worth keeping is told by
the form of a statement instead: it is about the speaker, it names somebody or something, it says
when or how many, and most of its words are not small talk. The rule knows English best. Of other
languages it knows names, numbers, question marks and some words for "I" and "my".
"""

from __future__ import annotations

import json
from datetime import date
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import regex

from memagent_graph.conversation.messages import ASSISTANT, LINE, TOOL, USER, find_continued
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Memory
from memagent_graph.evidence.statements import statements
from memagent_graph.readers.base import Merge, Update
from memagent_graph.readers.extractive import ExtractiveReader, rank
from memagent_graph.text.terms import telling_terms, terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from langchain_core.runnables import RunnableConfig

    from memagent_graph.config import ReadingConfig
    from memagent_graph.readers.base import Step
    from memagent_graph.text.chunks import Chunk
    from memagent_graph.text.tokens import Tokenizer

_FIRST_PERSON = regex.compile(
    r"(?i)\b(?:I|me|my|mine|we|us|our|ours|ich|mir|mein\p{L}*|wir|unser\p{L}*|je|moi|mon|mes|nous"
    r"|notre|nos|yo|mis?|nosotr[oa]s|nuestr[oa]s?)\b|\bj['’]|我|私|俺|僕"
)
_TIME = regex.compile(
    r"(?i)\b(?:yesterday|today|tonight|tomorrow|last|next|ago|since|recently|weekends?|weeks?"
    r"|months?|years?|(?:mon|tues|wednes|thurs|fri|satur|sun)days?|january|february|march|april"
    r"|may|june|july|august|september|october|november|december)\b|[年月日]"
)
_QUESTION = regex.compile(r"[?？؟][\"”’)]*$")
_REQUEST = regex.compile(
    r"(?i)^\W*(?:please|can|could|would|will|tell|show|explain|give|find|check|look|write|help"
    r"|let['’]s|what|how|why|who|where|when|which)\b|\bplease\b"
)
_NAME = regex.compile(
    r"(?<=[\p{Ll},;:] [\"“‘'(]?)\p{Lu}[\p{L}\p{N}'’-]+|[《「“\"][^》」”\"]{2,40}[》」”\"]"
)
_NUMBER = regex.compile(
    r"(?i)\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|twelve|dozen|hundred|thousand|first"
    r"|second|third|twice)\b|[一二三四五六七八九十百千万两]"
)
_SECOND_PERSON = regex.compile(r"(?i)\byou(?:['’]\p{L}+|r|rs)?\b|[你您]")

_MOST_TERMS = 8
_FIRST, _WHEN, _MOST_NAMES = 3.0, 2.0, 2
_ASKED = 0.2
"""Factor on the worth of a question or a request, which tells little of the speaker."""
_ADDRESSED = 0.4
"""Factor on the worth of a statement about the listener."""

_IDLE = frozenset(
    terms(
        "alright cheers fine haha hm hmm lmao lol m no not np omg rofl s thx ty ugh worry yup "
        "aren couldn d didn doesn don hasn haven isn ll re shouldn t ve wasn weren won wouldn"
    )
)
"""Words, and ends of shortened ones, that say nothing where nothing else is said."""
_GREETING = _IDLE | set(terms("morning afternoon evening night later tomorrow soon"))
"""The same, unless somebody says it of themselves."""

_INSTRUCTING = frozenset(
    terms(
        "remember remembering note noting store storing save saving record memory forget mention "
        "ignore detail details information info data topic subject user users person regarding"
    )
)
"""Words of an instruction that are not what it is about."""

_SMALL_TALK = frozenset(
    term
    for line in (
        "absolutely again agree always amazing anything appreciate awesome back bad believe best",
        "better big bit bring bye care chat check come congratulations congrats cool could couple",
        "course day deal definitely easy else enjoy enough even ever everyone everything exactly",
        "excited exciting experience fact fantastic feel feeling find fine forward fun give glad",
        "go going good gonna got gotta great guess guy ha haha happen happy hard hear hello help",
        "hey hi hope idea important incredible inspiring interesting keep kidding know let life",
        "like little long look lot love luck make maybe mean mind moment much need never new news",
        "nice now oh ok okay overall people perfect person place plan point pretty proud put real",
        "really right said say see seem share show someone something sorry sound special start",
        "stay still stuff super support sure sweet take talk thank thanks thing think thought",
        "time totally tough try understand use very wait want watch way welcome well wish wonder",
        "wonderful work world worth would wow yeah yep yes yet",
    )
    for term in terms(line)
)


@lru_cache(1 << 12)
def salience(statement: str, tokens: int) -> float:
    """Return how much a statement is worth remembering, for the room that it takes.

    Up to eight words count one each, small talk apart; a word for "I" or "my", three; a
    time, two; a number and up to two names, one each. A question or a request keeps a fifth of
    that, what is said to "you" two fifths. The sum is divided by the square root of its tokens.

    Args:
        statement: one sentence.
        tokens: length of the statement, in tokens.

    Returns:
        The worth; 0 for small talk.
    """
    said = _plain_words(statement)
    if said <= _IDLE or (said <= _GREETING and not _FIRST_PERSON.search(statement)):
        return 0.0
    worth = float(min(len(said), _MOST_TERMS))
    worth += _FIRST * bool(_FIRST_PERSON.search(statement))
    worth += _WHEN * bool(_TIME.search(statement))
    worth += bool(_NUMBER.search(statement))
    worth += min(len(_NAME.findall(statement)), _MOST_NAMES)
    if _QUESTION.search(statement) or _REQUEST.search(statement):
        worth *= _ASKED
    elif _SECOND_PERSON.search(statement):
        worth *= _ADDRESSED
    return worth / sqrt(max(tokens, 1))


def tells_time(text: str) -> bool:
    """Whether a word in a text names a day, a week, a month or another time."""
    return bool(_TIME.search(text))


_PROPERTY = (
    r"name|birthday|age|address|e-?mail|phone|number|job|employer|boss|doctor|budget|deadline"
    r"|username|time ?zone|status|size|weight|height"
)
_I = (
    r"(?i)\b(?:I|we)\b(?:['’]\p{L}+)?(?: (?:am|are|was|were|have|had|be|been|will|used|going"
    r"|gonna|to|just|now|recently|currently|still|finally|also|only|actually)\b)*+"
)
_SLOTS = [
    regex.compile(
        rf"{_I} (?:live|living|lived|moved?|moving|relocated|settled|based)"
        r"(?: (?:back|out|over|away|down|up|here|from \p{L}+))* (?:in|to)\b"
    ),
    regex.compile(rf"{_I} (?:work(?:ed|ing)? (?:at|for)|joined|employed (?:at|by))\b"),
    regex.compile(rf"{_I} work(?:ed|ing)? as\b"),
    regex.compile(r"(?i)\bI(?: am|['’]m)(?: \p{L}+)? \d{1,3}(?: years old|[.,!]|$)"),
    regex.compile(r"(?i)\b(?:call me|my name(?: is|['’]s))\b"),
]
"""Facts about the speaker of which the newest counts: home, employer, job, age and name."""
_MINE = regex.compile(
    rf"(?i)\bmy ((?:(?:favou?rite|current|new) (?:\p{{L}}+ ){{0,2}}\p{{L}}+)"
    rf"|(?:\p{{L}}+['’]s )?(?:{_PROPERTY}))(?: is| are| was|['’]s| changed to| will be)\b"
)
_EVENT = regex.compile(
    r"(?i)\bmy ((?:\p{L}+ ){0,2}(?:appointment|call|class|concert|exam|flight|interview|lesson"
    r"|meeting|party|surgery|test|train|trip|visit|wedding)) (?:is|was|will be|has been|got)\b"
    r"(?: (?:now|moved|changed|postponed|rescheduled|set|booked)\b)*+"
    r" (?:to|for|on|at|in|next|this|today|tomorrow|tonight|\p{L}+day)\b"
)
_CHANGE = regex.compile(
    r"(?i), (?:and )?not\b|\b(?:no longer|any ?more|not .{1,30} any ?more|instead|stopped|quit"
    r"|gave up|switched|changed|cancell?ed|postponed|sold|actually)\b"
)


def replaces(newer: str, older: str) -> bool:
    """Whether a newer statement of the same speaker takes the place of an older one.

    It does if both tell where the speaker lives, for whom or as what they work, how old they are
    or what they are called; if both say what "my favourite ..." or another property is, or when
    "my ... appointment" or another event is; and if the newer one tells of a change ("no longer",
    "stopped", "instead", ", not") and has at least half of the older one's words.
    """
    now, before = _traits(newer), _traits(older)
    if now.slots & before.slots or (now.mine is not None and now.mine == before.mine):
        return True
    said = before.said
    return now.changes and bool(said) and 2 * len(said & now.terms) >= len(said)


class _Traits(NamedTuple):
    """The traits that decide whether a statement replaces another; computed once."""

    slots: frozenset[int]
    mine: tuple[str, ...] | None
    changes: bool
    said: frozenset[str]
    terms: frozenset[str]
    matter: frozenset[str]


@lru_cache(1 << 12)
def _traits(statement: str) -> _Traits:
    mine = _MINE.search(statement) or _EVENT.search(statement)
    said = _plain_words(statement)
    return _Traits(
        slots=frozenset(n for n, slot in enumerate(_SLOTS) if slot.search(statement)),
        mine=tuple(_property(mine[1])) if mine else None,
        changes=bool(_CHANGE.search(statement)),
        said=frozenset(said),
        terms=frozenset(terms(statement)),
        matter=frozenset(term for term in said if not term[0].isdigit()),
    )


def topics(instruction: str) -> frozenset[str]:
    """Return the topics of an instruction: its terms except for grammar and small talk."""
    return frozenset(_plain_words(instruction) - _INSTRUCTING)


def subject_matter(statement: str) -> frozenset[str]:
    """Return a statement's terms without numbers: equal for each day of a diary, for example."""
    return _traits(statement).matter


def _plain_words(statement: str) -> set[str]:
    """Its words that are neither grammar nor small talk."""
    return {t for t in telling_terms(statement) if t not in _SMALL_TALK and "'" not in t}


def _property(name: str) -> list[str]:
    return [word for word in terms(name.replace("vour", "vor")) if word not in {"current", "new"}]


_NEWEST = 20
"""Days, and facts of a series, that are the newest."""
_ALIKE = 0.5
"""Share of the words of two facts that both have, from which on they are of one series."""
_WORDS = 3
"""Words that a fact of a series has at least: thanks to the same person are none."""
_SOME = 4
"""Others that make a series of a fact."""
_LEAST, _MORE, _LEVELS = 0.35, 0.065, 8
"""Factors on the worth of facts in a series: least for every second, more for every fourth, ..."""


def serial(facts: Sequence[Fact]) -> list[bool]:
    """Return for each fact whether its speaker said others that differ only in numbers."""
    words = [subject_matter(fact.text) for fact in facts]
    others = [0] * len(facts)
    for index, own in enumerate(words):
        for other in range(index):
            if facts[index].speaker == facts[other].speaker and _alike(own, words[other]):
                others[index] += 1
                others[other] += 1
    return [count >= _SOME for count in others]


def _alike(some: frozenset[str], others: frozenset[str]) -> bool:
    shared = len(some & others)
    return min(len(some), len(others)) >= _WORDS and shared >= _ALIKE * (
        len(some) + len(others) - shared
    )


def shares(facts: Sequence[Fact], series: Sequence[bool]) -> list[float]:
    """Return the factor on each fact's worth: 1, unless it is part of a series.

    Of a series every second fact has the least, every fourth more, every eighth still more: those
    that stay are spread over its time, and in each later choice the same ones stay. Facts are
    numbered by their days, or by a hash of their text where one day has several.
    """
    days = [fact.day for fact, of_series in zip(facts, series, strict=True) if of_series]
    several = {day for day in days if days.count(day) > 1}
    return [
        _LEAST + _MORE * _level(_number(fact, several)) if of_series else 1.0
        for fact, of_series in zip(facts, series, strict=True)
    ]


def _number(fact: Fact, several: set[str]) -> int:
    if fact.day and fact.day not in several:
        return date.fromisoformat(fact.day).toordinal()
    return crc32(fact.text.encode(errors="surrogatepass"))


def _level(number: int) -> int:
    """Return how often a number can be halved, at most eight times."""
    return next((n for n in range(_LEVELS) if number >> n & 1), _LEVELS)


def newest(facts: Sequence[Fact], worth: Sequence[float], series: Sequence[bool]) -> list[int]:
    """Return the indexes of the newest statements of people, the newest first.

    These are the best fact of each of the last 20 days, and the last 20 facts of a series.

    Args:
        facts: the facts, by speaker and day; the later of one day is the newer.
        worth: worth of each fact.
        series: whether each fact is part of a series.
    """
    said = [i for i, fact in enumerate(facts) if fact.speaker != ASSISTANT and worth[i] > 0]
    by_age = sorted(said, key=lambda i: (facts[i].day, i), reverse=True)
    best: dict[str, int] = {}
    for index in by_age:
        day = facts[index].day
        if day not in best or worth[index] > worth[best[day]]:
            best[day] = index
    chosen = {*list(best.values())[:_NEWEST], *[i for i in by_age if series[i]][:_NEWEST]}
    return [index for index in by_age if index in chosen]


_VERSION = "salient-2"
_HEARSAY = 0.3
"""Weight of a statement of the assistant, relative to one of the person."""
_WANTED = 2
"""Weight of a statement with a word of `keep`, relative to others."""
_RECENT, _SERIAL = 0.3, 0.5
"""Shares of the memory for what was said last: at least by day, at most with a series of facts."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = regex.compile(rf"(?P<day>\d\d?) (?P<month>{'|'.join(_MONTHS)})(?: (?P<year>\d{{4}}))?")


class SalientReader(ExtractiveReader):
    """Keeps the statements of a conversation that tell most of the people in it.

    The memory is one statement a line, below the day on which it was told ("5 Mar 2026"); what
    others than the user said follows below their name ("@assistant"). `salience` says what is
    kept when there is no room for all, `replaces` which newer statement takes an older one's
    place. What the assistant said counts less, what tools were given and returned not at all.

    Args:
        config: the budgets, of which it needs `memory_tokens`.
        tokenizer: measures the memory; the built-in estimate by default.
        keep: statements with one of its telling words count double.
        never: statements with one of its telling words are left out.

    Raises:
        ConfigurationError: `never` has no such word.
    """

    def __init__(
        self,
        config: ReadingConfig | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        keep: str = "",
        never: str = "",
    ) -> None:
        super().__init__(config, tokenizer)
        self._wanted, self._banned = topics(keep), topics(never)
        if never.strip() and not self._banned:
            message = (
                f"The built-in reader leaves out statements by their words, and never={never!r} "
                "has no word to match: name some, or a model that understands it."
            )
            raise ConfigurationError(message)
        record = json.dumps([_VERSION, sorted(self._wanted), sorted(self._banned)])
        self.identity = self._identity(record)

    async def update(self, step: Step, *, config: RunnableConfig | None = None) -> Update:
        """Keep the most telling statements of the memory and the chunk together."""
        known = list(read_facts(step.memory.text))
        kept = self._best(self._allowed(_current([*known, *_user_statements(step.chunk)])))
        if kept == known or not kept:
            return Update(None)
        return Update(Memory(write_facts(kept)))

    async def merge(
        self,
        question: str,
        query: str,
        memories: Sequence[Memory],
        *,
        config: RunnableConfig | None = None,
    ) -> Merge:
        """Keep the most telling statements of all memories together, newer ones for older."""
        facts = [fact for memory in memories for fact in read_facts(memory.text)]
        return Merge(Memory(write_facts(self._best(self._allowed(_current(facts))))))

    def _allowed(self, facts: list[Fact]) -> list[Fact]:
        return [fact for fact in facts if self._banned.isdisjoint(terms(fact.text))]

    def _best(self, facts: list[Fact]) -> list[Fact]:
        """The most telling facts that fit into the memory, in its order."""
        costs = [self._counter.count(fact.text + "\n") for fact in facts]
        series = serial(facts)
        worth = [
            self._worth(fact, cost) * share
            for fact, cost, share in zip(facts, costs, shares(facts, series), strict=True)
        ]
        used = 0
        marks: set[str] = set()
        chosen: set[int] = set()

        def choose(index: int, most: float) -> None:
            nonlocal used
            new = {mark: text for mark, text in facts[index].marks.items() if mark not in marks}
            cost = costs[index] + sum(map(self._counter.count, new.values()))
            if index not in chosen and worth[index] > 0 and used + cost <= most:
                chosen.add(index)
                marks.update(new)
                used += cost

        for index in newest(facts, worth, series):
            choose(index, self.memory_tokens * (_SERIAL if series[index] else _RECENT))
        for index in rank(worth):
            choose(index, self.memory_tokens)
        return [facts[index] for index in sorted(chosen)]

    def _worth(self, fact: Fact, tokens: int) -> float:
        heard = _HEARSAY if fact.speaker == ASSISTANT else 1
        wanted = 1 if self._wanted.isdisjoint(terms(fact.text)) else _WANTED
        return salience(fact.text, tokens) * heard * wanted


class Fact(NamedTuple):
    """A statement, with the day on which it was told, if known, and by whom."""

    day: str
    speaker: str
    text: str

    @property
    def marks(self) -> dict[str, str]:
        """The words above it, which it shares with others of the speaker, the year and the day."""
        by = self.speaker
        found = {} if by == USER else {by: f"@{by}\n"}
        if self.day:
            found |= {f"{by} {self.day[:4]}": f" {self.day[:4]}"}
            found |= {f"{by} {self.day}": _format_day(self.day, before=self.day) + "\n"}
        return found


def read_facts(memory: str) -> Iterator[Fact]:
    """The facts of a memory; each line of one that a chat model has written is a fact."""
    day = year = ""
    speaker = USER
    for line in memory.splitlines():
        if told := _DAY.fullmatch(line):
            year = told["year"] or year
            day = f"{year}-{_MONTHS.index(told['month']) + 1:02}-{int(told['day']):02}"
        elif line.startswith("@"):
            speaker, day = line[1:], ""
        elif line.strip():
            yield Fact(day, speaker, line)


def _user_statements(chunk: Chunk) -> Iterator[Fact]:
    """The statements of a rendered conversation; what tools were given and returned is left out."""
    begins = find_continued(chunk)
    begins_line = chunk.start == 0 or chunk.source.read(chunk.start - 1, 1) == "\n"
    for number, line in enumerate(chunk.text.splitlines()):
        if number > 0 or begins_line:  # else a person could write another's name where chunks end
            begins = LINE.match(line) or begins
        if begins is None or begins["speaker"].startswith(TOOL):
            continue
        said = line[begins.end() :] if begins.string is line else line
        for statement in statements(said.strip()):
            text = statement.text.lstrip("@ ")
            if not _DAY.fullmatch(text):  # it would pass for one of the memory's own lines
                yield Fact(begins["day"], begins["speaker"], text)


def _current(facts: list[Fact]) -> list[Fact]:
    """Facts by speaker and day, without those that a newer one repeats or replaces."""
    kept: list[Fact] = []
    for fact in sorted(facts, key=lambda fact: fact.day):
        words = _words(fact.text)
        same = [other.speaker for other in kept if _words(other.text) == words]
        if fact.speaker in same or (same and fact.speaker == ASSISTANT):  # it says what it heard
            continue
        kept = [
            other
            for other in kept
            if other.speaker != fact.speaker or not replaces(fact.text, other.text)
        ]
        kept.append(fact)
    return sorted(kept, key=lambda fact: (fact.speaker != USER, fact.speaker, fact.day))


@lru_cache(1 << 12)
def _words(statement: str) -> tuple[str, ...]:
    """Return the terms of a statement, which are equal if only case and punctuation differ."""
    return tuple(terms(statement)) or (statement,)


def write_facts(facts: Sequence[Fact]) -> str:
    """The reverse of `read_facts`."""
    lines: list[str] = []
    day, speaker = "", USER
    for fact in facts:
        if fact.speaker != speaker:
            speaker, day = fact.speaker, ""
            lines.append(f"@{speaker}")
        if fact.day != day:
            lines.append(_format_day(fact.day, day))
            day = fact.day
        lines.append(fact.text)
    return "\n".join(lines)


def _format_day(day: str, before: str = "") -> str:
    """Format a day as "5 Mar 2026", without the year if the day before has it too, to save room."""
    year, month, number = day.split("-")
    short = f"{int(number)} {_MONTHS[int(month) - 1]}"
    return short if before.startswith(year) else f"{short} {year}"
