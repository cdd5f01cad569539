import asyncio
import gc
import json
from types import SimpleNamespace

import pytest
from fixed_readers import numbered
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from servers.redis_server import wait_until

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import (
    ConfigurationError,
    ContextLengthError,
    ModelError,
    RefusalError,
    TransientModelError,
)
from memagent_graph.evidence.places import Memory
from memagent_graph.models.completion import continue_text
from memagent_graph.models.endpoint import ChatEndpoint
from memagent_graph.readers.chat import ChatReader

TOO_LONG = {"message": "This model's maximum context length is 8192 tokens.", "code": None}
BODIES = [  # that are no completion
    b"<html>Bad gateway</html>",
    b"{}",
    b'{"choices": []}',
    b'{"error": {"message": "slow down", "code": 429}}',
    b"\xff\xfe{",
]


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        *((body, TransientModelError) for body in BODIES),
        (429, TransientModelError),
        (500, TransientModelError),
        ("drop", TransientModelError),
        ("cut", TransientModelError),
        ("malformed", TransientModelError),
        ({"status": 400, "error": TOO_LONG}, ContextLengthError),
        ({"status": 400, "error": {"message": "blocked", "code": "content_filter"}}, RefusalError),
    ],
)
async def test_each_failure_is_an_error_of_its_own_kind(openai_server, model, behaviour, error):
    openai_server.script = [behaviour] * 2

    with pytest.raises(error):
        model.invoke("Hello")
    with pytest.raises(error):
        await model.ainvoke("Hello")


HALF = b'data: {"choices": [{"index": 0, "delta": {"content": "Half a memory"}}]}\n\n'


@pytest.mark.parametrize(
    "events",
    [
        b"",
        b"data: [DONE]\n\n",
        HALF,
        HALF + b"data: {not JSON\n\n",
        HALF + b'data: {"error": {"message": "the engine died", "code": 500}}\n\n',
    ],
)
async def test_a_stream_that_ends_before_its_reply_is_transient(openai_server, model, events):
    openai_server.script = [events] * 2

    with pytest.raises(TransientModelError):
        list(model.stream("Hello"))
    with pytest.raises(TransientModelError):
        [part async for part in model.astream("Hello")]


async def test_a_server_that_says_nothing_for_the_timeout_is_transient(openai_server, endpoint):
    openai_server.script = ["hang"] * 2
    model = endpoint(timeout=0.2)

    with pytest.raises(TransientModelError, match="timed out"):
        model.invoke("Hello")
    with pytest.raises(TransientModelError, match="timed out"):
        await model.ainvoke("Hello")


async def test_a_cancelled_call_stays_cancelled(openai_server, model):
    openai_server.script = ["hang"]

    with pytest.raises(asyncio.TimeoutError):  # and not a TransientModelError
        await asyncio.wait_for(ChatReader(model).respond("When?", Memory("At nine.")), 0.2)


async def test_a_wrong_model_name_is_told_the_right_ones(openai_server, model):
    openai_server.script = [404] * 2

    with pytest.raises(ModelError, match="it serves small"):
        model.invoke("Hello")
    with pytest.raises(ModelError, match="it serves small"):
        await model.ainvoke("Hello")
    openai_server.models = []
    openai_server.script = [404]
    with pytest.raises(ModelError, match="GET /v1/models"):
        model.invoke("Hello")
    openai_server.models = [{"id": "small", "max_model_len": 8192}]
    assert model.models() == await model.amodels() == {"small": 8192}


def test_an_address_without_a_scheme_is_refused_at_once():
    with pytest.raises(ConfigurationError, match="localhost:8000"):
        ChatEndpoint(model="m", base_url="localhost:8000/v1")


async def test_parameters_that_a_server_refuses_are_left_out_or_renamed(openai_server, model):
    def refusal(name, code):
        return {"status": 400, "error": {"message": "no", "param": name, "code": code}}

    refused = {"temperature": "unsupported_value", "max_tokens": "unsupported_parameter"}
    openai_server.script = [refusal(*one) for one in refused.items()]

    model.invoke("Hello", max_tokens=5)

    sent = openai_server.requests[-1]
    assert "temperature" not in sent
    assert "max_tokens" not in sent
    assert sent["max_completion_tokens"] == 5
    openai_server.script = [refusal("messages", "unsupported_value")]
    with pytest.raises(ModelError):
        await model.ainvoke("Hello")


TOKEN = {"token": "a", "logprob": -0.5, "top_logprobs": []}
VLLM = {"logprobs": {"content": [TOKEN] * 2}, "token_ids": [5, 6]}


async def test_token_ids_and_logprobs_come_whole_and_streamed_in_one_shape(openai_server, endpoint):
    message = {"role": "assistant", "content": "a a"}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "stop", **VLLM}]}
    parts = [
        {"choices": [{"index": 0, "delta": {"content": "a a"}, **VLLM}], "prompt_token_ids": [1]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ]
    events = "".join(f"data: {json.dumps(part)}\n\n" for part in parts)
    body = json.dumps({**whole, "prompt_token_ids": [1]}).encode()
    openai_server.script = [body, events.encode()]
    model = endpoint(logprobs=True, return_token_ids=True)

    replies = [await model.ainvoke("Hello"), await model.ainvoke("Hello", stream=True)]

    assert openai_server.requests[0]["return_token_ids"] is True
    assert openai_server.requests[0]["logprobs"] is True
    for reply in replies:
        tokens = {"prompt_token_ids": [1], "token_ids": [5, 6], "logprobs": [-0.5, -0.5]}
        assert reply.response_metadata["generation"] == tokens | {"finish_reason": "stop"}


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


def test_a_model_that_is_dropped_closes_its_connections(openai_server):
    model = ChatEndpoint(model="small", base_url=openai_server.base_url)
    list(model.stream("Hello"))
    model.invoke("Hello")
    assert openai_server._connections

    del model
    gc.collect()  # an open socket would warn here, and warnings are errors

    wait_until(lambda: not openai_server._connections, "its end")


def test_the_key_and_the_address_come_from_the_environment(openai_server, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", openai_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    model = ChatEndpoint(model="m")

    model.invoke("Hello")
    model.close()

    assert openai_server.headers[0]["authorization"] == "Bearer secret-key"
    assert "secret-key" not in repr(model)
    assert "secret-key" not in ChatReader(model).identity.fingerprint


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_a_model_thinks_is_kept_beside_the_memory_and_not_in_it(
    openai_server, model, streamed
):
    contents = ["At nine.", "<think>THOUGHT aloud</think>At ten.", "\\boxed{ten}"]
    thought = {"role": "assistant", "reasoning_content": "THOUGHT"}
    openai_server.script = [{"message": thought | {"content": content}} for content in contents]
    replies = Replies()
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=100))
    asked = {"question": "When?", "document": numbered(12)}

    modes = ["messages", "values"] if streamed else ["values"]
    async for mode, part in agent.astream(asked, {"callbacks": [replies]}, stream_mode=modes):
        out = part if mode == "values" else None

    assert (out["memory"], out["answer"]) == ("At ten.", "ten")
    assert "THOUGHT" not in json.dumps(openai_server.requests)
    assert [bool(body.get("stream")) for body in openai_server.requests] == [streamed] * 3
    assert [m.additional_kwargs["reasoning_content"] for m in replies.found] == ["THOUGHT"] * 3


class Replies(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.found = []

    async def on_llm_end(self, response, **_):
        self.found.append(response.generations[0][0].message)


async def test_the_graph_waits_for_as_long_as_the_server_asks(openai_server, model, monkeypatch):
    waited = []

    async def sleep(seconds):
        waited.append(seconds)

    monkeypatch.setattr("memagent_graph.graph.reading.asyncio", SimpleNamespace(sleep=sleep))
    busy = {"status": 429, "headers": {"retry-after": "7"}}
    openai_server.script = [busy, "ok", {"status": 503, "headers": {"retry-after": "3600"}}]
    agent = create_memagent(model, config=ReadingConfig(retry_interval=0.001))

    await agent.ainvoke({"question": "What is where?", "document": numbered(5)})

    assert waited == pytest.approx([7.0, 60.0], abs=0.01)  # and our own pause


async def test_what_the_sdk_is_asked_for_besides_is_no_field_of_the_body(openai_server, endpoint):
    model = endpoint(extra_body={"top_k": 5, "temperature": 0.5})

    await model.bind(extra_headers={"X-Trace": "seven"}, timeout=60).ainvoke("Hello")

    hello = {"model": "small", "messages": [{"role": "user", "content": "Hello"}]}
    assert openai_server.requests == [hello | {"temperature": 0.5, "top_k": 5}]
    assert openai_server.headers[0]["x-trace"] == "seven"


LITELLM = "litellm.UnsupportedParamsError: o1 does not support parameters: {'temperature': 0.0}"
REFUSALS = [  # field, what servers say when they refuse it
    ("max_tokens", "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
    ("temperature", "Unsupported value: 'temperature' does not support 0.0 with this model."),
    ("temperature", LITELLM),
    ("top_p", "The model does not support the topP parameter."),
    ("seed", "Unrecognized request argument supplied: seed"),
    ("seed", 'json: unknown field "seed"'),
    ("seed", "unknown field `seed`, expected one of `temperature`, `top_p`, `stop`"),
    ("seed", "Malformed input request: #: extraneous key [seed] is not permitted"),
    ("seed", "property 'seed' is unsupported"),
    ("stop", "Argument not supported on this model: stop"),
    ("stop", "Model grok-4 does not support parameter stop."),
]


@pytest.mark.parametrize(("field", "said"), REFUSALS)
def test_a_refused_field_is_left_out_in_whatever_words(openai_server, endpoint, field, said):
    model = endpoint(temperature=0.0, top_p=0.9, seed=7, max_tokens=50, stop=["END"])
    openai_server.script = [{"status": 400, "error": {"message": said, "param": None}}]

    model.invoke("Hello")
    model.invoke("Hello")

    sent = openai_server.requests
    assert [field in request for request in sent] == [True, False, False]
    assert set(sent[0]) - set(sent[1]) == {field}


def test_a_limit_with_a_wrong_value_is_not_left_out(openai_server, endpoint):
    model = endpoint(max_tokens=9000)
    said = "max_tokens must be at most 4096"
    openai_server.script = [{"status": 400, "error": {"message": said}}]

    with pytest.raises(ModelError, match="at most 4096"):
        model.invoke("Hello")


def completion(**fields):
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi."}}
    return json.dumps({"choices": [{**choice, "finish_reason": "stop"}], **fields}).encode()


@pytest.mark.parametrize(
    ("usage", "counts"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, None),
        ({"prompt_tokens": 9.0, "completion_tokens": "3"}, (9, 3)),
        ({"prompt_tokens": 9, "total_tokens": 12}, (9, 3)),
        ({"completion_tokens": 3, "total_tokens": 12}, (9, 3)),
        ({"input_tokens": 9, "output_tokens": 3}, (9, 3)),
        ({"prompt_tokens": "many", "completion_tokens": True}, None),
    ],
)
def test_usage_is_taken_as_far_as_it_is_reported(openai_server, model, usage, counts):
    openai_server.script = [completion(usage=usage)]

    found = model.invoke("Hello").usage_metadata

    assert (found and (found["input_tokens"], found["output_tokens"])) == counts


def stream(*parts):
    return b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)


def part(delta, **fields):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **fields}


SAID = {"index": 0, "finish_reason": "stop"}
MESSAGE = {"choices": [SAID | {"message": {"role": "assistant", "content": "The keeper."}}]}
COUNTED = {"prompt_tokens": 9, "total_tokens": 12}
TEXT = [
    part({"content": "The "}, usage=COUNTED | {"completion_tokens": 1}),
    part({"content": "keeper."}, usage=COUNTED | {"completion_tokens": 3}),
]


@pytest.mark.parametrize(
    "last",
    [
        [{"choices": [SAID | {"delta": None}]}],
        [{"choices": [SAID]}],
        [{"choices": [SAID | {"delta": {}}]}, {"choices": None}],
        [MESSAGE],
        [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"usage": COUNTED}],
        [{"choices": [{"index": 1, "delta": {"content": "Other"}}]}, {"choices": [SAID]}],
    ],
)
def test_a_stream_is_whole_whatever_its_last_parts_lack(openai_server, model, last):
    openai_server.script = [stream(*TEXT, *last)]

    heard = [*model.stream("Hello")]

    assert "".join(each.text for each in heard) == "The keeper."
    whole = sum(heard[1:], heard[0])
    assert whole.usage_metadata["input_tokens"] == 9
    assert whole.usage_metadata["output_tokens"] == 3


OUTPUT_TEXT = [{"type": "output_text", "text": "The keeper."}]


@pytest.mark.parametrize(
    "body",
    [
        stream(*TEXT) + b"data: [DONE]\n\n",
        stream(MESSAGE) + b"data: [DONE]\n\n",
        json.dumps(MESSAGE, indent=1).encode(),
        stream({"choices": [SAID | {"text": "The keeper."}]}),
        b"data: \n\n" + stream(part({"content": "The keeper."}), {"choices": [SAID]}),
        b"\xef\xbb\xbf" + stream({"choices": [SAID | {"delta": {"content": "The keeper."}}]}),
        stream({"choices": [SAID | {"delta": {"content": "The keeper."}}]}).replace(b"\n", b"\r\n"),
        stream({"choices": [SAID | {"delta": {"content": "The keeper."}}]}).strip(),
    ],
)
def test_a_stream_is_read_in_any_shape(openai_server, model, body):
    openai_server.script = [body]

    assert "".join(each.text for each in model.stream("Hello")) == "The keeper."


@pytest.mark.parametrize(
    "choice",
    [
        {"text": "The keeper."},
        {"message": {"content": {"text": "The keeper."}}},
        {"message": {"content": OUTPUT_TEXT}},
        {"message": {"content": [{"type": "text", "text": "The keeper."}]}},
    ],
)
def test_a_whole_reply_is_read_in_any_shape(openai_server, model, choice):
    openai_server.script = [json.dumps({"choices": [SAID | choice]}).encode()]

    assert model.invoke("Hello").text == "The keeper."


def test_a_long_prompt_rejected_for_an_unknown_reason_is_halved_while_long(openai_server, model):
    openai_server.models = [{"id": "small"}]
    openai_server.script = [{"status": 400, "error": {"message": "Nope."}}]
    text = "The sea was calm again and the gulls were loud. " * 100

    out = create_memagent(model).invoke({"question": "Who?", "document": text})

    assert out["coverage"] == 1
    assert len(openai_server.requests) in (4, 5)  # rejected, its halves and a rest, the answer
    openai_server.requests.clear()
    openai_server.script = [{"status": 400, "error": {"message": "Nope."}}] * 9
    with pytest.raises(ModelError, match="Nope"):
        create_memagent(model).invoke({"question": "Who?", "document": text})
    assert len(openai_server.requests) == 3  # what is left is short
    openai_server.requests.clear()
    with pytest.raises(ModelError, match="Nope"):
        create_memagent(model).invoke({"question": "Who?", "document": text * 4})
    assert len(openai_server.requests) == 5
    openai_server.requests.clear()
    openai_server.script = [{"status": 400, "error": {"message": "Unknown role."}}] * 9
    with pytest.raises(ModelError, match="Unknown role"):
        create_memagent(model).invoke({"question": "Who?", "document": text})
    assert len(openai_server.requests) == 1


@pytest.mark.parametrize(("told", "cut"), [(512, True), (2048, True), (5200, False), (7, False)])
def test_a_prompt_that_the_server_cut_ends_the_reading(openai_server, told, cut, model):
    usage = {"prompt_tokens": told, "completion_tokens": 3}
    openai_server.script = [completion(usage=usage)] * 2
    text = "The sea was calm again and the gulls were loud. " * 400
    agent = create_memagent(model, config=ReadingConfig(chunk_tokens=5000))

    if cut:
        with pytest.raises(ModelError, match=f"reports {told} tokens.*num_ctx"):
            agent.invoke({"question": "Who?", "document": text})
    else:
        assert agent.invoke({"question": "Who?", "document": text})["coverage"] == 1


def test_one_model_serves_several_event_loops_over_the_same_connections(openai_server, model):
    replies = {asyncio.run(model.ainvoke("Hello")).text for _ in range(3)}

    gc.collect()  # an open socket would warn here, and warnings are errors
    assert len(replies) == 1
    assert openai_server.accepted == 1
    model.close()
    wait_until(lambda: not openai_server._connections, "their end")


def test_tools_are_offered_and_calls_come_back(openai_server, model):
    @tool
    def weather(city: str) -> str:
        """Weather of a city."""
        return city

    function = {"name": "weather", "arguments": '{"city":"Rome"}'}
    call = {"id": "1", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    openai_server.script = [{"message": message}]

    reply = model.bind_tools([weather], tool_choice="weather").invoke([HumanMessage("Rome?")])

    assert [(c["name"], c["args"]) for c in reply.tool_calls] == [("weather", {"city": "Rome"})]
    assert openai_server.requests[0]["tool_choice"]["function"]["name"] == "weather"


async def test_a_server_that_continues_without_probabilities_is_not_asked_to(openai_server, model):
    plain = {"choices": [{"index": 0, "text": "yes", "finish_reason": "stop"}]}
    chances = {"token_logprobs": [-0.25]}
    known = {"choices": [{**plain["choices"][0], "logprobs": chances}]}
    openai_server.script = [json.dumps(body).encode() for body in (known, plain)]

    word, chance, _ = await continue_text(model, "Is it?", None, 1)
    assert (word, chance, model.continues) == ("yes", -0.25, True)
    with pytest.raises(ModelError, match="without the tokens' probabilities"):
        await continue_text(model, "Is it?", None, 1)

    assert not model.continues
