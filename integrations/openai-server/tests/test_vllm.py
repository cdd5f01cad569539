"""The server in front of a real vLLM, as `make test-vllm` installs it."""

from __future__ import annotations

import re
from http import HTTPStatus
from importlib.util import find_spec
from typing import Literal

import httpx
import pytest
from openai import NotFoundError

from memagent_graph import ReadingConfig
from memagent_openai_server import Served

pytestmark = [
    pytest.mark.vllm,
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


@pytest.fixture
def front(serve, vllm, tiny):
    return serve(f"openai:{vllm.name}", base_url=vllm.base_url, config=CONFIG, tokenizer=str(tiny))


UNFINISHED = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
"""The end of an event of vLLM's stream that carries text and is not the last."""


def anonymous(body: bytes) -> bytes:
    """A body without what differs between two identical requests.

    That is ids, times, and where a stream is cut: vLLM sends the tokens that it has when the
    connection takes the next event, so one event may carry two. The events' texts are joined.
    """
    body = re.sub(rb'"(id|request_id)":"[^"]*"', rb'"\1":""', body)
    body = re.sub(rb'"created":\d+', b'"created":0', body)
    head, _, _ = body.partition(b'"delta":')
    return body.replace(UNFINISHED + head + b'"delta":{"content":"', b"")


def test_streams_cut_at_other_tokens_are_the_same_to_these_tests():
    head = b'data: {"id":"%s","created":%d,"choices":[{"index":0,"delta":{'
    first, later = head % (b"a", 1), head % (b"b", 2)
    role, end = b'"role":"assistant","content":""},"finish_reason":null}]}\n\n', b"data: [DONE]\n\n"
    one = [role, b'"content":"a cat' + UNFINISHED, b'"content":"."},"finish_reason":"stop"}]}\n\n']
    two = [role, b'"content":"a' + UNFINISHED, b'"content":" cat."},"finish_reason":"stop"}]}\n\n']
    other = [
        role,
        b'"content":"a' + UNFINISHED,
        b'"content":" dog."},"finish_reason":"stop"}]}\n\n',
    ]

    bodies = [b"".join(first + event for event in one), b"".join(later + event for event in two)]
    bodies += [b"".join(later + event for event in other)]

    whole, cut, wrong = [anonymous(body + end) for body in bodies]
    assert whole == cut != wrong
    assert b"a cat." in whole


@pytest.mark.parametrize(
    "more",
    [
        {"max_tokens": 12},
        {"max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 12, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 12, "n": 3, "temperature": 1.0, "seed": 7},
        {"max_tokens": 12, "ignore_eos": True, "top_k": 5, "return_token_ids": True},
        {"max_tokens": 40, "tools": [SHELF], "tool_choice": "auto"},
    ],
)
def test_a_short_request_gets_vllm_s_own_answer_byte_for_byte(front, vllm, more):
    body = {"model": vllm.name, "messages": HI, "temperature": 0, **more}

    direct = httpx.post(f"{vllm.base_url}/chat/completions", json=body, timeout=240)
    through = front.post(json=body)

    assert anonymous(through.content) == anonymous(direct.content)
    assert through.status_code == direct.status_code
    assert through.headers["content-type"] == direct.headers["content-type"]


@pytest.mark.parametrize(
    ("field", "value"), [("max_tokens", 99_999), ("temperature", -3), ("top_p", 7)]
)
def test_an_error_of_vllm_keeps_its_status_and_field_and_is_said_in_our_words(
    front, vllm, field, value
):
    body = {"model": vllm.name, "messages": HI, field: value}

    direct = httpx.post(f"{vllm.base_url}/chat/completions", json=body, timeout=240)
    through = front.post(json=body)
    error = through.json()["error"]

    assert through.status_code == direct.status_code == HTTPStatus.BAD_REQUEST
    assert error["param"] == field
    assert field in error["message"]
    assert direct.json()["error"]["message"] not in through.text


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
    said = [{"role": "user", "content": "What is a list?"}]
    first = client.responses.create(model=vllm.name, input=said, max_output_tokens=9)

    said += [*first.model_dump(exclude_none=True)["output"], {"role": "user", "content": "And?"}]
    second = client.responses.create(model=vllm.name, input=said, max_output_tokens=9)

    assert first.usage.output_tokens == second.usage.output_tokens == 9
    assert second.usage.input_tokens > first.usage.input_tokens + 9


@pytest.mark.parametrize("long", [False, True])
def test_a_chat_model_of_langchain_calls_a_tool_in_an_agent(front, vllm, tiny, asked, long):
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
    vocabulary = AutoTokenizer.from_pretrained(tiny).get_vocab()
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


def test_vllm_s_own_paths_are_passed_on_under_another_name_of_its_model(serve, vllm, tiny):
    models = {"alias": Served(f"openai:{vllm.name}", vllm.base_url)}
    front = serve(models, config=CONFIG, tokenizer=str(tiny))
    client, prompt = front.client(), "What is a list?"
    direct = {"model": vllm.name, "prompt": prompt}
    asked = {"model": "alias", "prompt": prompt, "max_tokens": 5, "temperature": 0}

    completion = client.completions.create(**asked)
    parts = list(client.completions.create(**asked, stream=True))
    tokens = front.post("/tokenize", json={"model": "alias", "prompt": prompt}).json()
    text = front.post("/detokenize", json={"model": "alias", "tokens": tokens["tokens"]}).json()

    root = vllm.base_url.removesuffix("/v1")
    assert tokens == httpx.post(f"{root}/tokenize", json=direct).json()
    assert prompt in text["prompt"]
    assert completion.usage.completion_tokens == 5
    assert "".join(part.choices[0].text for part in parts) == completion.choices[0].text
    with pytest.raises(NotFoundError, match="'alias' has no /v1/embeddings"):
        client.embeddings.create(model="alias", input=prompt)
