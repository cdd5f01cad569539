"""Answers from memory: streamed as they are written, and ended where the client wants it."""

from __future__ import annotations

import json
import threading

import openai
import pytest
from doubles import ChainReader

from memagent_graph import Prompts, ReadingConfig

ANSWER = "The vault opens at 6:40 in the morning, as the notes say, and closes at nine."


def is_answer(body) -> bool:
    return "<section>" not in str(body["messages"])


@pytest.fixture
def told(upstream):
    """Makes the scripted model answer what it is given, and note the needle."""

    def tell(answer: str = ANSWER, note: str = "The vault opens at 6:40.") -> None:
        upstream.reply = lambda body: answer if is_answer(body) else note

    tell()
    return tell


def ask(server, messages, **fields):
    """The answer in pieces, and the last part."""
    stream = server.client().chat.completions.create(
        model="small", messages=messages, stream=True, **fields
    )
    pieces, last = [], None
    for part in stream:
        if part.choices:
            last = part
            pieces.append(part.choices[0].delta.content)
    return list(filter(None, pieces)), last


def whole(server, messages, **fields):
    return server.client().chat.completions.create(model="small", messages=messages, **fields)


def test_an_answer_after_a_reading_reaches_the_client_while_the_model_still_writes_it(
    behind, upstream, told, asked
):
    heard, waited = threading.Event(), []

    def between():
        if is_answer(upstream.requests[-1]):
            waited.append(heard.wait(240))

    upstream.between = between
    text, pieces = "", 0
    for part in behind.client().chat.completions.create(
        model="small", messages=asked(500), stream=True
    ):
        if part.choices and part.choices[0].delta.content:
            text, pieces = text + part.choices[0].delta.content, pieces + 1
            heard.set()

    assert text == ANSWER
    assert waited
    assert all(waited)
    assert pieces == len(ANSWER.split())


def test_an_answer_through_the_responses_api_is_streamed_too(behind, told, asked):
    stream = behind.client().responses.create(model="small", input=asked(500), stream=True)
    events = list(stream)

    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) == len(ANSWER.split())
    assert "".join(deltas) == ANSWER == events[-1].response.output_text


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [
        f"<think>It is in the notes. Is it?</think>\n\n{ANSWER}\n",
        f"<think>a</think>{ANSWER}",
        f"\\boxed{{{ANSWER}}}",
        f"{ANSWER}  ",
    ],
)
def test_what_is_streamed_is_what_a_client_that_waits_gets(behind, told, asked, reply):
    told(reply)

    pieces, _ = ask(behind, asked(500))
    completion = whole(behind, asked(500))

    assert "".join(pieces) == completion.choices[0].message.content == ANSWER
    assert len(pieces) > 3


def test_thoughts_that_a_template_opened_are_not_streamed(behind, told, asked):
    thought = "Let me see what I noted. It was 6:40.\n</think>\n\n"
    told(thought + ANSWER, thought + "The vault opens at 6:40.")

    pieces, _ = ask(behind, asked(500))

    assert pieces == [ANSWER]  # what is thought shows only once the thought ends


@pytest.mark.parametrize("stop", ["the morning", [" in", "noon"], ["m" * 40, "the morning"]])
def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(behind, told, asked, stop):
    pieces, last = ask(behind, asked(500), stop=stop)
    completion = whole(behind, asked(500), stop=stop)

    expected = (
        "The vault opens at 6:40" if stop == [" in", "noon"] else "The vault opens at 6:40 in"
    )
    assert "".join(pieces) == completion.choices[0].message.content == expected
    assert last.choices[0].finish_reason == completion.choices[0].finish_reason == "stop"
    assert completion.usage.completion_tokens > 0


def test_a_limit_ends_an_answer_that_is_streamed_where_it_ends_one_that_is_not(behind, told, asked):
    pieces, last = ask(behind, asked(500), max_tokens=5)
    completion = whole(behind, asked(500), max_tokens=5)

    text = completion.choices[0].message.content
    assert "".join(pieces) == text
    assert ANSWER.startswith(text)
    assert 0 < behind.service.counter.count(text) <= 5
    assert last.choices[0].finish_reason == completion.choices[0].finish_reason == "length"


def test_a_model_that_is_cut_off_by_its_own_limit_says_so(behind, upstream, told, asked):
    whole(behind, asked(500))
    message = {"role": "assistant", "content": "The vault opens at"}
    upstream.script = [{"message": message, "finish_reason": "length"}] * 2

    pieces, last = ask(behind, asked(500))
    completion = whole(behind, asked(500))

    assert "".join(pieces) == completion.choices[0].message.content == "The vault opens at"
    assert last.choices[0].finish_reason == completion.choices[0].finish_reason == "length"


def event(text: str) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    part = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "small"}
    return f"data: {json.dumps({**part, 'choices': [choice]})}\n\n".encode()


def test_an_answer_that_breaks_off_goes_on_where_it_was(behind, upstream, told, asked):
    whole(behind, asked(500))
    upstream.script = [event("The vault opens") + event(" at")]

    pieces, last = ask(behind, asked(500))

    assert "".join(pieces) == ANSWER
    assert last.choices[0].finish_reason == "stop"


def test_an_answer_that_breaks_off_and_is_another_then_is_an_error(behind, upstream, told, asked):
    whole(behind, asked(500))
    upstream.script = [event("It never opens") + event(" at all.")]

    with pytest.raises(openai.APIError, match="The model failed"):
        ask(behind, asked(500))


def test_an_answer_that_own_prompts_want_in_a_box_is_sent_when_it_is_whole(
    serve, upstream, told, small, asked
):
    told(f"\\boxed{{perhaps}} or rather: \\boxed{{{ANSWER}}}")
    prompts = Prompts(answer="Put it into \\boxed{{}}: {question}, from {memory}")
    server = serve("openai:small", base_url=upstream.base_url, config=small, prompts=prompts)

    pieces, _ = ask(server, asked(500))

    assert pieces == [ANSWER]


def test_a_reader_of_another_kind_is_ended_by_stops_and_limits_too(serve, asked):
    server = serve(ChainReader(), config=ReadingConfig(chunk_tokens=400))
    client = server.client()
    fields = {"model": "chain", "messages": asked(500)}

    text = client.chat.completions.create(**fields).choices[0].message.content
    stopped = client.chat.completions.create(**fields, stop=text[5:8])

    assert stopped.choices[0].message.content == text[:5].rstrip()


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (
            "response_format",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "object"}},
                }
            },
        ),
        ("logprobs", {"logprobs": True}),
        ("n", {"n": 2}),
    ],
)
def test_what_the_built_in_reader_cannot_do_is_refused_by_name(builtin, asked, name, fields):
    with pytest.raises(openai.BadRequestError, match=f"leave out {name}") as caught:
        builtin.client().chat.completions.create(model="extractive", messages=asked(20), **fields)

    assert caught.value.param == name


def test_more_stops_than_are_looked_for_are_refused(behind, asked):
    with pytest.raises(openai.BadRequestError, match="supports 16"):
        whole(behind, asked(500), stop=["x"] * 17)


def test_a_short_question_with_tools_that_are_too_long_gets_the_model_s_refusal(behind, upstream):
    function = {"name": "price", "description": "Returns a price. " * 2000}
    error = {"message": "maximum context length is 2048 tokens"}
    upstream.script = [{"status": 400, "error": error}]

    with pytest.raises(openai.BadRequestError) as caught:
        whole(
            behind,
            [{"role": "user", "content": "What is the price of item 3?"}],
            tools=[{"type": "function", "function": function}],
        )

    assert caught.value.code == "context_length_exceeded"
