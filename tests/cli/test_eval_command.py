from __future__ import annotations

import json

import pytest
from tiny_model import byte_pairs
from typer.testing import CliRunner

from memagent_graph.cli.app import app
from memagent_graph.text.tokens import load_tokenizer


def run(*words):
    return CliRunner().invoke(app, ["eval", *map(str, words)])


def test_one_command_measures_prints_a_table_and_writes_a_report(tmp_path):
    done = run(
        "--out",
        tmp_path,
        "--tasks",
        "niah_single_1,vt",
        "--lengths",
        "2k,4k",
        "--methods",
        "memagent,truncate",
        "--samples",
        2,
        "--model",
        "extractive",
    )

    assert done.exit_code == 0, done.output
    assert "| niah_single_1 | memagent | 100 (34-100) | 100 (34-100) |" in done.stdout
    assert {file.name for file in tmp_path.iterdir()} == {
        "run.json",
        "samples.jsonl",
        "report.md",
        "report.html",
        "accuracy.png",
        "cost.png",
        "depth.png",
    }


def test_another_run_is_compared(tmp_path):
    words = ["--tasks", "vt", "--lengths", "2k", "--samples", 1, "--model", "extractive"]
    run("--out", tmp_path / "a", *words)

    done = run("--out", tmp_path / "b", "--against", tmp_path / "a", *words)

    assert "| vt | memagent | 2K |" in done.stdout
    assert "| +0.0 |" in done.stdout


def test_a_tokenizer_that_is_named_measures_the_documents(tmp_path):
    byte_pairs(500).save_pretrained(tmp_path / "tokenizer")
    words = ["--tasks", "vt", "--lengths", "2k", "--samples", 1, "--model", "extractive"]

    done = run("--out", tmp_path / "o", "--tokenizer", tmp_path / "tokenizer", *words)

    assert done.exit_code == 0, done.output
    name = load_tokenizer(str(tmp_path / "tokenizer")).name
    assert json.loads((tmp_path / "o" / "run.json").read_text())["tokenizer"] == name


def test_essays_are_read_from_a_folder(tmp_path):
    (tmp_path / "essays").mkdir()
    (tmp_path / "essays" / "one.txt").write_text("The mayor spoke of bread. " * 500)

    words = ["--tasks", "niah_single_2", "--lengths", "2k", "--samples", 1]
    words += ["--essays", tmp_path / "essays", "--model", "extractive"]

    done = run("--out", tmp_path / "o", *words)

    assert done.exit_code == 0, done.output
    assert "niah_single_2" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "nix"], "There is no task 'nix'"),
        (["--methods", "magic"], "There is no method 'magic'"),
        (["--lengths", "eight"], "8k,128k,3.5m"),
        (["--tasks", "niah_single_2", "--lengths", "2k"], "essays"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path, words, said):
    done = run("--out", tmp_path, "--model", "extractive", *words)

    assert done.exit_code == 1
    assert said in done.stderr
    assert "Traceback" not in done.output
