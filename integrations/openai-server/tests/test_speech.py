"""What is sent of an answer piece by piece is what is left of it when it is whole."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.text.tokens import EstimatingTokenizer
from memagent_openai_server.reading import Spoken

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
