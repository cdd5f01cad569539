import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paragraphs import hotpot, natural, squad

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.questions import QuestionTask
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

COUNTER = EstimatingTokenizer()
ESSAYS = TextSource(
    " ".join(f"On day {n} the mayor of ward {n * 7} spoke of roads and bread." for n in range(900))
)


def text_of(sample):
    return "".join(sample.pieces())


def made(task, length, index=0, seed=0):
    return task.sample(length, index, seed=seed, tokenizer=COUNTER)


@pytest.mark.parametrize("length", [300, 3_000])
def test_questions_of_a_file_are_asked_among_its_paragraphs_and_then_essays(tmp_path, length):
    task = QuestionTask(squad(tmp_path), ESSAYS)

    for index in range(5):
        sample = made(task, length, index)
        text = text_of(sample)

        assert sample.answers[0] in text
        assert 0.9 * length <= COUNTER.count(text) <= 1.01 * length
        assert text.count("The mill of ward") > 5
        assert length == 300 or text.count("the mayor of ward") > 5


@pytest.mark.parametrize("length", range(300, 420, 7))
def test_without_essays_the_file_fills_its_length_and_no_paragraph_is_there_twice(tmp_path, length):
    text = text_of(made(QuestionTask(squad(tmp_path)), length))

    mills = re.findall(r"The mill of ward \d+ was", text)
    assert len(mills) == len({*mills})
    assert 0.98 * length <= COUNTER.count(text) <= 1.01 * length


def test_all_gold_paragraphs_of_a_multi_hop_question_are_there(tmp_path):
    text = text_of(made(QuestionTask(hotpot(tmp_path), ESSAYS), 500))

    assert "Mill 0: Fox 0 built mill 0. It burned." in text
    assert "Fox 0: Fox 0 was born in Husum-0." in text
    assert "Hare 0: Hare 0 was in Husum-0 once." in text


def test_a_format_is_known_by_its_content_and_not_by_its_name(tmp_path):
    file = natural(tmp_path, [("who made it", ["Ann", "Ann Fox"], "Mill", "Ann made it.")])

    sample = made(make_task(f"qa:{file.rename(tmp_path / 'some.data')}", ESSAYS), 200)

    assert (sample.answers, sample.answer_tokens) == (("Ann", "Ann Fox"), 32)
    assert "Mill: Ann made it." in text_of(sample)
    prompt = sample.template.format(memory="M", question=sample.question)
    assert prompt.count("M") == 1
    assert prompt.endswith("Question: who made it Answer:")


def test_each_question_is_asked_once_in_an_order_of_the_seeds(tmp_path):
    task = make_task(f"qa:{squad(tmp_path)}")

    orders = [[made(task, 300, index, seed).question for index in range(30)] for seed in (1, 2)]

    assert len({*orders[0]}) == len({*orders[1]}) == task.count == 30
    assert orders[0] != orders[1]
    with pytest.raises(ConfigurationError, match="30 different questions, not 31"):
        made(task, 300, 30)


@pytest.mark.parametrize("text", ["", "[]", '[{"question": "q"', '[{"question": "q"},', "{}", "no"])
def test_a_file_of_no_known_format_is_refused_by_name(tmp_path, text):
    file = tmp_path / "odd.json"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match="odd.json"):
        made(make_task(f"qa:{file}"), 100)


def test_essays_without_text_are_refused(tmp_path):
    sample = made(QuestionTask(squad(tmp_path), TextSource("")), 2_000)

    with pytest.raises(ConfigurationError, match="no text among the essays"):
        text_of(sample)


@pytest.mark.parametrize("text", ["无边的雨。" * 999, "so it went on " * 5_000])
def test_text_without_spaces_or_sentences_fills_its_length_too(tmp_path, text):
    sample = made(QuestionTask(squad(tmp_path), TextSource(text)), 4_000)

    assert 3_960 <= COUNTER.count(text_of(sample)) <= 4_040


def test_what_cannot_be_made_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match="no task 'nix'"):
        make_task("nix")
    with pytest.raises(ConfigurationError, match="9,000 were asked for.* filler"):
        made(make_task(f"qa:{squad(tmp_path)}"), 9_000)
    with pytest.raises(ConfigurationError, match="nothing.json"):
        made(make_task("qa:nothing.json"), 9_000)


PEAK = """
import asyncio, resource, sys
from memagent_graph.config import ReadingConfig
from memagent_graph.evaluation.methods import make_method
from memagent_graph.readers.resolve import resolve_reader
from memagent_graph.text.tokens import EstimatingTokenizer
from vaults import VaultTask

config = ReadingConfig()
reader = resolve_reader("extractive", config=config)
for length in map(int, sys.argv[1:]):
    sample = VaultTask().sample(length, 0, seed=0, tokenizer=EstimatingTokenizer())
    method = make_method("memagent", reader, config)
    outcome = asyncio.run(method(sample.question, sample.open()))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, len(outcome.memories))
"""


@pytest.mark.slow
def test_the_longest_sample_takes_hardly_more_memory_than_a_short_one():
    command = [sys.executable, "-c", PEAK, "8192", "1835008"]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    printed = subprocess.check_output(command, text=True, env={**os.environ, "PYTHONPATH": paths})

    short, few, long, many = map(int, printed.split())
    assert few < 5
    assert many > 300
    assert long - short < 20
