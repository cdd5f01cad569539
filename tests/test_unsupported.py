"""Statements that nothing in the document supports, from a chat model to the output."""

from __future__ import annotations

import pytest
from doubles import numbered
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.evidence.places import Memory, Unsupported
from memagent_graph.graph.state import fold_of, memory_of
from memagent_graph.memory.version import MemoryVersion
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update

FIRST = "The owner of project P003 is Ann Lee. It rained all day in the harbour of the town.\n\n"
SECOND = "The ferry left at noon, and everyone went home by bus and by train in the evening.\n\n"
OWNER = "- Project P003 belongs to Ann Lee."
FERRY = "- The ferry left at noon."
WRONG = "- The ferry belongs to Oscar Wilde."
WORSE = "- The town has 9,713 harbours."
THREAD = {"configurable": {"thread_id": "1"}}


def asked(*replies, document=FIRST + SECOND, store=None, checkpointer=None, **config):
    model = FakeListChatModel(responses=[*replies])
    budgets = ReadingConfig(**{"chunk_tokens": 26} | config)
    agent = create_memagent(model, config=budgets, store=store, checkpointer=checkpointer)
    return agent.invoke({"question": "Who owns what?", "document": document}, THREAD)


def lines(*given):
    return "\n".join(given)


def test_unsupported_statements_of_the_final_memory_are_counted_and_the_first_is_named():
    out = asked(lines(OWNER, WORSE), lines(OWNER, WORSE, WRONG), "Ann Lee")

    [warning] = out["warnings"]
    assert warning.startswith("2 statements of the memory have no support in what was read: ")
    assert '"The town has 9,713 harbours." (9,713)' in warning
    assert out["memory"] == lines(OWNER, WORSE, WRONG)


def test_a_statement_that_the_last_memory_does_not_have_is_no_warning():
    assert asked(lines(OWNER, WRONG), OWNER, "Ann Lee")["warnings"] == []


def test_a_long_statement_is_shortened():
    long = f"- Oscar Wilde {' and '.join(f'so {letter}' for letter in 'abcdefghijklmnopq')}."
    [warning] = asked(OWNER, lines(OWNER, long), "Ann Lee")["warnings"]

    assert warning.startswith("1 statement of the memory has no support")
    assert len(warning) < 200


def test_evidence_has_places_of_the_document_alone():
    out = asked(OWNER, lines(OWNER, WORSE), r"\boxed{9,713 harbours}")

    assert all(0 <= item["start"] < item["end"] for item in out["evidence"])
    assert {item["text"] for item in out["evidence"]} == {OWNER[2:]}


def test_marks_outlive_a_stop(tmp_path):
    model = FakeListChatModel(responses=[lines(OWNER, WRONG), lines(OWNER, WRONG), "Ann Lee"])
    with SqliteSaver.from_conn_string(str(tmp_path / "c.sqlite")) as saver:
        config = ReadingConfig(chunk_tokens=26)
        stopping = create_memagent(
            model, config=config, checkpointer=saver, interrupt_after=["overwrite_memory"]
        )
        stopping.invoke({"question": "Who owns what?", "document": FIRST + SECOND}, THREAD)
        resumed = create_memagent(model, config=config, checkpointer=saver)
        out = resumed.invoke(None, THREAD)

    [warning] = out["warnings"]
    assert warning.endswith('"The ferry belongs to Oscar Wilde." (Oscar, Wilde).')


def test_a_reading_without_marks_has_rows_of_places_alone_and_these_without_pages_are_short():
    model = FakeListChatModel(responses=[OWNER, lines(OWNER, FERRY), "Ann Lee"])
    saver = InMemorySaver()
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=26), checkpointer=saver)
    agent.invoke({"question": "Who owns what?", "document": FIRST + SECOND}, THREAD)

    assert [len(row) for row in agent.get_state(THREAD).values["places"]] == [5, 5]


@pytest.mark.parametrize(
    "model", [None, FakeListChatModel(responses=["- The rent is 900.", "900"])]
)
def test_headings_are_in_evidence_and_in_that_of_a_stored_memory(tmp_path, model):
    (tmp_path / "lease.md").write_text("# Lease\n\nWords.\n\n## Rent\n\nThe rent is 900.\n")
    store = InMemoryStore()
    agent = create_memagent(model, store=store)

    out = agent.invoke({"question": "What is the rent?", "document": tmp_path / "lease.md"})
    (tmp_path / "lease.md").unlink()
    later = agent.invoke({"question": "How much is the rent?", "version": out["version"]})

    for found in (*out["citations"], *later["citations"]):
        assert (found["page"], found["heading"]) == (None, "Rent")
    assert out["citations"]
    assert later["evidence"] == out["evidence"]


def test_an_edit_of_the_memory_takes_the_marks_of_what_it_removed_with_it():
    model = FakeListChatModel(responses=[lines(OWNER, WRONG, WORSE), lines(OWNER, WRONG), "Ann"])
    agent = create_memagent(
        model,
        config=ReadingConfig(chunk_tokens=26),
        checkpointer=InMemorySaver(),
        interrupt_after=["overwrite_memory"],
    )
    agent.invoke({"question": "Who owns what?", "document": FIRST + SECOND}, THREAD)
    agent.update_state(THREAD, {"memory": lines(OWNER, WRONG)})

    edited = memory_of(fold_of(agent.get_state(THREAD).values))
    assert [item.text for item in edited.unsupported] == [WRONG[2:]]


def test_versions_have_the_marks_and_an_answer_from_a_stored_memory_warns():
    store = InMemoryStore()
    out = asked(OWNER, lines(OWNER, WRONG), "Ann Lee", store=store)
    version = MemoryBank(store).get(out["version"])
    agent = create_memagent(FakeListChatModel(responses=["Oscar"]), store=store)

    later = agent.invoke({"question": "Who else?", "version": out["version"]})

    assert version.memory.unsupported == (Unsupported(WRONG[2:], ("Oscar", "Wilde")),)
    assert later["warnings"] == [
        *out["warnings"],
        'The answer has no support in what was read: "Oscar" (Oscar).',
    ]
    assert out["warnings"]
    assert MemoryVersion.from_record(version.to_record()) == version


def test_a_version_without_marks_has_no_room_for_them():
    store = InMemoryStore()
    out = asked(OWNER, lines(OWNER, FERRY), "Ann Lee", store=store)

    record = MemoryBank(store).get(out["version"]).to_record()

    assert {len(row) for row in record["places"]} == {5}  # neither page nor heading


class TestDrop:
    def test_the_statements_are_left_out_before_the_memory_is_stored(self):
        store = InMemoryStore()
        out = asked(
            lines("## Facts", OWNER, WORSE),
            lines("## Facts", OWNER, f"{WRONG} The ferry left at noon."),
            "Ann Lee",
            store=store,
            unsupported="drop",
        )

        assert out["memory"] == lines("## Facts", OWNER, FERRY)
        assert out["warnings"] == [
            "2 statements were left out of the memory, without support in what was read."
        ]
        stored = MemoryBank(store).history(out["version"])
        assert [version.text.count("\n") for version in stored] == [2, 1]
        assert not any("9,713" in version.text for version in stored)

    def test_a_memory_that_has_nothing_else_leaves_the_last_one(self):
        out = asked(OWNER, WRONG, "Ann Lee", unsupported="drop")

        assert out["memory"] == OWNER
        assert out["warnings"][0].startswith("1 statement was left out")

    def test_a_first_memory_that_has_nothing_else_is_empty(self):
        out = asked(WRONG, FERRY, "At noon", unsupported="drop")

        assert out["memory"] == FERRY
        assert out["warnings"][0].startswith("1 statement was left out")

    @pytest.mark.slow
    def test_the_count_outlives_a_stop_and_is_in_the_version(self):
        store, saver = InMemoryStore(), InMemorySaver()
        model = FakeListChatModel(responses=[lines(OWNER, WRONG), lines(OWNER, FERRY), "Ann Lee"])
        config = ReadingConfig(chunk_tokens=26, unsupported="drop")
        agent = create_memagent(
            model,
            config=config,
            store=store,
            checkpointer=saver,
            interrupt_after=["overwrite_memory"],
        )
        out = agent.invoke({"question": "Who owns what?", "document": FIRST + SECOND}, THREAD)
        while "answer" not in out or out["answer"] is None:
            out = agent.invoke(None, THREAD)

        assert out["warnings"][0].startswith("1 statement was left out")
        assert MemoryBank(store).get(out["version"]).memory.dropped == 1

    def test_in_another_script_nothing_is_left_out(self):
        chinese = "- 项目属于李安。"

        out = asked(chinese, chinese, "李安", unsupported="drop")

        assert out["memory"] == chinese
        assert out["warnings"] == []

    def test_memories_of_the_two_settings_are_not_taken_for_each_other(self):
        store = InMemoryStore()
        kept = asked(OWNER, lines(OWNER, WRONG), "Ann Lee", store=store)
        left = asked(OWNER, lines(OWNER, WRONG), "Ann Lee", store=store, unsupported="drop")

        assert kept["memory"] == lines(OWNER, WRONG)
        assert left["memory"] == OWNER


class Marking(Reader):
    """Notes a line of each chunk, and one that it marks as unsupported."""

    identity = Identity("marking", "marking-1")

    def __init__(self, *, notes=True, merged=None):
        self.notes, self.merged = notes, merged
        self.chunks = 0

    async def update(self, step, *, config=None):
        self.chunks += 1
        start = step.chunk.start
        found = [step.memory.text, f"!{start} is wrong.", f"{start} was read." * self.notes]
        return Update(marked("\n".join(filter(None, found))))

    async def merge(self, question, memories, *, config=None):
        return Merge(marked(self.merged or "\n".join(memory.text for memory in memories)))

    async def respond(self, question, memory, *, config=None):
        return Answer("So it is.", "So it is.")


def marked(text):
    found = (line for line in text.splitlines() if line.startswith("!"))
    return Memory(text, unsupported=tuple(Unsupported(line) for line in found))


def segmented(reader, **config):
    reading = ReadingConfig(chunk_tokens=50, segments=4, memory_tokens=4000, **config)
    agent = create_memagent(reader, config=reading)
    out = agent.invoke({"question": "?", "document": numbered(60)})
    assert reader.chunks > 8
    return out


def test_segments_have_the_marks_of_the_merged_memory():
    reader = Marking()

    [all_of_them] = segmented(reader)["warnings"]
    [one] = segmented(Marking(merged="!No such line."))["warnings"]

    assert all_of_them.startswith(f"{reader.chunks} statements of the memory have")
    assert one.startswith("1 statement of the memory has")


def test_what_segments_and_their_merges_left_out_is_counted_together():
    reader = Marking(merged="0 was read.\n!No such line.")
    out = segmented(reader, unsupported="drop")

    assert out["memory"] == "0 was read."
    assert out["warnings"][0].startswith(f"{reader.chunks + 1} statements were left out")


def test_segments_of_which_nothing_stayed_count_too():
    reader = Marking(notes=False)
    out = segmented(reader, unsupported="drop")

    assert out["memory"] == ""
    assert out["warnings"][0].startswith(f"{reader.chunks} statements were left out")


def test_a_merged_memory_without_anything_supported_stays_and_is_warned_of():
    out = segmented(Marking(merged="!No such line."), unsupported="drop")

    assert out["memory"] == "!No such line."
    assert out["warnings"][0].startswith("1 statement of the memory has no support")


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


def answered(memory, answer, question=KEEPER, document=VILLAGE, **more):
    model = FakeListChatModel(responses=[memory, answer])
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=3000, **more))
    return agent.invoke({"question": question, "document": document})


def test_an_answer_from_where_the_text_speaks_of_something_else_is_not_found():
    out = answered(f"The lamp of the lighthouse is lit today. {BREAD}", "The brothers Aune")

    assert out["found"] is False
    assert out["warnings"] == [
        'The text that the answer comes from does not speak of the question: "The brothers Aune".'
    ]
    assert out["answer"] == "The brothers Aune"


def test_such_an_answer_is_left_out_where_what_nothing_supports_is():
    out = answered(BREAD, "The brothers Aune", unsupported="drop")

    assert out["found"] is False
    assert out["answer"] == "Nothing in what was read supports an answer."


def test_an_answer_without_any_place_in_the_document_is_not_found():
    out = answered("The keeper of the lighthouse lights the lamp.", "an old friend of hers")

    assert out["citations"] == []
    assert out["found"] is False


@pytest.mark.parametrize(
    ("memory", "answer", "question"),
    [
        ("The keeper of the lighthouse is called Ragna Solheim.", "Ragna Solheim", KEEPER),
        (BREAD, "No, it is not the brothers Aune.", "Do the two bakers keep the lighthouse too?"),
        (BREAD, "The brothers Aune", "Wer hütet den alten Leuchtturm von Skarvik und das Licht?"),
        (BREAD, "The brothers Aune", "谁看守着斯卡维克的老灯塔，谁点亮那盏灯？"),
        (BREAD, "The brothers Aune", "List all the keepers of the lighthouse of Skarvik."),
        (BREAD, "The brothers Aune", "Who is it?"),
    ],
    ids=["its place", "yes or no", "German", "Chinese", "all", "a short question"],
)
def test_what_cannot_be_judged_by_its_place_counts_as_found(memory, answer, question):
    assert answered(memory, answer, question)["found"] is True


def test_an_answer_from_an_earlier_document_is_not_judged_by_this_one():
    model = FakeListChatModel(responses=[BREAD, "Aune", BREAD, "The brothers Aune"])
    agent = create_memagent(model, store=InMemoryStore())
    named = {"question": KEEPER, "memory_name": "village"}
    agent.invoke({**named, "document": VILLAGE})

    out = agent.invoke({**named, "document": numbered(20)})

    assert out["memory"] == BREAD
    assert out["found"] is True


def test_a_recorded_reading_and_one_as_published_are_left_alone():
    assert answered(BREAD, "The brothers Aune", exact_cuts=True)["found"] is True
