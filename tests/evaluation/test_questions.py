from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paragraphs import hotpot, natural, published, squad

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.evaluation.tasks.questions import (
    QuestionTask,
    read_questions,
    read_row,
    row_spans,
)
from memagent_graph.text.source import TextSource
from memagent_graph.text.tokens import EstimatingTokenizer

COUNTER = EstimatingTokenizer()
ESSAYS = TextSource(
    " ".join(f"On day {n} the mayor of ward {n * 7} spoke of roads and bread." for n in range(900))
)


def text_of(sample):
    return "".join(piece.text for piece in sample.pieces())


def evidence_of(sample):
    text = text_of(sample)
    return [text[start:end] for start, end in sample.open()[1]]


def made(task, length, index=0, seed=0):
    return task.sample(length, index, seed=seed, tokenizer=COUNTER)


def documents(sample):
    """The numbered documents of RULER's form."""
    parts = text_of(sample).split("\n\n")
    numbers = [re.match(r"Document (\d+):\n", part)[1] for part in parts]
    assert numbers == [str(number) for number in range(1, len(parts) + 1)]
    return [part.partition("\n")[2] for part in parts]


@pytest.mark.parametrize("length", [300, 3_000])
def test_questions_of_a_file_are_asked_among_its_paragraphs_and_then_essays(tmp_path, length):
    task = QuestionTask(squad(tmp_path), ESSAYS)

    for index in range(5):
        sample = made(task, length, index)
        text = text_of(sample)

        assert sample.answers[0] in evidence_of(sample)[0]
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
    sample = made(QuestionTask(hotpot(tmp_path), ESSAYS), 500)

    assert {part.strip() for part in evidence_of(sample)} == {
        "Mill 0: Fox 0 built mill 0. It burned.",
        "Fox 0: Fox 0 was born in Husum-0.",
    }
    assert "Hare 0: Hare 0 was in Husum-0 once." in text_of(sample)


def test_a_format_is_known_by_its_content_and_not_by_its_name(tmp_path):
    file = natural(tmp_path, [("who made it", ["Ann", "Ann Fox"], "Mill", "Ann made it.")])
    renamed = file.rename(tmp_path / "some.data")

    sample = made(make_task(f"qa:{renamed}", ESSAYS), 200)

    assert sample.answers == ("Ann", "Ann Fox")
    assert [part.strip() for part in evidence_of(sample)] == ["Mill: Ann made it."]
    assert sample.answer_tokens == 32
    prompt = sample.template.format(memory="M", question=sample.question)
    assert prompt.count("M") == 1
    assert prompt.endswith("Question: who made it Answer:")


def test_a_question_that_occurs_twice_is_asked_once_and_either_answer_is_right(tmp_path):
    file = natural(
        tmp_path,
        [
            ("Who  made it?", ["Ann"], "Mill", "Ann made it."),
            ("when was it", ["1700"], "Year", "It was 1700."),
            ("who made IT? ", ["Bo", "Ann"], "Mill", "Bo and Ann made it."),
        ],
    )

    asked = read_questions(file)

    assert [one.text for one in asked] == ["Who  made it?", "when was it"]
    assert asked[0].answers == ("Ann", "Bo")


def test_questions_with_a_common_gold_paragraph_are_one_cluster(tmp_path):
    file = natural(
        tmp_path,
        [
            ("q0", ["1"], "A", "Text 1."),
            ("q1", ["2"], "B", "Text 2."),
            ("q2", ["1"], "A", "Text 1."),
        ],
    )

    task = QuestionTask(file, ESSAYS)
    clusters = {(one := made(task, 200, index)).question: one.cluster for index in range(3)}

    assert clusters["q0"] == clusters["q2"] != ""
    assert clusters["q1"] == ""


def test_questions_linked_by_a_third_are_one_cluster(tmp_path):
    def row(name, *titles):
        context = [[title, [f"About {title}."]] for title in titles]
        facts = [[title, 0] for title in titles]
        return {"question": name, "answer": "x", "supporting_facts": facts, "context": context}

    file = tmp_path / "h.json"
    rows = [row("q0", "A", "B"), row("q1", "C", "D"), row("q2", "B", "C"), row("q3", "E")]
    file.write_text(json.dumps(rows))

    asked = read_questions(file)

    assert len({one.cluster for one in asked[:3]}) == 1
    assert asked[0].cluster
    assert not asked[3].cluster


@pytest.mark.parametrize("kind", ["qa", "ruler_hqa"])
def test_each_question_is_asked_once_in_an_order_of_the_seeds(tmp_path, kind):
    task = make_task(f"{kind}:{squad(tmp_path)}")

    orders = [[made(task, 20, index, seed).question for index in range(30)] for seed in (1, 2)]

    assert len({*orders[0]}) == len({*orders[1]}) == task.count == 30
    assert orders[0] != orders[1]
    with pytest.raises(ConfigurationError, match="30 different questions, not 31"):
        made(task, 20, 30)


@settings(max_examples=30)
@given(st.integers(2, 60), st.integers(0, 29), st.integers(0, 9))
def test_a_question_has_exactly_as_many_paragraphs_as_asked_for(
    tmp_path_factory, length, index, seed
):
    task = make_task(f"ruler_hqa:{hotpot(tmp_path_factory.mktemp('h'), 30)}")

    sample = made(task, length, index, seed)

    shown = documents(sample)
    number = re.search(r"\d+", sample.question)[0]
    assert task.unit == "paragraphs"
    assert len(shown) == len({*shown}) == length
    assert {f"Mill {number}", f"Fox {number}"} == {
        part.split("\n")[1] for part in evidence_of(sample)
    }
    assert all(part.startswith("Document ") for part in evidence_of(sample))
    assert length == 2 or f"Hare {number}\nHare {number} was in Husum-{number} once." in shown
    assert text_of(sample) == text_of(made(task, length, index, seed))


def test_where_the_gold_paragraphs_stand_is_chance(tmp_path):
    task = make_task(f"ruler_hqa:{hotpot(tmp_path, 30)}")

    firsts = {made(task, 40, index).open()[1][0][0] for index in range(20)}

    assert len(firsts) > 10


def test_no_other_paragraph_holds_the_answer_as_a_word(tmp_path):
    rows = [("who made it", ["Ann Fox"], "Mill", "Ann Fox made it.")]
    rows += [(f"q{n}", [f"a{n}"], f"T{n}", f"Text {n} of Ann Foxley.") for n in range(5)]
    rows += [(f"r{n}", [f"b{n}"], "ANN FOX", f"Text {n} of her.") for n in range(5)]
    rows += [(f"s{n}", [f"c{n}"], f"S{n}", f"Text {n} is by ann fox.") for n in range(5)]
    task = make_task(f"ruler_hqa:{natural(tmp_path, rows)}")
    index = next(n for n in range(16) if made(task, 6, n).question == "who made it")

    assert text_of(made(task, 6, index)).count("Ann Foxley") == 5
    with pytest.raises(ConfigurationError, match="16 different paragraphs, 6 of them"):
        made(task, 7, index)


def test_yes_and_no_leave_out_nothing(tmp_path):
    rows = [("is it so", ["no"], "A", "It is not so.")]
    rows += [(f"q{n}", ["x1"], f"T{n}", f"There is no {n}.") for n in range(5)]
    task = make_task(f"ruler_hqa:{natural(tmp_path, rows)}")

    assert [len(documents(made(task, 6, index))) for index in range(6)] == [6] * 6


def test_a_paragraph_under_two_titles_is_there_once(tmp_path):
    rows = [(f"q{n}", [f"a{n}"], f"T{n}", f"Text {n % 3}.") for n in range(6)]
    task = make_task(f"ruler_hqa:{natural(tmp_path, rows)}")

    texts = {part.partition("\n")[2] for part in documents(made(task, 3))}

    assert texts == {"Text 0.", "Text 1.", "Text 2."}
    with pytest.raises(ConfigurationError, match="3 different paragraphs"):
        made(task, 4)


def test_fewer_paragraphs_than_answer_the_question_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="needs 2 paragraphs or more, not 1"):
        made(make_task(f"ruler_hqa:{hotpot(tmp_path)}"), 1)


def test_published_samples_are_asked_as_they_are(tmp_path):
    task = make_task(f"ruler_hqa:{published(tmp_path)}")

    samples = [made(task, 0, index) for index in range(task.count)]

    assert (task.unit, task.name, task.count) == ("whole", "ruler_hqa_eval_50", 5)
    assert {sample.question for sample in samples} == {f"Where is mill {n}?" for n in range(5)}
    sample = next(one for one in samples if one.question == "Where is mill 3?")
    assert sample.answers == ("Ward 3",)
    assert text_of(sample) == (
        'Document 1:\nMill 3\nIt is "the mill" {of} \\ Ward 3.\n\nDocument 2:\nHäre 3\nA hare.'
    )
    assert sample.template.format(memory="M", question="Q").endswith("Question: Q Answer:")


def test_a_published_question_that_occurs_twice_is_asked_once(tmp_path):
    file = published(tmp_path)
    rows = json.loads(file.read_text())
    file.write_text(json.dumps([*rows, {**rows[0], "input": "where is MILL 0? "}]))

    assert make_task(f"ruler_hqa:{file}").count == 5


def test_published_samples_whose_documents_are_numbers_are_refused_with_what_to_do(tmp_path):
    file = tmp_path / "eval_12800.json"
    file.write_text(json.dumps([{"input": "q", "answers": ["a"], "context": [3, 1]}]))

    with pytest.raises(ConfigurationError, match="ruler_hqa:hotpot_dev_distractor_v1.json"):
        made(make_task(f"ruler_hqa:{file}"), 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)


@pytest.mark.slow
@given(
    st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_rows_of_json_and_of_json_lines_are_found(tmp_path_factory, rows, lines, ascii_only):
    file = tmp_path_factory.mktemp("r") / "rows"
    parts = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
    text = "\n".join(parts) if lines else f"[{', '.join(parts)}]\n"
    file.write_text(text, "utf-8")

    assert [read_row(file, span) for span in row_spans(file)] == rows


@pytest.mark.parametrize("kind", ["qa", "ruler_hqa"])
@pytest.mark.parametrize("text", ["", "[]", '[{"question": "q"', '[{"question": "q"},', "{}", "no"])
def test_a_file_of_no_known_format_is_refused_by_name(tmp_path, kind, text):
    file = tmp_path / "odd.json"
    file.write_text(text)

    with pytest.raises(ConfigurationError, match="odd.json"):
        made(make_task(f"{kind}:{file}"), 100)


@pytest.mark.slow
def test_the_real_files_have_the_paragraphs_that_are_asked_for(data):
    for name, length in (("hotpotqa_distractor.json", 200), ("nq_open.jsonl", 700)):
        if not (data / name).exists():
            pytest.skip(f"{name} is not in the folder")
        task = make_task(f"ruler_hqa:{data / name}")
        for index in range(0, task.count, 20):
            sample = made(task, length, index)

            assert text_of(sample).count("Document ") >= length
            assert len(evidence_of(sample)) in {1, 2}
