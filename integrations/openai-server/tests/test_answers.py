"""Answers from memory: streamed as they are written, and ended where the client wants it."""

import threading
from types import SimpleNamespace

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers.openai_server import event

from memagent_graph import Prompts
from memagent_graph.text.tokens import EstimatingTokenizer
from memagent_openai_server.reading import Spoken

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
    stream = server.ask(messages, stream=True, **fields)
    pieces, last = [], None
    for part in stream:
        if part.choices:
            last = part
            pieces.append(part.choices[0].delta.content)
    return list(filter(None, pieces)), last


def test_an_answer_reaches_the_client_while_the_model_still_writes_it(
    behind, upstream, told, asked
):
    heard, waited = threading.Event(), []

    def between():
        if is_answer(upstream.requests[-1]):
            waited.append(heard.wait(240))

    upstream.between = between
    text, pieces = "", 0
    for part in behind.ask(asked(500), stream=True):
        if part.choices and part.choices[0].delta.content:
            text, pieces = text + part.choices[0].delta.content, pieces + 1
            heard.set()

    assert text == ANSWER
    assert waited
    assert all(waited)
    assert pieces == len(ANSWER.split())


REPLIES = [
    f"<think>It is in the notes. Is it?</think>\n\n{ANSWER}\n",
    *(f"<think>a</think>{ANSWER}", f"\\boxed{{{ANSWER}}}", f"{ANSWER}  "),
]


def test_what_is_streamed_is_what_a_client_that_waits_gets(behind, told, asked):
    for reply in REPLIES:
        told(reply)

        pieces, _ = ask(behind, asked(500))
        completion = behind.ask(asked(500))

        assert "".join(pieces) == completion.choices[0].message.content == ANSWER
        assert len(pieces) > 3


def test_thoughts_that_a_template_opened_are_not_streamed(behind, told, asked):
    thought = "Let me see what I noted. It was 6:40.\n</think>\n\n"
    told(thought + ANSWER, thought + "The vault opens at 6:40.")

    pieces, _ = ask(behind, asked(500))

    assert pieces == [ANSWER]  # what is thought shows only once the thought ends


def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(behind, told, asked):
    several, long = [" in", "noon"], ["m" * 40, "the morning"]
    for stop, left in (("the morning", " in"), (several, ""), (long, " in")):
        pieces, last = ask(behind, asked(500), stop=stop)
        completion = behind.ask(asked(500), stop=stop)

        text = completion.choices[0].message.content
        assert "".join(pieces) == text == f"The vault opens at 6:40{left}"
        assert last.choices[0].finish_reason == completion.choices[0].finish_reason == "stop"
        assert completion.usage.completion_tokens > 0


def test_the_usage_with_tools_is_that_of_the_calls_that_were_made(behind, upstream, asked):
    tools = [{"type": "function", "function": {"name": "f"}}]

    for _ in range(2):  # the second time, all was read before
        before = len(upstream.requests)
        usage = behind.ask(asked(500), tools=tools).usage

        assert usage.total_tokens == 10 * (len(upstream.requests) - before)


def test_a_model_that_is_cut_off_by_its_own_limit_says_so(behind, upstream, told, asked):
    behind.ask(asked(500))
    message = {"role": "assistant", "content": "The vault opens at"}
    upstream.script = [{"message": message, "finish_reason": "length"}] * 2

    pieces, last = ask(behind, asked(500))
    completion = behind.ask(asked(500))

    assert "".join(pieces) == completion.choices[0].message.content == "The vault opens at"
    assert last.choices[0].finish_reason == completion.choices[0].finish_reason == "length"


def test_an_answer_that_breaks_off_goes_on_where_it_was(behind, upstream, told, asked):
    behind.ask(asked(500))
    upstream.script = [event({"content": "The vault opens"}) + event({"content": " at"})]

    pieces, last = ask(behind, asked(500))

    assert "".join(pieces) == ANSWER
    assert last.choices[0].finish_reason == "stop"


def test_an_answer_that_breaks_off_and_is_another_then_is_an_error(behind, upstream, told, asked):
    behind.ask(asked(500))
    upstream.script = [event({"content": "It never opens"}) + event({"content": " at all."})]

    with pytest.raises(openai.APIError, match="The model failed"):
        ask(behind, asked(500))


def test_an_answer_that_own_prompts_want_in_a_box_is_sent_whole(
    serve, upstream, told, small, asked
):
    told(f"\\boxed{{perhaps}} or rather: \\boxed{{{ANSWER}}}")
    prompts = Prompts(answer="Put it into \\boxed{{}}: {question}, from {memory}")
    server = serve("openai:small", base_url=upstream.base_url, config=small, prompts=prompts)

    pieces, _ = ask(server, asked(500))

    assert pieces == [ANSWER]


SHAPE = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("response_format", SHAPE),
        ("logprobs", True),
        ("n", 2),
    ],
)
def test_what_the_built_in_reader_cannot_do_is_refused_by_name(builtin, asked, name, value):
    with pytest.raises(openai.BadRequestError, match=f"leave out {name}") as caught:
        builtin.ask(asked(20), model="extractive", **{name: value})

    assert caught.value.param == name


def test_more_stops_than_are_looked_for_are_refused(behind, asked):
    with pytest.raises(openai.BadRequestError, match="supports 16"):
        behind.ask(asked(500), stop=["x"] * 17)


TEXT = st.text("ab \\{}", max_size=40)
CUTS = st.lists(st.integers(0, 199))


def speak(reply: str, cuts: list[int], *, stop=None, limit=None) -> tuple[str, str | None]:
    """The answer as it was sent, and why it was ended."""
    chat = SimpleNamespace(stop=stop, max_tokens=limit, max_completion_tokens=None)
    spoken = Spoken(chat, EstimatingTokenizer())
    ends = sorted(cut % (len(reply) + 1) for cut in cuts)
    sent = [spoken.add(reply[:end]) for end in ends] + [spoken.add(reply, whole=True)]
    assert "".join(sent) == spoken.sent
    return spoken.sent, spoken.finish_reason


@given(TEXT.map(str.strip), CUTS)
def test_what_is_sent_is_the_answer_however_it_comes(reply, cuts):
    assert speak(reply, cuts) == speak(reply, [])


@given(
    st.text("abc ", max_size=40).map(str.strip),
    st.lists(st.text("abc ", min_size=1, max_size=4), max_size=3),
    CUTS,
)
def test_an_answer_ends_before_the_first_stop_string(reply, stop, cuts):
    text, _ = speak(reply, cuts, stop=stop)

    ends = [reply.find(word) for word in stop if word in reply]
    assert text == reply[: min(ends, default=len(reply))].rstrip()


@given(st.text("abc de.", max_size=200).map(str.strip), st.integers(1, 30), CUTS)
def test_an_answer_keeps_to_its_limit(reply, limit, cuts):
    text, reason = speak(reply, cuts, limit=limit)

    assert EstimatingTokenizer().count(text) <= limit
    assert reply.startswith(text)
    assert (text == reply) == (reason is None)
