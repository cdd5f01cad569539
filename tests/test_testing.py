"""The scripted chat model that users write tests with."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from memagent_graph import create_memagent
from memagent_graph.errors import ConfigurationError
from memagent_graph.testing import ScriptedChatModel, call_tool


class Lease(BaseModel):
    tenant: str


LEASE = Lease(tenant="Ann")


def test_replies_come_in_order_and_the_last_one_again():
    said = AIMessage("Two.", id="2", usage_metadata=dict.fromkeys(USAGE, 7))
    model = ScriptedChatModel("One.", said, lambda messages: messages[-1].text.upper())

    replies = [model.invoke(text) for text in "abcd"]

    assert [reply.text for reply in replies] == ["One.", "Two.", "C", "D"]
    assert model.prompts == [*"abcd"]
    assert replies[0].usage_metadata["output_tokens"] > 0
    assert replies[1].usage_metadata == said.usage_metadata
    assert len({reply.id for reply in replies}) == 4


USAGE = ("input_tokens", "output_tokens", "total_tokens")


def test_an_error_is_raised_by_its_call_which_is_recorded_with_its_options():
    model = ScriptedChatModel(TimeoutError("slow"), lambda _: ConnectionError("gone"), "Ann")

    for kind in (TimeoutError, ConnectionError):
        with pytest.raises(kind):
            model.invoke("Who?", stop=["."], temperature=0)

    assert model.invoke([HumanMessage("Who?")]).text == "Ann"
    assert model.calls[0].options == {"stop": ["."], "temperature": 0}
    assert len(model.calls) == 3


def test_a_stream_has_words_or_the_parts_given_and_breaks_off_at_an_error():
    model = ScriptedChatModel("Ann  signed it.", ("An", "n"), ("Ann ", ConnectionError("gone")))

    words, parts = [*model.stream("Who?")], [*model.stream("Who?")]

    assert [chunk.text for chunk in words[:-1]] == ["Ann  ", "signed ", "it."]
    assert sum(words[1:], words[0]).usage_metadata["total_tokens"] > 0
    assert [chunk.text for chunk in parts[:-1]] == ["An", "n"]
    heard = []
    with pytest.raises(ConnectionError):
        heard.extend(chunk.text for chunk in model.stream("Who?"))
    assert heard == ["Ann "]
    with pytest.raises(ConnectionError):
        model.invoke("Who?")


@pytest.mark.parametrize("reply", [LEASE, {"tenant": "Ann"}])
def test_a_structured_output_comes_in_the_form_that_is_asked_for(reply):
    model = ScriptedChatModel(reply)
    agent = create_agent(model, [], response_format=Lease)

    assert model.with_structured_output(Lease).invoke("Who?") == LEASE
    assert agent.invoke({"messages": ["Who?"]})["structured_response"] == LEASE
    assert Lease.model_validate_json(model.invoke("Who?").text) == LEASE
    read = create_memagent(ScriptedChatModel("Ann signed it.", reply), response_format=Lease)
    asked = {"question": "Who?", "document": "Ann signed it."}
    assert read.invoke(asked)["structured_response"] == LEASE


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_calls_its_tools(stream):
    @tool
    def look(at: str) -> str:
        """Look."""
        return f"I see {at}."

    model = ScriptedChatModel(call_tool("look", at="the door"), call_tool("look", at="Ann"), "Ann.")
    agent = create_agent(model, [look])
    asked = {"messages": ["Who?"]}
    modes = ["messages", "values"] if stream else ["values"]
    *_, (_, out) = agent.stream(asked, stream_mode=modes)

    seen = [one.text for one in out["messages"] if one.type == "tool"]
    assert seen == ["I see the door.", "I see Ann."]
    assert out["messages"][-1].text == "Ann."
    assert model.calls[0].options["tools"][0]["function"]["name"] == "look"
    ids = [call["id"] for message in out["messages"] for call in getattr(message, "tool_calls", ())]
    assert len({*ids}) == 2


def test_threads_and_loops_share_a_script():
    model = ScriptedChatModel(*map(str, range(100)))

    with ThreadPoolExecutor() as pool:
        said = [*pool.map(lambda _: model.invoke("?").text, range(50))]

    async def ask():
        return await asyncio.gather(*(model.ainvoke("?") for _ in range(50)))

    said += [reply.text for reply in asyncio.run(ask())]
    assert sorted(map(int, said)) == [*range(100)]


@pytest.mark.parametrize("script", [[], [["Notes.", "Ann"]], [7]])
def test_what_is_no_reply_is_refused_before_a_call(script):
    with pytest.raises(ConfigurationError, match="Give each as an argument"):
        ScriptedChatModel(*script)
