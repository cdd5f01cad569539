"""The server in front of a real vLLM, as `make test-vllm` installs it."""

import re
from http import HTTPStatus
from importlib.util import find_spec

import httpx
import pytest

from memagent_graph import ReadingConfig

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: make test-vllm"),
]

CONTEXT = 2048
CONFIG = ReadingConfig(
    question_tokens=150, chunk_tokens=700, memory_tokens=64, answer_tokens=48, template_tokens=450
)
HI = [{"role": "user", "content": "What is a list?"}]
ITEM = {"type": "integer", "minimum": 0, "maximum": 9}
FIELDS = {"properties": {"item": ITEM}, "required": ["item"], "additionalProperties": False}
PARAMETERS = {"type": "object", **FIELDS}
ABOUT = {"name": "shelf", "description": "The shelf of an item.", "parameters": PARAMETERS}
SHELF = {"type": "function", "function": ABOUT}


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
    ("field", "value"), [("max_tokens", 99999), ("temperature", -3), ("top_p", 7)]
)
def test_an_error_of_vllm_keeps_its_status_and_field_in_our_words(front, vllm, field, value):
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
