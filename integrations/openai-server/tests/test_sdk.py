"""The official `openai` SDK against a running server."""

import json
from pathlib import Path

import httpx
import openai
import pytest
from snippets import run, snippets

from memagent_http.refusals import Refusal
from memagent_openai_server.delivery import ALIVE
from memagent_openai_server.upstream import Reply
from memagent_openai_server.upstream import events as passed_events

INTEGRATION = Path(__file__).parents[1]
PAGES = (INTEGRATION / "README.md", INTEGRATION.parents[1] / "docs" / "server.md")
SHORT = [{"role": "user", "content": "Hello there"}]


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_short_request_and_its_answer_are_passed_on_byte_for_byte(behind, upstream, stream):
    said = '[{"content":"Hello \\u00e9","role":"user"}]'
    body = f'{{ "model":"small", "messages":{said},"odd":[1.0], "stream":{stream}}}'
    headers = {"content-type": "application/json"}

    direct = httpx.post(f"{upstream.base_url}/chat/completions", content=body, headers=headers)
    through = behind.post(content=body, headers=headers)

    assert through.content == direct.content
    assert through.headers["content-type"].startswith(direct.headers["content-type"])
    assert upstream.requests == [json.loads(body)] * 2


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_signs_of_life_come_between_the_events_of_a_model_s_server_wherever_it_splits(end):
    events = [f'data: {{"n": {n}, "text": "a\\nb"}}{end}{end}'.encode() for n in range(3)]
    whole = b"".join(events) + b"data: [DONE]"  # which a server cut short
    for at in range(len(whole) + 1):

        async def pieces(at=at):
            yield whole[:at]
            yield whole[at:]

        passed = [raw async for raw, _ in passed_events(Reply(200, {}, pieces()))]

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


def test_the_key_of_a_client_does_not_reach_the_model(behind, upstream, monkeypatch):
    behind.client("a-key-of-the-client").chat.completions.create(model="small", messages=SHORT)

    assert "a-key-of-the-client" not in str(upstream.headers[-1])


def test_a_model_server_that_is_down_is_a_503_which_the_sdk_repeats(behind, upstream):
    behind.ask(SHORT)
    upstream.kill()

    with pytest.raises(openai.InternalServerError, match="cannot be reached") as caught:
        behind.ask(SHORT)

    assert caught.value.status_code == 503
    upstream.start()
    behind.ask(SHORT)


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
def test_an_answer_that_the_memory_lacks_is_passed_on_as_such(behind, upstream, asked, stream):
    reply, made_up = upstream.reply, "Bo Tern opens it at 9:15."
    upstream.reply = lambda body: reply(body) if "<section>" in str(body) else made_up

    completion = behind.ask(asked(), stream=stream)
    found = [*completion][-1].memagent if stream else completion.memagent

    assert found["found"] is False
    assert found["unsupported"] == [made_up]
    assert made_up in found["warnings"][-1]


def test_while_a_long_request_is_read_the_memory_comes_as_reasoning(behind, asked, needle):
    parts = list(behind.ask(asked(), stream=True, stream_options={"include_usage": True}))

    deltas = [part.choices[0].delta for part in parts if part.choices]
    thoughts = [one.reasoning_content for one in deltas if getattr(one, "reasoning_content", None)]
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    chunks = parts[-2].memagent["chunks"]
    assert text == needle
    assert len(thoughts) == chunks > 10
    assert needle in "".join(thoughts)
    assert f"[{chunks} of {chunks} sections read]" in thoughts[-1]
    assert parts[-2].choices[0].finish_reason == "stop"
    assert parts[-1].usage.total_tokens == 10 * (chunks + 1)


def test_a_model_that_fails_while_reading_is_an_error_within_the_stream(behind, upstream, asked):
    upstream.script = ["ok", "ok", 400]

    with pytest.raises(openai.APIError, match="The model failed"):
        list(behind.ask(asked(), stream=True))


def test_a_request_that_turns_out_too_long_is_read(serve, upstream, asked, small, needle):
    # The server tells no window, so that only its refusal says that the request does not fit.
    upstream.models = [{"id": "small"}]
    error = {"message": "maximum context length is 2048 tokens"}
    upstream.script = [{"status": 400, "error": error}]
    server = serve("openai:small", base_url=upstream.base_url, config=small)

    completion = server.ask(asked())

    assert completion.choices[0].message.content == needle
    assert completion.memagent["chunks"] > 10


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
