"""Score how much a statement tells of a person, and find statements that newer ones replace.

A conversation has no question whose words could be looked for. What is worth keeping is told by
the form of a statement instead: it is about the speaker, it names somebody or something, it says
when or how many, and most of its words are not small talk. The rule knows English best. Of other
languages it knows names, numbers, question marks and some words for "I" and "my".
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import regex

from memagent_graph.text.terms import telling_terms, terms

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
    said = _said(statement)
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
    said = _said(statement)
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
    return frozenset(_said(instruction) - _INSTRUCTING)


def subject_matter(statement: str) -> frozenset[str]:
    """Return a statement's terms without numbers: equal for each day of a diary, for example."""
    return _traits(statement).matter


def _said(statement: str) -> set[str]:
    """Its words that are neither grammar nor small talk."""
    return {t for t in telling_terms(statement) if t not in _SMALL_TALK and "'" not in t}


def _property(name: str) -> list[str]:
    return [word for word in terms(name.replace("vour", "vor")) if word not in {"current", "new"}]
