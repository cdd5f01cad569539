from __future__ import annotations

import pytest
from doubles import ChainReader, numbered
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph import ReadingConfig, create_memagent, plan
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update

SMALL = ReadingConfig(chunk_tokens=50)


@pytest.mark.slow
@given(length=st.integers(0, 120), parts=st.sampled_from([1, 2, 7]))
def test_a_plan_tells_the_calls_that_the_reading_makes(length, parts):
    text, reader = "A beginning. " + numbered(length), ChainReader()
    config = SMALL.model_copy(update={"segments": parts})

    planned = plan("What?", text, config)
    output = create_memagent(reader, config=config).invoke({"question": "What?", "document": text})

    assert planned.chunks == len(reader.spans)
    made = len(reader.merges)
    assert planned.chunks + made + 1 == output["usage"]["calls"] <= planned.calls
    assert made == 0 or len(reader.spans) > 1
    assert parts > 1 or planned.calls == output["usage"]["calls"]
    assert planned.document_tokens == output["usage"]["document_tokens"]


class DepthReader(Reader):
    """Its memory is how many calls it took, each of which waited for the one before."""

    identity = Identity("depth", "depth-1")

    def _after(self, memories):
        depth = 1 + max((int(text.split()[0]) for text in memories), default=0)
        return f"{depth} calls, of which each has waited."  # too long for three to be merged

    async def update(self, step, *, config=None):
        return Update(Memory(self._after(filter(None, [step.memory.text]))))

    async def merge(self, question, memories, *, config=None):
        return Merge(Memory(self._after(memory.text for memory in memories)))

    async def respond(self, question, memory, *, config=None):
        text = self._after([memory.text])
        return Answer(text, text)


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_the_longest_chain_is_that_of_calls_that_wait_for_one_another(parts):
    config = ReadingConfig(chunk_tokens=50, memory_tokens=20, answer_tokens=20, segments=parts)
    text = numbered(150)

    planned = plan("What?", text, config)
    agent = create_memagent(DepthReader(), config=config)
    output = agent.invoke({"question": "What?", "document": text})

    assert planned.calls == output["usage"]["calls"]
    assert planned.chain_calls == int(output["answer"].split()[0])
    assert planned.calls_at_once <= parts


def test_several_questions_are_so_many_readings_of_one_pass():
    text, reader = numbered(150), ChainReader()
    config = SMALL.model_copy(update={"segments": 4})
    agent = create_memagent(reader, config=config)

    one, three = (plan("What?", text, config, questions=number) for number in (1, 3))
    output = agent.invoke({"questions": ["What?", "Who?", "Where?"], "document": text})

    made = sum(record["usage"]["calls"] for record in output["answers"])
    assert 3 * one.chunks + 2 * 3 <= made <= three.calls == 3 * one.calls
    assert len(reader.spans) == 3 * three.chunks == 3 * one.chunks
    assert (three.prompt_tokens, three.reply_tokens) == (
        3 * one.prompt_tokens,
        3 * one.reply_tokens,
    )
    assert (three.calls_at_once, three.chain_calls) == (3 * one.calls_at_once, one.chain_calls)
    limited = config.model_copy(update={"max_calls": 60})
    assert plan("What?", text, limited, questions=3).calls <= 60
    assert three.calls > 60


def test_dollars_follow_from_the_tokens():
    config = SMALL.model_copy(update={"segments": 4})

    planned = plan("What?", numbered(150), config, questions=2, price=(2.5, 10))

    cents = planned.prompt_tokens * 2.5 / 1e4 + planned.reply_tokens * 10 / 1e4
    assert planned.dollars == pytest.approx(cents / 100)
    assert plan("What?", numbered(150), config).dollars is None
    assert plan("What?", "Text.", price=(0, 0)).dollars == 0


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"questions": 0}, "1 question or more"),
        ({"price": (-1, 2)}, "two numbers of dollars"),
        ({"price": (float("nan"), 2)}, "two numbers of dollars"),
    ],
)
def test_a_number_out_of_range_is_said(options, named):
    with pytest.raises(ConfigurationError, match=named):
        plan("What?", "Text.", **options)


def test_merges_are_in_the_plan():
    config = ReadingConfig(chunk_tokens=100, memory_tokens=100, answer_tokens=20, segments=4)
    alone = plan("What?", numbered(200), config.model_copy(update={"segments": 1}))

    planned = plan("What?", numbered(200), config)

    assert planned.calls - planned.chunks == 1 + 3  # two and two, and what they become
    assert planned.window_tokens <= config.window_tokens
    assert planned.chunks - alone.chunks <= 3
    limited = plan("What?", numbered(200), config.model_copy(update={"max_calls": 12}))
    assert (limited.calls, limited.chunks) == (12, 8)


def test_a_budget_of_calls_is_kept_to():
    planned = plan("What?", numbered(100), SMALL.model_copy(update={"max_calls": 4}))

    assert (planned.calls, planned.chunks) == (4, 3)
    assert planned.document_tokens == plan("What?", numbered(100), SMALL).document_tokens


def test_tokens_are_upper_bounds_made_of_the_budgets():
    config = ReadingConfig(chunk_tokens=100, memory_tokens=30, answer_tokens=20)

    planned = plan("What?", numbered(100), config)

    fixed = planned.calls * (config.template_tokens + 2)
    assert planned.reply_tokens == planned.chunks * 30 + 20
    passages = config.window_tokens - config.template_tokens - 2 - 30 - 20  # beside the answer
    assert planned.prompt_tokens == pytest.approx(
        planned.document_tokens + planned.chunks * 30 + fixed + passages, abs=planned.calls
    )
    assert planned.window_tokens <= config.window_tokens


def test_a_search_is_one_call_more_or_the_only_one():
    config = ReadingConfig(chunk_tokens=1000, how="auto")
    text = numbered(3000)

    looked_up = plan("Where is the observatory?", text, config)
    counted = plan("How many lines are there?", text, config)
    whole = plan("How many lines are there?", numbered(100), config)

    skimmed = config.model_copy(update={"how": "read", "skim": "lexical"})
    assert looked_up.calls == plan("Where is the observatory?", text, skimmed).calls + 1
    assert looked_up.calls_if_found == 1
    assert counted.calls == counted.chunks + 1
    assert (whole.calls, whole.chunks, whole.chain_calls) == (1, 0, 1)


class TestSkim:
    QUESTION = "Where is the observatory of Ortega?"
    TEXT = numbered(3000) + "The observatory of Ortega is in Husum.\n" + numbered(3000)
    SKIM = ReadingConfig(skim="lexical", chunk_tokens=1000)

    def test_a_plan_has_all_that_may_be_read_and_what_is_if_the_answer_is_found(self):
        whole = plan(self.QUESTION, self.TEXT, ReadingConfig(chunk_tokens=1000))

        skimmed = plan(self.QUESTION, self.TEXT, self.SKIM)
        out = create_memagent(config=self.SKIM).invoke(
            {"question": self.QUESTION, "document": self.TEXT}
        )

        assert (skimmed.calls, whole.calls_if_found) == (whole.calls + 1, None)
        assert out["usage"]["calls"] == skimmed.calls_if_found < 5

    def test_what_is_read_after_all_is_read_in_a_row(self):
        config = self.SKIM.model_copy(update={"segments": 4})

        found = plan(self.QUESTION, self.TEXT, config)

        assert found.chain_calls > found.chunks

    def test_a_question_that_needs_all_is_planned_as_ever(self):
        question = "How many lines are there?"

        assert plan(question, self.TEXT, self.SKIM) == plan(
            question, self.TEXT, ReadingConfig(chunk_tokens=1000)
        )

    def test_max_calls_bounds_a_plan_with_a_skim_as_well(self):
        config = self.SKIM.model_copy(update={"max_calls": 10})

        assert plan(self.QUESTION, self.TEXT, config).calls == 10
