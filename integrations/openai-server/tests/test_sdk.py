"""The official `openai` SDK against a running server."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import openai
import pytest
from snippets import run, snippets

from memagent_graph.graph.reading import NOTHING_SUPPORTED
from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import ALIVE
from memagent_openai_server.upstream import Reply
from memagent_openai_server.upstream import events as passed_events

INTEGRATION = Path(__file__).parents[1]
PAGES = (INTEGRATION / "README.md", INTEGRATION.parents[1] / "docs" / "server.md")
SHORT = [{"role": "user", "content": "Hello there"}]


def plain(completion) -> dict:
    return {**completion.to_dict(), "id": "", "created": 0}


def test_a_short_request_reaches_the_model_byte_for_byte_and_so_does_its_answer(behind, upstream):
    body = b'{ "model":"small", "messages":[{"content":"Hello \\u00e9","role":"user"}],"odd":[1.0]}'
    seen = []
    upstream.reply = lambda body: seen.append(body) or "Yes?"
    headers = {"content-type": "application/json"}

    direct = httpx.post(f"{upstream.base_url}/chat/completions", content=body, headers=headers)
    through = behind.post(content=body, headers=headers)

    assert through.content == direct.content
    assert seen[0] == seen[1] == json.loads(body)


def test_a_short_stream_is_passed_on_byte_for_byte(behind, upstream):
    body = {"model": "small", "messages": SHORT, "stream": True}

    direct = httpx.post(f"{upstream.base_url}/chat/completions", json=body)
    through = behind.post(json=body)

    assert through.content == direct.content
    assert through.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_signs_of_life_come_between_the_events_of_a_model_s_server_wherever_it_splits(end):
    events = [f'data: {{"n": {n}, "text": "a\\nb"}}{end}{end}'.encode() for n in range(3)]
    whole = b"".join(events) + b"data: [DONE]"  # which a server cut short
    for at in range(len(whole) + 1):

        async def pieces(at=at):
            yield whole[:at]
            yield whole[at:]

        passed = [found.raw async for found in passed_events(Reply(200, {}, pieces()))]

        assert b"".join(passed) == whole
        told = ALIVE.join(passed).replace(ALIVE, b"")
        assert told == whole
        assert all(part.endswith(f"{end}{end}".encode()) for part in passed[:-1])


async def test_an_event_without_an_end_is_not_held_for_ever(monkeypatch):
    monkeypatch.setattr("memagent_openai_server.upstream._LONGEST_EVENT", 100)

    async def endless():
        for _ in range(1_000):
            yield b"data"

    with pytest.raises(Refusal, match="broke off"):
        _ = [part async for part in passed_events(Reply(200, {}, endless()))]


def test_tools_and_unknown_fields_of_a_short_request_are_passed_on(behind, upstream):
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "price", "arguments": '{"item": 3}'},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    upstream.script = [{"message": message, "finish_reason": "tool_calls"}]
    tool = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}

    completion = behind.client().chat.completions.create(
        model="small", messages=SHORT, tools=[tool], extra_body={"top_k": 7}
    )

    assert completion.choices[0].message.tool_calls[0].function.arguments == '{"item": 3}'
    assert upstream.requests[-1]["tools"] == [tool]
    assert upstream.requests[-1]["top_k"] == 7


def test_the_key_of_a_client_does_not_reach_the_model(behind, upstream, monkeypatch):
    behind.client("a-key-of-the-client").chat.completions.create(model="small", messages=SHORT)

    assert "a-key-of-the-client" not in str(upstream.headers[-1])


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_the_model_keeps_its_status_that_the_client_gets(behind, upstream, stream):
    upstream.script = [{"status": 422, "error": {"message": "no such sampling"}}]

    with pytest.raises(openai.UnprocessableEntityError, match="does not take this request"):
        behind.client().chat.completions.create(model="small", messages=SHORT, stream=stream)


def test_the_sdk_repeats_what_failed_for_now(behind, upstream):
    upstream.script = [503, {"status": 429, "headers": {"retry-after": "0"}}]

    completion = behind.client(max_retries=2).chat.completions.create(model="small", messages=SHORT)

    assert completion.choices[0].message.content == "Nothing was found."
    assert len(upstream.requests) == 3


def test_a_model_server_that_is_down_is_a_503_which_the_sdk_repeats(behind, upstream):
    behind.client().chat.completions.create(model="small", messages=SHORT)
    upstream.kill()

    with pytest.raises(openai.InternalServerError, match="cannot be reached") as caught:
        behind.client().chat.completions.create(model="small", messages=SHORT)

    assert caught.value.status_code == 503
    upstream.start()
    behind.client().chat.completions.create(model="small", messages=SHORT)


def test_a_key_that_the_model_server_refuses_is_not_the_client_s_fault(behind, upstream):
    upstream.script = [{"status": 401, "error": {"message": "bad key sk-of-the-server"}}]

    with pytest.raises(openai.InternalServerError) as caught:
        behind.client().chat.completions.create(model="small", messages=SHORT)

    assert caught.value.status_code == 502
    assert "sk-of-the-server" not in str(caught.value)


def test_a_long_request_is_read_and_answered_in_the_standard_shape(behind, upstream, asked, needle):
    raw = behind.client().chat.completions.with_raw_response.create(model="small", messages=asked())

    completion = raw.parse()
    assert completion.choices[0].message.content == needle
    assert completion.choices[0].finish_reason == "stop"
    calls = len(upstream.requests)
    assert calls > 10
    assert completion.usage.prompt_tokens == 7 * calls
    assert completion.usage.total_tokens == 10 * calls
    assert raw.headers["x-memagent-memory"] == completion.memagent["memory"]
    assert raw.headers["x-request-id"].startswith("req_")
    assert completion.memagent["coverage"] == 1.0
    assert completion.memagent["found"] is True
    assert completion.memagent["unsupported"] == completion.memagent["warnings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_memory_lacks_is_passed_on_as_such(behind, upstream, asked, stream):
    reply, made_up = upstream.reply, "Bo Tern opens it at 9:15."
    upstream.reply = lambda body: reply(body) if "<section>" in str(body) else made_up

    completion = behind.client().chat.completions.create(
        model="small", messages=asked(), stream=stream
    )
    found = [*completion][-1].memagent if stream else completion.memagent

    assert found["found"] is False
    assert found["unsupported"] == [made_up]
    assert made_up in found["warnings"][-1]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_unsupported_statements_can_be_kept_from_clients(serve, upstream, asked, small, stream):
    reply = upstream.reply
    upstream.reply = lambda body: reply(body) if "<section>" in str(body) else "Bo Tern did."
    config = small.model_copy(update={"unsupported": "drop"})
    server = serve("openai:small", base_url=upstream.base_url, config=config)

    completion = server.client().chat.completions.create(
        model="small", messages=asked(), stream=stream
    )

    if stream:
        text = "".join(part.choices[0].delta.content or "" for part in completion)
    else:
        text = completion.choices[0].message.content
    assert text == NOTHING_SUPPORTED


def test_while_a_long_request_is_read_the_memory_comes_as_reasoning(behind, asked, needle):
    parts = list(
        behind.client().chat.completions.create(
            model="small",
            messages=asked(),
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    thoughts = [
        part.choices[0].delta.reasoning_content
        for part in parts
        if part.choices and getattr(part.choices[0].delta, "reasoning_content", None)
    ]
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    chunks = parts[-2].memagent["chunks"]
    assert text == needle
    assert len(thoughts) == chunks > 10
    assert needle in "".join(thoughts)
    assert f"[{chunks} of {chunks} sections read]" in thoughts[-1]
    assert parts[-2].choices[0].finish_reason == "stop"
    assert parts[-1].usage.total_tokens == 10 * (chunks + 1)


def test_the_sdk_s_stream_helper_accumulates_a_reading(behind, asked, needle):
    with behind.client().chat.completions.stream(model="small", messages=asked()) as stream:
        completion = stream.get_final_completion()

    assert completion.choices[0].message.content == needle


async def test_the_async_client_asks_and_streams(behind, asked, needle):
    async with behind.async_client() as client:
        whole = await client.chat.completions.create(model="small", messages=asked())
        stream = await client.chat.completions.create(model="small", messages=asked(), stream=True)
        text = "".join([part.choices[0].delta.content or "" async for part in stream])

    assert whole.choices[0].message.content == text == needle


def test_a_model_that_fails_while_reading_is_an_error_within_the_stream(behind, upstream, asked):
    upstream.script = ["ok", "ok", 400]

    with pytest.raises(openai.APIError, match="The model failed"):
        list(behind.client().chat.completions.create(model="small", messages=asked(), stream=True))


def test_a_reading_that_failed_goes_on_where_it_was(behind, upstream, asked, needle):
    client = behind.client()
    upstream.script = ["ok"] * 5 + [400]
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="small", messages=asked())
    before = len(upstream.requests)

    completion = client.chat.completions.create(model="small", messages=asked())

    assert completion.choices[0].message.content == needle
    total = len({json.dumps(body["messages"]) for body in upstream.requests})
    assert len(upstream.requests) - before == total - 5


def test_a_request_that_turns_out_too_long_is_read(serve, upstream, asked, small, needle):
    # The server tells no window, so that only its refusal says that the request does not fit.
    upstream.models = [{"id": "small"}]
    upstream.script = [
        {"status": 400, "error": {"message": "maximum context length is 2048 tokens"}}
    ]
    server = serve("openai:small", base_url=upstream.base_url, config=small)

    completion = server.client().chat.completions.create(model="small", messages=asked())

    assert completion.choices[0].message.content == needle
    assert completion.memagent["chunks"] > 10


def test_an_answer_longer_than_the_client_wants_is_cut_and_says_so(behind, asked, needle):
    completion = behind.client().chat.completions.create(
        model="small", messages=asked(), max_tokens=3
    )

    text = completion.choices[0].message.content
    assert needle.startswith(text)
    assert 0 < len(text) < len(needle)
    assert completion.choices[0].finish_reason == "length"


def test_the_model_is_listed_with_its_window(behind):
    models = behind.client().models.list().data

    assert [(model.id, model.max_model_len) for model in models] == [("small", 2048)]
    assert behind.client().models.retrieve("small").id == "small"


def test_another_model_is_not_there(behind):
    with pytest.raises(openai.NotFoundError, match="this server has 'small'") as caught:
        behind.client().chat.completions.create(model="large", messages=SHORT)

    assert caught.value.code == "model_not_found"


def test_the_built_in_reader_answers_short_and_long(builtin, asked, question, needle):
    client = builtin.client()
    short = [{"role": "user", "content": f"{needle} {question}"}]

    answers = [
        client.chat.completions.create(model="extractive", messages=messages)
        for messages in (short, asked(9000))
    ]

    assert [answer.choices[0].message.content for answer in answers] == [needle, needle]
    assert answers[1].usage.prompt_tokens > 50_000


@pytest.mark.slow
def test_a_needle_in_a_million_tokens_is_found_by_the_built_in_reader(builtin, asked, needle):
    with builtin.client(timeout=300).chat.completions.stream(
        model="extractive", messages=asked(115_000), stream_options={"include_usage": True}
    ) as stream:
        completion = stream.get_final_completion()

    assert completion.choices[0].message.content == needle
    assert completion.usage.prompt_tokens > 1_000_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_asks_the_server_as_it_stands(page, builtin, monkeypatch, capsys):
    found = snippets(page)
    here = {"http://localhost:8080": builtin.url, "Qwen/Qwen2.5-7B-Instruct": "extractive"}
    code = [code for code, _ in found]
    for theirs, ours in here.items():
        code = [each.replace(theirs, ours) for each in code]

    printed = "".join(run(page.stem, code, monkeypatch, capsys))

    assert printed.startswith("The disk failed because of its fan.")
    assert printed.startswith("".join(shown for _, shown in found))
