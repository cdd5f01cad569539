"""What lies between needles, and where they stand."""

from __future__ import annotations

import re
from itertools import islice, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruler_samples import PLAIN, made, prompt_of

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.samples import Piece
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.evaluation.tasks.haystack import fit, hide, sentences
from memagent_graph.evaluation.tasks.ruler import parse, statements
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

COUNTER = EstimatingTokenizer()


@given(st.lists(st.sampled_from(["a tale. ", "of 2 cities, ", "\n"])), st.integers(0, 400))
def test_as_many_parts_fit_as_have_no_more_tokens_than_there_is_room(parts, room):
    number, left = fit(parts, room, PLAIN.count)

    assert left == room - PLAIN.count("".join(parts[:number])) >= 0
    assert number == len(parts) or PLAIN.count("".join(parts[: number + 1])) > room


@given(st.integers(0, 5_000))
def test_of_parts_without_end_no_more_fit_than_there_is_room_for(room):
    number, _ = fit(repeat("So it goes.\n"), room, COUNTER.count)

    assert COUNTER.count("So it goes.\n" * number) <= room


@given(st.integers(0, 9), st.lists(st.integers(0, 12), max_size=4))
def test_needles_stand_before_the_part_of_their_number_or_last(number, places):
    needles = [(place, Piece(f"needle {place}", evidence=True)) for place in places]

    found = [*hide((f"part {part}" for part in range(number)), needles, "\n")]

    lines = "".join(piece.text for piece in found).split("\n") if found else []
    wanted = [(place, 0, f"needle {place}") for place in places]
    wanted += [(part, 1, f"part {part}") for part in range(number)]
    order = sorted(wanted, key=lambda one: (min(one[0], number), one[1], one[0]))
    assert lines == [text for *_, text in order]
    assert sum(piece.evidence for piece in found) == len(places)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("One day.  It\nrained! “Why?” he said", ["One day.", "It rained!", "“Why?”", "he said"]),
        ("No end, " * 400, None),
        ("无" * 5_000, None),
        ("x" * 40_000, None),
    ],
)
def test_a_text_is_taken_in_sentences_again_and_again(text, wanted):
    first = [*islice(sentences(TextSource(text)), 200)]

    if wanted:
        assert first[:8] == wanted * 2
    assert max(map(len, first)) <= 1_000
    joined = "".join("".join(first).split())
    assert joined[: len("".join(text.split()))] == "".join(text.split())[: len(joined)]


@pytest.mark.parametrize("text", ["", "  \n\n "])
def test_essays_without_text_are_refused(text):
    sample = make_task("niah_single_2", TextSource(text)).sample(
        2_000, 0, seed=0, tokenizer=COUNTER
    )

    with pytest.raises(ConfigurationError, match="no text among the essays"):
        next(iter(sample.pieces()))


@pytest.mark.parametrize("text", ["无边的雨。" * 999, "x" * 50_000, "so it went on " * 5_000])
def test_text_without_spaces_or_sentences_fills_its_length_too(text):
    sample = make_task("niah_multiquery", TextSource(text)).sample(
        4_000, 0, seed=0, tokenizer=COUNTER
    )

    assert 3_960 <= COUNTER.count(prompt_of(sample)) + sample.answer_tokens <= 4_000


@pytest.mark.parametrize("index", range(12))
def test_needles_of_an_essay_stand_at_rulers_depths(index):
    parts = parse(prompt_of(made("niah_multivalue", 9_000, index)))
    essay, ends, depths = "", 0, []
    for one in statements("niah", parts.document):
        essay += parts.document[ends : one.start]
        ends = one.end
        depths.append(len(re.findall(r"[.?!]", essay)))
    essay = (essay + parts.document[ends:]).strip()
    total = len(re.findall(r"[.?!]", essay[:-1])) + 1

    allowed = {total * round(100 * step / 39) // 100 for step in range(40)}
    assert {*depths} <= allowed | {total - 1}
    assert len({*depths}) == 4
