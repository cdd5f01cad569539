"""Facts as a graph: what holds when, neighbourhoods, conflicts, exports and tools."""

from fixed_readers import fact_model
from langgraph.store.memory import InMemoryStore

from memagent_graph import Facts, MemoryBank, create_facts_tool, create_memagent
from memagent_graph.facts.graph import neighbourhood, select_facts, view_for
from memagent_graph.facts.record import memory_of_facts, read_fact
from memagent_graph.text.tokens import EstimatingTokenizer

LINES = [
    "Lease 7 | rent | 900 euros | since 2020; until 2022; replaced",
    "Lease 7 | rent | 950 euros | since 2022", "Lease 7 | tenant | Nora Brand",
    "Nora Brand | works at | Acme", "Acme | seat | Bern", "N. Brand | same as | Nora Brand",
    "Moon | made of | cheese",
]  # fmt: skip
FACTS = [*map(read_fact, LINES)]


def lines(facts):
    return [fact.line for fact in facts]


def test_facts_are_selected_by_subject_relation_and_time():
    assert lines(select_facts(FACTS, subject="lease 7", relation="rent")) == [LINES[1]]
    assert lines(select_facts(FACTS, relation="rent", at="2021-05-01")) == [LINES[0]]
    assert lines(select_facts(FACTS, relation="rent", history=True)) == LINES[:2]
    assert lines(select_facts(FACTS, subject="N. Brand", relation="works_at")) == [LINES[3]]
    assert select_facts(FACTS, relation="rent", at="2019") == []


def test_a_value_without_a_date_does_not_hold_before_the_one_that_it_replaced():
    rents = "900 | since 2022-03; until 2024-05", "950 | since 2024-05", "990 | replaces 950"
    marks = "; replaced", "; replaced", ""
    known = [read_fact(f"Lease 7 | rent | {r}{m}") for r, m in zip(rents, marks, strict=True)]
    held = {
        at: [fact.object for fact in select_facts(known, relation="rent", at=at)]
        for at in ("2021", "2023", "2025", None)
    }
    memory, counter = memory_of_facts(known), EstimatingTokenizer()

    assert held == {"2021": [], "2023": ["900"], "2025": ["990"], None: ["990"]}
    assert view_for("What was the rent in 2023?", memory, 999, counter).text == known[0].line


def test_the_neighbourhood_of_a_question_has_two_hops():
    assert (
        lines(neighbourhood(FACTS, "Where does the tenant of Lease 7 work?"))
        == LINES[:4] + LINES[5:6]
    )
    assert lines(neighbourhood(FACTS, "Lease 7", hops=1)) == LINES[:3]
    assert neighbourhood(FACTS, "Who won?") == []


def test_an_answer_is_written_from_what_held_then_and_from_what_is_near():
    memory, counter = memory_of_facts(FACTS), EstimatingTokenizer()

    def shown(question, tokens=1000):
        return view_for(question, memory, tokens, counter).text.splitlines()

    assert shown("What is the rent?") == LINES
    assert LINES[1] not in shown("What was the rent in 2021?")
    assert LINES[1] in shown("How did the rent change since 2021?")
    assert LINES[6] not in shown("Where does the tenant of Lease 7 work?", 30)
    assert shown("Who won?", 30) == LINES


def test_an_agent_looks_up_facts_of_a_memory():
    store = InMemoryStore()
    asked = {"question": "What is the rent?", "memory_name": "lease"}
    document = "The rent of Lease 7 is 900 euros since 2020."
    agent = create_memagent(fact_model(), schema=Facts, store=store)
    agent.invoke({**asked, "document": document})

    tool = create_facts_tool(bank := MemoryBank(store), "lease")

    assert tool.invoke({"relation": "rent"}) == "Lease 7 | rent | 900 euros | since 2020 [text:1]"
    assert tool.invoke({"subject": "Lease 7", "at": "2019"}) == "No such fact is known."
    assert "'yesterday' is no date" in tool.invoke({"at": "yesterday"})
    assert "no memory" in create_facts_tool(bank, "other").invoke({}).lower()
