import pytest
from fixed_readers import ChainReader, numbered

from memagent_graph import ReadingConfig, create_memagent, plan
from memagent_graph.errors import ConfigurationError
from memagent_graph.evidence.places import Memory
from memagent_graph.readers.base import Answer, Identity, Merge, Reader, Update

SMALL = ReadingConfig(chunk_tokens=50)


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
@pytest.mark.parametrize("lines", [0, 150])
def test_a_plan_tells_the_calls_that_the_reading_makes_and_the_longest_chain_of_them(parts, lines):
    config = ReadingConfig(chunk_tokens=50, memory_tokens=20, answer_tokens=20, segments=parts)
    text = "A beginning. " + numbered(lines)

    planned = plan("What?", text, config)
    agent = create_memagent(DepthReader(), config=config)
    output = agent.invoke({"question": "What?", "document": text})

    assert planned.calls == output["usage"]["calls"]
    assert planned.document_tokens == output["usage"]["document_tokens"]
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
    tokens = (3 * one.prompt_tokens, 3 * one.reply_tokens)
    assert (three.prompt_tokens, three.reply_tokens) == tokens
    assert (three.calls_at_once, three.chain_calls) == (3 * one.calls_at_once, one.chain_calls)
    limited = config.model_copy(update={"max_calls": 60})
    assert plan("What?", text, limited, questions=3).calls <= 60
    assert three.calls > 60


def test_a_number_of_questions_out_of_range_is_said():
    with pytest.raises(ConfigurationError, match="1 question or more"):
        plan("What?", "Text.", questions=0)


def test_merges_are_in_the_plan_and_a_budget_of_calls_is_kept_to():
    config = ReadingConfig(chunk_tokens=100, memory_tokens=100, answer_tokens=20, segments=4)

    def planned(**changes):
        return plan("What?", numbered(200), config.model_copy(update=changes))

    assert planned().calls - planned().chunks == 1 + 3  # two and two, and what they become
    assert planned().window_tokens <= config.window_tokens
    assert planned().chunks - planned(segments=1).chunks <= 3
    limited, whole = planned(segments=1, max_calls=4), planned(segments=1)
    assert (planned(max_calls=12).calls, planned(max_calls=12).chunks) == (12, 8)
    assert (limited.calls, limited.chunks) == (4, 3)
    assert limited.document_tokens == whole.document_tokens


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


WHERE = "Where is the observatory of Ortega?"
LONG = numbered(3000) + "The observatory of Ortega is in Husum.\n" + numbered(3000)
WHOLE = ReadingConfig(chunk_tokens=1000)
SKIM = WHOLE.model_copy(update={"skim": "lexical"})


def test_a_plan_with_a_skim_has_all_that_may_be_read_and_what_is_if_the_answer_is_found():
    whole, skimmed = plan(WHERE, LONG, WHOLE), plan(WHERE, LONG, SKIM)

    out = create_memagent(config=SKIM).invoke({"question": WHERE, "document": LONG})

    assert (skimmed.calls, whole.calls_if_found) == (whole.calls + 1, None)
    assert out["usage"]["calls"] == skimmed.calls_if_found < 5
