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
        told = {"prompt_token_ids": [len(messages[0].text)], "token_ids": [number, len(text)]}
        told["logprobs"] = [-0.5, -0.25]
        return AIMessage(text, response_metadata={"generation": told} if self.tells else {})


@pytest.fixture
def sink():
    return ListSink()


@pytest.fixture
def recorder(sink):
    return TraceRecorder(sink, tokenizer=TOKENIZER)


def read(model, recorder, config=CONFIG, **known):
    return create_memagent(model, config=config).invoke(ASKED, recorder.config(**known))


def recorded(sink):
    """The conversations that were recorded, whose rollout is whole."""
    loaded = join(sink.take())
    assert not loaded.skipped
    (rollout,) = loaded.rollouts
    return rollout.conversations


def numbers(sink):
    return [one.completion_ids[0] for one in recorded(sink)]


def test_each_reply_that_became_a_memory_is_recorded_and_the_answer(sink, recorder):
    out = read(model := Told(), recorder)

    assert len(model.calls) > 3
    assert numbers(sink) == list(range(len(model.calls)))
    assert out["answer"] == f"Reply {len(model.calls) - 1}."


def test_it_is_recorded_what_a_conversation_read_and_whether_memory_changed(sink, recorder):
    read(Told("One.", "One.", "Two."), recorder)

    *updates, answer = recorded(sink)
    assert (updates[0].start, updates[-1].end) == (0, len(ASKED["document"]))
    assert [one.end for one in updates[:-1]] == [one.start for one in updates[1:]]
    assert [one.changed for one in updates[:3]] == [True, False, True]
    assert (answer.start, answer.end, answer.changed) == (None, None, None)


def test_a_reply_that_closes_a_gate_is_a_conversation_like_any_other(sink, recorder):
    config = CONFIG.model_copy(update={"update_gate": True, "max_calls": 4})

    out = read(Told("One.", "unchanged", "Two."), recorder, config)

    *updates, _ = recorded(sink)
    told = [(one.completion_ids[0], one.changed) for one in updates]
    assert told == [(0, True), (1, False), (2, True)]
    assert (out["memory"], out["usage"]["gated"]) == ("Two.", 1)


BUSY, TOO_LONG = TransientModelError("busy"), ContextLengthError("too long")


@pytest.mark.parametrize(("script", "kept", "rest"), [
    (["First.", BUSY, BUSY], [0], 3), (["First.", "", "<think>So far", "Fourth."], [0], 3),
    ([TOO_LONG, "Half 1.", "", TOO_LONG, "Half 3.", "Half 4."], [4, 5], 6),
], ids=["failed", "refused by the graph", "both halves of a chunk"])  # fmt: skip
def test_of_attempts_only_those_count_that_became_a_memory(sink, recorder, script, kept, rest):
    read(model := Told(*script), recorder)

    assert numbers(sink) == [*kept, *range(rest, len(model.calls))]


def test_every_call_is_on_record_and_can_be_made_again_failed_refused_or_without_tokens(tmp_path):
    file = JSONLinesSink(tmp_path / "calls.jsonl")
    recorder = TraceRecorder(file)  # of a model whose tokens nobody reports
    model = Told("First.", TransientModelError("busy"), "", ModelError("broken"), tells=False)

    with pytest.raises(ModelError):
        read(model, recorder, rollout="r1")
    read(Told(tells=False), recorder, rollout="r2")
    file.close()

    loaded = load(tmp_path / "calls.jsonl")
    failed = [call for call in loaded.calls if call.rollout == "r1"]
    assert [(call.reply, call.error) for call in failed] == [
        *(("First.", None), (None, "TransientModelError: busy")),
        *(("", None), (None, "ModelError: broken")),
    ]
    asked = [convert_to_openai_messages(call.messages) for call in model.calls]
    assert [call.prompt for call in failed] == asked
    assert all(call.seconds >= 0 and call.sampling["temperature"] == 1 for call in failed)
    assert len(loaded.calls) > len(failed)
    assert not loaded.rollouts
    assert loaded.skipped == {"rollout recorded without a tokenizer": 1}
    assert Told("Again.").invoke(failed[0].prompt).text == "Again."


@pytest.mark.parametrize(("second", "kept"), [("Brief.", 1), ("", 0)])
def test_of_a_memory_that_is_asked_for_once_more_only_what_became_one_counts(
    sink, recorder, second, kept
):
    agent = create_memagent(Told("Far too long. " * 999, second), config=CONFIG)

    agent.invoke({"question": "How?", "document": "One line."}, recorder.config())

    assert numbers(sink) == [kept, 2]


def test_a_run_that_fails_leaves_a_rollout_without_an_end(sink, recorder):
    with pytest.raises(ModelError):
        read(Told("First.", ModelError("broken")), recorder, rollout="r1")

    loaded = join(sink.take())
    assert not loaded.rollouts
    assert loaded.skipped == {"rollout without an end": 1}
    read(Told(), recorder, rollout="r1")
    assert isinstance(sink.take()[-1], End)  # its id is free again


def test_what_is_known_of_the_rollout_is_in_its_records(sink, recorder):
    recorder.policy = 7

    read(Told(), recorder, rollout="r1", group="g1", sample="q1")

    *conversations, end = [one for one in sink.take() if not isinstance(one, RecordedCall)]
    assert {type(one) for one in conversations} == {Conversation}
    known = {(one.rollout, one.group, one.sample, one.policy) for one in conversations}
    assert known == {("r1", "g1", "q1", 7)}
    sampling = {"temperature": 1.0, "top_p": None, "top_k": 20, "max_tokens": 1024}
    assert (conversations[0].sampling, end) == (sampling, End("r1", len(conversations), end.answer))


def test_feedback_comes_when_it_comes(sink, recorder):
    read(Told(), recorder, rollout="r1")
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

    assert (sink.take(), recorder.skipped) == ([], {"reading that began with a stored memory": 2})


@pytest.mark.parametrize("segments", [2, 3])
def test_of_segments_all_that_became_a_memory_is_recorded(sink, recorder, segments):
    config = CONFIG.model_copy(update={"segments": segments})

    read(model := Told(), recorder, config)

    found = recorded(sink)
    assert sorted(one.completion_ids[0] for one in found) == list(range(len(model.calls)))
    assert [one.final for one in found] == [False] * (len(found) - 1) + [True]
    assert sum(one.start is None and not one.final for one in found) == 1  # the merge
    own = [one for one in found if one.start is not None]
    of_segments = [one.segment for one in own]
    assert of_segments == sorted(of_segments)
    assert len({*of_segments}) > 1
    ends = [one.end for one in own]
    assert ([one.start for one in own], ends[-1]) == ([0, *ends[:-1]], len(ASKED["document"]))
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

    read(model := Hollow(), recorder, config)

    assert len(empty) > 3  # merges, several at once, and the answer
    assert {*numbers(sink)} == {*range(len(model.calls))} - {*empty}


async def test_a_reading_begun_again_counts_from_where_it_began_again(sink, recorder):
    store, begun, named = InMemoryStore(), asyncio.Event(), {**ASKED, "memory_name": "ann"}

    class Racing(Told):
        async def _agenerate(self, messages, stop=None, run_manager=None, **options):
            if len(self.calls) == 1:  # meanwhile another reading moves the named memory on
                begun.set()
                await create_memagent(Told(), config=CONFIG, store=store).ainvoke(named)
            return self._generate(messages)

    agent = create_memagent(model := Racing(), config=CONFIG, store=store)

    out = await agent.ainvoke(named, recorder.config())

    assert begun.is_set()
    (rollout,) = join(sink.take()).rollouts
    found = [one.completion_ids[0] for one in rollout.conversations]
    assert found == list(range((len(model.calls) - 1) // 2, len(model.calls)))
    assert MemoryBank(store).head("ann").text == out["memory"]


def test_a_resumed_reading_is_not_recorded_and_says_so(sink, recorder):
    stops = {"checkpointer": InMemorySaver(), "interrupt_before": ["write_answer"]}
    agent = create_memagent(Told(), config=CONFIG, **stops)
    config = recorder.config(rollout="r1")
    config["configurable"]["thread_id"] = "1"
    agent.invoke(ASKED, config)

    with pytest.warns(RuntimeWarning, match="resumed"):
        agent.invoke(None, config)

    assert recorder.skipped == {"reading that was resumed": 1}
    assert join(sink.take()).skipped == {"rollout without an end": 1}


async def test_two_readings_at_once_with_one_rollout_id_are_refused(recorder):
    agent = create_memagent(Told(), config=CONFIG)

    results = await agent.abatch([ASKED] * 3, recorder.config(rollout="r1"), return_exceptions=True)

    refused = [str(one) for one in results if isinstance(one, TraceError)]
    assert ["'r1'" in one for one in refused] == [True, True]


async def test_one_config_without_an_id_serves_a_whole_batch(sink, recorder):
    agent = create_memagent(Told(), config=CONFIG)

    await agent.abatch([ASKED] * 5, recorder.config())

    rollouts = join(sink.take()).rollouts
    assert (len({one.rollout for one in rollouts}), len({one.group for one in rollouts})) == (5, 1)


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_model_that_tells_no_token_ids_is_refused(sink, recorder, asynchronous):
    model = Told(tells=False)

    with pytest.raises(TraceError, match="logprobs=True"):
        if asynchronous:
            await create_memagent(model, config=CONFIG).ainvoke(ASKED, recorder.config())
        else:
            await asyncio.to_thread(read, model, recorder)

    assert [type(one) for one in sink.take()] == [RecordedCall]


def test_a_reader_without_a_model_is_refused(recorder):
    with pytest.raises(TraceError, match="chat model"):
        read("extractive", recorder)
