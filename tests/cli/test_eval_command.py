from __future__ import annotations

import json
import sys

import pytest
from tiny_model import byte_pairs, tiny_model
from typer.testing import CliRunner

from memagent_graph.cli.app import app
from memagent_graph.evaluation import report
from memagent_graph.evaluation.run import load
from memagent_graph.text.tokens import load_tokenizer


def run(*words):
    return CliRunner().invoke(app, ["eval", *map(str, words)])


@pytest.mark.slow
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
    assert "| niah_single_1 | all | memagent | 100 (34-100) | 100 (34-100) |" in done.stdout
    assert {file.name for file in tmp_path.iterdir()} == {
        "run.json",
        "samples.jsonl",
        "report.md",
        "report.html",
        "accuracy.png",
        "cost.png",
        "depth.png",
    }


@pytest.mark.slow
def test_two_runs_are_compared_sample_by_sample(tmp_path):
    words = ["--tasks", "niah_single_1", "--lengths", "16k", "--samples", 6]
    words += ["--model", "extractive"]
    run("--out", tmp_path / "a", "--memory-tokens", 8, *words)
    run("--out", tmp_path / "b", *words)

    done = run("--compare", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "c")
    nothing = run("--compare", tmp_path / "a", tmp_path / "c")

    assert done.exit_code == 0, done.output
    assert "| niah_single_1 | memagent | 16K | 6 | 0 | 100 | +100.0* |" in done.stdout
    assert done.stdout in (tmp_path / "c" / "comparison.md").read_text()
    assert (tmp_path / "c" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert nothing.exit_code == 1
    assert "no sample in common" in nothing.stderr


def test_what_cannot_be_drawn_is_said_beside_the_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_depth", lambda *_, **__: 1 / 0)

    done = run("--out", tmp_path, "--tasks", "vt", "--lengths", "2k", "--samples", 1)

    assert done.exit_code == 0, done.output
    assert "| vt | all | memagent | 40 (4-92) |" in done.stdout
    assert "memagent: depth.png could not be drawn (ZeroDivisionError:" in done.stderr
    assert not (tmp_path / "depth.png").exists()
    assert (tmp_path / "accuracy.png").exists()
    assert len(load(tmp_path)) == 1


def test_without_matplotlib_no_model_is_asked_in_vain(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    done = run("--out", tmp_path / "o", "--tasks", "vt", "--model", "extractive")

    assert done.exit_code == 1
    assert "memagent-graph[eval]" in done.stderr
    assert not (tmp_path / "o").exists()


def test_results_need_a_folder():
    assert "--out" in run("--model", "extractive").output


def test_a_tokenizer_that_is_named_measures_the_documents(tmp_path):
    byte_pairs(500).save_pretrained(tmp_path / "tokenizer")
    words = ["--tasks", "vt", "--lengths", "2k", "--samples", 1, "--model", "extractive"]

    done = run("--out", tmp_path / "o", "--tokenizer", tmp_path / "tokenizer", *words)

    assert done.exit_code == 0, done.output
    name = load_tokenizer(str(tmp_path / "tokenizer")).name
    assert json.loads((tmp_path / "o" / "run.json").read_text())["tokenizer"] == name


@pytest.mark.slow
def test_whole_documents_beyond_the_model_s_window_are_read_with_yarn(tmp_path):
    folder = tiny_model(tmp_path / "model", width=64, layers=1, max_length=1024)
    words = ["--tasks", "niah_single_1", "--lengths", "2k", "--samples", 1, "--methods", "whole"]
    words += ["--model", f"hf:{folder}", "--answer-tokens", 8]
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    overrides = {"max_position_embeddings": 4096, "rope_parameters": yarn}

    short = run("--out", tmp_path / "short", *words)
    long = run(
        *("--out", tmp_path / "long", *words),
        *("--model-args", json.dumps({"hf_overrides": overrides})),
    )

    assert short.exit_code == 1
    assert "1 sample failed" in short.stderr
    (failed,) = load(tmp_path / "short")
    assert "1024" in failed.error
    assert long.exit_code == 0, long.output
    (answered,) = load(tmp_path / "long")
    assert 1800 < answered.input_tokens < 2400
    assert answered.output_tokens == 8


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
        (["--model-args", "max_model_len=9"], "JSON object"),
        (["--model-args", "[9]"], "JSON object"),
        (["--model-args", '{"max_model_len": 9}'], "takes no model arguments: leave them out"),
        (["--tasks", "niah_single_2", "--lengths", "2k"], "essays"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path, words, said):
    done = run("--out", tmp_path, "--model", "extractive", *words)

    assert done.exit_code == 1
    assert said in done.stderr
    assert "Traceback" not in done.output
