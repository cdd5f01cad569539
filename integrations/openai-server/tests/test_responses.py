"""The responses API by the official SDK: its fields, its parts, and how responses end."""

import json
import typing

import openai
import pytest
from openai.types.responses import Response
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsNonStreaming,
)
from servers.openai_server import event


def test_a_short_response_is_the_model_s_answer(behind, upstream):
    response = behind.client().responses.create(
        model="small", input="Hello", instructions="Be kind.", temperature=0.5
    )

    assert response.output_text == "Nothing was found."
    assert (response.status, response.store) == ("completed", False)
    assert response.previous_response_id is None
    assert response.usage.total_tokens == 10
    messages = [(one["role"], one["content"]) for one in upstream.requests[-1]["messages"]]
    assert messages == [("system", "Be kind."), ("user", "Hello")]
    assert upstream.requests[-1]["temperature"] == 0.5


def test_what_needs_a_stored_response_is_refused_with_what_to_send(behind, upstream):
    client = behind.client()
    for attempt in (
        lambda: client.responses.create(model="small", input="And?", previous_response_id="resp_1"),
        lambda: client.responses.retrieve("resp_1"),
        lambda: client.responses.delete("resp_1"),
    ):
        with pytest.raises(openai.BadRequestError, match="send the whole conversation as `input`"):
            attempt()
    assert upstream.requests == []


def test_a_reading_streams_its_progress_as_reasoning(behind, asked, needle):
    with behind.client().responses.stream(model="small", input=asked()) as stream:
        events = list(stream)
        response = stream.get_final_response()

    kinds = [event.type for event in events]
    assert response.output_text == needle
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert kinds.count("response.reasoning_summary_text.delta") == response.memagent["chunks"]
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted({*numbers})
    assert needle in response.output[0].summary[0].text


HONOURED = {
    "background": False,
    "include": ["reasoning.encrypted_content"],
    "instructions": "Be kind.",
    "max_output_tokens": 50,
    "max_tool_calls": 3,
    "metadata": {"who": "ann"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "store": False,
    "stream_options": {"include_obfuscation": False},
    "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    "tool_choice": {"type": "function", "name": "price"},
    "tools": [{"type": "function", "name": "price", "parameters": {}, "strict": False}],
    "truncation": "auto",
    "user": "ann",
}
PASSED = {
    "parallel_tool_calls": False,
    "prompt_cache_key": "key",
    "prompt_cache_options": {"mode": "auto"},
    "prompt_cache_retention": "24h",
    "safety_identifier": "ann",
    "service_tier": "flex",
    "temperature": 0.5,
    "top_p": 0.9,
    # of other servers, or of chat completions alone:
    "seed": 7,
    "stop": ["END"],
    "top_k": 5,
    "frequency_penalty": 0.1,
}
REFUSED = {
    "access_programs": [{"type": "x"}],
    "background": True,
    "background_options": {"x": 1},
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_1",
    "image": {"x": 1},
    "moderation": {"model": "m"},
    "previous_response_id": "resp_1",
    "prompt": {"id": "pmpt_1"},
    "n": 2,
    "messages": [],
    "max_tokens": 5,
    "max_completion_tokens": 5,
    "response_format": {"type": "json_object"},
    "reasoning_effort": "low",
    "logprobs": True,
    "top_logprobs": 2,
    "modalities": ["audio"],
    "web_search_options": {},
}


def make(running, **fields):
    known = typing.get_type_hints(ResponseCreateParamsNonStreaming)
    ours = {name: value for name, value in fields.items() if name in known}
    extra = {name: value for name, value in fields.items() if name not in known}
    options = {"model": "small", "input": "Hello", **ours}
    return running.client().responses.create(**options, extra_body=extra)


def test_every_parameter_of_the_installed_sdk_is_honoured_passed_on_or_refused():
    plain = {"input", "model", "stream"}  # in all other tests
    parameters = typing.get_type_hints(ResponseCreateParamsBase)
    assert parameters.keys() <= {*HONOURED, *PASSED, *REFUSED, *plain}


def repeated_in(response, fields):
    """The fields that a response has too, with its values."""
    told = json.loads(response.to_json())
    return {name: told[name] for name in fields if name in Response.model_fields}


def test_fields_that_chat_completions_have_too_are_passed_on(behind, upstream):
    response = make(behind, **PASSED)

    assert PASSED.items() <= upstream.requests[-1].items()
    assert repeated_in(response, PASSED).items() <= PASSED.items()


def test_fields_are_honoured_and_repeated_in_the_response(behind, upstream):
    response = make(behind, **HONOURED)

    sent = upstream.requests[-1]
    plain = {"max_tokens": 50, "reasoning_effort": "low", "verbosity": "low", "user": "ann"}
    assert sent.items() >= plain.items()
    assert sent["messages"][0]["content"] == "Be kind."
    assert sent["response_format"] == {"type": "json_object"}
    assert sent["tool_choice"]["function"] == {"name": "price"}
    assert sent["tools"][0]["function"]["name"] == "price"
    assert "reasoning" not in sent
    told = repeated_in(response, HONOURED.keys() - {"background"})
    assert told == {name: HONOURED[name] for name in told}


PICTURE = {"type": "input_image", "file_id": "f"}
NOT_OFFERED = [
    *(({name: value}, name) for name, value in REFUSED.items()),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    ({"text": {"shape": 1}}, "text.shape"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format"),
    ({"include": ["file_search_call.results"]}, "include.0"),
    ({"include": ["message.output_text.logprobs"]}, "include.0"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    ({"truncation": "middle"}, "truncation"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
    ({"input": [{"role": "wizard", "content": "x"}]}, "input.0"),
    ({"input": [{"role": "user", "content": [PICTURE]}]}, "input.0"),
    ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools"),
]


def test_fields_and_values_that_are_not_offered_are_refused_by_name(behind, upstream):
    for fields, param in NOT_OFFERED:
        with pytest.raises(openai.BadRequestError, match=param.partition(".")[0]) as refused:
            make(behind, **fields)
        assert refused.value.param == param
    assert upstream.requests == []


def test_a_choice_among_tools_pictures_files_and_a_shape_reach_the_model(behind, upstream):
    allowed = {"type": "allowed_tools", "mode": "required"}
    picture = {"type": "input_image", "image_url": "data:image/png;base64,x", "detail": "low"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "data:x"}

    shape = {"name": "time", "schema": {"type": "object"}, "strict": True}

    make(
        behind,
        text={"format": {"type": "json_schema", **shape}},
        tools=HONOURED["tools"],
        tool_choice={**allowed, "tools": [{"type": "function", "name": "price"}]},
        input=[{"role": "user", "content": [picture, file]}],
    )

    sent = upstream.requests[-1]
    tools = [{"type": "function", "function": {"name": "price"}}]
    assert sent["response_format"] == {"type": "json_schema", "json_schema": shape}
    assert sent["tool_choice"]["allowed_tools"] == {"mode": "required", "tools": tools}
    assert sent["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,x", "detail": "low"}},
        {"type": "file", "file": {"file_data": "data:x", "filename": "a.pdf"}},
    ]


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_reply_that_was_cut_is_incomplete_with_its_reason(behind, upstream, finish, reason):
    client = behind.client()
    upstream.script = [{"finish_reason": finish}] * 2

    response = client.responses.create(model="small", input="Hello")
    *_, last = client.responses.create(model="small", input="Hello", stream=True)

    assert last.type == "response.incomplete"
    for found in (response, last.response):
        assert (found.status, found.incomplete_details.reason) == ("incomplete", reason)
        assert found.output[0].status == "incomplete"
        assert found.output_text == "Nothing was found."


BROKEN = ["cut", "malformed", b"[]", b'{"choices": []}', b'{"choices": [{}]}', b"nonsense", b"null"]
BREAKS = [b"", b"[DONE]", b"{", b'{"error": {"message": "key sk-1"}}', b"[]"]


def test_a_broken_upstream_is_a_502(behind, upstream):
    for said in BROKEN:
        upstream.script = [said]
        with pytest.raises(openai.InternalServerError) as failed:
            make(behind)
        assert (failed.value.status_code, failed.value.code) == (502, "upstream_broken")


def test_an_upstream_that_breaks_in_a_stream_ends_it_with_a_failed_response(behind, upstream):
    client = behind.client()
    for broken in BREAKS:
        upstream.script = [event({"content": "Half"}) + (broken and b"data: %b\n\n" % broken)]

        *_, last = client.responses.create(model="small", input="Hello", stream=True)

        assert last.type == "response.failed"
        assert last.response.status == "failed"
        assert last.response.error.code == "server_error"
        assert last.response.output_text == "Half"
        assert "sk-1" not in last.to_json()


def test_what_a_model_thinks_aloud_or_refuses_is_told_whole_and_in_a_stream(behind, upstream):
    client = behind.client()
    thinking = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    refusing = {"role": "assistant", "content": None, "refusal": "No."}
    upstream.script = [
        {"message": thinking},
        {"message": refusing},
        {"message": thinking},
        event({"role": "assistant"}) + event({"refusal": "N"}) + event({"refusal": "o."}, "stop"),
    ]

    whole = [client.responses.create(model="small", input="Hello") for _ in range(2)]
    streamed = []
    for _ in range(2):
        with client.responses.stream(model="small", input="Hello") as stream:
            streamed.append(stream.get_final_response())

    for thought, refused in (whole, streamed):
        assert thought.output[0].summary[0].text == "Hm."
        assert thought.output_text == "Yes."
        assert refused.output[0].content[0].refusal == "No."
    said = [*whole[1].model_dump(exclude_none=True)["output"], {"role": "user", "content": "Why?"}]
    client.responses.create(model="small", input=said)
    first, *_ = upstream.requests[-1]["messages"]
    assert first["content"] == [{"type": "refusal", "refusal": "No."}]
