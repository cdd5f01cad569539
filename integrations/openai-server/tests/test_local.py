"""Models without a server of their own: in this process, or of any provider."""

import json

import httpx
import pytest
from langchain_openai import ChatOpenAI
from servers.openai_server import event
from tiny_model import tiny_model

from memagent_graph import ReadingConfig
from memagent_graph.testing import ScriptedChatModel

HI = [{"role": "user", "content": "What is a list?"}]
CONFIG = ReadingConfig(
    question_tokens=60, chunk_tokens=250, memory_tokens=16, answer_tokens=8, template_tokens=450
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_length=1024)


@pytest.fixture
def served(serve, folder):
    return serve(f"hf:{folder}", config=CONFIG)


def test_a_model_in_this_process_answers_as_it_does_when_asked_itself(served):
    name = served.service.name
    direct = served.service.chat.invoke(HI, max_tokens=12)

    whole = served.ask(HI, model=name, max_tokens=12)
    more = {"stream": True, "stream_options": {"include_usage": True}}
    parts = list(served.ask(HI, model=name, max_tokens=12, **more))

    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert whole.choices[0].message.content == text == direct.text
    assert whole.choices[0].finish_reason == parts[-2].choices[0].finish_reason == "length"
    assert whole.usage == parts[-1].usage
    assert whole.usage.completion_tokens == 12


@pytest.mark.slow
def test_what_does_not_fit_it_is_read(served, asked):
    completion = served.ask(asked(90), model=served.service.name)

    assert completion.memagent["coverage"] == 1.0
    assert completion.memagent["chunks"] > 2


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # LangChain closes no client
def test_tools_of_a_provider_s_model_are_called(serve, upstream, stream):
    function = {"name": "price", "arguments": '{"item": 3}'}
    call = {"index": 0, "id": "call_1", "type": "function", "function": function}
    message = {"role": "assistant", "content": "", "tool_calls": [call]}
    upstream.script = [event(message, "tool_calls")]
    server = serve(ChatOpenAI(model="small", base_url=upstream.base_url, api_key="x"))
    tool = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}
    asked = {"model": "small", "messages": HI, "tools": [tool]}

    if stream:
        with server.client().chat.completions.stream(**asked) as parts:
            completion = parts.get_final_completion()
    else:
        completion = server.client().chat.completions.create(**asked)
    server.close()

    (found,) = completion.choices[0].message.tool_calls
    assert (found.function.name, found.function.arguments) == ("price", '{"item": 3}')
    assert completion.choices[0].finish_reason == "tool_calls"
    assert upstream.requests[-1]["tools"][0]["function"]["name"] == "price"


def test_a_stream_that_breaks_off_ends_with_an_error_that_names_the_model_and_nothing_else(serve):
    server = serve(ScriptedChatModel(("A", httpx.ReadError("connection reset by 10.0.0.7"))))
    body = {"model": server.service.name, "messages": HI, "stream": True}

    parts = server.post(json=body).text.split("\n\n")

    assert '"content": "A"' in parts[0]
    assert json.loads(parts[1].removeprefix("data: "))["error"]["code"] == "upstream_unreachable"
    assert "10.0.0.7" not in "".join(parts)
