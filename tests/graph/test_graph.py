import asyncio
import io
import json
from statistics import fmean

import pytest
from fixed_readers import ChainReader, QuotingReader, ScriptedReader, chain, numbered
from langchain_core.tracers.base import BaseTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from typing_extensions import TypedDict

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import (
    ConfigurationError,
    ContextLengthError,
    EmptyDocumentError,
    EmptyReplyError,
    ModelError,
    QuestionError,
    SourceChangedError,
    SourceError,
    TransientModelError,
)
from memagent_graph.evidence.places import Memory
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.base import Update
from memagent_graph.testing import ScriptedChatModel
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

SMALL = ReadingConfig(chunk_tokens=50, retry_interval=0.001)
TEXT = numbered(100)
ASKED = {"question": "What is where?", "document": TEXT}
THREAD = {"configurable": {"thread_id": "1"}}


def ask(reader, document=TEXT, store=None, **changes):
    agent = create_memagent(reader, config=SMALL.model_copy(update=changes), store=store)
    return agent.invoke({"question": "?", "document": document})


def read_through(document: str = TEXT) -> str:
    reader = ChainReader()
    ask(reader, document)
    memory = ""
    for start, end in reader.spans:
        memory = chain(memory, document[start:end])
    return memory


def test_every_chunk_is_folded_once_in_order_and_the_answer_comes_from_the_last_memory():
    reader = ChainReader()

    out = ask(reader)

    starts, ends = zip(*reader.spans, strict=True)
    assert starts == (0, *ends[:-1])
    assert ends[-1] == len(TEXT)
    assert len(reader.spans) > 10
    assert out["answer"] == out["memory"] == read_through()
    assert out["usage"]["calls"] == out["usage"]["output_tokens"] == len(reader.spans) + 1
    assert out["usage"]["input_tokens"] == out["usage"]["document_tokens"] + 1
    assert (out["coverage"], out["stopped"], out["reader"]) == (1.0, "end", "chain")


def test_the_next_chunk_is_cut_while_the_model_reads_this_one():
    class Watched(TextSource):
        def read(self, start, size):
            reads.append(start)
            return super().read(start, size)

    class Waiting(ChainReader):
        async def update(self, step, **options):
            update, chunk = await super().update(step, **options), step.chunk
            if chunk.end < len(TEXT):
                for _ in range(2000):
                    if chunk.end in reads:
                        break
                    await asyncio.sleep(0.001)
                ahead.append(chunk.end in reads)
            return update

    reads, ahead = [], []

    out = ask(Waiting(), Watched(TEXT))

    assert ahead
    assert all(ahead)
    assert all(reads.count(start) == 1 for start in reads if start)  # and is not cut again
    assert out["memory"] == read_through()


async def test_sync_async_stream_and_batch_give_the_same_reading():
    agent = create_memagent(ChainReader(), config=SMALL)
    expected = read_through()

    batch = await agent.abatch([ASKED] * 3)
    parts = [part async for part in agent.astream(ASKED, stream_mode="values")]

    assert (await agent.ainvoke(ASKED))["answer"] == expected
    assert [out["answer"] for out in batch] == [expected] * 3
    assert [out["answer"] for out in agent.batch([ASKED] * 2)] == [expected] * 2
    assert parts[-1]["answer"] == expected
    assert sum(part.get("document") is not None for part in parts) <= 1
    assert not any("chunk" in part for part in parts)


def test_events_tell_how_far_reading_got_and_what_changed_in_memory():
    agent = create_memagent(QuotingReader(keep=2), config=SMALL, name="reader-7")

    events = list(agent.stream(ASKED, stream_mode="custom"))

    opened, *chunks, answer = events
    assert (opened["event"], opened["length"], opened["agent"]) == ("opened", len(TEXT), "reader-7")
    assert [event["chunk"] for event in chunks] == list(range(1, len(chunks) + 1))
    assert chunks[-1]["position"] == len(TEXT)
    assert chunks[-1]["chunks"] == len(chunks)
    assert abs(chunks[0]["chunks"] - len(chunks)) <= len(chunks) / 4
    assert chunks[2]["added"][0] in TEXT
    assert chunks[2]["removed"] == chunks[0]["added"]
    assert answer["event"] == "answer"
    assert answer["coverage"] == 1.0


@pytest.mark.slow
def test_a_recursion_limit_of_25_reads_hundreds_of_chunks_in_batch_and_under_a_host():
    keys = dict.fromkeys(("question", "document", "answer"), str)

    agent = create_memagent(ChainReader(), config=ReadingConfig(chunk_tokens=20))
    builder = StateGraph(TypedDict("Host", keys, total=False)).add_node("read", agent)
    builder.add_edge(START, "read")
    document = numbered(700)
    asked = {"question": "?", "document": document}

    events = list(agent.stream(asked, {"recursion_limit": 25}, stream_mode="custom"))
    host = builder.compile().invoke(asked, {"recursion_limit": 25})

    assert events[-2]["chunk"] >= 350
    assert host["answer"] == events[-1]["answer"] == agent.batch([asked])[0]["answer"]


def test_the_graph_draws_as_the_state_machine_that_it_is():
    drawn = create_memagent(ChainReader()).get_graph()

    edges = {(edge.source, edge.target) for edge in drawn.edges}
    assert edges == {
        ("__start__", "open_document"),
        ("open_document", "overwrite_memory"),
        ("open_document", "write_answer"),  # the store has read it all before
        ("overwrite_memory", "overwrite_memory"),
        ("overwrite_memory", "write_answer"),
        ("write_answer", "__end__"),
        ("write_answer", "overwrite_memory"),  # a user edited a version before the last
        ("open_document", "question"),  # for several, each with these steps
        ("question", "__end__"),
    }


class TestBudgets:
    def test_max_calls_counts_the_answer_and_reports_what_was_covered(self):
        reader = ChainReader()

        out = ask(reader, max_calls=4)

        assert (len(reader.spans), reader.answers, out["usage"]["calls"]) == (3, 1, 4)
        assert out["stopped"] == "max_calls"
        assert out["coverage"] == pytest.approx(reader.spans[-1][1] / len(TEXT))

    def test_a_deadline_ends_even_a_call_that_hangs_and_answers_from_what_was_read(self):
        out = ask(ChainReader(delay=3600), deadline=0.5)

        assert out["stopped"] == "deadline"
        assert (out["coverage"], out["memory"]) == (0.0, "")

    def test_a_window_that_the_model_cannot_hold_is_refused_with_a_budget_that_fits(self):
        with pytest.raises(ConfigurationError, match="8328.*holds 7000.*chunk_tokens to 3672"):
            create_memagent(ScriptedReader(window_tokens=7000))

    @pytest.mark.parametrize(
        "budgets", [{"chunk_tokens": 0}, {"memory_tokens": -1}, {"max_calls": 1}, {"deadline": 0}]
    )
    def test_budgets_that_make_no_sense_are_refused(self, budgets):
        with pytest.raises(ValueError, match=next(iter(budgets))):
            ReadingConfig(**budgets)


class Briefer(ScriptedReader):
    shortens = True

    def __init__(self, *script):
        super().__init__(*script)
        self.shorter = []

    async def update(self, step, *, config=None):
        self.shorter.append(step.shorter)
        return await super().update(step, config=config)


LONG = Update(Memory("Far too long a memory. " * 40))


class TestSafety:
    @pytest.mark.parametrize(
        "failures",
        [["", "  "], [TransientModelError("busy", retry_after=0.001)] * 5],
        ids=["empty replies", "errors that may pass"],
    )
    def test_what_fails_is_repeated_with_the_same_chunk_and_the_same_memory(self, failures):
        reader = ScriptedReader("kept", *failures, "kept on")

        out = ask(reader, max_calls=3)

        assert out["memory"] == "kept on"
        assert len(set(reader.calls[1:])) == 1
        assert len(reader.calls) == len(failures) + 2

    @pytest.mark.parametrize("name", ["1", 1])
    def test_an_error_that_lasts_names_the_chunk_and_the_thread_goes_on_at_it(self, name):
        thread = {"configurable": {"thread_id": name}}
        reader = ScriptedReader("a", "b", *[TransientModelError("busy")] * 6)
        agent = create_memagent(reader, config=SMALL, checkpointer=InMemorySaver())

        with pytest.raises(ModelError, match="chunk 3 failed after 6 attempts: busy") as caught:
            agent.invoke(ASKED, thread)

        assert caught.value.chunk == 3
        assert not isinstance(caught.value, TransientModelError)
        assert agent.get_state(thread).values["memory"] == "b"
        failed = reader.calls[-1]
        out = agent.invoke(None, thread)
        assert reader.calls[8] == failed
        assert out["memory"].startswith("b")
        assert out["coverage"] == 1.0

    def test_a_chunk_too_long_for_the_model_is_halved_within_one_step(self):
        class Narrow(ScriptedReader):
            async def update(self, step, **options):
                if step.chunk.tokens > 15:
                    raise ContextLengthError("too long")
                return await super().update(step, **options)

        reader = Narrow()
        config = SMALL.model_copy(update={"memory_tokens": 5000})
        agent = create_memagent(reader, config=config)

        events = list(agent.stream(ASKED, stream_mode="custom"))

        chunks = [event for event in events if event["event"] == "chunk"]
        assert "".join(reader.calls).split() == TEXT.split()
        assert len(reader.calls) > 2 * len(chunks)

    def test_a_single_code_point_that_does_not_fit_is_an_error_that_names_the_chunk(self):
        with pytest.raises(ContextLengthError, match="chunk 1 failed"):
            ask(ScriptedReader(*[ContextLengthError("too long")] * 50), "abcdef")

    def test_a_memory_over_its_budget_is_cut_at_a_sentence_end_and_state_and_versions_say_so(self):
        reader = ScriptedReader(Update(Memory("This is short. " * 40)), "short again")
        config = SMALL.model_copy(update={"memory_tokens": 30, "max_calls": 3})
        store, saver = InMemoryStore(), InMemorySaver()
        agent = create_memagent(reader, config=config, store=store, checkpointer=saver)

        out = agent.invoke(ASKED, THREAD)
        again = create_memagent(reader, config=config, store=store).invoke(ASKED)

        assert out["memory"] == "short again"
        assert agent.get_state(THREAD).values["progress"]["cut"] is True
        assert "budget of 30 tokens and lost its end" in " ".join(out["warnings"])
        assert again["warnings"] == out["warnings"]
        last, first = MemoryBank(store).history(out["version"])
        assert (last.cut, first.cut) == (True, True)
        assert first.text.endswith("short.")
        assert 0 < len(first.text) < 200

    @pytest.mark.parametrize(
        ("first", "asked"),
        [
            (LONG, True),
            (Update(Memory("Its end is mis"), unfinished=True), True),
            (Update(Memory("It fits.")), False),
            (Update(None), False),
        ],
    )
    def test_a_memory_over_its_budget_is_asked_for_once_more_before_it_is_cut(self, first, asked):
        reader = Briefer(first, "Brief.")

        out = ask(reader, "One.", memory_tokens=30)

        assert reader.shorter == ([False, True] if asked else [False])
        assert out["usage"]["calls"] == len(reader.shorter) + bool(out["memory"])
        assert out["warnings"] == []
        assert not asked or out["memory"] == "Brief."

    @pytest.mark.parametrize("second", [LONG, EmptyReplyError("nothing")])
    def test_what_is_still_too_long_then_is_cut(self, second):
        reader = Briefer(LONG, second)

        out = ask(reader, "One.", memory_tokens=30)

        assert reader.shorter == [False, True]
        assert out["memory"].startswith("Far too long")
        assert 0 < EstimatingTokenizer().count(out["memory"]) <= 30
        assert "lost its end" in out["warnings"][0]
        assert out["usage"]["calls"] == 3

    def test_white_space_is_read_without_a_call(self):
        reader = ScriptedReader()

        out = ask(reader, "start." + " \n" * 5000 + "end.")

        assert len(reader.calls) <= 3
        assert out["coverage"] == 1.0

    @pytest.mark.parametrize("error", [KeyboardInterrupt, asyncio.CancelledError])
    def test_an_interrupt_is_never_taken_for_a_failed_call(self, error):
        reader = ScriptedReader("a", error())

        with pytest.raises(BaseException) as caught:  # noqa: PT011 - LangGraph renames one
            ask(reader)

        assert not isinstance(caught.value, ModelError)
        assert len(reader.calls) == 2


class TestBadInput:
    @pytest.mark.parametrize(
        ("asked", "error", "says"),
        [
            ({"question": "  \n", "document": "x"}, QuestionError, "empty"),
            ({"question": None, "document": "x"}, QuestionError, "empty"),
            ({"document": "x"}, QuestionError, "The question is empty"),
            ({"question": "why " * 5000, "document": "x"}, QuestionError, "budget is 1024"),
            ({"question": ["Who?"], "document": "x"}, QuestionError, "a string, not list: ask sev"),
            ({"questions": "Who?", "document": "x"}, QuestionError, "are a list of strings"),
            ({"questions": ["Who?", 7], "document": "x"}, QuestionError, "are a list of strings"),
            (["Who?"], QuestionError, "The input of a reading is"),
            ({"question": "why?"}, SourceError, "nothing to read"),
            ({"question": "why?", "document": " \n\t"}, EmptyDocumentError, None),
        ],
    )
    async def test_what_cannot_be_read_is_refused_with_what_is_right(self, asked, error, says):
        agent = create_memagent(ChainReader(), config=SMALL)

        with pytest.raises(error, match=says):
            agent.invoke(asked)
        with pytest.raises(error, match=says):
            await agent.ainvoke(asked)

    def test_a_file_that_changes_while_it_is_read_stops_the_reading(self, tmp_path):
        file = tmp_path / "notes.txt"
        file.write_text(TEXT)
        agent = create_memagent(ChainReader(), config=SMALL)
        stream = agent.stream({"question": "?", "document": file}, stream_mode="custom")
        next(stream)
        next(stream)

        file.write_text(TEXT.replace("7", "8") + "more")

        with pytest.raises(SourceChangedError, match=r"notes\.txt"):
            list(stream)


def begin(saver, document=TEXT, again=lambda: None):
    """Stop the thread before its third step; `again` gives a stream once more."""
    agent = create_memagent(
        ChainReader(), config=SMALL, checkpointer=saver, interrupt_before=["overwrite_memory"]
    )
    agent.invoke({"question": "?", "document": document}, THREAD)
    for _ in range(2):
        agent.invoke(None, THREAD, context={"document": again()})
    assert agent.get_state(THREAD).next == ("overwrite_memory",)


class TestResume:
    def test_an_edited_memory_is_what_reading_goes_on_from(self):
        reader, saver = ChainReader(), InMemorySaver()
        begin(saver)
        agent = create_memagent(reader, config=SMALL, checkpointer=saver)

        agent.update_state(THREAD, {"memory": "edited"})
        out = agent.invoke(None, THREAD)

        expected = "edited"
        for start, end in reader.spans:
            expected = chain(expected, TEXT[start:end])
        assert out["memory"] == expected
        assert reader.spans[-1][1] == len(TEXT)

    @pytest.mark.parametrize("how", ["context", "update"])
    def test_a_stream_is_read_with_a_checkpointer_and_given_again_to_go_on(self, how):
        saver = InMemorySaver()
        begin(saver, io.StringIO(TEXT), lambda: io.StringIO(TEXT))
        agent = create_memagent(ChainReader(), config=SMALL, checkpointer=saver)

        with pytest.raises(SourceError, match="context="):
            agent.invoke(None, THREAD)
        if how == "context":
            out = agent.invoke(None, THREAD, context={"document": io.StringIO(TEXT)})
        else:
            out = agent.invoke(Command(update={"document": TEXT}), THREAD)

        assert out["answer"] == read_through()


def test_checkpoints_are_plain_small_and_free_of_warnings(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", "true")
    with SqliteSaver.from_conn_string(str(tmp_path / "c.sqlite")) as saver:
        agent = create_memagent(QuotingReader(), config=SMALL, checkpointer=saver)
        agent.invoke(ASKED, THREAD)

        states = [state.values for state in agent.get_state_history(THREAD)]

    assert not caplog.records
    json.dumps(states[:-1])
    assert not any("chunk" in state for state in states)


def bytes_per_chunk(saver: SqliteSaver) -> list[int]:
    """Payload of the checkpoint and the writes of each chunk."""
    steps = saver.conn.execute(
        """SELECT length(checkpoint) + length(metadata) + coalesce((
               SELECT sum(length(value)) FROM writes w WHERE w.checkpoint_id = c.checkpoint_id), 0)
           FROM checkpoints c ORDER BY checkpoint_id"""
    ).fetchall()
    return [size for (size,) in steps][3:]


@pytest.mark.slow
def test_a_checkpoint_does_not_grow_with_the_document(tmp_path):
    file = tmp_path / "long.txt"
    file.write_text(numbered(830))
    with SqliteSaver.from_conn_string(str(tmp_path / "c.sqlite")) as saver:
        config = ReadingConfig(chunk_tokens=20)
        agent = create_memagent(QuotingReader(), config=config, checkpointer=saver)
        out = agent.invoke({"question": "What?", "document": file}, THREAD)

        sizes = bytes_per_chunk(saver)

    memory = len(out["memory"].encode())
    places = [{k: v for k, v in place.items() if v is not None} for place in out["evidence"]]
    evidence = len(json.dumps(places).encode())
    allowed = 5120 + 2 * (len("What?") + evidence) + 3 * memory
    assert len(sizes) >= 400
    assert fmean(sizes[300:400]) <= fmean(sizes[10:110]) + 128  # longer numbers, nothing else
    assert max(sizes[10:400]) <= allowed


@pytest.mark.parametrize(
    ("question", "document", "reply"),
    [
        ("Who is the keeper?", "The keeper \ud83d is Odo.", "The keeper is Odo."),
        ("Who \udfff is the keeper?", "The keeper is Odo.", "The keeper is Odo."),
        ("Who is the keeper?", "The keeper is Odo.", "The keeper \ud83d is Odo."),
    ],
)
def test_half_a_surrogate_pair_ends_no_reading(openai_server, question, document, reply):
    choice = {"index": 0, "message": {"role": "assistant", "content": reply}}
    completion = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    done = {**completion, "choices": [{**choice, "finish_reason": "stop"}]}  # without its usage
    openai_server.script = [json.dumps(done).encode()] * 2
    model = ChatEndpoint(model="small", base_url=openai_server.base_url)

    out = create_memagent(model).invoke({"question": question, "document": document})

    assert out["answer"] == reply.replace("\ud83d", "\ufffd")
    start, end = out["evidence"][0]["start"], out["evidence"][0]["end"]
    assert document[start:end] == document


class Traced(BaseTracer):
    def _persist_run(self, run):
        self.root = run


def test_a_trace_has_the_text_of_a_chunk_in_the_call_of_the_model_alone():
    model = ScriptedChatModel("Ann signed the lease.")
    asked, told = {"question": "Who signed?"}, {"document": "Ann signed the lease in ZANZIBAR."}

    create_memagent(model).invoke(asked, {"callbacks": [tracer := Traced()]}, context=told)

    runs = [tracer.root]
    for run in runs:
        runs.extend(run.child_runs)
    having = {run.name for run in runs if "ZANZIBAR" in f"{run.inputs} {run.outputs}"}
    assert "overwrite_memory" in {run.name for run in runs}
    assert having == {"ScriptedChatModel"}
