"""Files that RULER's generator wrote are asked as they are."""

import json

import pytest

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.questions import ruler_tasks
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.text.tokens import EstimatingTokenizer

COUNTER = EstimatingTokenizer()
RAIN = "It rained. " * 30
VARIABLES = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
)
ASKED = "Find all variables that are assigned the value {} in the text above."
ONLY = (
    "Answer the question based on the given documents. "
    "Only give me the answer and do not output any other words."
)
NEEDLE = {
    "input": "Some special magic uuids are hidden within the following text. Make sure to memorize "
    f"it. I will quiz you about the uuids afterwards.\n{RAIN}\nWhat was it?\n{RAIN}\nWhat are all "
    "the special magic uuids for elk and fox mentioned in the provided text?",
    "answer_prefix": " The special magic uuids for elk and fox mentioned in the provided text are",
    "outputs": ["a-1", "b-2"],
}
TRACKING = {
    "input": f"{VARIABLES}VAR A = 5\n\nQuestion: {ASKED.format(5)} Answer: they are: A\n\n"
    f"{VARIABLES}VAR B = 7\n{RAIN}\nQuestion: {ASKED.format(7)}",
    "answer_prefix": " Answer: they are: ",
    "outputs": ["B"],
}
PASSAGES = {
    "input": f"{ONLY}\n\nThe following are given documents.\n\nDocument 1:\nFox built {{it}}."
    f"\n\n{ONLY}\n\nQuestion: Who built the mill?",
    "answer_prefix": " Answer:",
    "outputs": ["Fox", "Mr. Fox"],
}


def written(folder, rows):
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return file


def sample_of(task, index=0):
    return task.sample(0, index, seed=1, tokenizer=COUNTER)


def text_of(sample):
    return "".join(sample.pieces())


def prompt_of(sample):
    document = sample.template.replace("{memory}", text_of(sample))
    return document.replace("{question}", sample.question)


@pytest.mark.parametrize(("row", "name", "metric", "document", "question"), [
    (NEEDLE, "niah", "all", f"{RAIN}\nWhat was it?\n{RAIN}", "What are all the special"),
    (TRACKING, "vt", "all", f"VAR B = 7\n{RAIN}", ASKED.format(7)),
    (PASSAGES, "qa", "any", "Document 1:\nFox built {it}.", "Who built the mill?"),
])  # fmt: skip
def test_a_prompt_is_a_document_between_instruction_and_question(
    tmp_path, row, name, metric, document, question
):
    (task,) = ruler_tasks(written(tmp_path, [row]))

    sample = sample_of(task)

    assert (task.name, task.unit, task.count) == (f"ruler_{name}", "whole", 1)
    assert text_of(sample) == document
    assert sample.question.startswith(question)
    assert (sample.metric, sample.answers) == (metric, tuple(row["outputs"]))
    assert prompt_of(sample) == row["input"] + row["answer_prefix"]


def test_a_file_has_one_task_for_each_that_it_has_samples_of(tmp_path):
    rows = [{**NEEDLE, "task": "niah_multiquery"}, TRACKING, {**NEEDLE, "outputs": ["c-3"]}]

    tasks = ruler_tasks(written(tmp_path, [*rows, TRACKING]))

    counts = {task.name: task.count for task in tasks}
    assert counts == {"ruler_niah_multiquery": 1, "ruler_vt": 2, "ruler_niah": 1}
    assert make_task(f"ruler:{tasks[0].file}").count == 4
    with pytest.raises(ConfigurationError, match="2 different questions"):
        sample_of(tasks[1], 2)


@pytest.mark.parametrize(("change", "message"), [
    ({"input": "[INST] " + PASSAGES["input"]}, r"rows.jsonl, line 2 has a prompt .* base"),
    ({"outputs": []}, "line 2"), ({"outputs": None}, "line 2 is not a sample of RULER"),
    ({"input": 5}, "line 2 is not a sample of RULER"),
    ({"context": [3, 1], "answers": ["a"]}, "line 2 is not a sample of RULER"),
])  # fmt: skip
def test_a_line_that_is_no_sample_of_ruler_is_named(tmp_path, change, message):
    file = written(tmp_path, [PASSAGES, {**PASSAGES, **change}])

    with pytest.raises(ConfigurationError, match=message):
        ruler_tasks(file)
    with pytest.raises(ConfigurationError, match=message):
        sample_of(make_task(f"ruler:{file}"))
    with pytest.raises(ConfigurationError, match="none.jsonl"):
        ruler_tasks(tmp_path / "none.jsonl")


def test_the_official_file_is_asked_as_it_is(data):
    file = data / "ruler_8k.jsonl"
    if not file.exists():
        pytest.skip("ruler_8k.jsonl is not in MEMAGENT_DATA")
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]

    places = [(task, index) for task in ruler_tasks(file) for index in range(task.count)]

    asked = {prompt_of(sample_of(*place)) for place in places}
    assert asked == {row["input"] + row["answer_prefix"] for row in rows}
