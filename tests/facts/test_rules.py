"""The newest fact holds, an end closes, and what nothing decides is in conflict."""

from dataclasses import replace

import pytest
from conversations import dated
from fixed_readers import fact_model
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory
from memagent_graph.evidence.places import Evidence
from memagent_graph.facts.graph import Entities
from memagent_graph.facts.record import read_fact
from memagent_graph.facts.rules import Facts, overwrite

ANY = Facts()


def fact(line):
    """A fact; a line may end with " @" and the source where it stands."""
    line, _, source = line.partition(" @")
    found = read_fact(line)
    return replace(found, evidence=(Evidence(line, source, 1, 0, 1),)) if source else found


def after(*lines, **ways):
    return [one.line for one in overwrite([], map(fact, lines), ANY, **ways)]


def facts_in(table, about="A"):
    """The lines of a cell of a table, which leaves out how they all begin."""
    return [f"{about} | {line}" for line in table.split(" / ")]


@pytest.mark.parametrize(
    ("rents", "left"),
    [
        ("900 | since 2024 @a / 950 @a", "900 | since 2024; replaced / 950"),
        (
            "900 | since 2024 @a / 850 | since 2022; replaces 9 @b",
            "900 | since 2024 / 850 | since 2022; until 2024; replaced; replaces 9",
        ),
        (
            "900 @a / 950 @b / 990 | since 2024 @c",
            "900 | until 2024; replaced / 950 | until 2024; replaced / 990 | since 2024",
        ),
        ("900 @a / 950 | since 2022 @b", "900 | until 2022; replaced / 950 | since 2022"),
        ("900 @a / 950 | replaces 900 @b", "900 | replaced / 950 | replaces 900"),
        ("900 / 950 / 900", "900 | replaced / 950"),
    ],
    ids=[
        *("the order of one source", "an older date", "a later date settles a conflict"),
        *("a date between sources", "the old value in its sentence", "a repeat"),
    ],
)
def test_of_documents_this_decides_what_holds(rents, left):
    assert after(*facts_in(rents, "A | rent")) == facts_in(left, "A | rent")


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (
            "seat | Rome / seat | Bern | says Bob / seat | Oslo | says bob",
            (
                "seat | Rome | disputed / seat | Bern | replaced; says Bob"
                " / seat | Oslo | disputed; says bob"
            ),
        ),
        (
            "seat | Rome | since 2020 / seat | Bern | since 2024; says Bob",
            "seat | Rome | since 2020; until 2024; replaced / seat | Bern | since 2024; says Bob",
        ),
        (
            "likes | tea / likes | tea | ended; says Bob / likes | tea",
            "likes | tea | disputed / likes | tea | ended; disputed; says Bob",
        ),
        (
            "likes | tea / likes | tea | ended; says Bob / likes | tea | ended",
            "likes | tea | ended / likes | tea | ended; says Bob",
        ),
        (
            "seat | Rome / seat | Bern / seat | Rome",
            "seat | Rome | replaced / seat | Bern | replaced / seat | Rome",
        ),
    ],
    ids=["his own words", "a date", "that it ended", "both say that it ended", "back again"],
)
def test_in_a_conversation_this_decides_what_holds(told, left):
    assert after(*facts_in(told), latest=True) == facts_in(left)


def test_a_newer_fact_closes_the_old_one_and_keeps_it():
    told = facts_in("rent | 900 | since 2020 / rent | 950 | since 2022-05")
    left = "rent | 900 | since 2020; until 2022-05; replaced / rent | 950 | since 2022-05"
    assert after(*told) == facts_in(left)
    assert after(*facts_in("rent | 9 / rent | 8")) == facts_in("rent | 9 | replaced / rent | 8")


def test_a_retraction_closes_without_a_successor():
    assert after("A | rent | 900", "A | rent | 900 | until 2024") == ["A | rent | 900 | until 2024"]
    assert after("A | likes | tea", "A | likes | tea | ended") == ["A | likes | tea | ended"]


@pytest.mark.parametrize("lines", [
    ("A | rent | 900 @a.txt", "A | rent | 950 @b.txt"),
    ("A | rent | 900 | since 2024 @a.txt", "A | rent | 950 @b.txt"),
    ("A | rent | 900 | since 2024 @a.txt", "A | rent | 950 | since 2024 @a.txt"),
], ids=["two sources", "one date", "the same date"])  # fmt: skip
def test_facts_of_which_no_date_decides_are_in_conflict(lines):
    assert all("disputed" in line for line in after(*lines))


def test_in_a_conversation_another_speaker_contradicts_and_updates_nothing():
    lines = after("A | lives in | Rome", "A | lives in | Bern | says Bob", latest=True)

    assert lines == ["A | lives in | Rome | disputed", "A | lives in | Bern | disputed; says Bob"]


def test_a_relation_with_several_objects_closes_none():
    both = facts_in("likes | tea / likes | coffee")

    assert after(*both) == both


def test_what_nothing_supports_closes_nothing():
    made_up = replace(fact("A | rent | 9 | since 2025"), unsupported=True)
    ended = replace(fact("A | rent | 900 | until 2025"), unsupported=True)
    known = [fact("A | rent | 900")]
    disputed = facts_in("rent | 900 | disputed / rent | 9 | since 2025; disputed")

    assert [one.line for one in overwrite(known, [ended], ANY)] == ["A | rent | 900"]
    assert [one.line for one in overwrite(known, [made_up], ANY)] == disputed


years = st.dictionaries(
    st.integers(2000, 2020), st.integers(100, 999).map(str), min_size=1, max_size=6
).filter(lambda found: len({*found.values()}) == len(found))


@given(years, st.randoms())
def test_facts_with_dates_end_up_the_same_in_any_order(rents, random):
    lines = [f"A | rent | {rent} | since {year}" for year, rent in sorted(rents.items())]
    shuffled = [*lines]
    random.shuffle(shuffled)

    assert sorted(after(*shuffled)) == sorted(after(*lines))
    assert sum("replaced" not in line for line in after(*shuffled)) == 1


statements = st.builds(
    "{} | {} | {}{}".format,
    st.sampled_from(["A", "B", "a"]),
    st.sampled_from(["rent", "likes", "same as"]),
    st.sampled_from(["tea", "9", "10", "B"]),
    st.sampled_from(["", " | since 2020", " | since 2021", " | ended", " | replaces 9"]),
)


@given(st.lists(statements, max_size=8))
def test_what_is_said_once_more_changes_nothing(lines):
    once = overwrite([], map(fact, lines), ANY)
    last = [fact(line) for line in lines[-1:]]

    assert [one.line for one in overwrite(once, last, ANY)] == [one.line for one in once]


@given(st.lists(statements, max_size=8))
def test_facts_are_read_back_as_they_were_overwritten(lines):
    found = overwrite([], map(fact, lines), ANY)

    assert [read_fact(one.line) for one in found] == found


@pytest.mark.parametrize(("one", "other"), [
    ("Acme", "ACME Inc."), ("Dr. Anna Bell", "anna bell"), ("The Café", "Cafe"),
    ("1,200 euros", "1200 Euros"), ("1 May 2023", "2023-05-01"),
    ("Anna-Maria Vale", "Anna Maria Vale"), ("Acme Corp.", "Acme Corporation"),
    ("Hill Co., Ltd.", "Hill"), ("the U.S.A.", "USA"), ("Hill & Sons", "Hill and Sons"),
    ('Acme Holdings Ltd. (the "Landlord")', "the Landlord"),
    ("Acme Holdings Ltd. (hereinafter “Acme”)", "Acme Holdings Limited"),
])  # fmt: skip
def test_names_that_differ_in_form_alone_are_one(one, other):
    assert Entities([fact(f"{one} | likes | tea")]).same(one, other)


@pytest.mark.parametrize(("one", "other"), [
    ("Anna Bell", "Anna Hill"), ("2019 Act", "2020 Act"), ("C", "C++"), ("Acme GmbH", "Acme Inc."),
    ("Mr Bell", "Mrs Bell"), ("-5", "5"), ("Lease 7", "Lease 71"), ("A. Bell", "Anna Bell"),
    ("Acme (Bern)", "Bern"), ("Acme Ltd.", "Acme Inc."),
])  # fmt: skip
def test_names_of_two_things_stay_two(one, other):
    assert not Entities([fact(f"{one} | knows | {other}")]).same(one, other)


@pytest.mark.parametrize(
    ("lines", "pairs"),
    [
        (
            ["Acme GmbH | owns | Acme Inc.", "Acme | likes | tea"],
            [("Acme", "Acme Inc."), ("Acme", "Acme GmbH")],
        ),
        (
            ['Acme Ltd. (the "Landlord") | owns | X', 'Hill Ltd. (the "Landlord") | owns | Y'],
            [("Acme", "Hill"), ("Landlord", "Acme")],
        ),
    ],
    ids=["a name", "an alias"],
)
def test_a_name_that_two_things_may_have_is_neither(lines, pairs):
    assert not any(Entities(map(fact, lines)).same(*pair) for pair in pairs)


def test_names_that_are_no_longer_the_same_are_two_again():
    said = [fact("A. Bell | same as | Anna Bell"), fact("A. Bell | same as | Anna Bell | ended")]

    assert Entities(said[:1]).same("A. Bell", "Anna Bell")
    assert not Entities(overwrite([], said, ANY)).same("A. Bell", "Anna Bell")


def hold_after(*told):
    """What holds after (line, hour that it was told at), in this order."""
    facts = []
    for line, hour in told:
        new = replace(read_fact(line), told_at=f"2026-03-05T{hour:02}:00+00:00")
        facts = overwrite(facts, [new], ANY, latest=True)
    return [fact.object for fact in facts if fact.status == "holds"]


@pytest.mark.parametrize(("told", "left"), [
    ([("lives in | Kiel", 18), ("lives in | Husum", 9)], ["Kiel"]),
    ([("lives in | Kiel", 18), ("lives in | Husum | replaces Kiel", 9)], ["Kiel"]),
    ([("likes | tea", 18), ("likes | tea | ended", 9)], ["tea"]),
    ([("likes | tea | ended", 18), ("likes | tea", 9)], []),
    ([("likes | tea", 18), ("likes | coffee", 9)], ["tea", "coffee"]),
    ([("lives in | Kiel | since 2020", 18), ("lives in | Husum | since 2024", 9)], ["Husum"]),
    ([("lives in | Husum", 9), ("lives in | Kiel", 18), ("lives in | Bonn", 12)], ["Kiel"]),
])  # fmt: skip
def test_what_was_told_before_and_is_read_later_changes_nothing_that_was_told_since(told, left):
    assert hold_after(*((f"user | {line}", hour) for line, hour in told)) == left


@pytest.mark.parametrize("day", ["03-05", "03-06"])
def test_folding_a_conversation_late_does_not_bring_back_what_it_says(day):
    memory = ConversationMemory(fact_model(), store=InMemoryStore(), schema=Facts)
    for text, at, thread in (
        ("I live in Kiel.", f"2026-{day}T18:00Z", "b"),
        ("I live in Husum.", "2026-03-05T09:00Z", "a"),
    ):
        memory.save([dated(text, at)], user="ann", thread=thread)

    (now,) = memory.facts("ann", relation="lives in")
    past = memory.facts("ann", relation="lives in", history=True)

    assert (now.object, now.thread) == ("Kiel", "b")
    assert [(fact.object, fact.thread) for fact in past] == [("Kiel", "b"), ("Husum", "a")]
