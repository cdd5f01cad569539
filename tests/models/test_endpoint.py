from __future__ import annotations

import asyncio
import random

import pytest
from doubles import numbered
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import (
    ContextLengthError,
    ModelError,
    RefusalError,
    TransientModelError,
)
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.chat import ChatReader

TOO_LONG = {"message": "This model's maximum context length is 8192 tokens.", "code": None}
SPENT = {"message": "You exceeded your current quota", "code": "insufficient_quota"}


@pytest.fixture
def model(openai_server):
    model = ChatEndpoint(model="small", base_url=openai_server.base_url, timeout=5)
    yield model
    model.close()


async def reading(openai_server, script, chunks=50):
    openai_server.script = list(script)
    model = ChatEndpoint(model="small", base_url=openai_server.base_url, timeout=5)
    config = ReadingConfig(chunk_tokens=60, retry_interval=0.001)
    agent = create_memagent(model, config=config)
    text = numbered(chunks * 5)
    out = await agent.ainvoke({"question": "What is where?", "document": text})
    await model.aclose()
    return out


@pytest.mark.slow
async def test_a_run_with_faults_in_one_request_of_five_ends_with_the_memory_of_a_run_without(
    openai_server,
):
    clean = await reading(openai_server, [])
    chosen = random.Random(7)
    faults = [429, 500, "drop", "cut", "empty", "malformed"]
    script = [chosen.choice(faults) if chosen.random() < 0.2 else "ok" for _ in range(300)]
    openai_server.requests.clear()

    faulty = await reading(openai_server, script)

    assert clean["usage"]["calls"] > 50
    assert (faulty["memory"], faulty["answer"]) == (clean["memory"], clean["answer"])
    used = script[: len(openai_server.requests)]
    assert len(openai_server.requests) == clean["usage"]["calls"] + sum(
        step != "ok" for step in used
    )
    assert set(faults) <= set(used)


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (429, TransientModelError),
        (500, TransientModelError),
        (503, TransientModelError),
        ("drop", TransientModelError),
        ("cut", TransientModelError),
        ("malformed", TransientModelError),
        ({"status": 400, "error": TOO_LONG}, ContextLengthError),
        ({"status": 400, "error": {"message": "blocked", "code": "content_filter"}}, RefusalError),
    ],
)
async def test_each_failure_is_the_error_that_says_what_to_do(
    openai_server, model, behaviour, error
):
    openai_server.script = [behaviour] * 2

    with pytest.raises(error):
        model.invoke("Hello")
    with pytest.raises(error):
        await model.ainvoke("Hello")
    await model.aclose()


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        (401, "OPENAI_API_KEY"),
        (404, "/v1/models"),
        ({"status": 429, "error": SPENT}, "quota is spent"),
        (418, "418"),
    ],
)
def test_what_a_repeat_cannot_cure_is_lasting_and_says_what_to_check(
    openai_server, model, behaviour, words
):
    openai_server.script = [behaviour]

    with pytest.raises(ModelError, match=words) as caught:
        model.invoke("Hello")

    assert not isinstance(caught.value, TransientModelError)


def test_the_time_that_a_server_asks_to_wait_is_known(openai_server, model):
    openai_server.script = [{"status": 429, "headers": {"retry-after": "3"}}]

    with pytest.raises(TransientModelError) as caught:
        model.invoke("Hello")

    assert caught.value.retry_after == 3.0


def test_a_server_that_is_not_there_is_a_transient_error():
    model = ChatEndpoint(model="m", base_url="http://127.0.0.1:9/v1")

    with pytest.raises(TransientModelError, match="cannot be reached"):
        model.invoke("Hello")
    model.close()


def test_a_reply_comes_with_usage_and_finish_reason(openai_server, model):
    reply = model.invoke("Hello", max_tokens=5, stop=["x"])

    assert reply.text.startswith("memory ")
    assert reply.usage_metadata == {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    assert reply.response_metadata["finish_reason"] == "stop"
    sent = openai_server.requests[0]
    assert (sent["max_tokens"], sent["stop"], sent["temperature"]) == (5, ["x"], 0.0)
    assert sent["messages"] == [{"role": "user", "content": "Hello"}]


async def test_a_stream_adds_up_to_the_whole_reply(model):
    whole = model.invoke("Hello").text

    sync = list(model.stream("Hello"))
    from_async = [part async for part in model.astream("Hello")]

    for parts in (sync, from_async):
        assert len(parts) >= 3
        total = sum(parts[1:], parts[0])
        assert total.text == whole
        assert total.usage_metadata["total_tokens"] == 10
        assert total.response_metadata["finish_reason"] == "stop"
    await model.aclose()


def test_one_model_serves_several_event_loops(openai_server, model):
    async def ask():
        reply = await model.ainvoke("Hello")
        await model.aclose()
        return reply.text

    assert asyncio.run(ask()) == asyncio.run(ask())


def test_the_key_and_the_address_come_from_the_environment(openai_server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    model = ChatEndpoint(model="m")

    model.invoke("Hello")
    model.close()

    assert openai_server.headers[0]["authorization"] == "Bearer secret-key"
    assert "secret-key" not in repr(model)
    assert "secret-key" not in ChatReader(model).fingerprint


def test_tools_are_offered_and_calls_come_back(openai_server, model):
    @tool
    def weather(city: str) -> str:
        """Weather of a city."""
        return city

    call = {
        "id": "1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
    }
    openai_server.script = [
        {"message": {"role": "assistant", "content": None, "tool_calls": [call]}}
    ]

    reply = model.bind_tools([weather], tool_choice="weather").invoke([HumanMessage("Rome?")])

    assert [(c["name"], c["args"]) for c in reply.tool_calls] == [("weather", {"city": "Rome"})]
    assert openai_server.requests[0]["tool_choice"]["function"]["name"] == "weather"


def test_the_graph_streams_the_tokens_of_the_model(openai_server, model):
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=60))
    asked = {"question": "?", "document": numbered(10)}

    parts = list(agent.stream(asked, stream_mode="messages"))

    nodes = {metadata["langgraph_node"] for _, metadata in parts}
    assert nodes == {"overwrite_memory", "write_answer"}
    assert len(parts) > 6
