from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from memagent_graph.cli.app import app
from memagent_graph.prompts import Prompts

# Of the shape of the reference implementation, in other words.
MODULE = r'''
import nowhere_to_be_found
raise SystemExit("this file must not be run")

NOTHING = "No notes yet"
STEP = """Read on.
<problem> {prompt} </problem> <notes> {memory} </notes> <section> {chunk} </section>
New notes:"""
LAST = """Answer: {prompt}
{memory}"""
LAST_BOXED = """Answer {prompt} from {memory}, in \\boxed{{}}."""
OTHER = f"{NOTHING} {{memory}}"
BROKEN = "{prompt} {memory} {"
'''


def run(*words):
    return CliRunner().invoke(app, ["prompts", "import", *map(str, words)])


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    (folder / "impls").mkdir(parents=True)
    (folder / "impls" / "memory.py").write_text(MODULE)
    (folder / "impls" / "copy.py").write_text(MODULE)
    (folder / "bad.py").write_text("def (:\n")
    (folder / "binary.py").write_bytes(b"\x00\xff" * 9)
    return folder


def test_prompts_are_taken_out_of_a_checkout_and_nothing_of_it_runs(checkout, tmp_path):
    out = tmp_path / "prompts.json"

    done = run(checkout, "--out", out)

    assert done.exit_code == 0, done.output
    prompts = Prompts.from_file(out)
    assert prompts.update.startswith("Read on.\n<problem> {question} </problem>")
    assert prompts.answer == r"Answer {question} from {memory}, in \boxed{}."
    assert json.loads(out.read_text()).keys() == {"update", "answer"}
    assert "memory.py:" in done.output or "copy.py:" in done.output


def test_a_file_with_two_different_prompts_is_named_with_both(checkout, tmp_path):
    file = checkout / "impls" / "memory.py"
    file.write_text(MODULE + 'MORE = "Other: {prompt} {memory} {chunk}"\n')

    done = run(file, "--out", tmp_path / "prompts.json")

    assert done.exit_code == 1
    assert "memory.py:6" in done.output
    assert "memory.py:14" in done.output


@pytest.mark.parametrize("name", ["empty.py", "missing.py"])
def test_where_there_are_none_it_says_so(tmp_path, name):
    (tmp_path / "empty.py").write_text("x = 1\n")

    done = run(tmp_path / name, "--out", tmp_path / "prompts.json")

    assert done.exit_code == 1
    assert done.output.startswith("memagent: error: ")
    assert name in done.output
