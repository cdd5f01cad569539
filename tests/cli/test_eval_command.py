from pathlib import Path

import pytest
from paragraphs import natural
from typer.testing import CliRunner

from memagent_graph.cli.app import app


def run(*words):
    return CliRunner().invoke(app, ["eval", *map(str, words)])


@pytest.fixture
def asked(tmp_path):
    """A task of a file, with a folder of texts to fill its documents."""
    (tmp_path / "essays").mkdir()
    (tmp_path / "essays" / "one.txt").write_text("The mayor spoke of bread. " * 5000)
    vault = ("What is the code of the vault?", ["5672073"], "Vault", "The code is 5672073.")
    file = natural(tmp_path, [vault])
    return ["--tasks", f"qa:{file}", "--essays", tmp_path / "essays", "--model", "extractive"]


@pytest.mark.slow
def test_one_command_measures_prints_a_table_and_writes_a_report(tmp_path, asked):
    words = ["--lengths", "2k,4k", "--methods", "memagent,truncate"]

    done = run("--out", tmp_path / "o", *words, *asked)

    assert done.exit_code == 0, done.output
    assert "| qa_natural | any | memagent | 2K | 1 | 0 | 100% (21% to 100%) |" in done.stdout
    assert done.stdout in (tmp_path / "o" / "report.md").read_text()
    files = {file.name for file in (tmp_path / "o").iterdir()}
    assert files == {"calls.jsonl", "run.json", "samples.jsonl", "report.md"}
    still_open = {file.resolve() for file in Path("/proc/self/fd").iterdir()}
    assert tmp_path / "o" / "calls.jsonl" not in still_open


def test_results_need_a_folder_and_a_task(tmp_path):
    assert "--out" in run("--model", "extractive").output
    assert "--tasks" in run("--out", tmp_path, "--model", "extractive").output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tasks", "nix"], "There is no task 'nix'"),
        (["--methods", "magic"], "There is no method 'magic'"),
        (["--lengths", "eight"], "8k,128k,3.5m"),
        (["--model-args", "max_model_len=9"], "JSON object"),
        (["--model-args", "[9]"], "JSON object"),
        (["--model-args", '{"max_model_len": 9}'], "takes no model arguments: leave them out"),
        (["--tasks", "qa:gone.json"], "gone.json"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(tmp_path, words, said, asked):
    done = run("--out", tmp_path, *asked, *words)

    assert done.exit_code == 1
    assert said in done.stderr
    assert "Traceback" not in done.output
