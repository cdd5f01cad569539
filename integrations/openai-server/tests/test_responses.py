"""The responses API by the official SDK."""

from __future__ import annotations

import json

import openai
import pytest

TOOL = {
    "type": "function",
    "name": "price",
    "description": "The price of an item.",
    "parameters": {"type": "object", "properties": {"item": {"type": "integer"}}},
    "strict": False,
}
CALL = {
    "message": {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "price", "arguments": '{"item": 3}'},
            }
        ],
    },
    "finish_reason": "tool_calls",
}


def test_a_short_response_is_the_model_s_answer(behind, upstream):
    response = behind.client().responses.create(
        model="small", input="Hello", instructions="Be kind.", temperature=0.5
    )

    assert response.output_text == "Nothing was found."
    assert response.status == "completed"
    assert response.usage.total_tokens == 10
    assert upstream.requests[-1]["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
    ]
    assert upstream.requests[-1]["temperature"] == 0.5


def test_a_long_response_is_read(behind, asked, needle):
    response = behind.client().responses.create(model="small", input=asked())

    assert response.output_text == needle
    assert response.memagent["chunks"] > 10


def test_a_conversation_is_sent_whole_each_time(behind, upstream):
    client = behind.client()
    said = [{"role": "user", "content": "I am Ann."}]
    first = client.responses.create(model="small", input=said)

    said += [*first.model_dump(exclude_none=True)["output"], {"role": "user", "content": "Who?"}]
    client.responses.create(model="small", input=said)

    sent = [message["content"] for message in upstream.requests[-1]["messages"]]
    assert sent == ["I am Ann.", "Nothing was found.", "Who?"]


@pytest.mark.parametrize("store", [None, True, False])
def test_a_response_says_that_it_is_not_stored(behind, store):
    options = {} if store is None else {"store": store}

    made = behind.client().responses.create(model="small", input="Hello", **options)

    assert made.store is False
    assert made.previous_response_id is None


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


def test_functions_are_called_and_their_output_is_sent_back(behind, upstream):
    client = behind.client()
    upstream.script = [CALL]
    first = client.responses.create(model="small", input="What is item 3?", tools=[TOOL])
    (call,) = first.output

    client.responses.create(
        model="small",
        tools=[TOOL],
        input=[
            {"role": "user", "content": "What is item 3?"},
            *first.model_dump(exclude_none=True)["output"],
            {"type": "function_call_output", "call_id": call.call_id, "output": "5 euros"},
        ],
    )

    assert (call.name, json.loads(call.arguments)) == ("price", {"item": 3})
    messages = upstream.requests[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == "call_1"


def test_a_reading_streams_its_progress_as_reasoning(behind, asked, needle):
    with behind.client().responses.stream(model="small", input=asked()) as stream:
        events = list(stream)
        response = stream.get_final_response()

    kinds = [event.type for event in events]
    assert response.output_text == needle
    assert [item.type for item in response.output] == ["reasoning", "message"]
    assert kinds.count("response.reasoning_summary_text.delta") == response.memagent["chunks"]
    assert [event.sequence_number for event in events] == sorted(
        {event.sequence_number for event in events}
    )
    assert needle in response.output[0].summary[0].text


def test_a_short_response_streams(behind):
    events = list(behind.client().responses.create(model="small", input="Hello", stream=True))

    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == "Nothing was found."
    assert events[-1].response.usage.total_tokens == 10


def test_a_shape_for_the_answer_is_asked_of_the_model(behind, upstream):
    shape = {"type": "json_schema", "name": "time", "schema": {"type": "object"}, "strict": True}

    behind.client().responses.create(model="small", input="When?", text={"format": shape})

    asked = upstream.requests[-1]["response_format"]
    assert asked["json_schema"] == {"name": "time", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{"type": "web_search"}]}, "Only functions"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "role must be"),
        ({"background": True}, "background"),
        ({"background": 0}, "background"),
        ({"background": 0.0}, "background"),
        ({"stream": True, "stream_options": {"include_obfuscation": 0}}, "include_obfuscation"),
    ],
)
def test_what_is_not_offered_is_refused_and_named(behind, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        behind.client().responses.create(**{"model": "small", "input": "Hello", **fields})


def test_the_async_client_gets_responses(behind, asked, needle):
    import asyncio

    async def both():
        async with behind.async_client() as client:
            return await asyncio.gather(
                client.responses.create(model="small", input=asked()),
                client.responses.create(model="small", input="Hello"),
            )

    long, short = asyncio.run(both())

    assert (long.output_text, short.output_text) == (needle, "Nothing was found.")
