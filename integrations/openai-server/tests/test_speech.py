"""What is heard of a reply piece by piece is what is left of it when it is whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from memagent_graph.readers.completion import without_channels, without_reasoning
from memagent_graph.text.tokens import EstimatingTokenizer
from memagent_openai_server.readers import Speech, begins_in_thought

WORDS = st.text("ab <>/{}\\", max_size=12)
NAMED = st.sampled_from([" the <think> tag ", "a `<reasoning>` or ", " </think>.", "<thinking>"])
THOUGHTS = st.builds("<{0}>{1}</{0}>".format, st.sampled_from(["think", "reasoning"]), WORDS)
REPLIES = st.lists(WORDS | THOUGHTS, max_size=6).map("".join)
NAMING = st.lists(WORDS | THOUGHTS | NAMED, max_size=6).map("".join)


def pieces(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[start:end] for start, end in pairwise(places)]


def hear(parts: list[str], *, headless: bool = False, **wishes) -> tuple[str, list[str], str]:
    sent: list[str] = []
    speech = Speech(EstimatingTokenizer(), streams=True, write=sent.append, **wishes)
    speech.begin(headless=headless)
    _ = all(speech.hear(part) for part in parts)
    speech.end(None)
    assert "".join(sent) == speech.text
    return speech.text, sent, speech.finish_reason


@given(NAMING, st.lists(st.integers(0, 99)), st.sampled_from(["", "<think>b", "<reasoning>"]))
@example("a </think> b", [], "")
def test_thoughts_are_left_out_however_a_reply_comes_in_pieces(reply, cuts, cut_off):
    reply += cut_off

    assert hear(pieces(reply, cuts))[0] == without_reasoning(without_channels(reply)).strip()


@given(REPLIES, WORDS, st.lists(st.integers(0, 99)))
def test_a_thought_that_the_template_opened_is_left_out(reply, thought, cuts):
    whole = f"{thought}.</think>{reply}"

    assert hear(pieces(whole, cuts), headless=True)[0] == hear([reply])[0]
    assert begins_in_thought(whole)


@given(REPLIES, st.lists(st.integers(0, 99)))
def test_a_reply_that_might_have_begun_in_a_thought_and_did_not_is_whole(reply, cuts):
    assert hear(pieces(reply, cuts), headless=True)[0] == without_reasoning(reply).strip()
    assert not begins_in_thought(reply)


@given(
    st.text("abc ", max_size=40),
    st.lists(st.text("abc ", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 99)),
)
def test_an_answer_ends_before_the_first_stop_string(reply, stop, cuts):
    text, _, _ = hear(pieces(reply, cuts), stop=tuple(stop))

    said = reply.strip()
    ends = [said.find(word) for word in stop if word in said]
    assert text == said[: min(ends, default=len(said))].rstrip()


@given(st.text("abc de.", max_size=200), st.integers(1, 30), st.lists(st.integers(0, 199)))
def test_an_answer_keeps_to_its_limit(reply, limit, cuts):
    text, _, reason = hear(pieces(reply, cuts), limit=limit)

    count = EstimatingTokenizer().count
    assert count(text) <= limit
    assert reply.strip().startswith(text)
    assert (text == reply.strip()) == (reason == "stop")


@pytest.mark.parametrize(
    "thought",
    [
        "[THINK]She may be late.[/THINK]",
        "◁think▷She may be late.◁/think▷",
        "<|begin_of_thought|>She may be late.<|end_of_thought|>\n\n<|begin_of_solution|>",
        "<|channel|>analysis<|message|>Late?<|end|><|start|>assistant<|channel|>final<|message|>",
        "analysisShe may be late.assistantfinal",
        "<|channel>thought\nShe may be late.<channel|>",
        "Here is my thought process: She may be late. Here is my response: ",
        "<seed:think>She may be late.</seed:think>",
        '<details type="reasoning"><summary>Thought</summary>She may be late.</details>\n',
    ],
)
@pytest.mark.parametrize("headless", [False, True])
def test_no_familys_reasoning_is_heard(thought, headless):
    reply = f"{thought}The vault opens at 6:40, [1] she said, if 3 <  4."

    text, sent, _ = hear(list(reply), headless=headless)

    assert text == without_reasoning(without_channels(reply)).strip()
    assert text.startswith("The vault")
    assert headless or len(sent) > 20  # it is sent as it is written


@pytest.mark.parametrize(
    "reply", ["[THINK]She may", "<|channel|>analysis<|message|>She", "analysisShe"]
)
def test_a_familys_reasoning_that_is_cut_off_is_not_heard(reply):
    assert hear(list(reply))[0] == ""


@pytest.mark.parametrize(
    "reply", ["[1] The vault.", "<b>Open</b> it", "analysis of it", "Here is it."]
)
def test_what_only_begins_like_reasoning_is_heard(reply):
    assert hear(list(reply))[0] == reply


@pytest.mark.parametrize("reply", ["end<|im_end|>", "s</s>"])
def test_a_reply_that_stands_in_the_token_behind_it_is_heard(reply):
    text, _, _ = hear([reply])

    assert text == without_channels(reply)


def test_boxes_are_opened_with_the_braces_in_them_kept():
    reply = r"It is $\boxed{\frac{1}{2}}$, or \boxed{half}."

    assert hear(list(reply))[0] == r"It is $\frac{1}{2}$, or half."
