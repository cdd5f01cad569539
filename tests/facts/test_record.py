"""A fact is one line, which models write in many ways; what is no fact is counted, never raised."""

from datetime import date
from enum import Enum
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from memagent_graph import facts_of
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Evidence, Memory, Unsupported
from memagent_graph.facts.record import Fact, memory_of_facts, read_date, read_fact, read_lines
from memagent_graph.facts.rules import Facts, lacks_object

ACME = "Anna Bell | works at | Acme | since 2021-03"


@pytest.mark.parametrize("line", [
    "- Anna Bell | works at | Acme | since March 2021",
    "1. **Anna Bell** | works_at | `Acme` | since 2021-03",
    "| Anna Bell | Works At | Acme | since 2021-03 |",
    "Anna Bell ｜ works at ｜ Acme ｜ since 2021-03", "Anna Bell\tworks at\tAcme\tsince 2021-03",
    "Anna Bell — works at — Acme — since 2021-03", "Anna Bell - works at - Acme - from 2021-03",
    "Anna Bell -> works at -> Acme -> 2021-03", "(Anna Bell, works at, Acme, since 2021-03)",
    "Anna Bell | has | works at | Acme since March 2021",
    '  "Anna Bell" |   works  at | Acme (since 2021-03).',
])  # fmt: skip
def test_a_fact_is_read_in_the_forms_that_models_write(line):
    assert read_fact(line).line == ACME


@pytest.mark.parametrize("line", [
    "Anna Bell works at Acme.", "Anna Bell | works at", "Anna Bell | works at | ",
    "Anna Bell | 12 | Acme", "Lease 7 | until 2017-01-01 | ends | 2017-01-01",
    "Lease 7 | not Lease 7 | notice period | 57 weeks",
    "Lease 7 | replaces 2419 crowns | cleaning allowance | since 2021-01-01", "| | |",
    " | ".join("abcdefghijklmnop"), f"Anna | works at | {'x' * 301}", "",
])  # fmt: skip
def test_what_lacks_a_field_is_no_fact(line):
    assert read_fact(line) is None


names = st.text(max_size=40).map(lambda text: read_fact(f"{text}\t{text}\t{text}")).filter(bool)
times = st.sampled_from([None, "2021", "2021-03", "2021-03-15", "the merger"])


@given(names, names, times, times, st.sampled_from(["holds", "replaced", "ended"]), st.booleans())
def test_a_line_is_read_back_as_its_fact(one, other, since, until, status, disputed):
    status = "ended" if until and status == "holds" else status
    extra = {"since": since, "until": until, "status": status, "disputed": disputed}
    fact = Fact(one.subject, "knows", other.subject, replaces=("A b",), **extra)

    assert read_fact(fact.line) == fact
    assert "\n" not in fact.line


@given(st.text(alphabet="ab|｜\\-–*_()[]{}\"';:, \t\n1>#.", max_size=200))
def test_no_text_raises_and_each_line_is_a_fact_or_is_counted(text):
    found = read_lines(text)

    for fact in found.facts:
        assert read_fact(fact.line) == fact


def test_prefaces_rules_and_headings_are_neither_facts_nor_counted():
    table = f"```\n| subject | relation | object |\n|---|:-:|---|\n{ACME}\n```\n"
    reply = f"<facts>\nHere are the facts:\n{table}\n# Facts\n</facts>\n"

    found = read_lines(f"{reply}I hope this helps you, Anna.")

    assert [fact.line for fact in found.facts] == [ACME]
    assert found.others == ["I hope this helps you, Anna."]


@pytest.mark.parametrize(("text", "expected"), [
    ("2021", "2021"), ("March 2021", "2021-03"), ("15th of March, 2021", "2021-03-15"),
    ("Mar 5, 2021", "2021-03-05"), ("2021-03-15T10:00:00Z", "2021-03-15"),
    ("2021/3/5", "2021-03-05"), ("01.03.2022", "2022-03-01"), ("1. März 2022", "2022-03-01"),
    ("1er février 2022", "2022-02-01"), ("2022年3月1日", "2022-03-01"), ("2022年", "2022"),
    ("30 February 2021", None), ("2021-13", None), ("31.02.2022", None), ("1.1 2022", None),
    ("the merger", None), ("Marmalade 2021", None),
])  # fmt: skip
def test_dates_are_read_in_the_forms_of_texts(text, expected):
    assert read_date(text) == expected


@pytest.mark.parametrize(
    ("times", "holds", "holds_not"),
    [
        (
            "since 2022-01; until 2023-05-01; replaced",
            ["2022", "April 2023", date(2023, 4, 30), "30.4.2023"],
            ["2021", "2023-05-01", "2023-05", None],
        ),
        ("until 2024-05-01; replaced", ["2024-04", "2024"], ["2024-05"]),  # its successor's month
        ("until 2024-05-01", ["1990", "2024-05", "2024"], ["2024-06", None]),
        ("replaced", [], ["1990", None]),
    ],
)
def test_a_fact_holds_from_its_beginning_to_its_end(times, holds, holds_not):
    fact = read_fact(f"Lease | rent | 900 | {times}")

    assert [at for at in (*holds, *holds_not) if fact.holds(at)] == holds
    with pytest.raises(ConfigurationError, match="'yesterday' is no date"):
        fact.holds("yesterday")


class Status(Enum):
    OPEN = "open"
    CLOSED = "closed"


class Company(BaseModel):
    seat: str | None = Field(None, description="the {city} of its <seat>")


class Person(BaseModel):
    works_at: Company | None = None
    speaks: list[str] = []
    born_on: date | None = None
    state: Status | None = None
    grade: Literal["junior", "senior"] | None = None
    height: float | None = None


def test_a_schema_is_told_and_accepts_what_has_a_place_in_it():
    schema = Facts(Person)
    fits = ["is speaks | German", "state | OPEN", "born on | 5 May 1990", "same as | B"]
    others = ["likes | tea", "state | ajar", "born on | spring", "height | tall"]

    objects = [schema.fit(read_fact(f"A | {line}")).object for line in fits]

    relations = "works at (a Company), speaks, born on (a date), state (open or closed)"
    assert schema.described.splitlines() == [
        f"Person: {relations}, grade (junior or senior), height (a number)",
        "Company: seat (the (city) of its (seat))",
    ]
    assert objects == ["German", "open", "5 May 1990", "B"]
    assert not any(schema.fit(read_fact(f"A | {line}")) for line in others)
    assert (schema.is_single("works at"), schema.is_single("speaks")) == (True, False)


@pytest.mark.parametrize("wrong", [str, Person(), type("Empty", (BaseModel,), {})])
def test_a_schema_without_relations_is_refused(wrong):
    with pytest.raises(ConfigurationError, match=r"pydantic models|has no field"):
        Facts(wrong)


def test_facts_of_a_memory_have_its_evidence_and_its_marks():
    place = Evidence(ACME, "a.txt", 1, 0, 9)
    memory = Memory(f"{ACME}\nA | likes | tea", (place,), (Unsupported("A | likes | tea", ("A",)),))

    one, other = facts_of(memory)

    assert (one.evidence, (other.unsupported, other.missing)) == ((place,), (True, ("A",)))
    assert memory_of_facts([one, other]) == memory
    assert facts_of({"memory": memory.text, "evidence": []})[0].line == ACME


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("subject: A | relation: rent | object: 9 euros", "A | rent | 9 euros"),
        ("A | rent | 9 euros | 2022-03 - present", "A | rent | 9 euros | since 2022-03"),
        ("A | rent | 9 euros | since 1 March 2022 to May 2024",
         "A | rent | 9 euros | since 2022-03-01; until 2024-05"),
        ("A | rent | 9 euros | since 2022-03 until further notice",
         "A | rent | 9 euros | since 2022-03"),
        ("A | rent | 9 euros | since 2022-03 (section 1)", "A | rent | 9 euros | since 2022-03"),
        ("A | rent | 9 euros | since 2022-03 | Source: section 1",
         "A | rent | 9 euros | since 2022-03"),
        ("A | Miete | 9 Euro | since 01.03.2022", "A | miete | 9 Euro | since 2022-03-01"),
        ("A | chart | [picture 1, p. 2]", "A | chart | [picture 1, p. 2]"),
        ("A | chart | **[picture 2: Revenue]**", "A | chart | [picture 2: Revenue]"),
    ],
)  # fmt: skip
def test_what_models_add_to_a_fact_is_no_part_of_it(line, expected):
    assert read_fact(line).line == expected


def test_an_amount_is_no_date():
    class Lease(BaseModel):
        deposit: float = 0

    dates = ["2022-03-01", "since 1 March 2022", "May 2022"]
    amounts = ["3 months", "2022", "900 euros since the move"]

    for thing in dates:
        assert lacks_object(Fact("A", "notice period", thing), Facts())
        assert Facts(Lease).fit(Fact("A", "deposit", thing)) is None
    for thing in amounts:
        assert not lacks_object(Fact("A", "notice period", thing), Facts())
        assert Facts(Lease).fit(Fact("A", "deposit", "900")) is not None
    assert not lacks_object(Fact("A", "end date", "2022-03-01"), Facts())
