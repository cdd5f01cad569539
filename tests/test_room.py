from __future__ import annotations

from doubles import Words
from hypothesis import given
from hypothesis import strategies as st

from memagent_graph.conversation.fold import keep_newest

WORDS = Words()


def test_the_oldest_lines_go_by_their_days_wherever_they_stand():
    notes = "2026-05-01: c c\n2026-01-01: a a\ntoo old\n2026-03-01: b b"

    assert keep_newest(notes, 6, WORDS) == "2026-05-01: c c\n2026-03-01: b b"


def test_without_days_the_first_lines_go():
    assert keep_newest("a a a\n\nb b\nc c", 5, WORDS) == "b b\nc c"


def test_of_one_paragraph_the_first_sentences_go():
    assert keep_newest("I was. I am here. I will be.", 6, WORDS) == "I am here. I will be."


def test_a_single_line_that_is_too_long_is_cut_at_a_sentence():
    assert keep_newest("a\nI go. I stay long.", 3, WORDS) == "I go."


@given(st.text(st.sampled_from("ab .\n2026-01")), st.integers(1, 9))
def test_whatever_stays_fits_and_is_of_the_text(text, tokens):
    kept = keep_newest(text, tokens, WORDS)

    assert WORDS.count(kept) <= tokens
    assert set(kept.split()) <= set(text.split())
    if WORDS.count(text) <= tokens and "\n" in text:
        assert kept.split() == text.split()
