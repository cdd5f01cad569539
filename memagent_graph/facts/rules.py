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

import unicodedata
from calendar import monthrange
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import regex

from memagent_graph.evidence.statements import statements
from memagent_graph.facts.record import (
    SAME_AS,
    Fact,
    Facts,
    dates_in,
    facts_of,
    find_said,
    lacks_object,
    read_date,
)
from memagent_graph.text.terms import specific_terms, terms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

_TOKEN = regex.compile(r"(?:(?<!\w)-(?=\d))?[\w+#%&$€£°]+")
_THOUSANDS = regex.compile(r"(?<=\d)[,'’](?=\d{3})")
_INITIALS = regex.compile(r"(?<!\w)(?:\p{L}\.){2,}+")
_ALIAS = regex.compile(
    r"(?P<name>[^()]{2,200}+)\((?:(?:the|hereinafter|hereafter|formerly|also|called|known as|or|aka"
    r"|a\.k\.a\.),? )*+[\"“„«](?P<alias>[^()\"”“»]{1,80}+)[\"”“»]\)"
)
"""A name with another one that the text gives it: `Acme Holdings Ltd. (the "Landlord")`."""
_SHORT = {
    "doctor": "dr",
    "professor": "prof",
    "incorporated": "inc",
    "limited": "ltd",
    "corporation": "corp",
    "company": "co",
}
_TITLES = {"mr", "mrs", "ms", "miss", "dr", "prof", "sir", "dame", "mme", "mlle", "herr", "frau"}
_LEGAL = "inc ltd llc llp plc co corp pty gmbh ag kg ug sa sas srl spa bv nv ab oy"
_FORMS = frozenset(_LEGAL.split())
"""What firms are called behind their names."""


class _NameForm(NamedTuple):
    """A name in parts.

    Attributes:
        base: its words in one form.
        marks: its title and legal form: two names that differ in them are two things.
    """

    base: str
    marks: tuple[str, ...]


def _parts(name: str) -> _NameForm:
    if known := _ALIAS.fullmatch(name):
        name = known["name"]
    date = read_date(name)
    if date is not None:
        return _NameForm(date, ())
    plain = _INITIALS.sub(lambda found: found[0].replace(".", ""), name).replace("&", " and ")
    plain = _THOUSANDS.sub("", unicodedata.normalize("NFKD", plain).casefold())
    plain = "".join(sign for sign in plain if not unicodedata.combining(sign))
    words: list[str] = _TOKEN.findall(plain.replace("'s ", " ").replace("’s ", " "))
    marks = []
    if len(words) > 1 and words[0] == "the":
        words.pop(0)
    if len(words) > 1 and _SHORT.get(words[0], words[0]) in _TITLES:
        marks.append(_SHORT.get(words[0], words[0]))
        words.pop(0)
    while len(words) > 1 and _SHORT.get(words[-1], words[-1]) in _FORMS:
        marks.append(_SHORT.get(words[-1], words[-1]))
        words.pop()
    return _NameForm(" ".join(words) or name.casefold().strip(), tuple(marks))


class Entities:
    """The names that mean the same thing: by `same as`, or because they differ in form alone.

    Names are one if they differ only in case, accents, punctuation, an article, a title or a legal
    form, and the facts know no two of them with different ones: "Acme" is "Acme Inc.", unless there
    is an "Acme GmbH" too. A name with another one in quotes, `Acme Inc. ("the Landlord")`, is both.
    Nothing is rewritten, so that a `same as` that goes undoes itself.

    Args:
        facts: the facts that know the names.
    """

    def __init__(self, facts: Iterable[Fact]) -> None:
        facts = [*facts]
        names = dict.fromkeys(name for fact in facts for name in (fact.subject, fact.object))
        self._marks: dict[str, set[tuple[str, ...]]] = {}
        for name in names:
            base, marks = _parts(name)
            self._marks.setdefault(base, set()).update([marks] if marks else [])
        self._above: dict[str, str] = {}
        given: dict[str, set[str]] = {}
        for name in names:
            if known := _ALIAS.fullmatch(name):
                given.setdefault(self.key(known["alias"]), set()).add(self.key(name))
        for alias, named in given.items():
            if len(named) == 1:  # two landlords are each "the Landlord" of their own lease
                self._join(alias, *named)
        for fact in facts:
            if fact.relation == SAME_AS and fact.status == "holds":
                self._join(fact.subject, fact.object)

    def _join(self, one: str, other: str) -> None:
        """Make two names one."""
        first, second = sorted((self.key(one), self.key(other)))
        if first != second:
            self._above[second] = first

    def key(self, name: str) -> str:
        """Return what stands for all names of the same thing."""
        base, marks = _parts(name)
        known = self._marks.get(base, set()) | ({marks} if marks else set())
        found = base if len(known) <= 1 else " ".join([base, *marks])
        while found in self._above:
            found = self._above[found]
        return found

    def same(self, one: str, other: str) -> bool:
        """Whether two names mean the same thing."""
        return one == other or self.key(one) == self.key(other)


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

    def take(self, new: Fact) -> None:
        names = Entities([*self._facts, new])
        group = [at for at in range(len(self._facts)) if self._is_about(at, new, names)]
        same = [at for at in group if names.same(self._facts[at].object, new.object)]
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
        """Whether a fact is a speaker's own to change: in a conversation, others dispute it."""
        return not self._latest or old.speaker.casefold() == speaker.casefold()

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


def drop_facts(text: str, subject: Collection[str]) -> tuple[str, list[str]]:
    """Return a memory without the lines that have all of some terms, and these lines."""
    lines = text.splitlines()
    gone = [line for line in lines if {*terms(line)}.issuperset(subject)]
    return "\n".join(line for line in lines if line not in gone), gone


class ReplayStep(NamedTuple):
    """A version of a memory, as `replay` takes it.

    Attributes:
        before: the facts of the versions that it follows; none if they are not known.
        after: its facts, with the evidence that stays.
        is_gone: whether it read what is forgotten: what it removed or ended is not.
    """

    before: Sequence[Fact]
    after: Sequence[Fact]
    is_gone: bool


def replay(steps: Sequence[ReplayStep]) -> list[Fact]:
    """Return what a memory would be without some documents: what they closed is open again.

    Facts without evidence that stays are left out, as their origin is not known.

    Args:
        steps: the versions that led to the memory, the oldest first.
    """
    schema = Facts.seen_in(fact for step in steps for fact in step.after)
    lost = {
        (one.subject, one.relation, one.object)
        for step in steps
        for one in step.after
        if not one.evidence
    }
    facts: list[Fact] = []
    for step in steps:
        before = {_identity(fact): fact for fact in step.before}
        after = {_identity(fact): fact for fact in step.after}
        if not step.is_gone:
            gone = before.keys() - after.keys()
            facts = [fact for fact in facts if _identity(fact) not in gone]
        known = {_identity(fact) for fact in facts}
        for key, fact in after.items():
            is_ended = fact.status == "ended" and not step.is_gone
            is_new = key not in before or (is_ended and before[key].status != "ended")
            if fact.evidence and (is_new or key not in known):
                opened = fact if is_ended else _open(fact)
                facts = overwrite(facts, [_forget_replaced(opened, lost)], schema)
    last = {_identity(fact): fact for step in steps[-1:] for fact in step.after}
    return [replace(fact, evidence=last.get(_identity(fact), fact).evidence) for fact in facts]


def _open(fact: Fact) -> Fact:
    """A fact as it was before it was closed, or disputed."""
    if fact.status != "replaced":
        return replace(fact, disputed=False)
    return replace(fact, status="holds", until=None, disputed=False)


def _forget_replaced(fact: Fact, lost: Collection[tuple[str, str, str]]) -> Fact:
    """A fact that does not name what it replaced if that is forgotten; it may replace another."""
    kept = [one for one in fact.replaces if (fact.subject, fact.relation, one) not in lost]
    if len(kept) == len(fact.replaces):
        return fact
    return replace(fact, replaces=(*kept,), amends=not (kept or fact.since))


def _identity(fact: Fact) -> tuple[str, str, str, str]:
    return fact.subject, fact.relation, fact.object, fact.since or ""


# --- What a reply says against what was read


NO_FACT, OUTSIDE, MADE_UP, CONFUSED = (
    "no fact",
    "a fact outside the schema",
    "a date that the text does not say",
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
    timed = said if dated else [without_made_up_dates(one, read, known) for one in said]
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
    """Return a fact without times that neither the text says nor facts of the same relation have.

    Small models fill the form's place of the date: nothing ends by it. A beginning keeps the month
    or year that is said; an end does if it is the last day of it.
    """
    names = Entities([fact, *known])
    same = [one for one in known if one.relation == fact.relation]
    same = [one for one in same if names.same(one.subject, fact.subject)]
    said = "\n".join([read, *(one.line for one in same)])
    since, until = (find_said(said, time or "") for time in (fact.since, fact.until))
    if fact.until and until != fact.until:
        until = "" if since.startswith(until) or not _is_last(fact.until, until) else until
        fact = fact if until else replace(fact, status="holds")
    return replace(fact, since=since or None, until=until or None)


def _count_times(fact: Fact) -> int:
    return bool(fact.since) + bool(fact.until)


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
