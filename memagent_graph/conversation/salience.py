"""Decide by the form of a sentence whether it states something, and what it is about."""

from __future__ import annotations

from functools import lru_cache

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
    r"(?i)^\W*(?:please\b|(?:tell|show|give|help|remind) me\b|explain\b|let['’]s\b"
    r"|(?:can|could|would|will|should|do|does|did|is|are)"
    r" (?:you|we|i|it|they|there|the|this|that)\b"
    r"|(?:what|how|why|who|where|when|which)"
    r"(?:['’]s| (?:is|are|was|were|do|does|did|can|could|should|would|will)\b))"
    r"|\bplease\W*$"
)
_MARK = regex.compile(r"\[[^\]]*\]")
"""A mark in place of an attachment, such as "[image]"."""

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
def is_statement(text: str) -> bool:
    """Whether a sentence states something: it is no question, no request and no small talk.

    The rule knows English best; of other languages it knows question marks.
    """
    said = _said(text)
    if said <= _IDLE or (said <= _GREETING and not _FIRST_PERSON.search(text)):
        return False
    return not (_QUESTION.search(text) or _REQUEST.search(text) or _MARK.fullmatch(text))


def tells_time(text: str) -> bool:
    """Whether a word in a text names a day, a week, a month or another time."""
    return bool(_TIME.search(text))


def topics(instruction: str) -> frozenset[str]:
    """Return the topics of an instruction: its terms except for grammar and small talk."""
    return frozenset(_said(instruction) - _INSTRUCTING)


def _said(statement: str) -> set[str]:
    """Its words that are neither grammar nor small talk."""
    return {t for t in telling_terms(statement) if t not in _SMALL_TALK and "'" not in t}
