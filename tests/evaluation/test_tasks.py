from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import byte_pairs

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks import NEEDLE_TASKS, make_task
from memagent_graph.evaluation.tasks.haystack import WORDS, word, words
from memagent_graph.evaluation.tasks.questions import QuestionTask
from memagent_graph.evaluation.tasks.tracking import TrackingTask
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


@settings(max_examples=40)
@given(st.sampled_from(NAMES), st.integers(4_000, 20_000), st.integers(0, 99), st.integers(0, 9))
def test_a_document_has_the_tokens_asked_for(name, length, index, seed):
    tokens = COUNTER.count(text_of(made(name, length, index, seed)))

    assert 0.99 * length <= tokens <= 1.01 * length


@pytest.fixture(scope="module")
def model_tokenizer():
    """A model's own, that merges bytes."""
    return load_tokenizer(byte_pairs(2_000).backend_tokenizer)


@pytest.mark.parametrize("name", [*NAMES, "qa:"])
@pytest.mark.parametrize("length", [4_096, 20_001])
def test_a_document_has_the_tokens_asked_for_as_a_model_counts_them(
    name, length, model_tokenizer, tmp_path
):
    if name == "qa:":
        name += str(squad(tmp_path, 900))
    sample = make_task(name, ESSAYS).sample(length, 3, seed=1, tokenizer=model_tokenizer)

    assert 0.99 * length <= model_tokenizer.count(text_of(sample)) <= 1.01 * length


@pytest.mark.parametrize(
    ("name", "length"),
    [("cwe", 1_000), ("fwe", 2_000), ("vt", 30), ("niah_multikey_1", 40), ("niah_single_3", 9)],
)
def test_a_document_too_short_for_its_task_is_refused(name, length):
    with pytest.raises(ConfigurationError, match=rf"{name} needs documents of [\d,]+ tokens"):
        made(name, length)


@pytest.mark.parametrize("index", range(20))
def test_in_the_shortest_text_that_is_taken_the_frequent_words_are_the_most_frequent(index):
    sample = made("fwe", 4_000, index)

    counted = Counter(re.findall(r"[a-z]+", text_of(sample)))

    assert {one for one, _ in counted.most_common(3)} == {*sample.answers}


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

    source, spans = sample.opened()

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
    needles = re.findall(r"secret number of (\w+) is (\d+)\.", text_of(sample))

    assert len({key for key, _ in needles}) == keys
    assert len(sample.answers) == answers
    asked = [value for key, value in needles if key in sample.question]
    assert Counter(asked) == Counter(sample.answers)


def test_uuids_are_keys_and_values_of_the_hardest_variant():
    sample = made("niah_multikey_3", 4_000)

    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", sample.answers[0])
    assert re.search(r"of [0-9a-f]{8}-", sample.question)


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(1, 3), st.integers(0, 99))
def test_following_the_assignments_gives_the_answer(hops, chains, index):
    sample = TrackingTask(hops, chains).sample(5_000, index, seed=0, tokenizer=COUNTER)
    wanted = re.search(r"value (\d+)", sample.question)[1]

    values = {}
    for name, copied, value in re.findall(
        r"Let (\w+) be (?:the same as (\w+)|(\d+))\.", text_of(sample)
    ):
        values[name] = value or values[copied]  # each is told before it is copied

    assert {name for name, value in values.items() if value == wanted} == {*sample.answers}
    assert len(sample.answers) == hops + 1


@pytest.mark.parametrize(("name", "asked"), [("cwe", 10), ("fwe", 3)])
@pytest.mark.parametrize("index", range(5))
def test_counting_the_words_gives_the_answer(name, asked, index):
    sample = made(name, 8_192, index)

    counted = Counter(re.findall(r"[a-z]+", text_of(sample)))

    assert {one for one, _ in counted.most_common(asked)} == {*sample.answers}


def test_made_up_words_are_all_different():
    assert len({word(number) for number in range(WORDS)}) > 0.98 * WORDS
    import random

    stream = words(random.Random(0))
    assert len({next(stream) for _ in range(20_000)}) > 0.98 * 20_000


def squad(folder, count=30):
    file = folder / "squad.json"
    paragraphs = [
        {
            "context": f"The mill of ward {n} was built in {1700 + n} by Mr. Fox.",
            "qas": [
                {
                    "question": f"When was the mill of ward {n} built?",
                    "answers": [{"text": str(1700 + n), "answer_start": 0}],
                }
            ],
        }
        for n in range(count)
    ]
    file.write_text(json.dumps({"data": [{"title": "Mills", "paragraphs": paragraphs}]}))
    return file


def hotpot(folder):
    file = folder / "hotpot.json"
    record = {
        "question": "Where was the builder of the mill born?",
        "answer": "Husum",
        "supporting_facts": [["Mill", 0], ["Fox", 0]],
        "context": [
            ["Mill", ["Fox built the mill."]],
            ["Hare", ["Hare was born in Kiel."]],
            ["Fox", ["Fox was born in Husum."]],
        ],
    }
    file.write_text(json.dumps([record]))
    return file


@pytest.mark.parametrize("length", [300, 3_000])
def test_questions_of_a_file_are_asked_among_its_paragraphs_and_then_essays(tmp_path, length):
    task = QuestionTask(squad(tmp_path), ESSAYS)

    for index in range(5):
        sample = task.sample(length, index, seed=0, tokenizer=COUNTER)
        text = text_of(sample)
        ((start, end),) = sample.opened()[1]

        assert sample.answers[0] in text[start:end]
        assert 0.9 * length <= COUNTER.count(text) <= 1.01 * length
        assert text.count("The mill of ward") > 5
        assert length == 300 or text.count("the mayor of ward") > 5


@pytest.mark.parametrize("length", range(300, 420, 7))
def test_without_essays_the_file_fills_its_length_and_no_paragraph_is_there_twice(tmp_path, length):
    task = QuestionTask(squad(tmp_path))

    text = text_of(task.sample(length, 0, seed=0, tokenizer=COUNTER))

    mills = re.findall(r"The mill of ward \d+ was", text)
    assert len(mills) == len({*mills})
    assert 0.98 * length <= COUNTER.count(text) <= 1.01 * length


def test_all_gold_paragraphs_of_a_multi_hop_question_are_there(tmp_path):
    sample = QuestionTask(hotpot(tmp_path), ESSAYS).sample(500, 0, seed=0, tokenizer=COUNTER)

    text = text_of(sample)
    gold = {text[start:end].strip() for start, end in sample.opened()[1]}
    assert gold == {"Mill: Fox built the mill.", "Fox: Fox was born in Husum."}
    assert "Hare: Hare was born in Kiel." in text


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
from memagent_graph.config import ReadingConfig
from memagent_graph.evaluation.methods import make_method
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.tokens import EstimatingTokenizer, load_tokenizer

name, length = sys.argv[1], int(sys.argv[2])
config = ReadingConfig()
sample = make_task(name).sample(length, 0, seed=0, tokenizer=EstimatingTokenizer())
method = make_method("memagent", resolve_reader("extractive", config=config), config)
outcome = asyncio.run(method(sample.question, sample.opened()[0]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, len(outcome.memories))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_3", "cwe"])
def test_the_longest_sample_takes_hardly_more_memory_than_a_short_one(name):
    def peak(length):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, name, str(length)],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ,
        )
        return [int(part) for part in done.stdout.split()]

    (short, few), (long, many) = peak(8_192), peak(3_670_016)

    assert few < 5
    assert many > 600
    assert long - short < 100
