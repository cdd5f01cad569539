"""The rules by which new facts overwrite old ones: in reading order, without a model.

| what is said | what becomes of the old fact |
|---|---|
| amendment: another object where there is one at a time, `replaces` or `amends` | history |
| correction: `not` and the object | removed, named by the fact that corrects it |
| retraction: `ended`, or `until` a day | closed, with nothing in its place |
| conflict: another source or speaker says otherwise, and no date decides | both stay, `disputed` |
| the same once more | one fact, with the evidence of both |

What nothing in the text supports closes nothing.
"""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.evidence.statements import is_later, statements
from memagent_graph.facts.graph import Entities
from memagent_graph.facts.record import (
    SAME_AS,
    Fact,
    Facts,
    dates_in,
    facts_of,
    find_said,
    find_times,
    lacks_object,
    read_date,
)
from memagent_graph.templates import count_line_ends
from memagent_graph.text.terms import names as names_in
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def overwrite(
    facts: Sequence[Fact], new: Iterable[Fact], schema: Facts, *, latest: bool = False
) -> list[Fact]:
    """Return facts after new ones, in reading order.

    Of two facts whose dates are known, the dates decide which is newer, otherwise the order.

    Args:
        facts: the facts so far.
        new: the new ones, in the order in which they were read.
        schema: says which relations have one object at a time.
        latest: whether what somebody says last holds in any case, as in a conversation: a repeated
            statement brings back what was replaced, and only other speakers can dispute it.
    """
    found = [*facts]
    for fact in new:
        _Ledger(found, schema, latest=latest).take(fact)
    return mark_disputes(found, schema)


def mark_disputes(facts: Sequence[Fact], schema: Facts) -> list[Fact]:
    """Return facts, marked where a subject has several objects of a relation that has one.

    In a conversation, what ended by the word of one speaker and holds by that of another is
    disputed too.
    """
    names = Entities(facts)
    groups: dict[tuple[str, str], list[int]] = {}
    for at, fact in enumerate(facts):
        groups.setdefault((names.key(fact.subject), fact.relation), []).append(at)
    disputed = set[int]()
    for (_, relation), group in groups.items():
        objects = {at: names.key(facts[at].object) for at in group}
        holding = [at for at in group if facts[at].status == "holds"]
        if schema.is_single(relation) and len({objects[at] for at in holding}) > 1:
            disputed.update(holding)
        for end in (at for at in group if facts[at].status == "ended"):
            denied = [
                at
                for at in holding
                if objects[at] == objects[end] and _denies(facts[end], facts[at])
            ]
            disputed.update([end, *denied] if denied else [])
    return [
        fact if fact.disputed == (at in disputed) else replace(fact, disputed=at in disputed)
        for at, fact in enumerate(facts)
    ]


def _denies(end: Fact, holding: Fact) -> bool:
    """Whether the end of a fact contradicts another speaker, and no date decides."""
    if end.speaker.casefold() == holding.speaker.casefold():
        return False
    return not holding.since or (end.until is not None and not is_after(holding.since, end.until))


class _Ledger:
    """Takes one new fact into a list of facts.

    Args:
        facts: the list, which is changed.
        schema: see `overwrite`.
        latest: see `overwrite`.
    """

    def __init__(self, facts: list[Fact], schema: Facts, *, latest: bool) -> None:
        self._facts, self._schema, self._latest = facts, schema, latest
        self._told_at = ""

    def take(self, new: Fact) -> None:
        self._told_at = new.told_at
        names = Entities([*self._facts, new])
        group = [at for at in range(len(self._facts)) if self._is_about(at, new, names)]
        same = [at for at in group if names.same(self._facts[at].object, new.object)]
        told_since = [at for at in group if self._is_told_since(self._facts[at], new)]
        if told_since and (self._schema.is_single(new.relation) or {*told_since} & {*same}):
            if not same and new.status == "holds":  # it held until then
                until = self._facts[told_since[0]].since
                self._facts.insert(told_since[0], replace(new, until=until, status="replaced"))
            return
        if not (same or new.corrects or new.replaces or new.since or self._latest):
            corrected = [one for at in group for one in self._facts[at].corrects]
            if any(names.same(one, new.object) for one in corrected):
                return  # it repeats what was corrected since
        known, speaker = self._find_same(same, new), new.speaker
        if known is not None:
            self._facts[known] = merged = _join(self._facts[known], new)
            at = known
            new = merged if merged.status == "holds" else new
            if merged.status != "holds" or not (new.replaces or new.corrects or self._latest):
                return
        else:
            at = len(self._facts)
            self._facts.append(new)
        if new.status != "holds" or new.relation == SAME_AS:
            return
        if new.corrects and not new.unsupported:
            at = self._correct(at, group, names)
        self._close(at, names, speaker)

    def _is_about(self, at: int, new: Fact, names: Entities) -> bool:
        fact = self._facts[at]
        if fact.relation != new.relation:
            return False
        if new.relation == SAME_AS and names.same(fact.object, new.subject):
            return fact.line == new.line or {fact.subject, fact.object} == {new.subject, new.object}
        return names.same(fact.subject, new.subject)

    def _find_same(self, same: Sequence[int], new: Fact) -> int | None:
        """The fact that a new one repeats, continues or ends; None if it is new."""
        holding = [at for at in same if self._facts[at].status == "holds"]
        if new.status == "ended" and new.until is None:  # others dispute it
            own = [at for at in same if self._may_change(self._facts[at], new.speaker)]
            holding = [at for at in holding if at in own]
            same = own
        if holding:
            begins = self._facts[holding[-1]].since
            ends_before = new.status != "holds" and is_after(begins, new.until)
            return None if ends_before else holding[-1]
        for at in reversed(same):
            old = self._facts[at]
            if new.corrects and not new.unsupported:  # what had replaced it never held
                self._facts[at] = replace(old, status="holds", until=None)
                return at
            again = new.status == "holds" and (
                self._latest or new.replaces or is_after(new.since, old.since)
            )
            if not again:
                return at
        return None

    def _correct(self, at: int, group: Sequence[int], names: Entities) -> int:
        """Remove what a fact corrects, and return where the fact is then."""
        new = self._facts[at]
        wrong = [
            other
            for other in group
            if other != at
            and any(names.same(self._facts[other].object, one) for one in new.corrects)
            and not names.same(self._facts[other].object, new.object)
            and self._may_change(self._facts[other], new.speaker)
        ]
        begins = next((self._facts[one].since for one in wrong if self._facts[one].since), None)
        self._facts[at] = replace(new, since=new.since or begins)
        for other in reversed(wrong):
            del self._facts[other]
        return at - sum(other < at for other in wrong)

    def _may_change(self, old: Fact, speaker: str) -> bool:
        """Whether a fact is a speaker's own to change, and was not told since."""
        is_own = old.speaker.casefold() == speaker.casefold()
        return not self._latest or (is_own and not is_later(old.told_at, self._told_at))

    def _is_told_since(self, old: Fact, new: Fact) -> bool:
        """Whether its speaker told a fact after a new one, whose date is no later either."""
        is_own = self._latest and old.speaker.casefold() == new.speaker.casefold()
        return is_own and is_later(old.told_at, new.told_at) and not is_after(new.since, old.since)

    def _close(self, at: int, names: Entities, speaker: str) -> None:
        """Close what a fact amends, or the fact itself if others are newer.

        Args:
            at: where the fact is.
            names: says which names are one.
            speaker: who says it now.
        """
        new = self._facts[at]
        single = self._schema.is_single(new.relation)
        for other, old in enumerate(self._facts):
            if other == at or old.status != "holds" or not self._is_about(other, new, names):
                continue
            if names.same(old.object, new.object):
                continue
            amends = any(names.same(old.object, one) for one in new.replaces)
            if not (single or amends) or (new.unsupported and not old.unsupported):
                continue
            is_own = self._may_change(old, speaker)
            is_newer = (amends and is_own) or self._is_newer(new, old, is_own=is_own)
            if is_newer or (new.amends and is_own and not is_after(old.since, new.since)):
                self._facts[other] = replace(old, status="replaced", until=new.since)
                named = () if is_newer else (old.object,)
                self._facts[at] = new = replace(new, amends=False, replaces=(*new.replaces, *named))
            elif is_after(old.since, new.since):
                self._facts[at] = new = replace(new, status="replaced", until=old.since)
        if single and new.since:
            self._order(at, names)

    def _is_newer(self, new: Fact, old: Fact, *, is_own: bool) -> bool:
        if is_after(new.since, old.since):
            return True
        if is_after(old.since, new.since):
            return False
        if new.since and not old.since:
            return True
        if self._latest or not (new.evidence and old.evidence):
            return is_own
        return not {item.source for item in new.evidence}.isdisjoint(
            item.source for item in old.evidence
        )

    def _order(self, at: int, names: Entities) -> None:
        """End each replaced fact of a group where the next one begins."""
        group = [
            other
            for other, fact in enumerate(self._facts)
            if self._is_about(other, self._facts[at], names) and fact.since
        ]
        for other in group:
            fact = self._facts[other]
            later = [
                self._facts[one].since or ""
                for one in group
                if is_after(self._facts[one].since, fact.since)
                and not names.same(self._facts[one].object, fact.object)
            ]
            if fact.status == "replaced" and later:
                self._facts[other] = replace(fact, until=min(later))


def is_after(one: str | None, other: str | None) -> bool:
    """Return whether a time is known to be later than another."""
    known = [read_date(time) if time else None for time in (one, other)]
    return None not in known and str(known[0]) > str(known[1])


def _join(old: Fact, new: Fact) -> Fact:
    """A fact, with what the same fact says once more; its end, if that is said now."""
    until, status = old.until, old.status
    if new.status != "holds" and old.status == "holds" and not (new.unsupported > old.unsupported):
        until, status = new.until, new.status
    supported = not (old.unsupported and new.unsupported)
    newer = new if new.message else old
    return replace(
        old,
        since=old.since or new.since,
        until=until,
        status=status,
        replaces=tuple(dict.fromkeys((*old.replaces, *new.replaces))),
        corrects=tuple(dict.fromkeys((*old.corrects, *new.corrects))),
        evidence=tuple(dict.fromkeys((*old.evidence, *new.evidence))),
        unsupported=not supported,
        missing=() if supported else old.missing,
        message=newer.message,
        thread=newer.thread,
        told_at=newer.told_at,
        speaker=old.speaker if new.speaker else "",
    )


# --- What a reply says against what was read


NO_FACT, OUTSIDE, MADE_UP, CONFUSED = (
    "no fact",
    "a fact outside the schema",
    "a date or an end that the text does not say of it",
    "a value of another relation",
)
"""Why a fact of a reply, or its date, was left out."""


def keep_said(
    facts: Sequence[Fact], memory: str, read: str, schema: Facts, *, dated: bool
) -> tuple[list[Fact], Counter[str]]:
    """Return the facts of a reply without what nothing says, and how many left out, by why.

    Args:
        facts: the facts of the reply.
        memory: the memory that the model was shown.
        read: the text that was read.
        schema: the facts to keep.
        dated: whether what was read has dates of its own, so that the text need not say them.
    """
    known = facts_of(memory)
    stated = [one for one in facts if not lacks_object(one, schema)]
    fitting = [fact for one in stated if (fact := schema.fit(one)) is not None]
    said = [without_made_up_changes(one, f"{read}\n{memory}") for one in fitting]
    others = [*known, *said]
    timed = said if dated else [without_made_up_dates(one, read, known) for one in said]
    timed = [without_made_up_end(one, read, others, schema) for one in timed]
    new = [*without_copies(timed, known, read, schema)]
    kept = [one for one in new if not is_of_another(one, new, read)]
    lost = Counter(
        {
            NO_FACT: len(facts) - len(stated),
            OUTSIDE: len(stated) - len(fitting),
            MADE_UP: sum(map(_count_times, said)) - sum(map(_count_times, timed)),
            CONFUSED: len(new) - len(kept),
        }
    )
    return kept, +lost


def without_made_up_dates(fact: Fact, read: str, known: Sequence[Fact]) -> Fact:
    """Return a fact without times that neither the text says of it nor facts of its relation have.

    Small models fill the form's place of the date: nothing ends by it. A beginning keeps the month
    or year that is said; an end does if it is the last day of it.
    """
    names = Entities([fact, *known])
    same = [one for one in known if one.relation == fact.relation]
    same = [one for one in same if names.same(one.subject, fact.subject)]
    lines, scope = [one.line for one in same], _Mention(fact, read)
    text = "\n".join([read, *lines])
    since, until = (
        time and find_said([*scope.of_time(ends=ends), *lines], time, text)
        for ends, time in enumerate((fact.since or "", fact.until or ""))
    )
    if fact.until and until != fact.until:
        until = "" if since.startswith(until) or not _is_last(fact.until, until) else until
        fact = fact if until else replace(fact, status="holds")
    return replace(fact, since=since or None, until=until or None)


def without_made_up_end(fact: Fact, read: str, others: Sequence[Fact], schema: Facts) -> Fact:
    """Return a fact that holds if it ends without a date, and the text says no such thing of it.

    An end of what has one object at a time goes without saying where the text has another one.
    """
    if fact.status == "holds" or fact.until:
        return fact
    names, read_terms = Entities([fact, *others]), {*specific_terms(read)}
    is_followed = schema.is_single(fact.relation) and any(
        one.status == "holds"
        and one.relation == fact.relation
        and names.same(one.subject, fact.subject)
        and not names.same(one.object, fact.object)
        and read_terms.issuperset(specific_terms(one.object))
        for one in others
    )
    return fact if is_followed or _Mention(fact, read).is_over() else replace(fact, status="holds")


def _count_times(fact: Fact) -> int:
    is_bare = fact.status != "holds" and not fact.until
    return bool(fact.since) + bool(fact.until) + is_bare


def _is_last(time: str, period: str) -> bool:
    """Whether a time is the last month of a year, or the last day of a month or year."""
    year, _, month = period.partition("-")
    days = monthrange(int(year), int(month or 12))[1]
    return time in {f"{year}-12" if not month else "", f"{year}-{month or 12}-{days}"}


def without_made_up_changes(fact: Fact, known: str) -> Fact:
    """Return a fact that corrects and replaces nothing that stands in no text the model knew.

    Small models fill in each part of the form.
    """
    if not (fact.corrects or fact.replaces):
        return fact
    said = {*specific_terms(known)}
    corrects, replaces = (
        tuple(one for one in objects if said.issuperset(specific_terms(one)))
        for objects in (fact.corrects, fact.replaces)
    )
    return replace(fact, corrects=corrects, replaces=replaces)


def without_copies(
    new: Iterable[Fact], known: Sequence[Fact], read: str, schema: Facts
) -> Iterator[Fact]:
    """Yield the facts of a reply without what it copied from the facts that it was shown.

    Args:
        new: the facts of the reply.
        known: the memory.
        read: the text that was read.
        schema: says which relations have one object at a time.
    """
    holding = [fact for fact in known if fact.holds()]
    names, said = Entities(known), {*specific_terms(read)}
    for fact in new:
        is_day = fact.since and ("-" in fact.since or fact.status == "replaced")
        if is_day and fact.until and not is_after(fact.until, fact.since):
            fact = replace(fact, status="holds", until=None)  # noqa: PLW2901
        about = [one for one in holding if names.same(one.subject, fact.subject)]
        same = [one for one in about if one.relation == fact.relation]
        is_told = said.issuperset(specific_terms(fact.object))
        is_bare = fact.status == "holds" and not (fact.replaces or fact.corrects)
        if is_bare and not is_told and any(names.same(one.object, fact.object) for one in same):
            continue
        if fact.since and fact.since[:4] not in read and fact.since in {one.since for one in about}:
            # The line of an old fact with another object: an amendment, whose date was not seen.
            amends = schema.is_single(fact.relation) and fact.since in {one.since for one in same}
            fact = replace(fact, since=_find_date(fact, read), amends=amends)  # noqa: PLW2901
        yield fact


def is_of_another(fact: Fact, others: Sequence[Fact], read: str) -> bool:
    """Whether each sentence with a fact's value says it of another relation of the same reply.

    Small models fill in all relations of a schema. Only values with a figure are judged, and no
    dates: of these, sentences say what they are.
    """
    terms = {*specific_terms(fact.object)}
    if read_date(fact.object) or not any(map(str.isdecimal, fact.object)):
        return False
    same = [one for one in others if terms == {*specific_terms(one.object)}]
    rivals = [{*specific_terms(one.relation)} for one in same if one.relation != fact.relation]
    own = {*specific_terms(fact.relation)}.difference(*rivals)
    said = [found for one in statements(read) if terms <= (found := {*specific_terms(one.text)})]
    return bool(said and own and rivals) and all(
        own.isdisjoint(found) and any(rival <= found for rival in rivals) for found in said
    )


def _find_date(fact: Fact, read: str) -> str | None:
    """The one date of the sentences that name a fact's object; None if they have none, or more."""
    terms = {*specific_terms(fact.object)}
    said = (one.text for one in statements(read) if terms <= {*specific_terms(one.text)})
    dates = {date for one in said for date in dates_in(one)}
    return dates.pop() if len(dates) == 1 else None


# --- What a text says of a fact, and what of others

_DATED = regex.compile(
    r"(?<![\d.,])(?:\d\d?(?:\.|st|nd|rd|th"
    r"|er)?\s(?:of\s)?)?(?:\p{L}{3,9}\.?\s(?:\d\d?,\s)?)?(?:1[89]|20)\d\d(?!\d|[.,]\d|\s?(?:[€$£%]"
    r"|eur|usd|chf|dollar|franc))(?:[-/.年]\d\d?(?!\d)){0,2}[月日]?(?:\s\d\d:\d\d)?"
    r"|(?<!\d)\d\d?[./]\s?\d\d?[./]\s?(?:\d\d){1,2}(?!\d)|[〇零一二三四五六七八九]{4}年",
    regex.IGNORECASE,
)
_LINE_END = regex.compile(r"(?<=[:：])[^\S\n]*\n|\n(?=[^\S\n]*[-*+•‣–|]|[^\n]*(?: {3}|\t))")
_ENTRY = regex.compile(
    r"[\[(*\s-]{0,4}(?:\d{4}(?:[-/.年]\d\d?){0,2}[月日]?|\d\d?\.\s?\d\d?\.\s?\d{2,4}"
    r"|\d\d?\.? \p{L}{3,9}\.? \d{4}|\p{L}{3,9} \d\d?, \d{4})[^\p{L}\n]{0,14}?[]:：)|–—-]"
)
"""The beginning of a message, or of a line of a history."""
_ITEM = regex.compile(r"[-*+•‣–|]|\(?[\p{L}\d]{1,3}[.)]\s|\d{1,2}(?:\.\d{1,2}){1,3}\s")
_SENTENCE = regex.compile(
    r"\b(?:is|are|was|were|has|have|will|shall|ist|sind|wird|war|hat|beträgt|est|sont|sera)\b|[为是]"
    r"|[.!?;。！？；]\Z",
    regex.IGNORECASE,
)
_CLAUSE_END = regex.compile(
    r"[;；，]\s?|,\s(?!\d{4})|\s(?:and|und|et|while|während|tandis que)\s", regex.IGNORECASE
)
_REFERS = regex.compile(
    r"\W{0,3}(?:(?:it|he|she|they|th(?:is|at|ese|ose)|both|es|er|sie|dies\w*|das gilt|beides|ils?"
    r"|elles?|cela|ceci|cet?|cette|ces)\b|[其此该它他她]|上述|两者)",
    regex.IGNORECASE,
)
"""A sentence that may go on about the one before it."""
_GOES_ON = regex.compile(
    r"\W{0,3}(?:it|he|she|they|es|er|sie|dies|das|ils?|elles?|cela|ceci"
    r"|th(?:is|at|ese|ose) (?:is|are|was|were|ha[sd]|applies|takes))\b|此|其",
    regex.IGNORECASE,
)
"""A sentence that is about the one before it alone."""
_THEN = regex.compile(
    r"\b(?:then|thereafter|since that|(?:that|same) (?:day|date)|seitdem|seither|ab da|dann"
    r"|diesem (?:tag|datum|zeitpunkt)|von da an|danach|depuis(?: lors)?(?=[.,;]|\Z)|dès lors"
    r"|cette date|ce jour|ensuite)\b|自此|此后|从那时|同日|当[日天]|该日|其后|[之以]后",
    regex.IGNORECASE,
)
_EFFECT = regex.compile(
    r"\b(?:takes? effect|(?:is|are|becomes?) effective|(?:comes?|enters?) into (?:force|effect)"
    r"|in kraft|wirksam|gilt ab|gelten ab|pren(?:d|nent) effet|entre(?:nt)? en vigueur)\b|生效"
    r"|起执行|施行",
    regex.IGNORECASE,
)
_ENDED = regex.compile(
    r"\b(?:(?:we|i)(?: \w+)? (?:terminate|cancel)|predecessor|no longer|used to|ended|ceased"
    r"|expired|lapsed|terminated|cancel+ed|revoked|repealed|withdrawn|dissolved|abolished"
    r"|discontinued|closed|resign(?:s|ed)|retire[sd]|left|leaves|quit|stepped down|fired|dismissed"
    r"|laid off|sold|removed|dropped|former(?:ly)?|previous(?:ly)?|ex|died|deceased|divorced"
    r"|separated|moved (?:out|away)|(?:switched|turned) off|shut down|void|obsolete|superseded"
    r"|replaced|stopped|g[ai]ven? up|suspended|rescinded|defunct|any ?(?:more|longer)|nicht (?:mehr"
    r"|länger)|keine?[nmrs]? (?:\w+ )?mehr|gekündigt|beendet|endete|abgelaufen|erloschen"
    r"|kündigen? (?:wir|ich)|vorgänger(?:in)?|auf(?:gehoben|gelöst)|ausge(?:schieden|treten|zogen)"
    r"|zurückgetreten|entlassen|eingestellt|gestrichen|widerrufen|(?:ver|ge)storben|ehemalig\w*"
    r"|früher\w*|vormals|bisherig\w*|verkauft|verlassen|verließ|geschieden|getrennt|weggefallen"
    r"|entfällt|abge(?:schafft|löst|schaltet)|stillgelegt|ungültig|außer kraft|ersetzt|geschlossen"
    r"|(?:ne |n['’])(?:\w+ ){1,3}plus|(?:résili|termin|annul|supprim|retir|remplac|ferm|expir)ée?s?"
    r"|échue?s?|résili(?:e|ons)|prédécesseur|révoquée?s?|abrogée?s?|dissoute?s?|cessé|démissionné"
    r"|licenciée?|quitté|anciens?|ancienne(?:s|ment)?|autrefois|décédée?|vendue?s?|caduc"
    r"|pris fin)\b|不再|终止|解除|已到期|届满|失效|废止|撤销|取消|结束|离职|辞[职去]|离开|退出|卸任"
    r"|[前原]任|去世|离婚|出售|关闭|停[止用]|作废|曾",
    regex.IGNORECASE,
)
_MAY = regex.compile(
    r"\b(?:may|can(?:not)?|could|might|would|if|unless|should|shall|must|will|until"
    r"|not(?! [^.]{0,40}any)|never|when|before|kann|können|könnte|darf|wenn|falls|sofern|soll|nie"
    r"|nicht(?! mehr| länger)|wird|peut|peuvent|pourra|si|sera|pas|jamais)\b|[可如若未没应]|不得",
    regex.IGNORECASE,
)
"""Words before an end that has not come."""
_OPENING = 6
"""Code points before the name that a passage begins with: a mark, or an article."""
_MOST_PLACES = 24
"""Passages with a fact's object that are looked at; those with a date come first."""
_SPAN = 2
"""Dates of a passage that says when something began and ended."""


class _Passage(NamedTuple):
    """A sentence, a line of a list, or a row of a table.

    Attributes:
        text: as it reads.
        terms: its terms.
        block: number of its paragraph.
        kind: "heading", "title" or "entry" if it may date what is below it, "effect" if all.
        dates: number of dates in it.
    """

    text: str
    terms: frozenset[str]
    block: int
    kind: str
    dates: int


@lru_cache(4)
def _cut(text: str) -> tuple[_Passage, ...]:
    """Cut a text into passages, in order."""
    found: list[tuple[str, int]] = []
    block = last = 0
    for one in statements(text):
        block += count_line_ends(text, last, one.start) > 1
        last = one.end
        for line in _LINE_END.split(text[one.start : last]):
            found += [(part.text, block) for part in statements.__wrapped__(line)]
    sizes = Counter(block for _, block in found)
    return tuple(
        _Passage(
            one,
            frozenset(specific_terms(one)),
            block,
            _find_kind(one, is_alone=sizes[block] == 1 or not block),
            len(_DATED.findall(one)),
        )
        for one, block in found
    )


def _find_kind(text: str, *, is_alone: bool) -> str:
    if text.rstrip("*_ ").endswith((":", "：")):
        return "heading"
    if _ENTRY.match(text):
        return "entry"
    is_title = text.startswith("#") or (is_alone and not _SENTENCE.search(text))
    is_title = is_title and not _ITEM.match(text)
    return "title" if is_title else "effect" if _EFFECT.search(text) else ""


def _has_figure(text: str) -> bool:
    """Whether a passage has a figure that is part of no date."""
    mark = _ITEM.match(text)
    return any(map(str.isdigit, _DATED.sub("", text[mark.end() :] if mark else text)))


@lru_cache(1 << 10)
def _says_end(text: str) -> bool:
    """Whether a passage says that something has ended, not that it may."""
    return any(
        (end := _ENDED.search(clause)) and not _MAY.search(clause[: end.start()])
        for clause in _CLAUSE_END.split(text)
        if clause
    )


class _Mention:
    """The passages of a text that speak of a fact.

    Args:
        fact: the fact.
        read: the text.
    """

    def __init__(self, fact: Fact, read: str) -> None:
        self._all, self._name = _cut(read), fact.subject.casefold()
        self._subject, self._relation, self._object = (
            frozenset(specific_terms(one)) for one in (fact.subject, fact.relation, fact.object)
        )
        self._own = self._find(self._object)
        self._is_named = bool(self._own)
        self._own = self._own or self._find(self._relation) or self._find(self._subject)

    def _find(self, terms: frozenset[str]) -> list[int]:
        """Where most of some terms stand, with all of their figures, and nobody else is named."""
        figures = {term for term in terms if term[0].isdecimal()}
        shared = [len(terms & one.terms) * (figures <= one.terms) for one in self._all]
        most = max(shared, default=0)
        if not 0 < len(terms) <= most * 2:
            return []
        found = [at for at, size in enumerate(shared) if size == most]
        best, own = max(map(self._score, found)), self._subject | self._relation | self._object
        clear = [
            at
            for at in found
            if self._score(at) == best
            or own.issuperset(specific_terms("\n".join(names_in(self._all[at].text))))
        ]
        return sorted(clear, key=lambda at: not self._all[at].dates)[:_MOST_PLACES]

    def _score(self, at: int) -> int:
        known = self._all[at].terms
        return 2 * (self._subject <= known) + bool(self._relation & known)

    def _clause(self, at: int) -> str:
        """A passage, without clauses that state another figure, with a date of its own."""
        one = self._all[at]
        if one.dates < _SPAN:
            return one.text
        parts = [*filter(None, _CLAUSE_END.split(one.text))]
        shared = [len(self._object & {*specific_terms(part)}) for part in parts]
        own = [part for part, size in zip(parts, shared, strict=True) if size == max(shared)]
        if not any(map(_DATED.search, own)):
            return one.text
        return ", ".join(part for part in parts if part in own or not _has_figure(part))

    def _heads(self, at: int) -> list[_Passage]:
        """The headings over a passage, up to one with a date."""
        found: list[_Passage] = []
        for one in reversed(self._all[:at]):
            if one.kind in {"heading", "title"}:
                found.append(one)
            elif any(head.dates for head in found):
                break
        return found

    def _texts(self, at: int) -> list[str]:
        """A passage, and the next one if it goes on about it."""
        after = [one for one in self._all[at + 1 : at + 2] if one.block == self._all[at].block]
        return [self._clause(at), *(one.text for one in after if _REFERS.match(one.text))]

    def _date(self, at: int, *, ends: int) -> list[str]:
        """The passages with dates for the one at a place."""
        one, found, heads = self._all[at], self._texts(at), self._heads(at)
        before = [other for other in reversed(self._all[:at]) if other.block == one.block]
        is_over = not ends or any(map(_says_end, [*found, *(head.text for head in heads[:1])]))
        if is_over:
            titles = [head for head in heads if head.kind == "heading" or not one.dates]
            titles += [other for other in [one, *before] if other.kind == "entry"][:1]
            found += [head.text for head in titles]
        if one.dates:
            return found
        if "|" in one.text and before:  # the head of the column
            cells = zip(before[-1].text.split("|"), one.text.split("|"), strict=False)
            found += [head for head, cell in cells if self._object <= {*specific_terms(cell)}]
        if _THEN.search(one.text):
            found += [other.text for other in before if other.dates][:1]
        elif not ends:
            opening = [*before[:1], *(other for other in self._all if other.kind == "effect")]
            opening = [other for other in opening if not _GOES_ON.match(other.text)]
            found += [other.text for other in opening if not _has_figure(other.text)]
        return found

    def of_time(self, *, ends: int) -> list[str]:
        """Return the passages whose dates may be those of its beginning, or of its end."""
        if not self._own:
            return [one.text for one in self._all]
        found = [text for at in self._own for text in self._date(at, ends=ends)]
        if ends:
            found += self._ends_of_subject()
            if sum(len(_DATED.findall(text)) for text in found) < _SPAN:
                successors = self._find(self._relation)
                best = max(map(self._score, successors), default=0)
                successors = [at for at in successors if self._score(at) == best]
                found += [text for at in successors for text in self._date(at, ends=0)]
        return found

    def _ends_of_subject(self) -> list[str]:
        """The passages that begin with its subject, not as a speaker, and say an end."""
        texts = (one.text for one in self._all if self._subject <= one.terms)
        rests = ((text, text.casefold().partition(self._name)) for text in texts)
        return [
            text
            for text, (before, _, rest) in rests
            if len(before) <= _OPENING and not rest.startswith((":", "：")) and _says_end(text)
        ]

    def is_over(self) -> bool:
        """Return whether it has ended."""
        if not self._is_named:
            texts = [self._all[at].text for at in self._own] or [one.text for one in self._all]
            return any(map(_says_end, texts))
        said = [*self._ends_of_subject(), *(text for at in self._own for text in self._texts(at))]
        said += [head.text for at in self._own for head in self._heads(at)[:1]]
        last = max((year for one in self._all for year in find_times(one.text)[0]), default=0)
        clauses = map(self._clause, self._own)
        spans = (find_times(text)[0] for text in clauses if len(_DATED.findall(text)) >= _SPAN)
        is_past = any(max(years, default=last) < last for years in spans)
        return is_past or any(map(_says_end, said))
