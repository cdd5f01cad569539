"""Which facts are wanted, and the rules by which new ones overwrite old ones, without a model.

Of two objects of a relation that has one at a time, the newer one closes the older one, which stays
as history; `until` closes a fact with nothing in its place. Where nothing says which is newer, both
stay and are `disputed`. What nothing in the text supports closes nothing.
"""

from __future__ import annotations

from calendar import monthrange
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.statements import is_later, statements
from memagent_graph.facts.graph import Entities
from memagent_graph.facts.record import (
    SAME_AS,
    Fact,
    facts_of,
    find_said,
    find_times,
    names_day,
    read_date,
    to_words,
)
from memagent_graph.readers.replies import is_not_said
from memagent_graph.text.terms import specific_terms

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


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
_AMOUNTS = frozenset(map(to_words, _MEASURED.split()))
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
        is_number = any(map(str.isdigit, fact.object)) and not names_day(fact.object)
        is_of_kind = {"date": bool(read_date(fact.object)), "number": is_number}
        if thing is None or not is_of_kind.get(relation.object, True):
            return None
        return replace(fact, relation=relation.name, object=thing)


def lacks_object(fact: Fact, schema: Facts) -> bool:
    """Return whether a fact's object is none, and no choice of the schema.

    It says that it is not said, or it is a date where an amount belongs.
    """
    known = schema.relations.get(fact.relation)
    if known and fact.object.lower() in map(str.lower, known.choices):
        return False
    return is_not_said(fact.object) or (fact.relation in _AMOUNTS and names_day(fact.object))


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
    title = kinds[kind]["title"]
    return Relation(to_words(name), title, objects, not many, described, (*choices,)), models


_PLAIN = str.maketrans("{}<>", "()()")


def overwrite(
    facts: Sequence[Fact], new: Iterable[Fact], schema: Facts, *, latest: bool = False
) -> list[Fact]:
    """Return facts after new ones, in reading order.

    If the latest is to hold in any case, as in a conversation, a repeated statement brings back
    what was replaced, and only other speakers can dispute it.
    """
    found = [*facts]
    for fact in new:
        found = _add(found, fact, schema, latest=latest)
    return mark_disputes(found, schema)


def _add(facts: list[Fact], new: Fact, schema: Facts, *, latest: bool) -> list[Fact]:
    """Return facts with one more, which continues, closes or follows those about the same."""
    names, found = Entities([*facts, new]), [*facts]
    group = [at for at, fact in enumerate(facts) if _is_about(fact, new, names)]
    same = [at for at in group if names.same(facts[at].object, new.object)]
    if latest and any(_is_told_since(facts[at], new) for at in same):
        return found
    same.sort(key=lambda at: facts[at].status == "holds")
    at = ([len(facts)] + [at for at in same if _continues(new, facts[at], latest=latest)])[-1]
    speaker, is_old = new.speaker, at < len(facts)
    found[at:] = [_join(facts[at], new) if is_old else new, *facts[at + 1 :]]
    if is_old and not (latest or new.replaces or found[at].since != facts[at].since):
        return found
    single = schema.is_single(new.relation) and new.relation != SAME_AS
    is_open = found[at].status == "holds" or (found[at].status == "replaced" and found[at].since)
    for other in group if single and is_open else ():
        new, old = found[at], found[other]
        if other in same or old.status == "ended" or (new.unsupported and not old.unsupported):
            continue
        order = _compare(replace(new, speaker=speaker), old, names, latest=latest)
        if order > 0 and (old.status == "holds" or is_after(old.until, new.since)):
            found[other] = replace(old, status="replaced", until=new.since)
        elif order < 0 and (new.status == "holds" or is_after(new.until, old.since)):
            found[at] = replace(new, status="replaced", until=old.since)
    return found


def _is_about(fact: Fact, new: Fact, names: Entities) -> bool:
    if new.relation == SAME_AS:  # all names of one thing are the same subject
        return fact.relation == SAME_AS and {*fact.triple} == {*new.triple}
    return fact.relation == new.relation and names.same(fact.subject, new.subject)


def _is_own(old: Fact, new: Fact) -> bool:
    return old.speaker.casefold() == new.speaker.casefold()


def _is_told_since(old: Fact, new: Fact) -> bool:
    """Whether its speaker told a fact after a new one, whose date is no later either."""
    is_later_told = is_later(old.told_at, new.told_at) and not is_after(new.since, old.since)
    return _is_own(old, new) and is_later_told


def _continues(new: Fact, old: Fact, *, latest: bool) -> bool:
    """Whether a fact with the same object says more of an old one, not of another time."""
    if old.status == "holds":
        is_denied = latest and new.status == "ended" and not (new.until or _is_own(old, new))
        return not (is_denied or is_after(old.since, new.until))
    return new.status != "holds" or not (latest or is_after(new.since, old.since))


def _compare(new: Fact, old: Fact, names: Entities, *, latest: bool) -> int:
    """Return 1 if a fact is newer than an old one, -1 if it is older, 0 if nothing says so."""
    if is_after(new.since, old.since):
        return 1
    if is_after(old.since, new.since) or (latest and _is_told_since(old, new)):
        return -1
    if new.since and not old.since:
        return 1
    if latest:
        return int(_is_own(old, new))
    if any(names.same(old.object, one) for one in new.replaces):
        return 1
    if new.since:
        return 0
    own, others = ({item.source for item in fact.evidence} for fact in (new, old))
    return int(not (own and others) or not own.isdisjoint(others))


def is_after(one: str | None, other: str | None) -> bool:
    """Return whether a time is known to be later than another."""
    first, second = (read_date(time) if time else None for time in (one, other))
    return first is not None and second is not None and first > second


def _join(old: Fact, new: Fact) -> Fact:
    """A fact, with what the same fact says once more; its end, if that is said now."""
    ends = new.status != "holds" and old.status == "holds" and new.unsupported <= old.unsupported
    supported = not (old.unsupported and new.unsupported)
    newer = new if new.message else old
    return replace(
        old,
        since=old.since or new.since,
        until=new.until if ends else old.until,
        status=new.status if ends else old.status,
        replaces=tuple(dict.fromkeys((*old.replaces, *new.replaces))),
        evidence=tuple(dict.fromkeys((*old.evidence, *new.evidence))),
        unsupported=not supported,
        missing=() if supported else old.missing,
        message=newer.message,
        thread=newer.thread,
        told_at=newer.told_at,
        speaker=old.speaker if new.speaker else "",
    )


def mark_disputes(facts: Sequence[Fact], schema: Facts) -> list[Fact]:
    """Return facts, marked where a subject has several objects of a relation that has one.

    In a conversation, what ended by the word of one speaker and holds by that of another is
    disputed too.
    """
    names = Entities(facts)
    disputed = set[int]()
    for group in names.group(facts):
        holding = [at for at in group if facts[at].status == "holds"]
        objects = {names.key(facts[at].object) for at in holding}
        if schema.is_single(facts[group[0]].relation) and len(objects) > 1:
            disputed.update(holding)
        for end in (at for at in group if facts[at].status == "ended"):
            same = [at for at in holding if names.same(facts[at].object, facts[end].object)]
            denied = [at for at in same if _denies(facts[end], facts[at])]
            disputed.update([end, *denied] if denied else [])
    return [
        fact if fact.disputed == (at in disputed) else replace(fact, disputed=at in disputed)
        for at, fact in enumerate(facts)
    ]


def _denies(end: Fact, holding: Fact) -> bool:
    """Whether the end of a fact contradicts another speaker, and no date decides."""
    is_dated = holding.since and not (end.until and not is_after(holding.since, end.until))
    return not (is_dated or _is_own(holding, end))


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
    """Return the facts of a reply without dates that nothing says, and how many left out, by why.

    A fact replaces what the memory has in its place if a sentence of the text names both. A text
    that is dated, as a message is, need not say its dates.
    """
    stated = [one for one in facts if not lacks_object(one, schema)]
    fitting = [fact for one in stated if (fact := schema.fit(one)) is not None]
    known, kept = facts_of(memory), []
    names = Entities([*known, *fitting])
    passages = [(one.text, {*specific_terms(one.text)}) for one in statements(read)]
    lost = Counter({NO_FACT: len(facts) - len(stated), OUTSIDE: len(stated) - len(fitting)})
    for fact in fitting:
        own = [one for one in passages if one[1].issuperset(specific_terms(fact.object))]
        if _is_of_another(fact, fitting, [said for _, said in own]):
            lost[CONFUSED] += 1
            continue
        rivals = (one.object for one in fitting if not names.same(one.object, fact.object))
        others = [{*specific_terms(one)} for one in rivals]
        free = [text for text, said in passages if not any(map(said.issuperset, others))]
        dating = [text for text, _ in own if find_times(text)[0]]
        about = [one for one in known if _is_about(one, fact, names)]
        is_known = any(names.same(one.object, fact.object) for one in about)
        dating = dating or (free if own or is_known else [text for text, _ in passages])
        timed = fact if dated else _without_made_up_dates(fact, dating, read)
        for was, time in ((fact.since, timed.since), (fact.until, timed.until)):
            lost[MADE_UP] += bool(was and not time)
        replaces = [
            one.object
            for one in about
            if one.status == "holds" and schema.is_single(one.relation)
            if not names.same(one.object, fact.object)
            if any(said.issuperset(specific_terms(one.object)) for _, said in own)
        ]
        kept.append(replace(timed, replaces=(*dict.fromkeys(replaces),)))
    return kept, +lost


def _is_of_another(fact: Fact, facts: Sequence[Fact], own: Sequence[Collection[str]]) -> bool:
    """Whether the text, in the sentences with a fact's object, says it of another relation.

    Small models fill in all relations of a schema.
    """
    if read_date(fact.object) or not any(map(str.isdecimal, fact.object)):
        return False
    same = [one for one in facts if one.object == fact.object and one.relation != fact.relation]
    rivals = [{*specific_terms(one.relation)} for one in same]
    words = {*specific_terms(fact.relation)}.difference(*rivals)
    return all(map(words.isdisjoint, own)) and any(
        not rival.isdisjoint(said) for rival in rivals for said in own
    )


def _without_made_up_dates(fact: Fact, dating: Sequence[str], read: str) -> Fact:
    """Return a fact without dates that no sentence says: small models fill the form's place of one.

    It is dated by the sentences that name its object and have a date, or else by those that state
    no other fact; by all if it is new and no sentence names its object.
    """
    since, until = (time and find_said(dating, time, read) for time in (fact.since, fact.until))
    is_said = until == fact.until or (fact.until and until and _is_last(fact.until, until))
    if not is_said or (since and until and not is_after(until, since)):
        until = None
    is_backward = fact.since and not is_after(fact.until, fact.since)
    is_open = fact.until and not until and (fact.status == "ended" or is_backward)
    return replace(
        fact, since=since or None, until=until or None, status="holds" if is_open else fact.status
    )


def _is_last(time: str, period: str) -> bool:
    """Whether a time is the last month of a year, or the last day of a month or year."""
    year, _, month = period.partition("-")
    days = monthrange(int(year), int(month or 12))[1]
    return time in {f"{year}-12" if not month else "", f"{year}-{month or 12}-{days}"}
