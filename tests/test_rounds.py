"""A document that is read in rounds: each for what the memory of the one before still lacks."""

from __future__ import annotations

import asyncio

import pytest
from doubles import numbered
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank, ReadingConfig, create_memagent, plan
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.version import VersionMerge
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage
from memagent_graph.readers.replies import take_verdict
from memagent_graph.text.tokens import EstimatingTokenizer

SMALL = ReadingConfig(chunk_tokens=50, memory_tokens=4000, retry_interval=0.001, rounds=4)
THREAD = {"configurable": {"thread_id": "t"}}


KEPT = {
    "checkpoints": lambda: {"checkpointer": InMemorySaver()},
    "store": lambda: {"store": InMemoryStore()},
}


def told(*facts, lines=100):
    """A text with facts such as "A leads to B" in it, spread evenly and in this order."""
    text = numbered(lines).splitlines(keepends=True)
    step = len(text) // (len(facts) + 1)
    for number, fact in enumerate(facts):
        text.insert((number + 1) * step + number, f"{fact}.\n")
    return "".join(text)


BACKWARDS = told("D leads to E", "C leads to D", "B leads to C", "A leads to B")
ASKED = {"question": "A", "document": BACKWARDS}
WHOLE = "A leads to B.\nB leads to C.\nC leads to D.\nD leads to E.\n"


class Following(Reader):
    """Notes what the name that it looks for leads to; the merge looks for that.

    Args:
        goal: the name with which it has enough; None if it never has.
        fails: from the number of a call to an error, or None.
    """

    identity = Identity("following", "following-1")

    def __init__(self, goal=None, fails=lambda call: None):
        self.goal, self.fails = goal, fails
        self.calls = []

    def _call(self, kind, *about):
        self.calls.append((kind, *about))
        if error := self.fails(len(self.calls)):
            raise error

    async def update(self, step, *, config=None):
        chunk = step.chunk
        self._call("update", step.query, chunk.start)
        sought = {name.split()[-1] for name in step.query.split(", ")}
        lines = step.memory.text.splitlines()
        found = [
            line
            for line in chunk.text.splitlines()
            if " leads to " in line and line[0] in sought and line not in lines
        ]
        memory = Memory("".join(f"{line}\n" for line in [*lines, *found])) if found else None
        return Update(memory, usage=Usage(1, chunk.tokens, 1))

    async def merge(self, question, query, memories, *, config=None):
        self._call("merge", query, len(memories))
        lines = sorted({line for memory in memories for line in memory.text.splitlines()})
        text = "".join(f"{line}\n" for line in lines)
        wanted = lines[-1][-2]
        return Merge(Memory(text), None if wanted == self.goal else wanted, Usage(1, 1, 1))

    async def respond(self, question, memory, *, config=None):
        self._call("respond")
        return Answer(memory.text or "Nothing.", memory.text or "Nothing.", usage=Usage(1, 1, 1))

    def of(self, kind):
        return [about for found, *about in self.calls if found == kind]


def run(agent, asked, how="invoke", config=None):
    if how == "invoke":
        return agent.invoke(asked, config)
    return asyncio.run(agent.ainvoke(asked, config))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["invoke", "ainvoke"])
@pytest.mark.parametrize("segments", [1, 4, 1000, "auto"])
def test_what_was_found_is_looked_for_further_in_the_next_round(segments, how):
    reader = Following()
    config = SMALL.model_copy(update={"segments": segments})

    out = run(create_memagent(reader, config=config), ASKED, how)

    assert out["answer"] == WHOLE
    assert list(dict.fromkeys(query for query, _ in reader.of("update"))) == ["A", "B", "C", "D"]
    assert (out["coverage"], out["stopped"], out["warnings"]) == (1.0, "end", [])
    assert out["usage"]["calls"] == len(reader.calls)
    once = len({start for _, start in reader.of("update")})
    assert len(reader.of("update")) == 4 * once
    assert out["usage"]["document_tokens"] < 1.1 * EstimatingTokenizer().count(BACKWARDS)


def test_one_round_finds_what_stands_in_its_order_alone():
    reader = Following()

    out = create_memagent(reader, config=SMALL.model_copy(update={"rounds": 1})).invoke(ASKED)

    assert out["answer"] == "A leads to B.\n"
    assert reader.of("merge") == []


def test_rounds_end_when_the_memory_has_enough():
    reader = Following(goal="C")

    out = create_memagent(reader, config=SMALL).invoke(ASKED)

    assert out["answer"] == "A leads to B.\nB leads to C.\n"
    assert [query for query, _ in reader.of("merge")] == ["A", "B"]


def test_rounds_end_when_nothing_was_new():
    reader = Following()
    text = told("B leads to C", "A leads to B")

    out = create_memagent(reader, config=SMALL).invoke({"question": "A", "document": text})

    assert out["answer"] == "A leads to B.\nB leads to C.\n"
    assert [query for query, _ in reader.of("merge")] == ["A", "B"]
    assert {query for query, _ in reader.of("update")} == {"A", "B", "C"}


def test_events_tell_rounds_and_what_each_looks_for():
    config = SMALL.model_copy(update={"segments": 3})

    events = [*create_memagent(Following(), config=config).stream(ASKED, stream_mode="custom")]

    merges = [event for event in events if event["event"] == "merge"]
    assert [(event["round"], event["query"]) for event in merges] == [
        (1, "B"),
        (2, "C"),
        (3, "D"),
        (4, None),
    ]
    read = [event for event in events if event["event"] == "chunk"]
    assert {(event["fold"], event["round"]) for event in read} == {
        (f"1.{segment}", number) for segment in (1, 2, 3) for number in (1, 2, 3, 4)
    }


def test_a_named_memory_is_read_once():
    reader = Following()
    agent = create_memagent(reader, config=SMALL, store=InMemoryStore())

    agent.invoke({**ASKED, "memory_name": "notes"})

    assert {query for query, _ in reader.of("update")} == {"A"}


def test_questions_have_rounds_of_their_own():
    reader = Following()
    config = SMALL.model_copy(update={"segments": 2})

    out = create_memagent(reader, config=config).invoke(
        {"questions": ["A", "D", "X"], "document": BACKWARDS}
    )

    assert [record["answer"] for record in out["answers"]] == [WHOLE, "D leads to E.\n", "Nothing."]
    asked = [record["usage"]["calls"] for record in out["answers"]]
    assert asked[2] < asked[1] < asked[0]


def test_an_edit_between_rounds_is_read_on_from_and_becomes_a_version():
    store = InMemoryStore()
    agent = create_memagent(
        Following(),
        config=SMALL,
        store=store,
        checkpointer=InMemorySaver(),
        interrupt_after=["merge_memories"],
    )
    agent.invoke(ASKED, THREAD)
    agent.update_state(THREAD, {"memory": "A leads to B, as everybody knows.\n"})

    while agent.get_state(THREAD).next:
        out = agent.invoke(None, THREAD)

    assert "everybody knows" in out["answer"]
    assert "C leads to D" in out["answer"]
    history = MemoryBank(store).history(out["version"])
    assert [version.text for version in history if version.edited] == [
        "A leads to B, as everybody knows.\n"
    ]
    assert history.gaps == []


# What failed, and what is known


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["checkpoints", "store"])
@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_reading_that_failed_goes_on_in_its_round(kept, segments, share):
    config = SMALL.model_copy(update={"segments": segments, "lease": False})
    whole = Following()
    expected = create_memagent(whole, config=config).invoke(ASKED)["answer"]
    at = int(share * len(whole.calls))
    reader = Following(fails=lambda call: ModelError("No.") if call == at else None)
    agent = create_memagent(reader, config=config, **KEPT[kept]())

    with pytest.raises(ModelError, match=r" in round \d failed: No\."):
        agent.invoke(ASKED, THREAD)
    out = agent.invoke(None if kept == "checkpoints" else ASKED, THREAD)

    assert out["answer"] == expected
    assert len(reader.calls) <= len(whole.calls) + segments


def test_asking_again_is_one_call():
    store, reader = InMemoryStore(), Following()
    agent = create_memagent(reader, config=SMALL.model_copy(update={"segments": 3}), store=store)
    first = agent.invoke(ASKED)
    reader.calls.clear()

    again = agent.invoke(ASKED)

    assert reader.calls == [("respond",)]
    same = ("answer", "memory", "version", "coverage", "stopped")
    assert [again[field] for field in same] == [first[field] for field in same]


def test_a_round_in_which_nothing_was_new_is_not_read_again():
    store, reader = InMemoryStore(), Following()
    agent = create_memagent(reader, config=SMALL, store=store)
    asked = {"question": "A", "document": told("B leads to C", "A leads to B")}
    agent.invoke(asked)
    reader.calls.clear()

    agent.invoke(asked)

    assert reader.calls == [("respond",)]


def test_what_a_limit_left_is_read_the_next_time():
    store, reader = InMemoryStore(), Following()
    whole = Following()
    create_memagent(whole, config=SMALL).invoke(ASKED)
    most = len(whole.calls) // 2
    limited = SMALL.model_copy(update={"max_calls": most})
    part = create_memagent(reader, config=limited, store=store).invoke(ASKED)
    made = len(reader.calls)

    out = create_memagent(reader, config=SMALL, store=store).invoke(ASKED)

    assert part["stopped"] == "max_calls"
    assert part["usage"]["calls"] == made <= most
    assert out["answer"] == WHOLE
    assert len(reader.calls) <= len(whole.calls) + 3


def test_a_grown_document_costs_its_new_part_in_the_first_round():
    store, reader = InMemoryStore(), Following()
    agent = create_memagent(reader, config=SMALL.model_copy(update={"segments": 3}), store=store)
    agent.invoke(ASKED)
    reader.calls.clear()
    longer = BACKWARDS + numbered(20)

    out = agent.invoke({"question": "A", "document": longer})

    assert out["answer"] == WHOLE
    first = [start for query, start in reader.of("update") if query == "A"]
    old = [start for start in first if start < len(BACKWARDS)]
    assert 1 < len(first) < 12
    assert len(old) <= 1


def test_a_memory_of_rounds_has_all_that_led_to_it_and_is_forgotten_with_it():
    store = InMemoryStore()
    bank = MemoryBank(store)
    config = SMALL.model_copy(update={"segments": 3})
    out = create_memagent(Following(), config=config, store=store).invoke(ASKED)

    ((name, head),) = bank.list()
    history = bank.history(name)

    assert head.id == out["version"]
    merges = [version for version in history if isinstance(version.made_by, VersionMerge)]
    assert [len(version.made_by.merged) for version in merges] == [3, 3, 3, 3]
    assert [version.made_by.query for version in merges] == [None, "D", "C", "B"]
    assert history.gaps == []
    assert bank.check() == []
    lines = bank.export()
    assert bank.forget(name).versions == len(history)
    assert store.search((), limit=1000) == []
    assert bank.import_(lines) == len(history)
    assert [version.id for version in bank.history(name)] == [version.id for version in history]


@pytest.mark.parametrize("segments", [1, 4])
def test_a_plan_bounds_calls_and_chain(segments):
    config = SMALL.model_copy(update={"segments": segments})

    planned = plan("A", BACKWARDS, config)
    out = create_memagent(Following(), config=config).invoke(ASKED)
    one = plan("A", BACKWARDS, config.model_copy(update={"rounds": 1}))

    assert out["usage"]["calls"] <= planned.calls <= out["usage"]["calls"] + 4 * segments
    assert planned.chunks == 4 * one.chunks
    assert planned.chain_calls == 4 * (one.chain_calls - 1 + (segments == 1)) + 1
    assert planned.window_tokens <= config.window_tokens
    limited = config.model_copy(update={"max_calls": 40})
    assert plan("A", BACKWARDS, limited).calls <= 40


def test_a_reader_that_cannot_merge_has_one_round():
    class Alone(Following):
        merge = Reader.merge

    with pytest.raises(ConfigurationError, match="does not merge memories"):
        create_memagent(Alone(), config=SMALL)


# A chat model's verdict


@pytest.mark.parametrize(
    ("reply", "notes", "query"),
    [
        ("ENOUGH\nNotes.", "Notes.", None),
        ("LOOK FOR: where Ilse Varga lives\n\nNotes.", "Notes.", "where Ilse Varga lives"),
        ("Notes.\nLOOK FOR: her house", "Notes.\nLOOK FOR: her house", None),
        ("ENOUGH is known.\nNotes.", "ENOUGH is known.\nNotes.", None),
        ("LOOK FOR:\nNotes.", "LOOK FOR:\nNotes.", None),
        ("We still LOOK FOR: her.", "We still LOOK FOR: her.", None),
        ("enough\nNotes.", "enough\nNotes.", None),
    ],
)
def test_a_verdict_is_a_first_line_and_nothing_else(reply, notes, query):
    assert take_verdict(reply) == (notes, query)
