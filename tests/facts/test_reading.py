"""A reading with `schema=Facts`: one call a chunk, whose reply is applied by rules."""

from typing import Literal

import pytest
from fixed_readers import ChainReader, fact_model
from langchain_core.messages import AIMessage
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel

from memagent_graph import Facts, MemoryBank, Prompts, ReadingConfig, create_memagent, facts_of
from memagent_graph.errors import ConfigurationError
from memagent_graph.facts.reader import fit
from memagent_graph.facts.record import read_fact
from memagent_graph.facts.rules import MADE_UP
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.tokens import EstimatingTokenizer

SMALL = ReadingConfig(chunk_tokens=40, memory_tokens=200, answer_tokens=60)
ASKED = "What is the rent of Lease 7?"


def pad(*sentences):
    """Texts of which each fills a chunk of 40 tokens."""
    counter, filled = EstimatingTokenizer(), []
    for one in sentences:
        text = one
        while counter.count(f"{text} rain\n\n") <= 40:
            text += " rain"
        filled.append(text + "\n\n")
    return "".join(filled)


class Named(ScriptedChatModel):
    model: str


def read(model, text, *, config=SMALL, question=ASKED, schema=Facts, **options):
    agent = create_memagent(model, config=config, schema=schema, **options)
    return agent.invoke({"question": question, "document": text})


LEASE = pad("The rent of Lease 7 is 900 euros.", "The rent of Lease 7 is 950 euros since May 2024.")


def test_a_reply_is_applied_to_the_facts_by_one_call_a_chunk():
    model = ScriptedChatModel(
        "Lease 7 | rent | 900 euros",
        "Lease 7 | rent | 950 euros | since May 2024",
        r"\boxed{950 euros}",
    )

    out = read(model, LEASE)

    assert out["memory"].splitlines() == [
        "Lease 7 | rent | 900 euros | until 2024-05; replaced",
        "Lease 7 | rent | 950 euros | since 2024-05",
    ]
    assert (out["answer"], out["found"], out["usage"]["calls"]) == ("950 euros", True, 3)
    old, new = facts_of(out)
    assert "900" in LEASE[old.evidence[0].start : old.evidence[0].end]
    assert "950" in LEASE[new.evidence[0].start : new.evidence[0].end]
    assert out["warnings"] == []


@pytest.mark.parametrize("name", ["qwen2.5-0.5b-instruct", "qwen2.5-coder-1.5b-instruct", "gpt-4o"])
def test_a_model_of_any_size_is_asked_for_facts(name):
    class Contract(BaseModel):
        rent: str

    model = Named("Lease 7 | rent | 900 euros", model=name)

    out = read(model, "The rent of Lease 7 is 900 euros.", schema=Facts(Contract))

    assert "subject | relation | object" in model.prompts[0]
    assert ("<facts>" in model.prompts[0]) == ("Contract" in model.prompts[0]) == (name == "gpt-4o")
    assert ("Only these relations are wanted: rent." in model.prompts[0]) == (name != "gpt-4o")
    assert out["memory"] == "Lease 7 | rent | 900 euros"


def test_a_small_model_is_asked_again_for_facts():
    model = Named("I see a lease.", RENT, "900 euros", model="qwen-1.5b")

    out = read(model, "The rent of Lease 7 is 900 euros.")

    assert "your reply had no line of a fact" in model.prompts[1]
    assert out["memory"] == RENT


AMENDED = pad(
    "The rent of Lease 7 is 900 euros since 2015. The deposit is 300 francs.",
    "From 1 January 2021, the rent of Lease 7 is 990 euros.",
)
KNOWN = "Lease 7 | rent | 900 euros | since 2015\nLease 7 | deposit | 300 francs"
RAISED = [
    "Lease 7 | rent | 900 euros | since 2015; until 2021-01-01; replaced",
    "Lease 7 | deposit | 300 francs",
    "Lease 7 | rent | 990 euros | since 2021-01-01",
]
RENT = "Lease 7 | rent | 900 euros"
COPIED = [f"{RENT} | since 2015; replaced", RAISED[1], "Lease 7 | rent | 990 euros"]
PICTURE = "Lease 7 | chart | [picture 1, p. 2: Rents]"


@pytest.mark.parametrize(
    ("text", "replies", "memory"),
    [
        (AMENDED, [KNOWN, f"{RAISED[-1]}; until 2017-01-01; replaced"], RAISED),
        (AMENDED, [KNOWN, f"{RAISED[-1]}; until 2021-01-01; replaced"], RAISED),
        (AMENDED, [KNOWN, f"{RAISED[-1]}\nLease 7 | deposit | 300 francs | since 2021"], RAISED),
        (AMENDED, [KNOWN, f"{COPIED[-1]} | since 2015"], COPIED),
        (
            pad("The rent of Lease 7 is 950 euros since May 2024.", "It had been 900 euros."),
            ["Lease 7 | rent | 950 euros | since 2024-05", f"{RENT} | until 2024-05; replaced"],
            ["Lease 7 | rent | 950 euros | since 2024-05", f"{RENT} | replaced"],
        ),
        (LEASE, [RENT, "unchanged"], [RENT]),
        ("The rent of Lease 7 is 900 euros.", [f"{RENT} | not 800 euros"], [RENT]),
        ("The rent of Lease 7 is 900 euros.", [f"{RENT} | replaces 800 euros"], [RENT]),
        (LEASE, [RENT, "Lease 7 | rent | not specified | since May 2024"], [RENT]),
        (LEASE, [RENT, "Lease 7 | rent | not mentioned in the section"], [RENT]),
        ("[picture 1, p. 2: Rents]\n\nThe rent of Lease 7 is 900 euros.", [PICTURE], [PICTURE]),
    ],
    ids=[
        *("ends before it begins", "ends when it begins", "repeats another", "copies a date"),
        *("is called replaced", "leaves out", "corrects what was never said"),
        *("replaces what was never said", "has no object", "says so at length", "names a picture"),
    ],
)
def test_what_a_reply_says_beside_its_facts_changes_nothing(text, replies, memory):
    out = read(ScriptedChatModel(*replies, "900 euros"), text)

    assert out["memory"].splitlines() == memory
    assert not any(fact.unsupported for fact in facts_of(out))


@pytest.mark.parametrize("made_up", ["2024-05-01", "2023-05-01", "1999"])
@pytest.mark.parametrize("begins", ["", "since 2023-05; "])
def test_an_end_that_no_sentence_says_is_left_out_and_counted(made_up, begins):
    text = "The rent of Lease 7 is 900 euros since May 2023. Lease 8 was signed on 3 June 2024."

    out = read(ScriptedChatModel(f"{RENT} | {begins}until {made_up}", "900 euros"), text)

    assert facts_of(out)[0].holds()
    assert out["memory"] == f"{RENT} | {begins}".rstrip("| ;")
    assert out["warnings"] == [f"What was left out: 1 ({MADE_UP})."]


@pytest.mark.parametrize(("said", "time", "left"), [
    ("until May 2023", "2023-05-31", "2023-05"), ("until the end of 2023", "2023-12-31", "2023"),
    ("from 1 January to 31 May 2023", "2023-05-31", "2023-05-31"),
    ("bis zum 31. Mai 2023", "2023-05-31", "2023-05-31"),
    ("bis 31.05.23", "2023-05-31", "2023-05-31"), ("bis Ende März 2023", "2023-03-31", "2023-03"),
    ("jusqu'au 1er août 2023", "2023-08-01", "2023-08-01"),
    ("to 05/31/2023", "2023-05-31", "2023-05-31"),
    ("至二〇二三年十二月三十一日止", "2023-12-31", "2023-12-31"),
    ("until the end of the lease", "the end of the lease", "the end of the lease"),
    ("until further notice", "further notice", None),
])  # fmt: skip
def test_an_end_may_be_said_in_any_form(said, time, left):
    text = f"The rent of Lease 7 is 900 euros, {said}."

    (fact,) = facts_of(read(ScriptedChatModel(f"{RENT} | until {time}", "900"), text))

    assert (fact.until, fact.status) == (left, "ended" if left else "holds")


@pytest.mark.parametrize(("made_up", "left"), [
    ("1999", ""), ("2016-03-01", " | since 2016"), ("2016", " | since 2016"), ("the war", ""),
])  # fmt: skip
def test_a_beginning_that_no_sentence_says_is_left_out_and_its_fact_is_kept(made_up, left):
    text = "Lady Gaga performed the national anthem at the game of 2016."
    said = "Lady Gaga | performed | national anthem"

    out = read(ScriptedChatModel(f"{said} | since {made_up}", "Lady Gaga"), text)

    assert out["memory"] == said + left
    assert not facts_of(out)[0].unsupported
    assert ("does not say" in str(out["warnings"])) == (left == "")


def test_a_prompt_that_does_not_show_the_memory_overwrites_facts_by_rules():
    prompts = Prompts(update="Facts of {chunk} for {question}, as subject | relation | object:")
    model = ScriptedChatModel(RENT, "Lease 7 | rent | 950 euros | since May 2024", "950")

    out = read(model, LEASE, prompts=prompts)

    assert out["memory"].splitlines()[0] == f"{RENT} | until 2024-05; replaced"


DISPUTED = [f"{RENT} | disputed", "Lease 7 | rent | 990 euros | disputed"]


@pytest.mark.parametrize(
    ("begins", "said", "memory"),
    [
        ("", "The rent of Lease 7 is raised from 900 euros to 990 euros.", None),
        ("", "The rent of Lease 7 is not 900 euros but 990 euros.", None),
        ("", "Die Miete von Lease 7 wird von 900 auf 990 euros erhöht.", None),
        ("", "The rent of Lease 7 is 990 euros.", DISPUTED),
        (" since 2015", "The rent of Lease 7 is 990 euros.", [
            f"{RENT} | since 2015; disputed", DISPUTED[1],
        ]),
    ],
)  # fmt: skip
def test_what_a_sentence_names_beside_a_new_value_is_replaced_and_else_files_are_in_conflict(
    tmp_path, begins, said, memory
):
    (tmp_path / "1.txt").write_text(f"The rent of Lease 7 is 900 euros{begins}.")
    (tmp_path / "2.txt").write_text(said)
    time = f" |{begins}" if begins else ""
    replies = f"{RENT}{time}", f"Lease 7 | rent | 990 euros{time}", "990"

    out = read(ScriptedChatModel(*replies), tmp_path)

    settled = [f"{RENT} | replaced", "Lease 7 | rent | 990 euros | replaces 900 euros"]
    assert out["memory"].splitlines() == (memory or settled)
    assert [fact.evidence[0].source[-5:] for fact in facts_of(out)] == ["1.txt", "2.txt"]


def test_what_is_no_fact_is_left_out_counted_and_warned_of():
    class Lease(BaseModel):
        rent: str

    model = ScriptedChatModel(
        f"Here they are:\n- {RENT}\nI hope that helps.\nLease 7 | mood | sad",
        f"Lease 7 has a rent of 950 euros.\n{RENT}",
        r"\boxed{900 euros}",
    )

    out = read(model, LEASE, schema=Facts(Lease))

    assert out["memory"] == RENT
    assert out["warnings"] == ["What was left out: 2 (no fact), 1 (a fact outside the schema)."]
    assert "Lease: rent" in model.prompts[0]


@pytest.mark.parametrize(("unsupported", "made_up", "memory"), [
    ("keep", "rent | 777", [f"{RENT} | disputed", "Lease 7 | rent | 777 | disputed"]),
    ("drop", "tenant | Carl Zorn", [RENT]),
])  # fmt: skip
def test_what_the_text_does_not_say_is_marked_or_dropped_and_closes_nothing(
    unsupported, made_up, memory
):
    config = SMALL.model_copy(update={"unsupported": unsupported})
    model = ScriptedChatModel(RENT, f"Lease 7 | {made_up}", "900 euros")

    out = read(model, LEASE, config=config)

    assert out["memory"].splitlines() == memory
    assert facts_of(out)[0].evidence
    assert any("777" in warning for warning in out["warnings"]) == (unsupported == "keep")


class Clauses(BaseModel):
    rent: str
    deposit: str
    heating_advance: str


@pytest.mark.parametrize("schema", [Facts, Facts(Clauses)])
def test_a_value_that_is_said_of_another_relation_closes_nothing(schema):
    """Small models fill in each relation of a schema."""
    text = pad("The deposit of Lease 7 is 800 dollars.", "The rent of Lease 7 is now 950 dollars.")
    filled = "Lease 7 | rent | 950 dollars\nLease 7 | deposit | 950 dollars"
    model = ScriptedChatModel("Lease 7 | deposit | 800 dollars", filled, r"\boxed{950 dollars}")

    out = read(model, text, schema=schema)

    assert [fact.line for fact in facts_of(out)] == [
        "Lease 7 | deposit | 800 dollars",
        "Lease 7 | rent | 950 dollars",
    ]
    assert any("a value of another relation" in warning for warning in out["warnings"])


def test_a_chunk_whose_reply_was_cut_off_loses_the_last_line_alone():
    cut = {"finish_reason": "length"}
    replies = f"{RENT}\nLease 7 | ten", "unchanged", "900 euros"

    out = read(
        ScriptedChatModel(*(AIMessage(one, response_metadata=cut) for one in replies)), LEASE
    )

    assert out["memory"] == RENT
    assert (out["usage"]["calls"], out["warnings"]) == (3, ["What was left out: 1 (cut off)."])


RENTS = pad(*(f"The rent of Lease 7 is {year} euros since {year}." for year in range(2010, 2018)))


@pytest.mark.parametrize("segments", [3, 1000])
def test_segments_are_merged_by_the_rules_without_a_call(segments):
    model, config = fact_model(), ReadingConfig(chunk_tokens=40, memory_tokens=600)

    out = read(model, RENTS, config=config.model_copy(update={"segments": segments}))

    assert out["memory"] == read(fact_model(), RENTS, config=config)["memory"]
    assert len(out["memory"].splitlines()) == 8
    assert all("<section>" in one or "Put the final answer" in one for one in model.prompts)


def test_over_the_budget_history_goes_first_and_then_what_is_far_from_the_question():
    lines = [
        "Lease 7 | tenant | Nora",
        "Lease 7 | rent | 900 | replaced",
        "Moon | made of | cheese",
        "Nora | works at | Acme",
        "Lease 7 | rent | 950",
    ]
    facts, counter = [*map(read_fact, lines)], EstimatingTokenizer()

    def left(tokens):
        kept, others, lost = fit(facts, ["A note."], ASKED, tokens, counter)
        return [fact.line for fact in kept], others, lost

    whole = counter.count("\n".join(["A note.", *lines]))
    assert left(whole) == (lines, ["A note."], 0)
    assert left(whole - 1) == ([lines[0], *lines[2:]], ["A note."], 0)
    short = counter.count("\n".join([lines[0], *lines[3:]]))
    assert (left(short), left(0)) == (([lines[0], *lines[3:]], [], 1), ([], [], 4))


def test_a_stored_reading_is_continued_and_its_edit_stands():
    store = InMemoryStore()
    agent = create_memagent(fact_model(), config=SMALL, store=store, schema=Facts)
    asked = {"question": ASKED, "memory_name": "lease"}
    agent.invoke({**asked, "document": "The rent of Lease 7 is 900 euros."})
    bank = MemoryBank(store)
    bank.edit("lease", "Lease 7 | rent | 910 euros\nAsk Nora again.")

    out = agent.invoke({**asked, "document": "The rent of Lease 7 is 950 euros since 2024."})

    assert out["memory"].splitlines() == [
        "Ask Nora again.",
        "Lease 7 | rent | 910 euros | until 2024; replaced",
        "Lease 7 | rent | 950 euros | since 2024",
    ]
    assert facts_of(bank.get("lease"))[1].evidence


@pytest.mark.parametrize("reader", [None, ChainReader()])
def test_another_reader_is_refused_with_what_to_use(reader):
    with pytest.raises(ConfigurationError, match='model="openai:gpt-4o-mini"'):
        create_memagent(reader, schema=Facts)


def test_an_object_that_is_not_said_is_kept_where_the_schema_has_it_as_a_choice():
    class Lease(BaseModel):
        heating: Literal["gas", "unknown"]

    model = ScriptedChatModel("Lease 7 | heating | Unknown", "unknown")

    assert read(model, "Lease 7.", schema=Facts(Lease))["memory"] == "Lease 7 | heating | unknown"
