"""The server in front of a real vLLM, as `make test-vllm` installs it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Literal

import httpx
import pytest
from servers.vllm_server import vllm_server
from tiny_model import tiny_model

from memagent_graph import ReadingConfig

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: make test-vllm"),
]

CONTEXT = 2048
CONFIG = ReadingConfig(
    question_tokens=150, chunk_tokens=700, memory_tokens=64, answer_tokens=48, template_tokens=450
)
HI = [{"role": "user", "content": "What is a list?"}]
SHELF = {
    "type": "function",
    "function": {
        "name": "shelf",
        "description": "The shelf of an item.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["item"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def vllm(folder, tmp_path_factory):
    log = tmp_path_factory.mktemp("logs") / "vllm.log"
    options = ["--max-model-len", str(CONTEXT), "--enable-auto-tool-choice"]
    with vllm_server(folder, log, *options, "--tool-call-parser", "hermes") as server:
        yield server


@pytest.fixture
def front(serve, vllm, folder):
    return serve(
        f"openai:{vllm.name}", base_url=vllm.base_url, config=CONFIG, tokenizer=str(folder)
    )


def anonymous(body: bytes) -> bytes:
    """A body without what differs between two identical requests: ids and times."""
    body = re.sub(rb'"(id|request_id)":"[^"]*"', rb'"\1":""', body)
    return re.sub(rb'"created":\d+', b'"created":0', body)


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 12},
        {"max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 12, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 12, "n": 3, "temperature": 1.0, "seed": 7},
        {"max_tokens": 12, "ignore_eos": True, "top_k": 5, "return_token_ids": True},
        {"max_tokens": 40, "tools": [SHELF], "tool_choice": "auto"},
        {"max_tokens": 99_999},
        {"temperature": -3},
    ],
)
def test_a_short_request_gets_vllm_s_own_answer_byte_for_byte(front, vllm, more):
    body = {"model": vllm.name, "messages": HI, "temperature": 0, **more}

    direct = httpx.post(f"{vllm.base_url}/chat/completions", json=body, timeout=60)
    through = front.post(json=body)

    assert anonymous(through.content) == anonymous(direct.content)
    assert through.status_code == direct.status_code
    assert through.headers["content-type"] == direct.headers["content-type"]


def test_the_window_is_the_model_s(front, vllm):
    (model,) = front.client().models.list().data

    assert (model.id, model.max_model_len) == (vllm.name, CONTEXT)


def prompt_tokens(vllm) -> float:
    text = httpx.get(f"http://127.0.0.1:{vllm.port}/metrics").text
    found = re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_a_long_request_is_read_and_a_follow_up_reads_nothing_again(front, vllm, asked):
    client, messages = front.client(timeout=600), asked(900)
    start = prompt_tokens(vllm)
    first = client.chat.completions.create(model=vllm.name, messages=messages)
    middle = prompt_tokens(vllm)
    said = {"role": "assistant", "content": first.choices[0].message.content}

    client.chat.completions.create(
        model=vllm.name,
        messages=[*messages, said, {"role": "user", "content": "And then?"}],
        extra_body={"memagent": {"memory": first.memagent["memory"]}},
    )

    assert first.memagent["coverage"] == 1.0
    assert middle - start == first.usage.prompt_tokens > 3 * CONTEXT
    assert prompt_tokens(vllm) - middle < CONTEXT


def test_a_long_stream_shows_its_progress_and_the_same_answer(front, vllm, asked):
    client, messages = front.client(timeout=600), asked(600)
    whole = client.chat.completions.create(model=vllm.name, messages=messages)

    parts = list(client.chat.completions.create(model=vllm.name, messages=messages, stream=True))

    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == whole.choices[0].message.content
    assert parts[-1].memagent["memory"] == whole.memagent["memory"]


def test_a_response_of_the_sdk_comes_from_vllm(front, vllm):
    client = front.client()
    first = client.responses.create(model=vllm.name, input="What is a list?", max_output_tokens=9)

    second = client.responses.create(
        model=vllm.name, input="And?", previous_response_id=first.id, max_output_tokens=9
    )

    assert first.usage.output_tokens == second.usage.output_tokens == 9
    assert second.usage.input_tokens > first.usage.input_tokens + 9


@pytest.mark.parametrize("long", [False, True])
def test_a_chat_model_of_langchain_calls_a_tool_in_an_agent(front, vllm, folder, asked, long):
    from langchain.agents import create_agent
    from langchain.agents.middleware import ModelCallLimitMiddleware, wrap_model_call
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from transformers import AutoTokenizer

    found = []

    @tool
    def shelf(item: Literal[3, 5]) -> str:
        """The shelf of an item."""
        found.append(item)
        return f"Item {item} stands on shelf {item % 7}."

    @wrap_model_call
    def must_call(request, handler):  # a model of random weights calls nothing of its own accord
        changes = {"tool_choice": "shelf", "model_settings": {"strict": True}}
        return handler(request.override(**changes))

    # Nor would it ever end the white space that JSON allows.
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    blank = [number for token, number in vocabulary.items() if set(token) <= set("ĠĊĉč")]
    model = ChatOpenAI(
        model=vllm.name,
        base_url=f"{front.url}/v1",
        api_key="not-needed",
        temperature=0,
        max_tokens=100,
        timeout=600,
        logit_bias=dict.fromkeys(blank, -100),
    )
    limit = ModelCallLimitMiddleware(run_limit=1, exit_behavior="end")
    agent = create_agent(model, [shelf], middleware=[must_call, limit])

    out = agent.invoke({"messages": asked(300) if long else HI})

    kinds = [message.type for message in out["messages"]]
    assert kinds[:3] == ["human", "ai", "tool"]
    assert out["messages"][2].content == f"Item {found[0]} stands on shelf {found[0]}."
