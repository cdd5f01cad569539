"""Chunks that a look finds nothing in cost no call; they are on record, and read if need be."""

from __future__ import annotations

import pytest
from doubles import ChainReader, chain
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from pydantic import ValidationError
from typing_extensions import TypedDict

from memagent_graph import (
    MemAgentNode,
    MemAgentRetriever,
    MemoryBank,
    ReadingConfig,
    create_memagent,
    create_reading_tool,
    read_many,
)
from memagent_graph.errors import ModelError
from memagent_graph.evidence.places import Memory
from memagent_graph.graph.state import count_covered, merge_spans
from memagent_graph.readers.base import Answer, Identity, Reader, Update, Usage
from memagent_graph.text.chunks import chunks
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

QUESTION = "Where is the observatory of Ortega?"
FACT = "The observatory of Ortega is in Husum."
SMALL = {"chunk_tokens": 100, "memory_tokens": 400, "retry_interval": 0.001}
PASSAGE = 1000
"""Code points around the fact that are in its passage, at most, and a chunk."""
SKIM = ReadingConfig(skim="lexical", **SMALL)


def filler(lines, first=0):
    return "".join(f"Line {first + n} tells of the sea and of ships.\n" for n in range(lines))


TEXT = filler(100) + FACT + "\n" + filler(100, 100)


class Finding(Reader):
    """Notes the lines that have a word, and knows whether it has any.

    Args:
        word: that it looks for.
        fails: how many updates go well before one that fails for good.
    """

    def __init__(self, word="Husum", fails=None):
        self.word, self.fails = word, fails
        self.identity = Identity("finding", f"finding {word}")
        self.spans, self.answers = [], 0

    async def update(self, step, *, config=None):
        if self.fails is not None and len(self.spans) == self.fails:
            self.fails = None
            raise ModelError("It failed.")
        self.spans.append((step.chunk.start, step.chunk.end))
        lines = [line for line in step.chunk.text.splitlines() if self.word in line]
        text = "\n".join([*step.memory.text.splitlines(), *lines]) or "nothing"
        return Update(Memory(text), usage=Usage(1, 10, 1))

    async def merge(self, question, memories, *, config=None):
        from memagent_graph.readers.base import Merge

        return Merge(Memory("\n".join(memory.text for memory in memories)))

    async def respond(self, question, memory, *, config=None):
        self.answers += 1
        text = memory.text or "nothing"
        return Answer(text, text, found=self.word in memory.text, usage=Usage(1, 1, 1))


def cut(text):
    found = chunks(TextSource(text), tokenizer=EstimatingTokenizer(), chunk_tokens=100)
    return [(chunk.start, chunk.end) for chunk in found]


def ask(reader, config=SKIM, document=TEXT, question=QUESTION, **options):
    agent = create_memagent(reader, config=config, **options)
    return agent.invoke({"question": question, "document": document})


def test_only_chunks_with_words_of_the_question_are_read():
    reader = Finding()

    out = ask(reader)

    at = TEXT.index(FACT)
    assert FACT in out["answer"]
    assert next(span for span in cut(TEXT) if span[0] <= at < span[1]) in reader.spans
    assert all(abs(start - at) < PASSAGE for start, _ in reader.spans)
    assert out["usage"]["calls"] == len(reader.spans) + 1


def test_what_was_skipped_is_in_the_output_and_with_what_was_read_it_is_the_document():
    reader = Finding()

    out = ask(reader)

    spans = sorted([*map(tuple, out["skipped"]), *reader.spans])
    assert merge_spans([[*span] for span in spans]) == [[0, len(TEXT)]]
    read = sum(end - start for start, end in reader.spans)
    assert out["coverage"] == pytest.approx(read / len(TEXT))
    assert out["stopped"] == "end"


@pytest.mark.parametrize(
    ("fact", "question"),
    [
        ("天文台是由奥尔特加女士在胡苏姆创建的。", "奥尔特加女士的天文台在哪里?"),
        ("Обсерватория Ортеги находится в Хузуме.", "Где находится Обсерватория Ортеги?"),
        ("مرصد أورتيغا في هوسوم.", "أين مرصد أورتيغا؟"),
        ("オルテガの天文台はフーズムにある。", "オルテガの天文台はどこにありますか"),
    ],
)
def test_all_scripts_are_skimmed(fact, question):
    text = filler(100) + fact + "\n" + filler(100, 100)
    reader = Finding(fact[:4])

    out = ask(reader, document=text, question=question)

    assert fact in out["answer"]
    assert len(reader.spans) <= 5 < len(cut(text))


@given(st.text(st.sampled_from("ab .\n。天"), min_size=1, max_size=400).filter(str.strip))
@settings(max_examples=30, deadline=None)
def test_without_skim_reading_is_what_it_was(text):
    reader = ChainReader()
    config = ReadingConfig(**{**SMALL, "chunk_tokens": 10})

    out = ask(reader, config, text)

    memory = ""
    for chunk in chunks(TextSource(text), tokenizer=EstimatingTokenizer(), chunk_tokens=10):
        if chunk.text.strip():
            memory = chain(memory, chunk.text)
    assert out["memory"] == memory
    assert (out["skipped"], out["coverage"]) == ([], 1)


@given(st.lists(st.booleans(), min_size=5, max_size=60), st.booleans())
@settings(max_examples=30, deadline=None)
def test_whatever_is_skipped_the_spans_are_lossless(worth, found):
    text = "".join(
        f"{'Yes' if yes else 'No'} {n} of the many lines.\n" for n, yes in enumerate(worth)
    )
    reader = Finding("Yes" if found else "never")
    config = ReadingConfig(
        skim=lambda question, memory, chunk: "Yes" in chunk, **{**SMALL, "chunk_tokens": 15}
    )

    out = ask(reader, config, text)

    spans = sorted([*map(tuple, out["skipped"]), *reader.spans])
    assert merge_spans([[*span] for span in spans]) == [[0, len(text)]]
    read = sum(end - start for start, end in reader.spans)
    assert out["coverage"] == pytest.approx(read / len(text))
    if not (found and any(worth)):
        assert out["skipped"] == []


def test_what_was_skipped_is_read_when_the_answer_is_not_found():
    reader = Finding("walrus")
    text = TEXT.replace("Line 7 tells", "Line 7 tells, walrus,")

    out = ask(reader, document=text)

    assert "walrus" in out["answer"]
    assert sorted(reader.spans) == cut(text)
    assert (out["coverage"], out["skipped"], reader.answers) == (1, [], 2)
    assert out["usage"]["calls"] == len(cut(text)) + 2


def test_a_reader_that_does_not_know_whether_it_found_the_answer_is_believed():
    reader = ChainReader()

    out = ask(reader)

    assert reader.answers == 1
    assert out["coverage"] < 0.5


def test_calls_stay_within_their_limit_whatever_falls_back():
    reader = Finding("walrus")

    out = ask(reader, SKIM.model_copy(update={"max_calls": 12}))

    assert len(reader.spans) + reader.answers == out["usage"]["calls"] == 12
    assert out["stopped"] == "max_calls"


@pytest.mark.parametrize(
    "question",
    [
        "How many times is the observatory mentioned?",
        "List all observatories.",
        "Which observatory is mentioned most often?",
        "天文台一共出现了几次?",
    ],
)
def test_questions_that_need_everything_are_not_skimmed(question):
    reader = Finding()

    out = ask(reader, question=question)

    assert reader.spans == cut(TEXT)
    assert out["skipped"] == []


def test_names_that_the_memory_has_learned_are_looked_for():
    text = (
        filler(100)
        + "The observatory of Ortega was built by Tobias Quandt.\n"
        + filler(100, 100)
        + "Tobias Quandt lives in Husum.\n"
        + filler(100, 200)
    )

    class Reading(Finding):
        async def update(self, step, *, config=None):
            self.spans.append((step.chunk.start, step.chunk.end))
            lines = [line for line in step.chunk.text.splitlines() if "Quandt" in line]
            return Update(Memory("\n".join([*step.memory.text.splitlines(), *lines]) or "nothing"))

    reader = Reading()

    out = ask(
        reader, document=text, question="Where does the builder of the Ortega observatory live?"
    )

    assert "Husum" in out["answer"]
    assert out["coverage"] < 0.2


class TestKinds:
    def test_a_function_decides_by_question_memory_and_chunk(self):
        seen = []

        async def score(question, memory, chunk):
            seen.append((question, memory, chunk))
            return 0.5 if "Husum" in chunk else 0.49

        reader = Finding()
        out = ask(reader, ReadingConfig(skim=score, **SMALL))

        assert "Husum" in out["answer"]
        assert len(reader.spans) == 1
        assert "".join(chunk for _, _, chunk in seen) == TEXT
        assert seen[-1][:2] == (QUESTION, FACT)

    def test_a_function_that_fails_is_named_in_the_error(self):
        def score(question, memory, chunk):
            raise ZeroDivisionError("by zero")

        with pytest.raises(ModelError, match="by zero"):
            ask(Finding(), ReadingConfig(skim=score, **SMALL))

    def test_anything_else_is_refused_with_what_there_is(self):
        with pytest.raises(ValidationError, match='"lexical", a decision model or a function'):
            ReadingConfig(skim="semantic")


class TestResuming:
    def test_a_failed_run_goes_on_at_the_chunk(self):
        reader = Finding("walrus", fails=4)
        agent = create_memagent(reader, config=SKIM, checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        with pytest.raises(ModelError):
            agent.invoke({"question": QUESTION, "document": TEXT}, thread)

        out = agent.invoke(None, thread)

        assert sorted(reader.spans) == cut(TEXT)
        assert out["coverage"] == 1

    @pytest.mark.parametrize("lease", [True, False])
    def test_a_failed_run_is_taken_up_from_the_store(self, lease):
        reader, store = Finding("walrus", fails=4), InMemoryStore()
        config = SKIM.model_copy(update={"lease": lease})
        with pytest.raises(ModelError):
            ask(reader, config, store=store)

        out = ask(reader, config, store=store)

        assert sorted(reader.spans) == cut(TEXT)
        assert out["coverage"] == 1

    @pytest.mark.parametrize("word", ["Husum", "walrus"])
    @pytest.mark.parametrize("segments", [1, 3])
    def test_asking_again_is_one_call_with_the_same_record(self, word, segments):
        reader, store = Finding(word), InMemoryStore()
        config = SKIM.model_copy(update={"segments": segments})
        first = ask(reader, config, store=store)
        done = len(reader.spans), reader.answers

        again = ask(reader, config, store=store)

        assert (len(reader.spans), reader.answers) == (done[0], done[1] + 1)
        assert again["usage"]["calls"] == 1
        same = ("answer", "memory", "coverage", "skipped", "version", "stopped")
        assert {key: again[key] for key in same} == {key: first[key] for key in same}
        assert again["usage"]["document_tokens"] == first["usage"]["document_tokens"]

    def test_a_stored_memory_says_what_was_not_read_and_is_not_read_further(self):
        reader, store = Finding(), InMemoryStore()
        first = ask(reader, store=store)
        other = Finding("walrus")

        out = create_memagent(other, config=SKIM, store=store).invoke(
            {"question": QUESTION, "version": first["version"]}
        )

        assert (
            out["skipped"]
            == [span for span in first["skipped"] if span[1] <= len(TEXT) // 2 + 500][
                : len(out["skipped"])
            ]
        )
        assert other.spans == []

    def test_memories_of_a_skimmed_reading_are_not_taken_for_those_of_a_whole_one(self):
        reader, store = Finding(), InMemoryStore()
        ask(reader, store=store)
        reader.spans.clear()

        out = ask(reader, ReadingConfig(**SMALL), store=store)

        assert reader.spans == cut(TEXT)
        assert out["coverage"] == 1

    def test_skipped_chunks_write_no_versions(self):
        reader, store = Finding(), InMemoryStore()

        out = ask(reader, store=store)

        history = MemoryBank(store).history(out["version"])
        assert [version.span for version in reversed(history)] == reader.spans

    def test_a_named_memory_ends_with_what_was_read(self):
        reader, store = Finding(), InMemoryStore()
        agent = create_memagent(reader, config=SKIM, store=store)

        out = agent.invoke({"question": QUESTION, "document": TEXT, "memory_name": "notes"})

        head = MemoryBank(store).get("notes")
        assert head.id == out["version"]
        assert FACT in head.text

    @pytest.mark.slow
    @given(st.integers(0, 30))
    @settings(max_examples=8, deadline=None)
    def test_wherever_a_run_breaks_off_it_ends_as_it_would_have(self, fails):
        whole = ask(Finding("walrus"))
        reader = Finding("walrus", fails=fails)
        agent = create_memagent(reader, config=SKIM, checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        try:
            out = agent.invoke({"question": QUESTION, "document": TEXT}, thread)
        except ModelError:
            out = agent.invoke(None, thread)

        assert out["memory"] == whole["memory"]
        assert len(reader.spans) == len(set(reader.spans))


def test_events_tell_what_is_skipped_and_that_it_is_read_after_all():
    agent = create_memagent(Finding("walrus"), config=SKIM)
    asked = {"question": QUESTION, "document": TEXT}

    events = [*agent.stream(asked, stream_mode="custom")]

    kinds = [event["event"] for event in events]
    skipped = [(event["start"], event["end"]) for event in events if event["event"] == "skip"]
    read = kinds.index("fallback")
    assert kinds[0] == "opened"
    assert kinds[-1] == "answer"
    assert {*kinds[1:read]} == {"skip", "chunk"}
    assert {*kinds[read + 1 : -1]} == {"chunk"}
    assert len(skipped) == kinds[read + 1 :].count("chunk")
    positions = [event["position"] for event in events if "position" in event]
    assert positions[-1] == len(TEXT)
    last = [event for event in events if event["event"] == "chunk"][-1]
    assert last["chunk"] == last["chunks"] == len(cut(TEXT))


def test_several_questions_are_each_skimmed_for_themselves():
    reader = Finding()
    agent = create_memagent(reader, config=SKIM)
    asked = {"questions": [QUESTION, "List all lines.", "Who is Ortega?"], "document": TEXT}

    out = agent.invoke(asked)

    coverages = [answer["coverage"] for answer in out["answers"]]
    assert coverages[1] == 1
    assert coverages[0] == coverages[2] < 0.2


def test_segments_are_skimmed_and_merged():
    reader = Finding()

    out = ask(reader, SKIM.model_copy(update={"segments": 4}))

    assert "Husum" in out["answer"]
    spans = sorted([*map(tuple, out["skipped"]), *reader.spans])
    assert merge_spans([[*span] for span in spans]) == [[0, len(TEXT)]]
    assert len(reader.spans) <= 5


@pytest.mark.slow
def test_the_record_of_what_is_skipped_is_bounded():
    text = "".join(f"{'Yes' if n % 2 else 'No'}, {n} is one of the lines.\n" for n in range(1400))
    config = ReadingConfig(
        skim=lambda question, memory, chunk: "Yes" in chunk, **{**SMALL, "chunk_tokens": 12}
    )

    out = ask(Finding("1399"), config, text)

    assert len(out["skipped"]) == 256


@given(st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1), st.booleans())
def test_what_is_covered_is_what_was_not_skipped(parts, again):
    at, skipped = 0, []
    for size, read in parts:
        if not read:
            skipped.append([at, at + size])
        at += size
    progress = {"position": at, "skipped": merge_spans(skipped), "again": again}

    assert count_covered(progress, 0, at) == sum(size for size, read in parts if read)


class TestUses:
    def test_the_retriever_skims_and_says_how_much_it_read(self):
        retriever = MemAgentRetriever(
            corpus=[filler(300), FACT, filler(300, 300)],
            config=SKIM.model_copy(update={"segments": 1}),
        )

        (found, *_) = retriever.invoke(QUESTION)

        assert FACT in found.page_content
        assert found.metadata["coverage"] < 0.2

    def test_the_tool_skims(self):
        tool = create_reading_tool(sources={"log": TEXT}, config=SKIM)
        arguments = {"questions": [QUESTION], "source": "log"}

        message = tool.invoke({"name": "read", "args": arguments, "id": "1", "type": "tool_call"})

        assert FACT in message.content
        assert message.artifact["coverage"] < 0.2
        assert message.artifact["skipped"]

    def test_a_node_of_a_host_skims(self):
        class Host(TypedDict, total=False):
            question: str
            document: str
            answer: str

        graph = StateGraph(Host)
        graph.add_node("read", MemAgentNode(config=SKIM))
        graph.add_edge(START, "read")
        agent = graph.compile()

        events = [
            part["event"]
            for part in agent.stream({"question": QUESTION, "document": TEXT}, stream_mode="custom")
        ]

        assert events.count("skip") > 10 > events.count("chunk")

    def test_a_batch_skims(self):
        agent = create_memagent(Finding(), config=SKIM)

        (result,) = read_many(agent, [{"id": "1", "question": QUESTION, "document": TEXT}])

        assert FACT in result.output["answer"]
        assert result.output["coverage"] < 0.2

    def test_the_built_in_reader_reads_on_when_the_words_of_the_question_are_not_there(self):
        out = create_memagent(config=SKIM).invoke(
            {"question": "Which zebra swallowed the golden trumpet near lines?", "document": TEXT}
        )

        assert out["coverage"] == 1
