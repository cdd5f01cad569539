"""Answers in a shape: `response_format=` of the graph and of all that is made of it."""

import json
from typing import TypedDict

import pytest
from fixed_readers import ChainReader
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command
from pydantic import BaseModel

from memagent_graph import (
    MemAgentNode,
    MemAgentRetriever,
    create_memagent,
    create_reading_tool,
    read_many,
)
from memagent_graph.errors import ConfigurationError, ResponseFormatError
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.prompts import Prompts
from memagent_graph.testing import ScriptedChatModel

TEXT = "The lease was signed by Ann Kestrel. The rent is 1480 euros.\n"
NOTES = "The lease was signed by Ann Kestrel."
PLAIN = {"tenant": "Ann Kestrel", "rent": 1480}
SAID = json.dumps(PLAIN)
QUESTION = "Who signed, and for how much?"
ASKED = {"question": QUESTION, "document": TEXT}


class Lease(BaseModel):
    tenant: str
    rent: int | None = None


KEYS = {"question": str, "document": str, "answer": object, "memory": str, "next": str}
State = TypedDict("State", KEYS, total=False)


def model(*answers, notes=NOTES):
    return ScriptedChatModel(notes, *answers)


def agent(*answers, **options):
    return create_memagent(model(*answers), response_format=Lease, **options)


async def test_the_answer_is_an_instance_and_its_text_is_json():
    reply = f"Here it is:\n```json\n{SAID}\n```"

    second = agent(reply).invoke(ASKED, version="v2").value

    for out in (agent(reply).invoke(ASKED), await agent(reply).ainvoke(ASKED), second):
        assert out["structured_response"] == Lease(tenant="Ann Kestrel", rent=1480)
        assert json.loads(out["answer"]) == PLAIN
        assert out["citations"][0]["text"] == NOTES
        assert out["usage"]["calls"] == 2


def test_streams_and_checkpoints_hold_plain_values_and_a_copy_of_the_graph_its_shape():
    made = agent(SAID, checkpointer=InMemorySaver())
    at = {"configurable": {"thread_id": "1"}}

    *_, last = made.stream(ASKED, at, stream_mode="values")

    assert last["structured_response"] == PLAIN
    assert made.get_state(at).values["structured_response"] == PLAIN
    again = agent(SAID).with_config({"tags": ["x"]}).invoke(ASKED)
    assert again["structured_response"] == Lease(**PLAIN)


def test_a_reply_of_another_shape_is_asked_for_once_more_and_then_an_error():
    assert agent("Ann.", SAID).invoke(ASKED)["structured_response"].rent == 1480
    with pytest.raises(ResponseFormatError, match=r"^Answering failed: .*shape of Lease"):
        agent("Ann.", "Ann, I said.").invoke(ASKED)


def test_the_model_is_told_of_no_box_unless_the_prompt_is_the_callers(openai_server):
    openai_server.reply = lambda body: SAID
    own = Prompts(answer="Nach den Notizen: {memory} Beantworte: {question}")
    for prompts in (None, own):
        small = ChatEndpoint(model="small", base_url=openai_server.base_url)
        create_memagent(small, response_format=Lease, prompts=prompts).invoke(ASKED)
        small.close()

    _, library, _, callers = openai_server.requests
    assert "boxed" not in library["messages"][0]["content"]
    assert callers["messages"][0]["content"].startswith("Nach den Notizen:")
    assert library["response_format"]["json_schema"]["name"] == "Lease"


async def test_a_node_may_say_where_its_host_goes_on():
    def decide(output):
        return Command(update={"answer": output["answer"]}, goto="long")

    builder = StateGraph(State)
    node = MemAgentNode(model("A\\boxed{b}"), answer=decide, memory="memory")
    builder.add_node("read", node, destinations=("long",))
    builder.add_node("long", lambda state: {"next": f"after {state['answer']}"})
    builder.add_edge(START, "read")
    graph = builder.compile()

    for out in (graph.invoke(ASKED), await graph.ainvoke(ASKED)):
        assert out["next"].startswith("after ")
        assert out["memory"]


def test_a_tool_a_retriever_and_a_batch_have_it():
    tool = create_reading_tool(model(SAID), sources={"lease": TEXT}, response_format=Lease)
    retriever = MemAgentRetriever(corpus=TEXT, model=model(SAID), response_format=Lease)
    call = {"questions": [QUESTION], "source": "lease"}

    message = tool.invoke({"name": "read", "args": call, "id": "1", "type": "tool_call"})
    (document, *_) = retriever.invoke(QUESTION)
    (result,) = read_many(agent(SAID), [ASKED])

    assert message.content.startswith(SAID)
    for holder in (message.artifact, document.metadata, result.output):
        assert holder["structured_response"] == Lease(**PLAIN)


@pytest.mark.parametrize("reader", [None, ChainReader()])
def test_a_reader_that_has_no_shape_refuses_one(reader):
    with pytest.raises(ConfigurationError, match="response_format"):
        create_memagent(reader, response_format=Lease)


@pytest.mark.parametrize(
    ("plain", "found", "missing"),
    [
        ({**PLAIN, "rent": 1985}, True, "1985"),
        ({"tenant": "Bo Tern"}, False, "Tern"),
        ({"tenant": ""}, False, None),
    ],
)
def test_values_that_notes_and_passages_lack_are_marked(plain, found, missing):
    out = agent(json.dumps(plain)).invoke(ASKED)

    assert out["found"] is found
    assert any(missing in mark["missing"] for mark in out["unsupported"]) is (missing is not None)


def test_several_questions_have_an_instance_each(openai_server):
    openai_server.reply = lambda body: SAID if "response_format" in body else NOTES
    small = ChatEndpoint(model="small", base_url=openai_server.base_url)
    made = create_memagent(small, response_format=Lease)

    out = made.invoke({"questions": ["Who?", "How much?"], "document": TEXT})

    small.close()
    assert [each["structured_response"] for each in out["answers"]] == [Lease(**PLAIN)] * 2
