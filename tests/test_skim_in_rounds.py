"""Skimming in several rounds: each looks for what the lead has asked for, with what is known."""

from __future__ import annotations

import pytest
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from memagent_graph import (
    MemAgentNode,
    MemAgentRetriever,
    ReadingConfig,
    create_memagent,
    create_reading_tool,
    plan,
    read_many,
)
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.state import merge_spans
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update, Usage
from memagent_graph.text.chunks import chunks
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

QUESTION = "Where does the builder of the Ortega observatory live?"
NEXT = "the house of the miller"
FIRST = "The observatory of Ortega was built by the miller."
SECOND = "The miller has a house in Husum."
SMALL = {"chunk_tokens": 100, "memory_tokens": 400, "retry_interval": 0.001}
SKIM = ReadingConfig(skim="lexical", rounds=2, **SMALL)


def filler(lines, first=0):
    return "".join(f"Line {first + n} tells of the sea and of ships.\n" for n in range(lines))


TEXT = filler(150) + SECOND + "\n" + filler(147, 150) + FIRST + "\n" + filler(150, 300)


class Hopping(Reader):
    """Notes what the story says of what it looks for; the lead asks for the house of the miller.

    Args:
        knows: what the memory must have for the answer to be in it; None if it cannot say.
    """

    identity = Identity("hopping", "hopping-1")

    def __init__(self, knows="Husum"):
        self.knows = knows
        self.read = []

    async def update(self, step, *, config=None):
        self.read.append((step.query, step.chunk.start, step.chunk.end))
        facts = {"builder": FIRST, "miller": SECOND, "whale": "There is a whale."}
        known = step.memory.text.splitlines()
        new = [
            fact
            for word, fact in facts.items()
            if word in step.query and fact in step.chunk.text and fact not in known
        ]
        memory = Memory("\n".join([*known, *new])) if new else None
        return Update(memory, usage=Usage(1, step.chunk.tokens, 1))

    async def merge(self, question, query, memories, *, config=None):
        text = "\n".join(dict.fromkeys(line for m in memories for line in m.text.splitlines()))
        return Merge(Memory(text), None if SECOND in text else NEXT, Usage(1, 1, 1))

    async def respond(self, question, memory, *, config=None):
        text = memory.text or "Nothing."
        found = None if self.knows is None else self.knows in text
        return Answer(text, text, found=found, usage=Usage(1, 1, 1))

    @property
    def spans(self):
        return sorted({(start, end) for _, start, end in self.read})


def cut(text):
    found = chunks(TextSource(text), tokenizer=EstimatingTokenizer(), chunk_tokens=100)
    return [(chunk.start, chunk.end) for chunk in found]


def ask(reader, config=SKIM, text=TEXT, **options):
    asked = {"question": QUESTION, "document": text}
    return create_memagent(reader, config=config, **options).invoke(asked)


def is_right(out, reader, text=TEXT):
    """Whether what is said to be read and skipped is what was read in any round, and the rest."""
    read = sum(end - start for start, end in reader.spans)
    both = sorted([*map(tuple, out["skipped"]), *reader.spans])
    assert out["coverage"] == pytest.approx(read / len(text))
    return merge_spans([[*span] for span in both]) == [[0, len(text)]]


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 4, 1000])
def test_what_was_skipped_is_looked_at_again_for_what_the_next_round_looks_for(segments):
    config = SKIM.model_copy(update={"segments": segments})
    reader, once = Hopping(), Hopping(knows=None)

    out = ask(reader, config)
    one = ask(once, config.model_copy(update={"rounds": 1}))

    assert out["answer"].splitlines() == [FIRST, SECOND]
    assert one["answer"] == FIRST
    assert len(reader.read) <= 10 < len(cut(TEXT)) / 6
    assert {query for query, *_ in reader.read} == {QUESTION, NEXT}
    assert is_right(out, reader)


def test_one_round_needs_the_fallback_and_reads_all():
    reader = Hopping()

    out = ask(reader, SKIM.model_copy(update={"rounds": 1}))

    assert (out["answer"], out["coverage"]) == (FIRST, 1)
    assert reader.spans == cut(TEXT)


def test_a_function_is_given_what_the_round_looks_for_and_the_memory():
    seen = []

    def score(query, memory, chunk):
        seen.append((query, memory))
        return SECOND in chunk if query == NEXT else FIRST in chunk

    reader = Hopping()
    out = ask(reader, SKIM.model_copy(update={"skim": score}))

    assert out["answer"].splitlines() == [FIRST, SECOND]
    assert (QUESTION, "") in seen
    assert (NEXT, FIRST) in seen
    assert len(reader.read) == 2


def test_the_built_in_reader_finds_both_in_two_rounds():
    text = TEXT.replace("the miller", "Tobias Quandt").replace("The miller", "Tobias Quandt")

    out = ask("extractive", text=text)

    assert "Husum" in out["memory"]
    assert out["coverage"] < 0.3


def test_a_round_that_looks_for_all_is_read_in_full():
    class Listing(Hopping):
        async def merge(self, question, query, memories, *, config=None):
            text = "\n".join(memory.text for memory in memories)
            return Merge(Memory(text), "a list of all houses of the miller")

    reader = Listing(knows=None)
    out = ask(reader)

    again = sorted((start, end) for query, start, end in reader.read if query != QUESTION)
    assert again == cut(TEXT)
    assert (out["coverage"], out["skipped"]) == (1, [])


def test_what_is_left_is_read_after_the_last_round():
    text = TEXT + "There is a whale.\n" + filler(40, 500)
    reader = Hopping(knows="whale")
    agent = create_memagent(reader, config=SKIM.model_copy(update={"segments": 3}))
    asked = {"question": QUESTION, "document": text}

    parts = [*agent.stream(asked, stream_mode=["custom", "values"])]

    out, events = parts[-1][1], [part for mode, part in parts if mode == "custom"]
    kinds = [event["event"] for event in events]
    assert {event["round"] for event in events if event["event"] == "skip"} == {1, 2}
    before = kinds[: kinds.index("fallback")]
    assert (before.count("merge"), kinds.count("merge")) == (2, 2)
    in_rounds, after = reader.read[: before.count("chunk")], reader.read[before.count("chunk") :]
    assert len({start for _, start, _ in in_rounds}) + len(after) == len(cut(text))
    assert reader.spans == cut(text)
    assert (out["coverage"], out["skipped"]) == (1, [])


def test_what_a_limit_left_and_the_next_round_skipped_is_not_taken_for_read():
    first_half = {(start, end) for start, end in cut(TEXT) if end < len(TEXT) // 2}

    def worth(query, memory, chunk):
        if query == NEXT:
            return SECOND in chunk
        return FIRST in chunk or any(TEXT[start:end] == chunk for start, end in first_half)

    reader = Hopping()
    config = SKIM.model_copy(update={"segments": 2, "skim": worth, "max_calls": 40})

    out = ask(reader, config)

    assert out["answer"].splitlines() == [FIRST, SECOND]
    assert len(reader.spans) < len(first_half)
    assert is_right(out, reader)


@pytest.mark.parametrize("knows", ["Husum", "whale"])
def test_asked_again_it_takes_one_call_and_says_the_same(knows):
    store, reader = InMemoryStore(), Hopping(knows=knows)
    config = SKIM.model_copy(update={"segments": 3})
    first = ask(reader, config, store=store)
    made = len(reader.read)

    again = ask(reader, config, store=store)

    assert (len(reader.read), again["usage"]["calls"]) == (made, 1)
    same = ("answer", "memory", "coverage", "skipped", "version", "stopped")
    assert [again[field] for field in same] == [first[field] for field in same]


class TestUses:
    """Each finds both facts in few calls, by the same settings."""

    CONFIG = ReadingConfig(skim="lexical", rounds=3, segments="auto", **SMALL)

    @pytest.fixture
    def reader(self):
        reader = Hopping()
        yield reader
        assert {query for query, *_ in reader.read} == {QUESTION, NEXT}
        assert len(reader.read) <= 10 < len(cut(TEXT)) / 6

    def test_a_node(self, reader):
        class Host(TypedDict, total=False):
            question: str
            document: str
            answer: str

        graph = StateGraph(Host)
        graph.add_node("read", MemAgentNode(reader, config=self.CONFIG))
        graph.add_edge(START, "read")

        out = graph.compile().invoke({"question": QUESTION, "document": TEXT})

        assert out["answer"].splitlines() == [FIRST, SECOND]

    def test_a_tool(self, reader):
        tool = create_reading_tool(reader, sources={"story": TEXT}, config=self.CONFIG)
        arguments = {"questions": [QUESTION], "source": "story"}

        message = tool.invoke({"name": "read", "args": arguments, "id": "1", "type": "tool_call"})

        assert SECOND in message.content
        assert is_right(message.artifact, reader)

    def test_a_retriever(self, reader):
        (found,) = MemAgentRetriever(corpus=TEXT, model=reader, config=self.CONFIG).invoke(QUESTION)

        assert found.metadata["answer"].splitlines() == [FIRST, SECOND]
        assert found.metadata["coverage"] < 0.2

    def test_a_batch(self, reader):
        agent = create_memagent(reader, config=self.CONFIG)

        (result,) = read_many(agent, [{"id": "1", "question": QUESTION, "document": TEXT}])

        assert SECOND in result.output["answer"]
        assert is_right(result.output, reader)

    def test_several_questions(self, reader):
        agent = create_memagent(reader, config=self.CONFIG)

        out = agent.invoke({"questions": [QUESTION], "document": TEXT})

        assert SECOND in out["answers"][0]["answer"]
        assert is_right(out["answers"][0], reader)


@pytest.mark.slow
@pytest.mark.parametrize("segments", [1, 4, "auto", 1000])
@pytest.mark.parametrize("knows", ["Husum", "whale"])
def test_a_plan_bounds_calls_and_chain_and_says_what_it_costs_if_found(segments, knows):
    reader = Hopping(knows=knows)
    config = SKIM.model_copy(update={"segments": segments})

    planned = plan(QUESTION, TEXT, config)
    out = ask(reader, config)

    assert out["usage"]["calls"] <= planned.calls
    assert planned.chunks == 2 * len(cut(TEXT))
    assert planned.calls_if_found < 20
    if knows == "Husum":
        assert out["usage"]["calls"] <= planned.calls_if_found + 4
