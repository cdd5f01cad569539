"""Which conversations are recorded, whatever happens in a run; with a scripted chat model."""

import asyncio

import pytest
from langchain_core.messages import AIMessage, convert_to_openai_messages
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.store.memory import InMemoryStore
from tokenizers import Tokenizer, models

from memagent_graph import MemoryBank, ReadingConfig, create_memagent
from memagent_graph.errors import ContextLengthError, ModelError, TraceError, TransientModelError
from memagent_graph.rl.recorder import TraceRecorder
from memagent_graph.rl.traces import (
    Conversation,
    End,
    JSONLinesSink,
    ListSink,
    RecordedCall,
    join,
    load,
)
from memagent_graph.testing import ScriptedChatModel

CONFIG = ReadingConfig(chunk_tokens=20, retry_interval=0.001, max_attempts=3)
TOKENIZER = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
ASKED = {
    "question": "How many?",
    "document": "".join(f"Line {n} says {n * 7}.\n" for n in range(12)),
}


class Told(ScriptedChatModel):
    """Tells token ids: those of a reply are its number and its length.

    A step of the script is raised if it is an error, else it is the next reply.
    """

    tells: bool = True
    temperature: float = 1.0
    top_k: int = 20

    def __init__(self, *script, **fields):
        super().__init__(self.reply, **fields)
        self._steps = [*script]

    @property
    def _identifying_params(self):
        return {"temperature": self.temperature, "top_p": None, "sampling": {"top_k": self.top_k}}

    def reply(self, messages):
        number = len(self.calls) - 1
        text = self._steps.pop(0) if self._steps else f"Reply {number}."
        if isinstance(text, Exception):
            return text
        told = {
            "prompt_token_ids": [len(messages[0].text)],
            "token_ids": [number, len(text)],
            "logprobs": [-0.5, -0.25],
        }
        return AIMessage(text, response_metadata={"generation": told} if self.tells else {})


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def recorder(sink):
    return TraceRecorder(sink, tokenizer=TOKENIZER)


def recorded(sink):
    """The conversations that were recorded, whose rollout is whole."""
    loaded = join(sink.take())
    assert not loaded.skipped
    (rollout,) = loaded.rollouts
    return rollout.conversations


def numbers(sink):
    """The numbers of the replies in them."""
    return [one.completion_ids[0] for one in recorded(sink)]


def test_each_reply_that_became_a_memory_is_recorded_and_the_answer(sink, recorder):
    model = Told()

    out = create_memagent(model, config=CONFIG).invoke(ASKED, recorder.config())

    assert len(model.calls) > 3
    assert numbers(sink) == list(range(len(model.calls)))
    assert out["answer"] == f"Reply {len(model.calls) - 1}."


def test_it_is_recorded_what_a_conversation_read_and_whether_memory_changed(sink, recorder):
    reader = Told("One.", "One.", "Two.")
    create_memagent(reader, config=CONFIG).invoke(ASKED, recorder.config())

    *updates, answer = join(sink.take()).rollouts[0].conversations
    assert updates[0].start == 0
    assert updates[-1].end == len(ASKED["document"])
    assert [one.end for one in updates[:-1]] == [one.start for one in updates[1:]]
    assert [one.changed for one in updates[:3]] == [True, False, True]
    assert (answer.start, answer.end, answer.changed) == (None, None, None)


def test_a_reply_that_closes_a_gate_is_a_conversation_like_any_other(sink, recorder):
    config = CONFIG.model_copy(update={"update_gate": True, "max_calls": 4})
    model = Told("One.", "unchanged", "Two.")

    out = create_memagent(model, config=config).invoke(ASKED, recorder.config())

    *updates, _ = join(sink.take()).rollouts[0].conversations
    assert [one.changed for one in updates] == [True, False, True]
    assert [one.completion_ids[0] for one in updates] == [0, 1, 2]
    assert (out["memory"], out["usage"]["gated"]) == ("Two.", 1)


BUSY, TOO_LONG = TransientModelError("busy"), ContextLengthError("too long")


@pytest.mark.parametrize(
    ("script", "kept", "rest"),
    [
        (["First.", BUSY, BUSY], [0], 3),
        (["First.", "", "<think>So far", "Fourth."], [0], 3),
        ([TOO_LONG, "Half 1.", "", TOO_LONG, "Half 3.", "Half 4."], [4, 5], 6),
    ],
    ids=["failed", "refused by the graph", "both halves of a chunk"],
)
def test_of_attempts_only_those_count_that_became_a_memory(sink, recorder, script, kept, rest):
    model = Told(*script)

    create_memagent(model, config=CONFIG).invoke(ASKED, recorder.config())

    assert numbers(sink) == [*kept, *range(rest, len(model.calls))]


def test_every_call_is_on_record_and_can_be_made_again_failed_or_refused_or_without_tokens(
    sink, tmp_path
):
    file = JSONLinesSink(tmp_path / "calls.jsonl")
    recorder = TraceRecorder(file)  # of a model whose tokens nobody reports
    model = Told("First.", TransientModelError("busy"), "", ModelError("broken"), tells=False)

    with pytest.raises(ModelError):
        create_memagent(model, config=CONFIG).invoke(ASKED, recorder.config(rollout="r1"))
    create_memagent(Told(tells=False), config=CONFIG).invoke(ASKED, recorder.config(rollout="r2"))
    file.close()

    loaded = load(tmp_path / "calls.jsonl")
    failed = [call for call in loaded.calls if call.rollout == "r1"]
    assert [call.reply for call in failed] == ["First.", None, "", None]
    assert [call.error for call in failed] == [
        *(None, "TransientModelError: busy", None, "ModelError: broken")
    ]
    assert [call.prompt for call in failed] == [
        convert_to_openai_messages(call.messages) for call in model.calls
    ]
    assert all(call.seconds >= 0 and call.sampling["temperature"] == 1 for call in failed)
    assert len(loaded.calls) > len(failed)
    assert not loaded.rollouts
    assert loaded.skipped == {"rollout recorded without a tokenizer": 1}
    assert Told("Again.").invoke(failed[0].prompt).text == "Again."


@pytest.mark.parametrize(("second", "kept"), [("Brief.", 1), ("", 0)])
def test_of_a_memory_that_is_asked_for_once_more_only_what_became_one_counts(
    sink, recorder, second, kept
):
    model = Told("Far too long. " * 999, second)

    create_memagent(model, config=CONFIG).invoke(
        {"question": "How?", "document": "One line."}, recorder.config()
    )

    assert numbers(sink) == [kept, 2]


def test_a_run_that_fails_leaves_a_rollout_without_an_end(sink, recorder):
    model = Told("First.", ModelError("broken"))

    with pytest.raises(ModelError):
        create_memagent(model, config=CONFIG).invoke(ASKED, recorder.config(rollout="r1"))

    loaded = join(sink.take())
    assert not loaded.rollouts
    assert loaded.skipped == {"rollout without an end": 1}
    create_memagent(Told(), config=CONFIG).invoke(ASKED, recorder.config(rollout="r1"))
    assert isinstance(sink.take()[-1], End)  # its id is free again


def test_what_is_known_of_the_rollout_is_in_its_records(sink, recorder):
    recorder.policy = 7
    config = recorder.config(rollout="r1", group="g1", sample="q1")

    create_memagent(Told(), config=CONFIG).invoke(ASKED, config)

    *conversations, end = [one for one in sink.take() if not isinstance(one, RecordedCall)]
    assert all(isinstance(one, Conversation) for one in conversations)
    assert {(one.rollout, one.group, one.sample) for one in conversations} == {("r1", "g1", "q1")}
    assert {one.policy for one in conversations} == {7}
    sampling = {"temperature": 1.0, "top_p": None, "top_k": 20, "max_tokens": 1024}
    assert conversations[0].sampling == sampling
    assert end == End("r1", len(conversations), end.answer)


def test_feedback_comes_when_it_comes(sink, recorder):
    create_memagent(Told(), config=CONFIG).invoke(ASKED, recorder.config(rollout="r1"))
    recorder.feedback("r1", 0.25)
    recorder.feedback("r1", 0.75)

    assert join(sink.take()).rollouts[0].reward == 0.75
    with pytest.raises(TraceError, match="'r1'"):
        recorder.feedback("r1", float("nan"))


def test_stored_memories_are_not_reused_in_a_recorded_run(sink, recorder):
    model, store = Told(), InMemoryStore()
    agent = create_memagent(model, config=CONFIG, store=store)
    agent.invoke(ASKED)
    calls = len(model.calls)
    agent.invoke(ASKED)
    assert len(model.calls) == calls + 1  # all but the answer was found

    agent.invoke(ASKED, recorder.config())

    assert numbers(sink) == list(range(calls + 1, 2 * calls + 1))


def test_a_reading_that_begins_with_a_stored_memory_is_not_recorded_and_says_so(sink, recorder):
    agent = create_memagent(Told(temperature=0.0), config=CONFIG, store=InMemoryStore())
    version = agent.invoke(ASKED)["version"]

    with pytest.warns(RuntimeWarning, match="stored memory"):
        agent.invoke(ASKED, {"callbacks": [recorder]})
    agent.invoke({"question": "How many?", "version": version}, recorder.config())

    assert sink.take() == []
    assert recorder.skipped == {"reading that began with a stored memory": 2}


@pytest.mark.parametrize("given", [{"segments": 2}, {"segments": 3}])
def test_of_segments_all_that_became_a_memory_is_recorded(sink, recorder, given):
    model = Told()
    config = CONFIG.model_copy(update=given)

    create_memagent(model, config=config).invoke(ASKED, recorder.config())

    found = recorded(sink)
    assert sorted(one.completion_ids[0] for one in found) == list(range(len(model.calls)))
    assert [one.final for one in found] == [False] * (len(found) - 1) + [True]
    merges = [one for one in found if one.start is None and not one.final]
    assert len(merges) == 1
    read = [one for one in found if one.start is not None]
    starts = [one.segment for one in read]
    assert starts == sorted(starts)
    assert len({*starts}) > 1
    spans = [(one.start, one.end) for one in read]
    assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])]
    assert spans[-1][1] == len(ASKED["document"])
    assert not recorder.skipped


def test_an_empty_reply_to_a_merge_does_not_count_wherever_it_came(sink, recorder):
    config = CONFIG.model_copy(update={"segments": 1000, "memory_tokens": 8, "answer_tokens": 8})
    empty = []

    class Hollow(Told):
        def reply(self, messages):
            text = messages[0].text
            if "Line" not in text and text not in self.prompts[:-1] and "How many?" in text:
                empty.append(len(self.calls) - 1)
                self._steps.append(" ")
            return super().reply(messages)

    model = Hollow()

    create_memagent(model, config=config).invoke(ASKED, recorder.config())

    assert len(empty) > 3  # merges, several at once, and the answer
    assert {*numbers(sink)} == {*range(len(model.calls))} - {*empty}


async def test_a_reading_begun_again_counts_from_where_it_began_again(sink, recorder):
    store = InMemoryStore()
    model = Told()
    agent = create_memagent(model, config=CONFIG, store=store)
    other = create_memagent(Told(), config=CONFIG, store=store)
    begun = asyncio.Event()

    class Racing(Told):
        async def _agenerate(self, messages, stop=None, run_manager=None, **options):
            if len(self.calls) == 1:  # meanwhile another reading moves the named memory on
                begun.set()
                await other.ainvoke({**ASKED, "memory_name": "ann"})
            return self._generate(messages)

    model = Racing()
    agent = create_memagent(model, config=CONFIG, store=store)

    out = await agent.ainvoke({**ASKED, "memory_name": "ann"}, recorder.config())

    assert begun.is_set()
    (rollout,) = join(sink.take()).rollouts
    found = [one.completion_ids[0] for one in rollout.conversations]
    chunks = (len(model.calls) - 1) // 2
    assert found == list(range(chunks, len(model.calls)))
    assert MemoryBank(store).head("ann").text == out["memory"]


def test_a_resumed_reading_is_not_recorded_and_says_so(sink, recorder):
    agent = create_memagent(
        Told(), config=CONFIG, checkpointer=InMemorySaver(), interrupt_before=["write_answer"]
    )
    thread = {"configurable": {"thread_id": "1"}}
    config = recorder.config(rollout="r1")
    config["configurable"] |= thread["configurable"]
    agent.invoke(ASKED, config)

    with pytest.warns(RuntimeWarning, match="resumed"):
        agent.invoke(None, config)

    assert recorder.skipped == {"reading that was resumed": 1}
    assert join(sink.take()).skipped == {"rollout without an end": 1}


async def test_two_readings_at_once_with_one_rollout_id_are_refused(recorder):
    agent = create_memagent(Told(), config=CONFIG)

    results = await agent.abatch([ASKED] * 3, recorder.config(rollout="r1"), return_exceptions=True)

    assert sum(isinstance(one, TraceError) for one in results) == 2
    assert "'r1'" in str(next(one for one in results if isinstance(one, TraceError)))


async def test_one_config_without_an_id_serves_a_whole_batch(sink, recorder):
    agent = create_memagent(Told(), config=CONFIG)

    await agent.abatch([ASKED] * 5, recorder.config())

    rollouts = join(sink.take()).rollouts
    assert len({one.rollout for one in rollouts}) == 5
    assert len({one.group for one in rollouts}) == 1


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_model_that_tells_no_token_ids_is_refused(sink, recorder, asynchronous):
    agent = create_memagent(Told(tells=False), config=CONFIG)

    with pytest.raises(TraceError, match="logprobs=True"):
        if asynchronous:
            await agent.ainvoke(ASKED, recorder.config())
        else:
            await asyncio.to_thread(agent.invoke, ASKED, recorder.config())

    assert [type(one) for one in sink.take()] == [RecordedCall]


def test_a_reader_without_a_model_is_refused(recorder):
    agent = create_memagent("extractive", config=CONFIG)

    with pytest.raises(TraceError, match="chat model"):
        agent.invoke(ASKED, recorder.config())
