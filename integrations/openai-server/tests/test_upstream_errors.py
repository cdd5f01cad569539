"""Errors of the model's server: reworded for clients, and quoted in the log for the operator."""

import json
import logging

import httpx
import openai
import pytest
from servers.openai_server import event

from memagent_openai_server.access import JsonLines, log

HI = [{"role": "user", "content": "My heron is called Walther Behrens of Lübeck."}]
KEY = "sk-of-the-server-0123456789"
SECRETS = (KEY, "10.1.2.3", "internal", "vault.corp", "Behrens", "Traceback", "sk-")
LEAK = f"at http://10.1.2.3:8000/internal, Bearer {KEY}, vault.corp: Traceback"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@pytest.fixture
def behind(serve, upstream, small, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return serve("openai:small", base_url=upstream.base_url, config=small)


def caught(server, messages=HI, **fields) -> openai.APIError:
    with pytest.raises(openai.APIError) as found:
        result = server.ask(messages, **fields)
        list(result)
    return found.value


def check_silent(error: openai.APIError) -> None:
    response = getattr(error, "response", None)
    heard = f"{error} {error.body} {response.text if response is not None else ''}"
    assert not [secret for secret in SECRETS if secret in heard]


# fmt: off
STATUSES = [
    (400, {"message": f"maximum context length is 2048 tokens {LEAK}"}, openai.BadRequestError,
     "context_length_exceeded", "messages"),
    (400, {"message": f"Bad {LEAK}", "param": "temperature"}, openai.BadRequestError,
     "invalid_value", "temperature"),
    (400, {"message": f"temperature must be non-negative {LEAK}"}, openai.BadRequestError,
     "invalid_value", "temperature"),
    (422, [{"loc": ["body", "temperature"], "msg": LEAK}], openai.UnprocessableEntityError,
     "invalid_value", "temperature"),
    (400, {"message": LEAK, "param": "sk-of-nobody"}, openai.BadRequestError,
     "upstream_refused", None),
    (404, {"message": f"The model `small` does not exist {LEAK}"}, openai.NotFoundError,
     "model_not_found", "model"),
    (409, {"message": LEAK}, openai.ConflictError, "upstream_refused", None),
    (429, {"message": LEAK}, openai.RateLimitError, "rate_limit_exceeded", None),
    (429, {"message": LEAK, "code": "insufficient_quota"}, openai.RateLimitError,
     "insufficient_quota", None),
    (400, {"message": LEAK, "code": "content_filter"}, openai.BadRequestError,
     "content_filter", None),
    (500, {"message": LEAK}, openai.InternalServerError, "upstream_failed", None),
    (503, LEAK, openai.InternalServerError, "upstream_failed", None),
    (401, {"message": LEAK}, openai.InternalServerError, "upstream_key", None),
    (403, {"message": LEAK}, openai.InternalServerError, "upstream_key", None),
]
# fmt: on


def test_the_status_and_the_meaning_of_an_error_stay_and_its_words_do_not(behind, upstream, stream):
    for status, error, kind, code, param in STATUSES:
        upstream.script = [{"status": status, "error": error, "headers": {"x-internal": LEAK}}]

        found = caught(behind, stream=stream, temperature=-1)

        assert type(found) is kind
        assert found.status_code == (502 if status in (401, 403) else status)
        assert (found.code, found.param) == (code, param)
        check_silent(found)
        assert "x-internal" not in found.response.headers


def test_a_client_learns_how_long_the_context_is(behind, upstream):
    message = "This model's maximum context length is 2048 tokens, however you asked for 3000."
    upstream.script = [{"status": 400, "error": {"message": message}}]

    assert "2048 tokens" in str(caught(behind))


def test_when_to_try_again_is_passed_on(behind, upstream):
    for told, wait in {"7": "7", "0.3": "1", "inf": "86400", "x": None}.items():
        upstream.script = [{"status": 429, "headers": {"retry-after": told}}]

        assert caught(behind).response.headers.get("retry-after") == wait


def part(text: str) -> str:
    return event({"content": text}).decode().replace("]}", '], "error": null}')


ERRORS = [
    f"data: {json.dumps({'error': {'message': LEAK, 'code': 400, 'param': 'temperature'}})}\n\n",
    f"data: {json.dumps({'error': LEAK})}\n\n",
    f"event: error\ndata: {json.dumps({'message': LEAK})}\n\n",
    f"data: {json.dumps({'object': 'error', 'message': LEAK, 'code': 400})}\n\n",
    f"error: {json.dumps({'message': LEAK})}\n\n",
    f"data: Internal error {LEAK}\n\n",
    f"id: 3\r\ndata: {json.dumps({'error': {'message': LEAK}})}\r\n\r\n",
    f"data: {json.dumps({'error': {'message': LEAK}})}",
]


@pytest.mark.parametrize("read", [False, True])
def test_an_error_within_a_stream_is_reworded_and_what_came_before_it_is_not(
    behind, upstream, asked, read
):
    upstream.reply = lambda body: "Nothing."
    messages, fields = HI, {"temperature": -1}
    if read:
        messages, fields = asked(500), {"temperature": -1, "tools": [TOOL]}
        behind.ask(messages)
    for error in ERRORS:
        events = f"{part('One ')}: a comment\n\n{part('two')}{error}data: [DONE]\n\n"
        upstream.script = [events.encode()]

        stream = behind.ask(messages, stream=True, **fields)
        text = ""
        with pytest.raises(openai.APIError) as found:
            for each in stream:
                text += (each.choices[0].delta.content or "") if each.choices else ""

        assert text == "One two", error
        check_silent(found.value)
        assert "The model's server" in str(found.value)


def test_events_that_are_no_errors_are_passed_on_as_they_are(behind, upstream):
    lines = ['data: {"choices": [], "error": null}', 'data: {"choices": [], "x": "error"}', "id: 4"]
    lines += ["retry: 10", event({}, "stop").decode().strip()]
    first, *others = (f"{line}\n\n" for line in [*lines, "data: [DONE]"])
    whole = "".join([first, part("One"), *others]).encode()
    upstream.script = [whole]

    found = behind.post(json={"model": "small", "messages": HI, "stream": True})

    assert found.content == whole


@pytest.mark.parametrize("end", ["", "data: [DONE]\n\n"])
def test_a_stream_that_ends_amid_an_answer_ends_with_an_error(behind, upstream, end):
    upstream.script = [f"{part('One')}{end}".encode()]

    found = behind.post(json={"model": "small", "messages": HI, "stream": True})

    assert found.text.startswith(part("One"))
    assert "upstream_broken" in found.text
    assert "[DONE]" not in found.text


def test_an_error_that_calls_itself_a_success_is_an_error(behind, upstream):
    error = {"message": LEAK, "code": 429}
    upstream.script = [json.dumps({"error": error}).encode()]

    found = caught(behind)

    assert type(found) is openai.RateLimitError
    check_silent(found)


def test_a_refusal_after_a_reading_is_reworded_too(behind, upstream, asked):
    behind.ask(asked(500))
    upstream.script = [
        {"status": 400, "error": {"message": LEAK, "param": "tools[0].function"}}
    ] * 2

    for stream in (False, True):
        found = caught(behind, asked(500), tools=[TOOL], stream=stream)
        assert found.param == "tools[0].function"
        check_silent(found)


def logged(caplog) -> list[dict]:
    ours = [each for each in caplog.records if each.name == log.name]
    lines = [json.loads(JsonLines().format(each)) for each in ours]
    return [line for line in lines if line["event"] == "upstream"]


def test_the_operator_reads_its_status_type_and_code_and_no_text(behind, upstream, caplog):
    message = f"No GPU at http://10.1.2.3:8000 for '{HI[0]['content']}', Bearer {KEY}"
    upstream.script = [{"status": 500, "error": {"message": message, "type": "EngineError"}}]

    with caplog.at_level(logging.INFO):
        found = caught(behind)

    (line,) = logged(caplog)
    assert line["said"] == "500 EngineError"
    assert line["id"] == found.response.headers["x-request-id"]
    assert KEY not in str(line)
    assert "Behrens" not in str(line)


QUOTA = {"message": "You exceeded your current quota", "code": "insufficient_quota"}
REASONS = [
    (401, {"message": f"Incorrect API key provided: {KEY}."}, 502, "key", "401 Incorrect API key"),
    (404, {"message": "The model `small` does not exist"}, 404, "model", "does not exist"),
    (402, {"message": "Insufficient balance"}, 402, "used up", "402 Insufficient balance"),
    (429, QUOTA, 429, "used up", "exceeded your current quota"),
]


@pytest.mark.parametrize(("status", "error", "told", "reason", "said"), REASONS)
def test_a_reading_that_fails_says_why(
    behind, upstream, asked, caplog, status, error, told, reason, said
):
    upstream.script = [{"status": status, "error": error}] * 20

    with caplog.at_level(logging.INFO):
        found = caught(behind, asked(500))

    assert found.status_code == told
    assert reason in str(found)
    check_silent(found)
    (line,) = logged(caplog)
    assert said in line["said"]
    assert line["reason"] in str(found)
    assert KEY not in str(line)


def test_a_redirect_is_no_answer(behind, upstream):
    upstream.script = [{"status": 307, "headers": {"location": "http://10.1.2.3/"}}]

    found = behind.post(json={"model": "small", "messages": HI})

    assert found.status_code == 502
    assert "location" not in found.headers
    assert httpx.get(f"{behind.url}/health").is_success
