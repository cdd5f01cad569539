"""A reading with `schema=Facts`: one call a chunk, whose reply is applied by rules."""

from __future__ import annotations

import subprocess
import sys
from typing import Literal, TypedDict

import pytest
from doubles import ChainReader, Hearing, Stating
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from pydantic import BaseModel
from structure.house import files_of_a_chunk

from memagent_graph import (
    Facts,
    MemAgentNode,
    MemoryBank,
    Prompts,
    ReadingConfig,
    create_memagent,
    facts_of,
)
from memagent_graph.errors import ConfigurationError
from memagent_graph.facts.reader import fit
from memagent_graph.facts.record import read_fact
from memagent_graph.facts.rules import MADE_UP
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


def scripted(*replies):
    return Hearing(messages=iter(map(AIMessage, replies)), heard=[])


class Named(Hearing):
    """A model whose name says its size."""

    model: str


def read(model, text, *, config=SMALL, question=ASKED, schema=Facts, **more):
    agent = create_memagent(model, config=config, schema=schema)
    return agent.invoke({"question": question, "document": text}, **more)


LEASE = pad("The rent of Lease 7 is 900 euros.", "The rent of Lease 7 is 950 euros since May 2024.")


def test_a_reply_is_applied_to_the_facts_by_one_call_a_chunk():
    model = scripted(
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
    model = Named(messages=iter([AIMessage("Lease 7 | rent | 900 euros")] * 3), model=name)

    out = read(model, "The rent of Lease 7 is 900 euros.")

    assert "subject | relation | object" in model.heard[0]
    assert ("<facts>" in model.heard[0]) == (name == "gpt-4o")
    assert out["memory"] == "Lease 7 | rent | 900 euros"


def test_a_small_model_is_told_relations_by_name_and_not_by_kind():
    class Contract(BaseModel):
        rent: str

    model = Named(messages=iter([AIMessage("Lease 7 | rent | 9")] * 3), model="qwen-1.5b")

    read(model, "The rent of Lease 7 is 9.", schema=Facts(Contract))

    assert "Only these relations are wanted: rent." in model.heard[0]
    assert "Contract" not in model.heard[0]


def test_a_small_model_is_asked_again_for_facts():
    replies = "I see a lease.", "Lease 7 | rent | 900 euros", "900 euros"
    model = Named(messages=iter(map(AIMessage, replies)), model="qwen-1.5b")

    out = read(model, "The rent of Lease 7 is 900 euros.")

    assert "your reply had no line of a fact" in model.heard[1]
    assert out["memory"] == "Lease 7 | rent | 900 euros"


def test_what_was_replaced_is_not_shown_to_be_imitated():
    model = scripted(
        "Lease 7 | rent | 900 euros | since 2020",
        "Lease 7 | rent | 950 euros | since 2022",
        "Lease 7 | rent | 990 euros | since 2024",
        "990 euros",
    )

    read(model, pad("Rent: 900 in 2020.", "Rent: 950 in 2022.", "Rent: 990 in 2024."))

    assert "Lease 7 | rent | 950 euros | since 2022" in model.heard[2]
    assert "900 euros" not in model.heard[2]


AMENDED = pad(
    "The rent of Lease 7 is 900 euros since 2015. The deposit is 300 francs.",
    "From 1 January 2021, the rent of Lease 7 is 990 euros.",
)


@pytest.mark.parametrize(
    ("reply", "rent", "deposit"),
    [
        (  # an end before the beginning, as a line of history had it
            "Lease 7 | rent | 990 euros | since 2021-01-01; until 2017-01-01; replaced",
            "Lease 7 | rent | 990 euros | since 2021-01-01",
            "Lease 7 | deposit | 300 francs",
        ),
        (
            "Lease 7 | rent | 990 euros | since 2021-01-01; until 2021-01-01; replaced",
            "Lease 7 | rent | 990 euros | since 2021-01-01",
            "Lease 7 | deposit | 300 francs",
        ),
        (  # what was known already, with the date of another fact
            "Lease 7 | rent | 990 euros | since 2021\nLease 7 | deposit | 300 francs | since 2021",
            "Lease 7 | rent | 990 euros | since 2021",
            "Lease 7 | deposit | 300 francs",
        ),
        (  # the date of the old fact, which this section does not have
            "Lease 7 | rent | 990 euros | since 2015",
            "Lease 7 | rent | 990 euros",
            "Lease 7 | deposit | 300 francs",
        ),
    ],
    ids=["ends before it begins", "ends when it begins", "a repeat", "a copied date"],
)
def test_what_a_reply_copies_from_the_facts_it_was_shown_changes_nothing(reply, rent, deposit):
    first = "Lease 7 | rent | 900 euros | since 2015\nLease 7 | deposit | 300 francs"

    out = read(scripted(first, reply, "990 euros"), AMENDED)

    lines = out["memory"].splitlines()
    assert lines[0].startswith("Lease 7 | rent | 900 euros | since 2015; ")
    assert lines[0].endswith("replaced")
    assert lines[1:] == [deposit, rent]


@pytest.mark.parametrize(
    "made_up", ["until 2024", "until 2023-12-31", "until 2023-05-01", "until 1999"]
)
@pytest.mark.parametrize("begins", ["", "since 2023-05; "])
def test_an_end_that_no_sentence_says_is_left_out_and_counted(made_up, begins):
    text = "The rent of Lease 7 is 900 euros since May 2023. Lease 8 was signed on 3 June 2024."
    made_up = made_up.replace("2024", "2024-05-01")

    out = read(scripted(f"Lease 7 | rent | 900 euros | {begins}{made_up}", "900 euros"), text)

    assert facts_of(out)[0].holds()
    assert out["memory"] == f"Lease 7 | rent | 900 euros | {begins}".rstrip("| ;")
    assert out["warnings"] == [f"What was left out: 1 ({MADE_UP})."]


def test_a_fact_that_a_reply_calls_replaced_closes_nothing():
    replies = (
        "Lease 7 | rent | 950 euros | since 2024-05-01",
        "Lease 7 | rent | 900 euros | until 2024-05-01; replaced",
        "950 euros",
    )
    said = "The rent of Lease 7 is 950 euros since 1 May 2024."
    text = pad(said, "The rent of Lease 7 had been 900 euros.")

    out = read(scripted(*replies), text)

    assert out["memory"].splitlines() == [
        "Lease 7 | rent | 950 euros | since 2024-05-01",
        "Lease 7 | rent | 900 euros | replaced",
    ]


@pytest.mark.parametrize(
    ("said", "time", "left"),
    [
        ("until May 2023", "2023-05", "2023-05"),
        ("until May 2023", "2023-05-31", "2023-05"),
        ("until the end of 2023", "2023-12-31", "2023"),
        ("from 1 January to 31 May 2023", "2023-05-31", "2023-05-31"),
        ("until May 31st, 2023", "2023-05-31", "2023-05-31"),
        ("bis zum 31. Mai 2023", "2023-05-31", "2023-05-31"),
        ("bis 31.05.23", "2023-05-31", "2023-05-31"),
        ("bis Ende März 2023", "2023-03-31", "2023-03"),
        ("jusqu'au 1er août 2023", "2023-08-01", "2023-08-01"),
        ("to 05/31/2023", "2023-05-31", "2023-05-31"),
        ("至2023年5月31日止", "2023-05-31", "2023-05-31"),
        ("至二〇二三年十二月三十一日止", "2023-12-31", "2023-12-31"),
        ("until the end of the lease", "the end of the lease", "the end of the lease"),
        ("until further notice", "further notice", None),
    ],
)
def test_an_end_may_be_said_in_any_form(said, time, left):
    text = f"The rent of Lease 7 is 900 euros, {said}."

    (fact,) = facts_of(read(scripted(f"Lease 7 | rent | 900 euros | until {time}", "900"), text))

    assert (fact.until, fact.status) == (left, "ended" if left else "holds")


@pytest.mark.parametrize(
    ("made_up", "left"),
    [("1999", ""), ("2016-03-01", " | since 2016"), ("2016", " | since 2016"), ("the war", "")],
)
def test_a_beginning_that_no_sentence_says_is_left_out_and_its_fact_is_kept(made_up, left):
    text = "Lady Gaga performed the national anthem at the game of 2016."
    said = "Lady Gaga | performed | national anthem"

    out = read(scripted(f"{said} | since {made_up}", "Lady Gaga"), text)

    assert out["memory"] == said + left
    assert not facts_of(out)[0].unsupported
    assert ("does not say" in str(out["warnings"])) == (left == "")


@pytest.mark.parametrize(
    "thing", ["not specified", "Unknown", "N/A", "not mentioned in the section"]
)
def test_an_object_that_is_not_said_replaces_none(thing):
    first = "Lease 7 | rent | 900 euros | since 2015"

    out = read(scripted(first, f"Lease 7 | rent | {thing} | since 2021-01-01", "900"), AMENDED)

    assert out["memory"] == first
    assert any("no fact" in warning for warning in out["warnings"])


def test_an_object_that_is_not_said_is_kept_where_the_schema_has_it_as_a_choice():
    class Lease(BaseModel):
        heating: Literal["gas", "unknown"]

    out = read(scripted("Lease 7 | heating | Unknown", "unknown"), "Lease 7.", schema=Facts(Lease))

    assert out["memory"] == "Lease 7 | heating | unknown"


def test_a_value_that_copies_the_old_date_is_in_conflict_with_that_of_another_document(tmp_path):
    (tmp_path / "1.txt").write_text("The rent of Lease 7 is 900 euros since 2015.")
    (tmp_path / "2.txt").write_text("The rent of Lease 7 is 990 euros.")
    model = scripted(
        "Lease 7 | rent | 900 euros | since 2015", "Lease 7 | rent | 990 euros | since 2015", "990"
    )

    agent = create_memagent(model, config=SMALL, schema=Facts)

    assert agent.invoke({"question": ASKED, "document": tmp_path})["memory"].splitlines() == [
        "Lease 7 | rent | 900 euros | since 2015; disputed",
        "Lease 7 | rent | 990 euros | disputed",
    ]


def test_a_prompt_that_does_not_show_the_memory_overwrites_facts_by_rules():
    prompts = Prompts(update="Facts of {chunk} for {question}, as subject | relation | object:")
    replies = "Lease 7 | rent | 900 euros", "Lease 7 | rent | 950 euros | since May 2024", "950"
    agent = create_memagent(scripted(*replies), config=SMALL, schema=Facts, prompts=prompts)

    out = agent.invoke({"question": ASKED, "document": LEASE})

    assert out["memory"].splitlines()[0] == "Lease 7 | rent | 900 euros | until 2024-05; replaced"


@pytest.mark.parametrize(
    ("said", "settled"),
    [
        ("The rent of Lease 7 is raised from 900 euros to 990 euros.", True),
        ("The rent of Lease 7 is not 900 euros but 990 euros.", True),
        ("Die Miete von Lease 7 wird von 900 auf 990 euros erhöht.", True),
        ("The rent of Lease 7 is 990 euros.", False),
    ],
)
def test_what_a_sentence_names_beside_a_new_value_is_replaced(tmp_path, said, settled):
    (tmp_path / "1.txt").write_text("The rent of Lease 7 is 900 euros.")
    (tmp_path / "2.txt").write_text(said)
    replies = "Lease 7 | rent | 900 euros", "Lease 7 | rent | 990 euros", "990"

    out = create_memagent(scripted(*replies), config=SMALL, schema=Facts).invoke(
        {"question": ASKED, "document": tmp_path}
    )

    assert out["memory"].splitlines() == (
        ["Lease 7 | rent | 900 euros | replaced", "Lease 7 | rent | 990 euros | replaces 900 euros"]
        if settled
        else ["Lease 7 | rent | 900 euros | disputed", "Lease 7 | rent | 990 euros | disputed"]
    )


@pytest.mark.parametrize("behind", ["not 800 euros", "replaces 800 euros", "not Bo Zorn"])
def test_what_was_never_said_is_neither_corrected_nor_replaced(behind):
    text = "The rent of Lease 7 is 900 euros."
    out = read(scripted(f"Lease 7 | rent | 900 euros | {behind}", "900 euros"), text)

    assert out["memory"] == "Lease 7 | rent | 900 euros"
    assert not facts_of(out)[0].unsupported


def test_a_fact_may_refer_to_a_picture():
    text = "[picture 1, p. 2: Rents]\n\nThe rent of Lease 7 is 900 euros."
    out = read(scripted("Lease 7 | chart | [picture 1, p. 2: Rents]", "900"), text)

    assert out["memory"] == "Lease 7 | chart | [picture 1, p. 2: Rents]"
    assert not facts_of(out)[0].unsupported


def test_what_a_reply_leaves_out_is_kept():
    model = scripted("Lease 7 | rent | 900 euros", "unchanged", r"\boxed{900 euros}")

    out = read(model, LEASE)

    assert out["memory"] == "Lease 7 | rent | 900 euros"


def test_what_is_no_fact_is_left_out_counted_and_warned_of():
    class Lease(BaseModel):
        rent: str

    model = scripted(
        "Here they are:\n- Lease 7 | rent | 900 euros\nI hope that helps.\nLease 7 | mood | sad",
        "Lease 7 has a rent of 950 euros.\nLease 7 | rent | 900 euros",
        r"\boxed{900 euros}",
    )

    out = read(model, LEASE, schema=Facts(Lease))

    assert out["memory"] == "Lease 7 | rent | 900 euros"
    assert out["warnings"] == ["What was left out: 2 (no fact), 1 (a fact outside the schema)."]
    assert "Lease: rent" in model.heard[0]


def test_a_reply_without_any_fact_is_asked_for_once_more_and_changes_nothing():
    model = scripted(
        "Lease 7 | rent | 900 euros",
        "The rent rose.",
        "I cannot help with that.",
        r"\boxed{900 euros}",
    )

    out = read(model, LEASE)

    assert out["memory"] == "Lease 7 | rent | 900 euros"
    assert "no line of a fact" in model.heard[2]
    assert any("no notes" in warning for warning in out["warnings"])


def test_what_the_text_does_not_say_is_marked_and_closes_nothing():
    model = scripted(
        "Lease 7 | rent | 900 euros", "Lease 7 | rent | 777 euros", r"\boxed{900 euros}"
    )

    out = read(model, LEASE)
    kept, made_up = facts_of(out)

    assert out["memory"].splitlines() == [
        "Lease 7 | rent | 900 euros | disputed",
        "Lease 7 | rent | 777 euros | disputed",
    ]
    assert kept.evidence
    assert any("777" in warning for warning in out["warnings"])
    assert made_up.object == "777 euros"


class Clauses(BaseModel):
    rent: str
    deposit: str
    heating_advance: str


@pytest.mark.parametrize("schema", [Facts, Facts(Clauses)])
def test_a_value_that_is_said_of_another_relation_closes_nothing(schema):
    """Small models fill in each relation of a schema."""
    text = pad("The deposit of Lease 7 is 800 dollars.", "The rent of Lease 7 is now 950 dollars.")
    filled = "Lease 7 | rent | 950 dollars\nLease 7 | deposit | 950 dollars"
    model = scripted("Lease 7 | deposit | 800 dollars", filled, r"\boxed{950 dollars}")

    out = read(model, text, schema=schema)

    assert [fact.line for fact in facts_of(out)] == [
        "Lease 7 | deposit | 800 dollars",
        "Lease 7 | rent | 950 dollars",
    ]
    assert any("a value of another relation" in warning for warning in out["warnings"])


@pytest.mark.parametrize(
    "said",
    [
        "The rent and the deposit of Lease 7 are 950 dollars each.",
        "The rent of Lease 7 is 950 dollars. As deposit, 950 dollars are paid.",
        "Before moving in, and with the first rent, 950 dollars are left with the agent.",
        "For Lease 7 the landlord asks 950 dollars.",
    ],
)
def test_a_value_may_be_that_of_two_relations_or_of_one_in_other_words(said):
    filled = "Lease 7 | rent | 950 dollars\nLease 7 | deposit | 950 dollars"
    if "rent" not in said or "first rent" in said:
        filled = "Lease 7 | deposit | 950 dollars"

    out = read(scripted(filled, r"\boxed{950 dollars}"), said)

    assert [fact.line for fact in facts_of(out)] == filled.splitlines()


def test_unsupported_facts_can_be_dropped():
    model = scripted(
        "Lease 7 | rent | 900 euros", "Lease 7 | tenant | Carl Zorn", r"\boxed{900 euros}"
    )

    out = read(model, LEASE, config=SMALL.model_copy(update={"unsupported": "drop"}))

    assert out["memory"] == "Lease 7 | rent | 900 euros"


def test_a_chunk_whose_reply_was_cut_off_loses_the_last_line_alone():
    class Cut(Hearing):
        def _generate(self, messages, *args, **options):
            result = super()._generate(messages, *args, **options)
            result.generations[0].message.response_metadata = {"finish_reason": "length"}
            return result

    replies = ["Lease 7 | rent | 900 euros\nLease 7 | ten", "unchanged", r"\boxed{900 euros}"]
    out = read(Cut(messages=iter(map(AIMessage, replies)), heard=[]), LEASE)

    assert out["memory"] == "Lease 7 | rent | 900 euros"
    assert (out["usage"]["calls"], out["warnings"]) == (
        3,
        ["What was left out: 1 (cut off)."],
    )


RENTS = pad(*(f"The rent of Lease 7 is {year} euros since {year}." for year in range(2010, 2018)))


@pytest.mark.parametrize("ways", [{"segments": 3}, {"segments": 1000}])
def test_segments_are_merged_by_the_rules_without_a_call(ways):
    model = Stating(asked=[])

    out = read(model, RENTS, config=ReadingConfig(chunk_tokens=40, memory_tokens=600, **ways))

    whole = read(Stating(asked=[]), RENTS, config=ReadingConfig(chunk_tokens=40, memory_tokens=600))
    assert out["memory"] == whole["memory"]
    assert len(out["memory"].splitlines()) == 8
    assert all("<section>" in one or "Put the final answer" in one for one in model.asked)


def test_several_questions_have_facts_of_their_own():
    agent = create_memagent(Stating(asked=[]), config=SMALL, schema=Facts)

    out = agent.invoke({"questions": [ASKED, "Who is the tenant?"], "document": LEASE})

    assert [len(facts_of(one)) for one in out["answers"]] == [2, 2]


def test_the_answer_to_a_question_about_a_date_is_written_from_what_held_then():
    model = Stating(asked=[])

    out = read(model, RENTS, question="What was the rent of Lease 7 in 2012?")

    assert out["answer"] == "Lease 7 | rent | 2012 euros | since 2012; until 2013; replaced"


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
    assert left(short) == ([lines[0], *lines[3:]], [], 1)
    assert left(0) == ([], [], 4)


def test_facts_without_room_are_warned_of():
    config = ReadingConfig(chunk_tokens=40, memory_tokens=24)
    text = pad(*(f"The owner of Mill {at} is Nora Brand." for at in range(4)))

    out = read(Stating(asked=[]), text, config=config, question="Who owns Mill 3?")

    assert "Mill 3" in out["memory"]
    assert "without room in memory_tokens" in out["warnings"][0]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_stored_reading_is_continued_and_its_edit_stands(fresh):
    store = InMemoryStore()
    asked = {"question": ASKED, "memory_name": "lease"}
    agent = create_memagent(Stating(), config=SMALL, store=store, schema=Facts)
    agent.invoke({**asked, "document": "The rent of Lease 7 is 900 euros."})
    bank = MemoryBank(store)
    bank.edit("lease", "Lease 7 | rent | 910 euros\nAsk Nora again.")

    if fresh:
        agent = create_memagent(Stating(), config=SMALL, store=store, schema=Facts)
    out = agent.invoke({**asked, "document": "The rent of Lease 7 is 950 euros since 2024."})

    assert out["memory"].splitlines() == [
        "Ask Nora again.",
        "Lease 7 | rent | 910 euros | until 2024; replaced",
        "Lease 7 | rent | 950 euros | since 2024",
    ]
    assert facts_of(bank.get("lease"))[1].evidence


def test_facts_and_notes_of_one_model_do_not_share_a_reading():
    store = InMemoryStore()
    create_memagent(Stating(), config=SMALL, store=store).invoke(
        {"question": ASKED, "document": LEASE}
    )

    out = create_memagent(Stating(), config=SMALL, store=store, schema=Facts).invoke(
        {"question": ASKED, "document": LEASE}
    )

    assert len(facts_of(out)) == 2


def test_a_checkpoint_resumes_with_the_evidence_of_its_facts():
    agent = create_memagent(
        Stating(),
        config=SMALL,
        schema=Facts,
        checkpointer=InMemorySaver(),
        interrupt_after=["overwrite_memory"],
    )
    thread = {"configurable": {"thread_id": "1"}}

    agent.invoke({"question": ASKED, "document": LEASE}, thread)
    while agent.get_state(thread).next:
        out = agent.invoke(None, thread)

    assert [bool(fact.evidence) for fact in facts_of(out)] == [True, True]


def test_two_files_that_contradict_each_other_are_both_kept(tmp_path):
    (tmp_path / "a.txt").write_text("The rent of Lease 7 is 900 euros.")
    (tmp_path / "b.txt").write_text("The rent of Lease 7 is 950 euros.")

    out = create_memagent(Stating(), schema=Facts).invoke({"question": ASKED, "document": tmp_path})

    one, other = facts_of(out)
    assert (one.disputed, other.disputed) == (True, True)
    assert [fact.evidence[0].source[-5:] for fact in (one, other)] == ["a.txt", "b.txt"]


@pytest.mark.parametrize("reader", [None, ChainReader()])
def test_another_reader_is_refused_with_what_to_use(reader):
    with pytest.raises(ConfigurationError, match='model="openai:gpt-4o-mini"'):
        create_memagent(reader, schema=Facts)


@pytest.mark.slow
def test_without_facts_nothing_of_theirs_is_imported_or_entered():
    code = (
        "import sys\nfrom memagent_graph import create_memagent, ConversationMemory\n"
        "out = create_memagent().invoke({'question': 'Who?', 'document': 'Ann signed.'})\n"
        "memory = ConversationMemory()\n"
        "memory.save([('human', 'I like tea.')], user='a', thread='b')\n"
        "print([name for name in sys.modules if name.startswith('memagent_graph.facts')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
    assert not [file for file in files_of_a_chunk(InMemoryStore()) if file.startswith("facts/")]


def test_a_node_of_another_graph_keeps_facts():
    class Review(TypedDict, total=False):
        question: str
        document: str
        answer: str
        notes: str

    builder = StateGraph(Review)
    builder.add_node("read", MemAgentNode(Stating(), schema=Facts, memory="notes"))
    graph = builder.add_edge(START, "read").compile()

    out = graph.invoke({"question": ASKED, "document": "The rent of Lease 7 is 900 euros."})

    assert out["notes"] == "Lease 7 | rent | 900 euros"
