"""LangChain's `ChatOpenAI`, pointed at a running server, in `create_agent` with tools."""

import json

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def shelf(item: int) -> str:
    """The shelf on which an item stands."""
    return f"Item {item} stands on shelf {item % 7}."


def calls(name: str, arguments: dict, key: str = "call_1") -> dict:
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": key, "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    return {"message": message, "finish_reason": "tool_calls"}


@pytest.fixture
def model(behind):
    return ChatOpenAI(model="small", base_url=f"{behind.url}/v1", api_key="none", max_retries=0)


def test_an_agent_calls_tools_after_a_long_text_and_it_is_read_once(
    model, upstream, text, needle, question
):
    @tool
    def logbook() -> str:
        """The whole logbook."""
        return text()

    upstream.script = [calls("logbook", {})]
    agent = create_agent(model, [logbook, shelf], system_prompt="Use your tools.")

    out = agent.invoke({"messages": [("human", question)]})

    last = upstream.requests[-1]
    assert out["messages"][-1].content == needle
    assert [message["role"] for message in last["messages"]] == ["system", "user"]
    assert "Use your tools." in last["messages"][0]["content"]
    assert needle in last["messages"][0]["content"]
    assert {entry["function"]["name"] for entry in last["tools"]} == {"logbook", "shelf"}
    first = len(upstream.requests)
    # The model asks for another tool, and sees its result next to what it noted of the text.
    more = [*out["messages"][:-1]]
    call = calls("shelf", {"item": 3}, "call_2")["message"]
    more += [call, {"role": "tool", "tool_call_id": "call_2", "content": "Item 3 stands on 3."}]

    model.bind_tools([logbook, shelf]).invoke([("system", "Use your tools."), *more])

    assert len(upstream.requests) - first == 1
    messages = upstream.requests[-1]["messages"]
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "tool"]
    assert needle in messages[0]["content"]


async def test_structured_output_over_a_long_text_comes_from_the_model(
    model, upstream, asked, needle
):
    time = json.dumps({"time": "6:40"})
    upstream.reply = lambda body: time if "response_format" in body else needle
    schema = {"title": "Opening", "type": "object", "properties": {"time": {"type": "string"}}}

    found = await model.with_structured_output(schema, method="json_schema").ainvoke(asked())

    assert found == {"time": "6:40"}
    assert upstream.requests[-1]["response_format"]["type"] == "json_schema"
