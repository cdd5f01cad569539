"""Use facts as a graph: names of one thing, what holds when, what is near or disputed."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import regex

from memagent_graph.facts.record import (
    SAME_AS,
    Fact,
    dates_in,
    facts_of,
    memory_of_facts,
    read_date,
)
from memagent_graph.pictures import numbers_in
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from memagent_graph.evidence.places import Memory
    from memagent_graph.text.tokens import Tokenizer

_TOKEN = regex.compile(r"(?:(?<!\w)-(?=\d))?[\w+#%&$€£°]+")
_THOUSANDS = regex.compile(r"(?<=\d)[,'’](?=\d{3})")
_INITIALS = regex.compile(r"(?<!\w)(?:\p{L}\.){2,}+")
_ALIAS = regex.compile(
    r"(?P<name>[^()]{2,200}+)\((?:(?:the|hereinafter|hereafter|formerly|also|called|known as|or|aka"
    r"|a\.k\.a\.),? )*+[\"“„«](?P<alias>[^()\"”“»]{1,80}+)[\"”“»]\)"
)
"""A name with another one that the text gives it: `Acme Holdings Ltd. (the "Landlord")`."""
_SHORT = {"doctor": "dr", "professor": "prof", "incorporated": "inc", "limited": "ltd"}
_SHORT |= {"corporation": "corp", "company": "co"}
_TITLES = {"mr", "mrs", "ms", "miss", "dr", "prof", "sir", "dame", "mme", "mlle", "herr", "frau"}
_LEGAL = "inc ltd llc llp plc co corp pty gmbh ag kg ug sa sas srl spa bv nv ab oy"
_FORMS = frozenset(_LEGAL.split())
"""What firms are called behind their names."""


@lru_cache(1 << 10)
def _parts(name: str) -> tuple[str, tuple[str, ...]]:
    """A name's words in one form, and its title and legal form, which tell two things apart."""
    if known := _ALIAS.fullmatch(name):
        name = known["name"]
    if date := read_date(name):
        return date, ()
    plain = _INITIALS.sub(lambda found: found[0].replace(".", ""), name).replace("&", " and ")
    plain = _THOUSANDS.sub("", unicodedata.normalize("NFKD", plain).casefold())
    plain = "".join(sign for sign in plain if not unicodedata.combining(sign))
    words: list[str] = _TOKEN.findall(plain.replace("'s ", " ").replace("’s ", " "))
    marks = []
    words = words[len(words) > 1 and words[0] == "the" :]
    if len(words) > 1 and _SHORT.get(words[0], words[0]) in _TITLES:
        marks.append(_SHORT.get(words[0], words.pop(0)))
    while len(words) > 1 and _SHORT.get(words[-1], words[-1]) in _FORMS:
        marks.append(_SHORT.get(words[-1], words.pop()))
    return " ".join(words) or name.casefold().strip(), (*marks,)


class Entities:
    """The names that mean the same thing: by `same as`, or because they differ in form alone.

    Names are one if they differ only in case, accents, punctuation, an article, a title or a legal
    form, and the facts know no two of them with different ones: "Acme" is "Acme Inc.", unless there
    is an "Acme GmbH" too. A name with another one in quotes, `Acme Inc. ("the Landlord")`, is both.
    Nothing is rewritten, so that a `same as` that goes undoes itself.
    """

    def __init__(self, facts: Iterable[Fact]) -> None:
        facts = [*facts]
        names = dict.fromkeys(name for fact in facts for name in (fact.subject, fact.object))
        self._marks = defaultdict[str, set[tuple[str, ...]]](set)
        for base, marks in map(_parts, names):
            self._marks[base] |= {marks} - {()}
        self._above: dict[str, str] = {}
        given = defaultdict[str, set[str]](set)
        for known in filter(None, map(_ALIAS.fullmatch, names)):
            given[self.key(known["alias"])].add(self.key(known[0]))
        for alias, named in given.items():
            if len(named) == 1:  # two landlords are each "the Landlord" of their own lease
                self._join(alias, *named)
        for fact in facts:
            if fact.relation == SAME_AS and fact.status == "holds":
                self._join(fact.subject, fact.object)

    def _join(self, one: str, other: str) -> None:
        first, second = sorted((self.key(one), self.key(other)))
        if first != second:
            self._above[second] = first

    def key(self, name: str) -> str:
        """Return what stands for all names of the same thing."""
        base, marks = _parts(name)
        known = self._marks.get(base, set()) | {marks} - {()}
        found = base if len(known) <= 1 else " ".join([base, *marks])
        while found in self._above:
            found = self._above[found]
        return found

    def group(self, facts: Sequence[Fact]) -> list[list[int]]:
        """Return the numbers of facts by what they are about: one relation of one subject."""
        found: dict[tuple[str, str], list[int]] = {}
        for at, fact in enumerate(facts):
            found.setdefault((self.key(fact.subject), fact.relation), []).append(at)
        return [*found.values()]

    def same(self, one: str, other: str) -> bool:
        """Whether two names mean the same thing."""
        return one == other or self.key(one) == self.key(other)


# --- What holds when, and what is near

_FAR = 9
"""Distance of facts that no chain of facts connects with a text."""
_SPAN = regex.compile(
    r"\b(?:since|until|before|after|between|chang\w*|histor\w*|previous\w*|ever|first|last"
    r"|former\w*|original\w*|initial\w*|old|seit|bis|vor|vorher|nach|zwischen|geändert|früher\w*"
    r"|bisher\w*|ursprünglich\w*|depuis|avant|après|entre|jusqu\w*|ancien\w*|précédent\w*)\b"
    r"|[之以]前|原来|曾|历史|变更",
    regex.IGNORECASE,
)
"""What a question says that is about more than one time."""


def select_facts(
    facts: Iterable[Fact],
    *,
    subject: str | None = None,
    relation: str | None = None,
    at: str | date | None = None,
    history: bool = False,
) -> list[Fact]:
    """Return the facts of a subject, of a relation and of a time, in reading order.

    Args:
        facts: the facts.
        subject: a name of the subject; other names of the same thing count too. None for any.
        relation: the relation; None for any.
        at: a day, month or year at which they hold; None for today.
        history: whether to return facts that do not hold as well.

    Raises:
        ConfigurationError: The time is no date.
    """
    facts = [*facts]
    names = Entities(facts)
    wanted = relation and " ".join(relation.replace("_", " ").lower().split())
    return [
        fact
        for fact in (facts if history else facts_at(facts, at))
        if (subject is None or names.same(fact.subject, subject))
        and (wanted is None or fact.relation == wanted)
    ]


def facts_at(facts: Sequence[Fact], at: str | date | None = None) -> list[Fact]:
    """Return the facts that hold at a time, in reading order.

    The one fact that is left of several, if its beginning is not known, does not hold before the
    last of the others.
    """
    dated = [*facts]
    for group in Entities(facts).group(facts):
        left = [one for one in group if facts[one].status == "holds"]
        past = [facts[one] for one in group if facts[one].status == "replaced"]
        times = [fact.until or fact.since or "" for fact in past]
        known = max(filter(read_date, times), default="")
        if len(left) == 1 and not facts[left[0]].since and known:
            dated[left[0]] = replace(facts[left[0]], since=known)
    return [fact for fact, one in zip(facts, dated, strict=True) if one.holds(at)]


def distances(facts: Sequence[Fact], text: str) -> list[int]:
    """Return how far each fact is from the names in a text: 0 if it has one of them.

    Facts that nothing connects with the text are farthest, or at 1 if they share a word with it.
    """
    names, said = Entities(facts), {*specific_terms(text)}
    ends = [(names.key(fact.subject), names.key(fact.object)) for fact in facts]
    near = {
        names.key(name)
        for fact in facts
        for name in (fact.subject, fact.object)
        if (terms := specific_terms(name)) and said.issuperset(terms)
    }
    found: dict[int, int] = {}
    for distance in range(_FAR):
        reached = {at for at, pair in enumerate(ends) if not near.isdisjoint(pair)} - found.keys()
        found |= dict.fromkeys(reached, distance)
        near |= {key for at in reached for key in ends[at]}
    words = [specific_terms(f"{fact.relation} {fact.subject}") for fact in facts]
    return [found.get(at, _FAR if said.isdisjoint(one) else 1) for at, one in enumerate(words)]


def neighbourhood(facts: Iterable[Fact], about: str, hops: int = 2) -> list[Fact]:
    """Return the facts within some steps of the names in a text, in reading order.

    Args:
        facts: the facts.
        about: a name, a question or another text.
        hops: number of facts from a name to the farthest, at least 1.
    """
    facts = [*facts]
    return [fact for fact, far in zip(facts, distances(facts, about), strict=True) if far < hops]


def find_lines_near(memory: str, about: str, tokens: int, tokenizer: Tokenizer) -> str:
    """Return the lines of facts near the names in a text; all if they have few tokens."""
    if tokenizer.count(memory) <= tokens:
        return memory
    near = neighbourhood([fact for fact in facts_of(memory) if fact.holds()], about)
    return "\n".join(fact.line for fact in near) or memory


def view_for(question: str, memory: Memory, tokens: int, counter: Tokenizer) -> Memory:
    """Return the part of a memory that an answer is written from, in a budget of tokens.

    If the question asks what holds at a date, these are the facts that hold then. If what is left
    is over the budget, it is the neighbourhood of the question's names.
    """
    facts = shown = facts_of(memory)
    dates = dates_in(question)
    if len(dates) == 1 and not _SPAN.search(question):
        (day,) = dates
        shown = facts_at(facts, day) or facts
    if counter.count(memory.text) > tokens:
        shown = neighbourhood(shown, question) or shown
    if shown == facts:
        return memory
    view = memory_of_facts(shown, dropped=memory.dropped)
    seen = (one for one in memory.pictures if one.picture.number in numbers_in(view.text))
    return replace(view, pictures=tuple(seen))


def describe_facts(facts: Sequence[Fact]) -> str:
    """Return facts for an agent: a line each, with its first place or its message's day."""
    lines = []
    for fact in facts:
        place = fact.evidence[0].place if fact.evidence else fact.told_at[:10]
        doubt = ", without support in what was read" if fact.unsupported else ""
        lines.append(f"{fact.line}{f' [{place}]' if place else ''}{doubt}")
    return "\n".join(lines) or "No such fact is known."
