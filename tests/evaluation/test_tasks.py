from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paragraphs import squad
from tiny_model import byte_pairs

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks import NEEDLE_TASKS, make_task
from memagent_graph.evaluation.tasks.haystack import (
    WORDS,
    mix_words,
    pairs,
    vocabulary,
    word,
    words,
)
from memagent_graph.evaluation.tasks.probes import TrackingTask
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer, load_tokenizer

COUNTER = EstimatingTokenizer()
ESSAYS = TextSource(
    " ".join(f"On day {n} the mayor of ward {n * 7} spoke of roads and bread." for n in range(900))
)
NAMES = [*NEEDLE_TASKS, "vt", "cwe", "fwe"]


def made(name, length, index=0, seed=0):
    return make_task(name, ESSAYS).sample(length, index, seed=seed, tokenizer=COUNTER)


def text_of(sample):
    return "".join(piece.text for piece in sample.pieces())


def tokens_of(sample, tokenizer):
    """Those of a benchmark's whole prompt and answer, or of a document that has no prompt."""
    if sample.template is None:
        return tokenizer.count(text_of(sample))
    prompt = sample.template.replace("{question}", sample.question)
    return tokenizer.count(prompt.replace("{memory}", text_of(sample))) + sample.answer_tokens


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.integers(4_000, 20_000), st.integers(0, 99), st.integers(0, 9))
def test_a_prompt_has_the_tokens_asked_for_to_within_a_line(name, length, index, seed):
    tokens = tokens_of(made(name, length, index, seed), COUNTER)

    assert min(0.99 * length, length - 70) <= tokens <= length


@pytest.fixture(scope="module")
def model_tokenizer():
    """A model's own, that merges bytes."""
    return load_tokenizer(byte_pairs(2_000).backend_tokenizer)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, "qa:"])
@pytest.mark.parametrize("length", [6_000, 20_001])
def test_a_document_has_the_tokens_asked_for_as_a_model_counts_them(
    name, length, model_tokenizer, tmp_path
):
    if name == "qa:":
        name += str(squad(tmp_path, 900))
    sample = make_task(name, ESSAYS).sample(length, 3, seed=1, tokenizer=model_tokenizer)

    if name.startswith("qa"):  # whose lengths are those of the documents
        assert 0.99 * length <= model_tokenizer.count(text_of(sample)) <= 1.01 * length
    else:
        assert 0.99 * length - 70 <= tokens_of(sample, model_tokenizer) <= length


@pytest.mark.parametrize(
    ("name", "length"),
    [("cwe", 600), ("fwe", 150), ("vt", 700), ("niah_multikey_1", 290), ("niah_single_3", 9)],
)
def test_a_document_too_short_for_its_task_is_refused(name, length):
    with pytest.raises(ConfigurationError, match=rf"{name} needs documents of [\d,]+ tokens"):
        made(name, length)


@settings(max_examples=150)
@given(st.sampled_from(NAMES), st.integers(1, 1_500))
def test_a_short_document_is_refused_or_made(name, length):
    try:
        sample = made(name, length)
    except ConfigurationError:
        return

    text = text_of(sample)
    assert all(answer in text for answer in sample.answers)
    assert tokens_of(sample, COUNTER) <= length


@pytest.mark.parametrize("index", range(20))
def test_in_the_shortest_text_that_is_taken_the_frequent_words_are_the_most_frequent(index):
    sample = made("fwe", 600, index)

    counted = Counter(re.findall(r"[a-z]+", text_of(sample)))

    assert [one for one, _ in counted.most_common(3)] == [*sample.answers]


@pytest.mark.slow
@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.integers(4_000, 9_000), st.integers(0, 99))
def test_the_same_seed_makes_the_same_sample_and_another_seed_another(name, length, index):
    one, same, other = (made(name, length, index, seed) for seed in (1, 1, 2))

    assert (one.question, one.answers, text_of(one)) == (same.question, same.answers, text_of(same))
    assert text_of(one) == text_of(one)
    assert text_of(one) != text_of(other)
    assert one.answers != other.answers


@settings(max_examples=40)
@given(st.sampled_from([*NEEDLE_TASKS, "vt"]), st.integers(2_000, 9_000), st.integers(0, 99))
def test_evidence_stands_where_it_is_claimed_and_nowhere_else(name, length, index):
    sample = made(name, length, index)
    text = text_of(sample)

    source, spans = sample.open()

    evidence = [text[start:end] for start, end in spans]
    rest = text
    for start, end in reversed(spans):
        rest = rest[:start] + rest[end:]
    for answer in sample.answers:
        assert any(answer in part for part in evidence)
        assert answer not in rest
    assert len(spans) == len(sample.answers)
    assert source.read(*_size(spans[0])) == evidence[0]


def _size(span):
    return span[0], span[1] - span[0]


@settings(max_examples=30)
@given(st.sampled_from([*NEEDLE_TASKS, "vt"]), st.integers(0, 99))
def test_the_question_does_not_give_the_answer_away(name, index):
    sample = made(name, 3_000, index)

    assert not any(answer in sample.question for answer in sample.answers)
    assert len(set(sample.answers)) == len(sample.answers)


@pytest.mark.parametrize(
    ("name", "keys", "answers"),
    [
        ("niah_single_1", 1, 1),
        ("niah_multikey_1", 4, 1),
        ("niah_multivalue", 1, 4),
        ("niah_multiquery", 4, 4),
    ],
)
def test_needles_are_as_many_as_the_variant_says(name, keys, answers):
    sample = made(name, 4_000)
    needles = re.findall(r"magic numbers for (\S+) is: (\d+)\.", text_of(sample))

    assert len({key for key, _ in needles}) == keys
    assert len(sample.answers) == answers
    asked = [value for key, value in needles if key in sample.question]
    assert Counter(asked) == Counter(sample.answers)


def test_uuids_are_keys_and_values_of_the_hardest_variant():
    sample = made("niah_multikey_3", 4_000)

    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", sample.answers[0])
    assert re.search(r"for [0-9a-f]{8}-", sample.question)


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(1, 3), st.integers(0, 99))
def test_following_the_assignments_gives_the_answer(hops, chains, index):
    sample = TrackingTask(hops, chains).sample(5_000, index, seed=0, tokenizer=COUNTER)
    wanted = re.search(r"value (\d+)", sample.question)[1]

    values = {}
    for name, copied, value in re.findall(r"VAR (\w+) = (?:VAR (\w+) |(\d+))\n", text_of(sample)):
        values[name] = value or values[copied]  # each is told before it is copied

    assert {name for name, value in values.items() if value == wanted} == {*sample.answers}
    assert len(sample.answers) == hops + 1


@pytest.mark.parametrize(("name", "asked"), [("cwe", 10), ("fwe", 3)])
@pytest.mark.parametrize("index", range(5))
def test_counting_the_words_gives_the_answer(name, asked, index):
    sample = made(name, 8_192, index)

    counted = Counter(re.findall(r"[a-z]+", text_of(sample)))

    assert {one for one, _ in counted.most_common(asked)} == {*sample.answers}


@pytest.mark.slow
def test_made_up_words_are_all_different():
    assert len({word(number) for number in range(WORDS)}) > 0.98 * WORDS
    stream = words(random.Random(0))
    assert len({next(stream) for _ in range(20_000)}) > 0.98 * 20_000


def test_words_go_on_with_made_up_ones_where_english_has_no_more():
    known = vocabulary().words
    found = [*islice(mix_words(random.Random(1)), len(known) + 5_000)]

    assert sorted(found[: len(known)]) == known
    assert len({*found}) > len(known) + 4_900
    assert not {*found[len(known) :]} & {*known}


def test_no_pair_of_words_is_there_twice():
    first = next(pairs(random.Random(1)))
    found = [*islice(pairs(random.Random(1), [first]), 50_000)]

    assert len({first, *found}) == 50_001


def test_what_cannot_be_made_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="no task 'nix'"):
        make_task("nix")
    with pytest.raises(ConfigurationError, match="essays"):
        make_task("niah_single_2").sample(1_000, 0, seed=0, tokenizer=COUNTER)
    with pytest.raises(ConfigurationError, match="9,000 were asked for.* filler"):
        make_task(f"qa:{squad(tmp_path)}").sample(9_000, 0, seed=0, tokenizer=COUNTER)
    with pytest.raises(ConfigurationError, match="nothing.json"):
        make_task("qa:nothing.json").sample(9_000, 0, seed=0, tokenizer=COUNTER)


PEAK = """
import asyncio, resource, sys
from doubles import ChainReader
from memagent_graph.config import ReadingConfig
from memagent_graph.evaluation.methods import make_method
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.tokens import EstimatingTokenizer

reads, name, *lengths = sys.argv[1:]
config = ReadingConfig()
reader = resolve_reader("extractive", config=config) if reads == "extractive" else ChainReader()
for length in map(int, lengths):
    sample = make_task(name).sample(length, 0, seed=0, tokenizer=EstimatingTokenizer())
    method = make_method("memagent", reader, config)
    outcome = asyncio.run(method(sample.question, sample.open()[0]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, len(outcome.memories))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reads", "name"),
    [("extractive", "niah_single_1"), ("nothing", "niah_multikey_3"), ("nothing", "cwe")],
)
def test_the_longest_sample_takes_hardly_more_memory_than_a_short_one(reads, name):
    command = [sys.executable, "-c", PEAK, reads, name, "8192", "3670016"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    printed = subprocess.check_output(command, text=True, env={**os.environ, "PYTHONPATH": paths})

    short, few, long, many = map(int, printed.split())
    assert few < 5
    assert many > 600
    assert long - short < 40
