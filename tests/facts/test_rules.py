"""The newest fact holds, an end closes, and what nothing decides is in conflict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import Stating
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore

from memagent_graph import ConversationMemory
from memagent_graph.evidence.places import Evidence
from memagent_graph.facts.graph import Entities
from memagent_graph.facts.record import Facts, read_fact
from memagent_graph.facts.rules import mark_disputes, overwrite

ANY = Facts()


def fact(line, source=None):
    found = read_fact(line)
    return replace(found, evidence=(Evidence(line, source, 1, 0, 1),)) if source else found


def after(*lines, **ways):
    new = [fact(*line) if isinstance(line, tuple) else fact(line) for line in lines]
    return [one.line for one in overwrite([], new, ANY, **ways)]


def test_a_newer_fact_closes_the_old_one_and_keeps_it():
    assert after("A | rent | 900 | since 2020", "A | rent | 950 | since 2022-05") == [
        "A | rent | 900 | since 2020; until 2022-05; replaced",
        "A | rent | 950 | since 2022-05",
    ]
    assert after("A | rent | 900", "A | rent | 950") == [
        "A | rent | 900 | replaced",
        "A | rent | 950",
    ]


def test_a_retraction_closes_without_a_successor():
    assert after("A | rent | 900", "A | rent | 900 | until 2024") == ["A | rent | 900 | until 2024"]
    assert after("A | likes | tea", "A | likes | tea | ended") == ["A | likes | tea | ended"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("A | rent | 900", "a.txt"), ("A | rent | 950", "b.txt")),
        (("A | rent | 900 | since 2024", "a.txt"), ("A | rent | 950", "b.txt")),
        (("A | rent | 900 | since 2024", "a.txt"), ("A | rent | 950 | since 2024", "a.txt")),
    ],
    ids=["two sources", "one date", "the same date"],
)
def test_facts_of_which_no_date_decides_are_in_conflict(one, other):
    assert all("disputed" in line for line in after(one, other))


def test_in_one_source_the_reading_order_decides():
    lines = after(("A | rent | 900 | since 2024", "a.txt"), ("A | rent | 950", "a.txt"))

    assert lines == ["A | rent | 900 | since 2024; replaced", "A | rent | 950"]


def test_a_fact_whose_date_is_older_than_what_holds_closes_nothing():
    lines = after(
        ("A | rent | 900 | since 2024", "a"), ("A | rent | 850 | since 2022; replaces 900", "b")
    )

    assert lines[0] == "A | rent | 900 | since 2024"
    assert lines[1].startswith("A | rent | 850 | since 2022; until 2024; replaced")


def test_in_a_conversation_another_speaker_contradicts_and_updates_nothing():
    lines = after("A | lives in | Rome", "A | lives in | Bern | says Bob", latest=True)

    assert lines == [
        "A | lives in | Rome | disputed",
        "A | lives in | Bern | disputed; says Bob",
    ]


def test_a_speaker_updates_what_he_said_himself():
    lines = after(
        "A | lives in | Rome",
        "A | lives in | Bern | says Bob",
        "A | lives in | Oslo | says bob",
        latest=True,
    )

    assert lines == [
        "A | lives in | Rome | disputed",
        "A | lives in | Bern | replaced; says Bob",
        "A | lives in | Oslo | disputed; says bob",
    ]


@pytest.mark.parametrize(
    ("settles", "left"),
    [("A | lives in | Rome | says Bob", "Rome"), ("A | lives in | Bern", "Bern")],
    ids=["he comes round", "she does"],
)
def test_speakers_who_agree_end_their_conflict(settles, left):
    found = overwrite(
        [],
        map(fact, ["A | lives in | Rome", "A | lives in | Bern | says Bob", settles]),
        ANY,
        latest=True,
    )

    assert [(one.object, one.disputed) for one in found if one.holds()] == [(left, False)]


def test_a_date_decides_between_speakers():
    lines = after(
        "A | lives in | Rome | since 2020",
        "A | lives in | Bern | since 2024; says Bob",
        latest=True,
    )

    assert lines == [
        "A | lives in | Rome | since 2020; until 2024; replaced",
        "A | lives in | Bern | since 2024; says Bob",
    ]


@pytest.mark.parametrize("relation", ["works at", "likes"])
@pytest.mark.parametrize(
    ("own", "other"), [("ended", "says Bob"), ("ended; says Cy", "says Bob"), ("says Bob", "ended")]
)
def test_speakers_dispute_whether_a_fact_has_ended(relation, own, other):
    lines = after(f"A | {relation} | X | {own}", f"A | {relation} | X | {other}", latest=True)

    assert len(lines) == 2
    assert all("disputed" in line for line in lines)
    assert sum("ended" in line for line in lines) == 1


def test_another_speaker_disputes_a_fact_by_saying_that_it_ended():
    lines = "A | likes | tea", "A | likes | tea | ended; says Bob", "A | likes | tea"

    assert after(*lines, latest=True) == [
        "A | likes | tea | disputed",
        "A | likes | tea | ended; disputed; says Bob",
    ]
    settled = after(*lines, "A | likes | tea | ended", latest=True)
    assert settled == ["A | likes | tea | ended", "A | likes | tea | ended; says Bob"]


@pytest.mark.parametrize(
    "lines",
    [
        ("A | works at | X | since 2020; until 2023", "A | works at | X | since 2024; says Bob"),
        ("A | works at | X | ended", "A | works at | X | since 2024; says Bob"),
        ("A | works at | X | ended", "A | works at | X"),
        ("A | works at | X", "A | works at | X | until 2024; says Bob"),
    ],
)
def test_a_date_or_the_same_speaker_decides_whether_a_fact_has_ended(lines):
    assert not any("disputed" in line for line in after(*lines, latest=True))


@pytest.mark.parametrize("line", ["A | rent | 950 | since 2022", "A | rent | 950 | replaces 900"])
def test_a_date_or_the_old_value_in_its_sentence_makes_a_fact_the_newer_one(line):
    lines = after(("A | rent | 900", "a.txt"), (line, "b.txt"))

    assert "replaced" in lines[0]
    assert lines[1] == line


def test_a_later_date_settles_a_conflict():
    lines = after(
        ("A | rent | 900", "a.txt"),
        ("A | rent | 950", "b.txt"),
        ("A | rent | 990 | since 2024", "c"),
    )

    assert lines == [
        "A | rent | 900 | until 2024; replaced",
        "A | rent | 950 | until 2024; replaced",
        "A | rent | 990 | since 2024",
    ]


def test_a_relation_with_several_objects_closes_none():
    assert after("A | likes | tea", "A | likes | coffee") == [
        "A | likes | tea",
        "A | likes | coffee",
    ]


def test_what_nothing_supports_closes_nothing():
    made_up = replace(fact("A | rent | 9 | since 2025"), unsupported=True)
    ended = replace(fact("A | rent | 900 | until 2025"), unsupported=True)
    known = [fact("A | rent | 900")]

    assert [one.line for one in overwrite(known, [ended], ANY)] == ["A | rent | 900"]
    assert [one.line for one in overwrite(known, [made_up], ANY)] == [
        "A | rent | 900 | disputed",
        "A | rent | 9 | since 2025; disputed",
    ]


def test_a_repeated_old_fact_comes_back_in_a_conversation_alone():
    lines = ["A | lives in | Rome", "A | lives in | Bern", "A | lives in | Rome"]

    assert after(*lines) == ["A | lives in | Rome | replaced", "A | lives in | Bern"]
    assert after(*lines, latest=True) == [
        "A | lives in | Rome | replaced",
        "A | lives in | Bern | replaced",
        "A | lives in | Rome",
    ]


dated = st.dictionaries(
    st.integers(2000, 2020), st.integers(100, 999).map(str), min_size=1, max_size=6
).filter(lambda found: len({*found.values()}) == len(found))


@given(dated, st.randoms())
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Acme", "ACME Inc."),
        ("Dr. Anna Bell", "anna bell"),
        ("The Café", "Cafe"),
        ("1,200 euros", "1200 Euros"),
        ("1 May 2023", "2023-05-01"),
        ("Anna-Maria Vale", "Anna Maria Vale"),
        ("Acme", "Acme Incorporated"),
        ("Acme Corp.", "Acme Corporation"),
        ("Hill Co., Ltd.", "Hill"),
        ("Acme S.A.", "Acme SA"),
        ("the U.S.A.", "USA"),
        ("Hill & Sons", "Hill and Sons"),
        ("Doctor Bell", "Dr. Bell"),
        ('Acme Holdings Ltd. (the "Landlord")', "the Landlord"),
        ("Acme Holdings Ltd. (hereinafter “Acme”)", "Acme Holdings Limited"),
    ],
)
def test_names_that_differ_in_form_alone_are_one(one, other):
    assert Entities([fact(f"{one} | likes | tea")]).same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Anna Bell", "Anna Hill"),
        ("2019 Act", "2020 Act"),
        ("C", "C++"),
        ("Acme GmbH", "Acme Inc."),
        ("Mr Bell", "Mrs Bell"),
        ("-5", "5"),
        ("Lease 7", "Lease 71"),
        ("A. Bell", "Anna Bell"),
        ("Acme (Bern)", "Bern"),
        ("Acme Ltd.", "Acme Inc."),
    ],
)
def test_names_of_two_things_stay_two(one, other):
    known = [fact(f"{one} | knows | {other}")]

    assert not Entities(known).same(one, other)


def test_a_name_that_two_things_may_have_is_neither():
    entities = Entities([fact("Acme GmbH | owns | Acme Inc."), fact("Acme | likes | tea")])

    assert not entities.same("Acme", "Acme Inc.")
    assert not entities.same("Acme", "Acme GmbH")


def test_an_alias_that_two_things_have_is_neither():
    two = ['Acme Ltd. (the "Landlord") | owns | X', 'Hill Ltd. (the "Landlord") | owns | Y']
    entities = Entities(map(fact, two))

    assert not entities.same("Acme", "Hill")
    assert not entities.same("Landlord", "Acme")


def test_same_as_makes_one_of_two_names_and_undoes_itself():
    facts = overwrite(
        [],
        map(
            fact,
            [
                "A. Bell | lives in | Rome",
                "Anna Bell | lives in | Bern",
                "A. Bell | same as | Anna Bell",
            ],
        ),
        ANY,
    )
    without = mark_disputes([one for one in facts if one.relation != "same as"], ANY)

    assert [one.disputed for one in facts] == [True, True, False]
    assert [one.disputed for one in without] == [False, False]
    assert Entities(facts).same("Anna Bell", "A. Bell")


def test_names_that_are_no_longer_the_same_are_two_again():
    said = [fact("A. Bell | same as | Anna Bell"), fact("A. Bell | same as | Anna Bell | ended")]

    assert Entities(said[:1]).same("A. Bell", "Anna Bell")
    assert not Entities(overwrite([], said, ANY)).same("A. Bell", "Anna Bell")


AT_NINE, AT_NOON, AT_SIX = (f"2026-03-05T{hour:02}:00+00:00" for hour in (9, 12, 18))


def told(line, at):
    return replace(read_fact(line), told_at=at)


@pytest.mark.parametrize(
    ("known", "late", "left"),
    [
        ("user | lives in | Kiel", "user | lives in | Husum", ["Kiel", "Husum | replaced"]),
        ("user | lives in | Kiel", "user | lives in | Husum | replaces Kiel", None),
        ("user | likes | tea", "user | likes | tea | ended", ["tea"]),
        ("user | likes | tea | ended", "user | likes | tea", ["tea | ended"]),
        ("user | likes | tea", "user | likes | coffee", ["tea", "coffee"]),
        ("user | lives in | Kiel | since 2020", "user | lives in | Husum | since 2024", None),
    ],
)
def test_what_was_told_before_and_is_read_later_changes_nothing_that_was_told_since(
    known, late, left
):
    facts = overwrite([told(known, AT_SIX)], [told(late, AT_NINE)], ANY, latest=True)

    if left is None:
        holding = "Husum" if "2024" in late else "Kiel"
        assert [fact.object for fact in facts if fact.status == "holds"] == [holding]
    else:
        assert [fact.line.split(" | ", 2)[2] for fact in facts] == left


def test_what_was_told_between_does_not_hold_either():
    facts = overwrite([], [told("user | lives in | Husum", AT_NINE)], ANY, latest=True)
    facts = overwrite(facts, [told("user | lives in | Kiel", AT_SIX)], ANY, latest=True)
    facts = overwrite(facts, [told("user | lives in | Bonn", AT_NOON)], ANY, latest=True)

    assert [fact.object for fact in facts if fact.status == "holds"] == ["Kiel"]


@pytest.mark.parametrize("days", [("03-05", "03-05"), ("03-05", "03-06")])
def test_folding_a_conversation_late_does_not_bring_back_what_it_says(days):
    memory = ConversationMemory(Stating(), store=InMemoryStore(), schema=Facts)
    early, late = f"2026-{days[0]}T09:00Z", f"2026-{days[1]}T18:00Z"
    for text, at, thread in (("I live in Kiel.", late, "b"), ("I live in Husum.", early, "a")):
        message = HumanMessage(text, additional_kwargs={"told_at": at})
        memory.save([message], user="ann", thread=thread)

    (now,) = memory.facts("ann", relation="lives in")
    past = memory.facts("ann", relation="lives in", history=True)

    assert (now.object, now.thread) == ("Kiel", "b")
    assert [(fact.object, fact.thread) for fact in past] == [("Kiel", "b"), ("Husum", "a")]
