"""Files that RULER's generator wrote are asked as they are."""

from __future__ import annotations

import json

import pytest
from ruler_samples import CAPS, NAMES, OFFICIAL, PLAIN, made, official, prompt_of

from memagent_graph.errors import ConfigurationError
from memagent_graph.evaluation.tasks import make_task
from memagent_graph.evaluation.tasks.ruler import PASSAGES, RulerFileTask, parse, ruler_tasks


def written(folder, rows, *, leave_out=()):
    file = folder / "rows.jsonl"
    kept = [{key: row[key] for key in row if key not in leave_out} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
    return file


def row_of(name, index=0):
    sample = made(name, 3_000, index)
    prompt = prompt_of(sample)
    prefix = parse(prompt).prefix
    return {
        "task": name,
        "input": prompt.removesuffix(prefix),
        "answer_prefix": prefix,
        "outputs": [*sample.answers],
    }


QA = {
    "input": PASSAGES.template(query="")
    .removesuffix(" Answer:")
    .replace("{memory}", "Document 1:\nMills\nFox built {it}.\n\nDocument 2:\nHare\nHe ran.")
    .replace("{question}", "Who built the mill?"),
    "answer_prefix": " Answer:",
    "outputs": ["Fox", "Mr. Fox"],
}


@pytest.mark.parametrize("leave_out", [(), ("task",), ("task", "answer_prefix")])
def test_a_file_has_one_task_for_each_that_it_has_samples_of(tmp_path, leave_out):
    rows = [row_of(name, index) for name in NAMES for index in range(2)]
    kept = (
        rows
        if "answer_prefix" not in leave_out
        else [{**row, "input": row["input"] + row["answer_prefix"]} for row in rows]
    )

    tasks = ruler_tasks(written(tmp_path, kept, leave_out=leave_out))

    assert [(task.name, task.unit, task.count) for task in tasks] == [
        (f"ruler_{name}", "whole", 2) for name in NAMES
    ]
    for task, name in zip(tasks, NAMES, strict=True):
        samples = [task.sample(0, index, seed=3, tokenizer=PLAIN) for index in range(2)]
        prompts = {row["input"] + row["answer_prefix"] for row in rows if row["task"] == name}
        assert {prompt_of(sample) for sample in samples} == prompts
        assert {sample.answer_tokens for sample in samples} <= {*CAPS.values()}
        with pytest.raises(ConfigurationError, match="2 different questions"):
            task.sample(0, 2, seed=3, tokenizer=PLAIN)


@pytest.mark.parametrize("name", NAMES)
def test_evidence_of_a_file_is_what_it_is_where_the_sample_was_made(tmp_path, name):
    sample = made(name, 3_000)
    (task,) = ruler_tasks(written(tmp_path, [row_of(name)]))

    again = task.sample(0, 0, seed=0, tokenizer=PLAIN)

    def evidence(one):
        source, spans = one.open()
        return " ".join(source.read(start, end - start) for start, end in spans)

    assert evidence(again) == evidence(sample)


def test_questions_over_passages_run_as_they_are(tmp_path):
    file = written(tmp_path, [{**QA, "task": "qa_1"}])

    for task in (*ruler_tasks(file), make_task(f"ruler:{file}")):
        sample = task.sample(0, 0, seed=0, tokenizer=PLAIN)

        assert prompt_of(sample) == QA["input"] + " Answer:"
        assert sample.question == "Who built the mill?"
        assert (sample.metric, sample.answers) == ("any", ("Fox", "Mr. Fox"))
        assert sample.answer_tokens == 32
    assert [task.name for task in ruler_tasks(file)] == ["ruler_qa_1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": "[INST] " + QA["input"]}, r"rows.jsonl, line 2 has a prompt .* base"),
        ({"outputs": []}, "line 2"),
        ({"outputs": None}, "line 2 is not a sample of RULER"),
        ({"input": 5}, "line 2 is not a sample of RULER"),
    ],
)
def test_a_line_that_is_no_sample_of_ruler_is_named(tmp_path, change, message):
    file = written(tmp_path, [QA, {**QA, **change}])

    with pytest.raises(ConfigurationError, match=message):
        ruler_tasks(file)
    with pytest.raises(ConfigurationError, match=message):
        RulerFileTask(file).sample(0, 0, seed=0, tokenizer=PLAIN)
    with pytest.raises(ConfigurationError, match="none.jsonl"):
        ruler_tasks(tmp_path / "none.jsonl")


def test_the_official_file_is_asked_as_it_is():
    rows = official()
    asked = {
        prompt_of(task.sample(0, index, seed=1, tokenizer=PLAIN))
        for task in ruler_tasks(OFFICIAL)
        for index in range(task.count)
    }

    assert asked == {row["input"] + row["answer_prefix"] for row in rows}
