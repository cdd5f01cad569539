"""Statements that nothing in the document supports, from a chat model to the output."""

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.evidence.places import Unsupported
from memagent_graph.memory.version import MemoryVersion
from memagent_graph.testing import ScriptedChatModel

FIRST = "The owner of project P003 is Ann Lee. It rained all day in the harbour of the town.\n\n"
SECOND = "The ferry left at noon, and everyone went home by bus and by train in the evening.\n\n"
OWNER = "- Project P003 belongs to Ann Lee."
FERRY = "- The ferry left at noon."
WRONG = "- The ferry belongs to Oscar Wilde."
WORSE = "- The town has 9,713 harbours."
THREAD = {"configurable": {"thread_id": "1"}}
CONFIG = ReadingConfig(chunk_tokens=26)
ASKED = {"question": "Who owns what?", "document": FIRST + SECOND}


def asked(*replies, store=None, **changes):
    model = ScriptedChatModel(*replies)
    agent = create_memagent(model, config=CONFIG.model_copy(update=changes), store=store)
    return agent.invoke(ASKED)


def lines(*given):
    return "\n".join(given)


def test_unsupported_statements_of_the_final_memory_are_counted_and_the_first_is_named():
    out = asked(lines(OWNER, WORSE), lines(OWNER, WORSE, WRONG), "Ann Lee")

    [warning] = out["warnings"]
    assert warning.startswith("2 statements of the memory have no support in what was read: ")
    assert '"The town has 9,713 harbours." (9,713)' in warning
    assert out["memory"] == lines(OWNER, WORSE, WRONG)


@pytest.mark.parametrize(("changes", "last", "says"), [
    ({}, WRONG, '"The ferry belongs to Oscar Wilde." (Oscar, Wilde).'),
    ({"unsupported": "drop"}, FERRY, "1 statement was left out of the memory"),
])  # fmt: skip
def test_marks_and_counts_outlive_a_stop(tmp_path, changes, last, says):
    store, config = InMemoryStore(), CONFIG.model_copy(update=changes)
    model = ScriptedChatModel(lines(OWNER, WRONG), lines(OWNER, last), "Ann Lee")
    with SqliteSaver.from_conn_string(str(tmp_path / "c.sqlite")) as saver:
        options = {"config": config, "checkpointer": saver, "store": store}
        stopping = create_memagent(model, interrupt_after=["overwrite_memory"], **options)
        stopping.invoke(ASKED, THREAD)
        stopping.invoke(None, THREAD)
        out = create_memagent(model, **options).invoke(None, THREAD)

    assert says in out["warnings"][0]
    memory = MemoryBank(store).get(out["version"]).memory
    assert bool(memory.dropped) == bool(changes) != bool(memory.unsupported)


@pytest.mark.parametrize("model", [None, ScriptedChatModel("- The rent is 900.", "900")])
def test_headings_are_in_evidence_and_in_that_of_a_stored_memory(tmp_path, model):
    (lease := tmp_path / "lease.md").write_text(
        "# Lease\n\nWords.\n\n## Rent\n\nThe rent is 900.\n"
    )
    agent = create_memagent(model, store=InMemoryStore())

    out = agent.invoke({"question": "What is the rent?", "document": lease})
    lease.unlink()
    later = agent.invoke({"question": "How much is the rent?", "version": out["version"]})

    places = {(at["page"], at["heading"]) for one in (out, later) for at in one["citations"]}
    assert places == {(None, "Rent")}
    assert out["citations"]
    assert later["evidence"] == out["evidence"]


def test_versions_have_the_marks_and_an_answer_from_a_stored_memory_warns():
    store = InMemoryStore()
    out = asked(OWNER, lines(OWNER, WRONG), "Ann Lee", store=store)
    version = MemoryBank(store).get(out["version"])
    agent = create_memagent(ScriptedChatModel("Oscar"), store=store)

    later = agent.invoke({"question": "Who else?", "version": out["version"]})

    assert version.memory.unsupported == (Unsupported(WRONG[2:], ("Oscar", "Wilde")),)
    said = 'The answer has no support in what was read: "Oscar" (Oscar).'
    assert later["warnings"] == [*out["warnings"], said]
    assert out["warnings"]
    assert MemoryVersion.from_record(version.to_record()) == version


def test_what_is_dropped_is_left_out_before_the_memory_is_stored():
    store = InMemoryStore()
    replies = lines("## Facts", OWNER, WORSE), lines("## Facts", OWNER, f"{WRONG} {FERRY[2:]}")

    out = asked(*replies, "Ann Lee", store=store, unsupported="drop")

    assert out["memory"] == lines("## Facts", OWNER, FERRY)
    said = "2 statements were left out of the memory, without support in what was read."
    assert out["warnings"] == [said]
    stored = [version.text for version in MemoryBank(store).history(out["version"])]
    assert [text.count("\n") for text in stored] == [2, 1]
    assert "9,713" not in "".join(stored)


@pytest.mark.parametrize(("replies", "memory", "warned"), [
    ((OWNER, WRONG), OWNER, ["1 statement was left out"]),
    ((WRONG, FERRY), FERRY, ["1 statement was left out"]),
    (("- 项目属于李安。", "- 项目属于李安。"), "- 项目属于李安。", []),
], ids=["the last one stays", "the first one is empty", "another script"])  # fmt: skip
def test_a_memory_that_has_nothing_else_overwrites_none(replies, memory, warned):
    out = asked(*replies, "李安", unsupported="drop")

    assert out["memory"] == memory
    assert [warning.partition(" of ")[0] for warning in out["warnings"][:1]] == warned


VILLAGE = """\
Bread is baked twice a week by the brothers Aune, who sell it from a blue van. Children like the \
rolls with sugar best, and on the first day of the holidays they get them for nothing.

{}
The lighthouse of Skarvik was lit for the first time in 1868. Its lamp burned oil until 1931. \
Today the lamp is electric, and its keeper is called Ragna Solheim.

{}
In the winter of 2003 a storm took the roof of the boathouse. The village paid for a new one with \
a lottery, and the first prize was a rowing boat that the doctor won.
""".format("It rained on the fields. " * 40, "The gulls cried over the sea. " * 40)
KEEPER = "Who keeps the old lighthouse of Skarvik today, and lights the lamp?"
BREAD = "Bread is baked by the brothers Aune, who sell it from a blue van."


def answered(memory, answer, question=KEEPER, **changes):
    model = ScriptedChatModel(memory, answer)
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=3000, **changes))
    return agent.invoke({"question": question, "document": VILLAGE})


@pytest.mark.parametrize(("changes", "answer", "found"), [
    ({}, "The brothers Aune", False),
    ({"unsupported": "drop"}, "Nothing in what was read supports an answer.", False),
    ({"exact_cuts": True}, "The brothers Aune", True),
])  # fmt: skip
def test_an_answer_from_where_a_text_speaks_of_something_else_is_not_found(changes, answer, found):
    memory = f"The lamp of the lighthouse is lit today. {BREAD}"

    out = answered(memory, "The brothers Aune", **changes)

    told = "The text that the answer comes from does not speak of the question: "
    assert (out["answer"], out["found"]) == (answer, found)
    assert (f'{told}"The brothers Aune".' in out["warnings"]) == (not changes)


def test_an_answer_without_any_place_in_the_document_is_not_found():
    out = answered("The keeper of the lighthouse lights the lamp.", "an old friend of hers")

    assert (out["citations"], out["found"]) == ([], False)


@pytest.mark.parametrize(("memory", "answer", "question"), [
    ("The keeper of the lighthouse is called Ragna Solheim.", "Ragna Solheim", KEEPER),
    (BREAD, "No, it is not the brothers Aune.", "Do the two bakers keep the lighthouse too?"),
    (BREAD, "The brothers Aune", "Wer hütet den alten Leuchtturm von Skarvik und das Licht?"),
    (BREAD, "The brothers Aune", "List all the keepers of the lighthouse of Skarvik."),
    (BREAD, "The brothers Aune", "谁看守着斯卡维克的老灯塔，谁点亮那盏灯？"),
    (BREAD, "The brothers Aune", "Who is it?"),
], ids=["its place", "yes or no", "German", "all", "Chinese", "a short question"])  # fmt: skip
def test_what_cannot_be_judged_by_its_place_counts_as_found(memory, answer, question):
    assert answered(memory, answer, question)["found"] is True
