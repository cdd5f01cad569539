from __future__ import annotations

import asyncio
import threading

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel

from memagent_graph import MemAgentNode, MemAgentRetriever, create_memagent, create_reading_tool
from memagent_graph.config import ReadingConfig
from memagent_graph.errors import ConfigurationError, ModelError
from memagent_graph.evidence.places import Memory, Unsupported
from memagent_graph.readers.base import Step
from memagent_graph.readers.chat import ChatReader
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.chunks import Chunk
from memagent_graph.text.source import TextSource

TEXT = "Mary Okafor was a painter in Oslo.\n\nThe harbour was closed for the winter, as ever."
PAINTER = "Mary Okafor painted in Oslo."
NEVER = "The harbour was never closed for the winter."
WRONG = "Oscar Wilde was a painter in Oslo."


def chunk_of(text):
    return Chunk(text, 0, len(text), 20, TextSource(text))


async def marked(verify, *lines, before=Memory(), text=TEXT):  # noqa: B008 - immutable
    reader = ChatReader(FakeListChatModel(responses=["\n".join(lines)]), verify=verify)
    update = await reader.update(Step("Who?", before, chunk_of(text)))
    return update.memory


async def test_it_decides_whatever_names_and_numbers_say():
    def verify(passage, statement):
        return 0.49 if "never" in statement else 0.5

    memory = await marked(verify, PAINTER, NEVER, WRONG)

    assert memory.unsupported == (Unsupported(NEVER),)
    assert await marked(lambda *_: 1, WRONG) == Memory(
        WRONG, memory_of(WRONG, await marked(None, WRONG))
    )


def memory_of(text, memory):
    return tuple(item for item in memory.evidence if item.text == text)


async def test_it_is_given_the_passage_with_the_statement_and_may_wait():
    asked = []

    async def verify(passage, statement):
        await asyncio.sleep(0)
        asked.append((passage, statement))
        return 0.9

    await marked(verify, f"- {PAINTER}", f"- {NEVER}")

    assert sorted(asked) == [
        ("Mary Okafor was a painter in Oslo.", PAINTER),
        ("The harbour was closed for the winter, as ever.", NEVER),
    ]


async def test_the_passage_of_a_line_that_rewrites_another_begins_with_that():
    asked = []

    def verify(passage, statement):
        asked.append(passage)
        return 0.9

    before = Memory("Mary Okafor was born in 1911 in Bergen.")
    await marked(
        verify, "Mary Okafor, born in 1911 in Bergen, was a painter in Oslo.", before=before
    )

    assert asked == ["Mary Okafor was born in 1911 in Bergen. Mary Okafor was a painter in Oslo."]


async def test_a_line_without_a_passage_is_not_asked_about_and_names_decide():
    def verify(passage, statement):
        raise AssertionError(statement)

    memory = await marked(verify, "Rain fell on Vladimir Nabokov.", text="Nothing of it.")

    assert memory.unsupported[0].missing == ("Vladimir", "Nabokov")
    assert memory.evidence == ()


async def test_what_it_refused_stays_refused_when_it_is_only_rewritten():
    before = await marked(lambda *_: 0, NEVER)
    again = await marked(
        lambda *_: 1, "Never was the harbour closed in winter.", before=before, text="x"
    )

    assert before.unsupported == (Unsupported(NEVER),)
    assert [item.text for item in again.unsupported] == ["Never was the harbour closed in winter."]


@pytest.mark.parametrize("probability", [0, 1])
async def test_an_old_line_gets_a_place_if_it_agrees(probability):
    before = Memory(PAINTER)

    memory = await marked(lambda *_: probability, PAINTER, before=before)

    assert bool(memory.evidence) == bool(probability)
    assert memory.unsupported == ()


async def test_a_function_that_waits_is_called_outside_the_event_loop():
    meeting = threading.Barrier(2, timeout=60)

    def verify(passage, statement):
        meeting.wait()
        return 1

    assert (await marked(verify, PAINTER, NEVER)).unsupported == ()


@pytest.mark.parametrize("given", [1.1, -0.1, float("nan"), None, "yes"])
async def test_what_is_no_probability_is_refused(given):
    with pytest.raises(ConfigurationError, match="probability from 0 to 1, not"):
        await marked(lambda *_: given, PAINTER)


async def test_a_function_that_fails_is_an_error_of_the_model_which_names_the_statement():
    with pytest.raises(ModelError, match=r"function failed for 'Mary Okafor.*: 'No such key'"):
        await marked(lambda *_: {}["No such key"], PAINTER)


def test_a_string_that_names_no_verifier_is_refused():
    model = FakeListChatModel(responses=["."])

    with pytest.raises(ConfigurationError, match="cross-encoder/<hub id or folder>, not 'nli'"):
        ChatReader(model, verify="nli")


def test_a_reader_that_is_made_already_takes_none():
    reader = ChatReader(FakeListChatModel(responses=["."]))

    with pytest.raises(ConfigurationError, match="a Reader marks its own memory"):
        resolve_reader(reader, config=ReadingConfig(), verify=lambda *_: 1)


def test_memories_of_one_verifier_are_not_taken_for_those_of_another():
    def one(passage, statement):
        return 1

    def other(passage, statement):
        return 0

    model = FakeListChatModel(responses=["."])
    prints = {ChatReader(model, verify=v).identity.fingerprint for v in (None, one, other)}

    assert len(prints) == 3
    assert ChatReader(model, verify=one).identity.fingerprint in prints


def refusing(passage, statement):
    return 0


def test_graph_node_tool_and_retriever_take_it():
    def model():
        return FakeListChatModel(responses=[PAINTER, PAINTER])

    asked = {"question": "Who?", "document": TEXT}
    wanted = f'1 statement of the memory has no support in what was read: "{PAINTER}".'
    node = MemAgentNode(model(), verify=refusing, answer=lambda out: {"said": out["warnings"]})
    reads = ReadingConfig(how="read")
    tool = create_reading_tool(model(), sources={"text": TEXT}, verify=refusing, config=reads)
    call = {"name": "read", "id": "1", "type": "tool_call"}
    message = tool.invoke({**call, "args": {"questions": ["Who?"], "source": "text"}})
    config = ReadingConfig(unsupported="drop", how="read")
    retriever = MemAgentRetriever(corpus=TEXT, model=model(), config=config, verify=refusing)

    answered = f'The answer has no support in what was read: "{PAINTER}".'
    assert create_memagent(model(), verify=refusing).invoke(asked)["warnings"] == [wanted, answered]
    assert node.agent.invoke(asked)["warnings"] == [wanted, answered]
    assert message.artifact["warnings"] == [wanted, answered]
    assert retriever.invoke("Who?") == []


async def test_answers_are_verified_against_the_memory_a_short_one_with_its_question():
    asked = []

    def verify(passage, statement):
        asked.append((passage, statement))
        return 0.0 if "Oslo" in statement else 1.0

    memory = Memory("Mary Okafor painted in Oslo. Ann Lee painted in Bergen.")
    answers = ["Oslo", "Ann Lee painted in Bergen."]
    reader = ChatReader(FakeListChatModel(responses=answers), verify=verify)

    refused = await reader.respond("Where did Mary Okafor paint?", memory)
    passed = await reader.respond("Where did Mary Okafor paint?", memory)

    assert asked[0] == ("Mary Okafor painted in Oslo.", "Where did Mary Okafor paint? Oslo")
    assert (refused.found, refused.unsupported) == (False, (Unsupported("Oslo"),))
    assert asked[1][1] == answers[1]
    assert (passed.found, passed.unsupported) == (True, ())
