import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from servers.warm_python import COMMAND_LINE, warm_python

PYTHON = warm_python(*COMMAND_LINE)
EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("where", ["sqlite", "redis"])
def test_three_processes_share_a_memory(where, request):
    places = [request.getfixturevalue("redis").url] if where == "redis" else []

    done = PYTHON.run([sys.executable, EXAMPLES / "shared_memory.py", *places], check=True)

    lines = done.stdout.splitlines()
    assert "other agent: 1 call" in lines, done
    assert any(line.startswith("other agent: The Marguerite reached Hull") for line in lines)
    chunk = "follower: chunk 1: The Marguerite left Bergen"
    assert any(line.startswith(chunk) for line in lines), done
    assert any("+ The Marguerite reached Hull" in line for line in lines)


def shown(example, *arguments, **environment):
    command = [sys.executable, EXAMPLES / example, *arguments]
    return PYTHON.run(command, env={**os.environ, **environment}, check=True).stdout


def test_a_node_reads_within_an_existing_graph():
    assert "ninety days of notice" in shown("node_in_graph.py").splitlines()[-1]


def test_the_rag_chain_finds_the_second_hop_only_after_the_change():
    before, _, after = shown("replace_rag.py").partition("after:")

    assert "Trondheim" in after
    assert "Trondheim" not in before


def test_an_answer_is_shown_with_links_to_its_sources(tmp_path):
    file = tmp_path / "lease notes.txt"
    file.write_text("It rained.\n\nThe lease was signed by \x1b]52;c;aGk=\x07Mr. Fox.\n")
    asked = ["cited_answers.py", "Who signed the lease?", tmp_path]
    answer, place = "The lease was signed by ]52;c;aGk=Mr. Fox.", f"{tmp_path.name}/{file.name}:3"

    plain = shown(*asked)
    on_terminal = shown(*asked, FORCE_COLOR="1", TERM="xterm-256color")
    # What it asks without arguments, but for the pictures: to read their text takes half a minute.
    pictures = shutil.ignore_patterns("*.png", "*.svg")
    shutil.copytree(EXAMPLES.parent / "docs", tmp_path / "here" / "docs", ignore=pictures)
    (tmp_path / "here" / "examples").mkdir()
    own = shown(shutil.copy(EXAMPLES / "cited_answers.py", tmp_path / "here" / "examples"))

    assert plain.splitlines() == [answer, f"[1] {place}  {answer}"]
    address, name = re.escape(file.as_uri()), re.escape(place)
    assert re.search(rf"\x1b\]8;[^;]*;{address}\x1b\\{name}\x1b\]8;;\x1b\\", on_terminal)
    assert "\x1b]52" not in on_terminal
    assert re.search(r"^\[1\] docs/[\w-]+\.md:\d+  ", own, re.MULTILINE)


def test_contracts_are_reviewed_question_by_question(tmp_path):
    (tmp_path / "lease.txt").write_text("The tenant is Elk Ltd.\nThe rent is 80 euros a month.\n")

    made_up, own = shown("review_contracts.py"), shown("review_contracts.py", tmp_path)

    assert "hare.txt: How much is the rent?  The rent is 750 euros a month.  (line 1)" in made_up
    assert "The rent is 80 euros a month.  (line 2)" in own


def test_a_code_base_is_asked(tmp_path):
    (tmp_path / "lamp.py").write_text("def dim(lamp):\n    raise LampError('too dark already')\n")

    assert "errors.py:" in shown("ask_code.py")
    assert "lamp.py:1" in shown("ask_code.py", "Which error is raised: too dark?", tmp_path)


def test_papers_are_digested_in_branches():
    lines = shown("research_digest.py").splitlines()

    assert len(lines) == 3
    assert any("salt.txt" in line and "salt slows the rust" in line for line in lines)


def test_a_chat_remembers_across_restarts(tmp_path):
    def chat(*lines, user="ann"):
        command, said = [sys.executable, EXAMPLES / "chat.py", user], "\n".join([*lines, "", ""])
        env = {**os.environ, "MEMAGENT_STORE": str(tmp_path / "memories.sqlite")}
        done = PYTHON.run(command, input=said, env=env, check=True)
        return done.stdout

    assert "nothing" in chat("My sister Edda breeds goats in Husum.", "Bye.")
    assert "My sister Edda breeds goats in Husum." in chat("Hello!")
    assert "Edda" not in chat("Hello!", user="bob")


def test_the_notebook_runs_and_shows_the_memory_after_each_chunk():
    notebook = nbformat.read(EXAMPLES / "memory_chunk_by_chunk.ipynb", as_version=4)

    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()

    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output.get("text", "") for cell in cells for output in cell.outputs]
    assert any("chunk 1" in text for text in shown)
    assert any("Trondheim" in text for text in shown)


def test_each_example_begins_with_its_command_and_is_listed_for_whom_it_is():
    listed = (EXAMPLES / "README.md").read_text("utf-8")

    for file in EXAMPLES.glob("*.py"):
        assert file.read_text("utf-8").startswith(f'"""python examples/{file.name}')
        assert f"[{file.name}]({file.name})" in listed
    for config in EXAMPLES.glob("*/langgraph.json"):
        folder = config.parent.name
        command = f"cd examples/{folder} && langgraph dev"
        assert (config.parent / "graph.py").read_text("utf-8").startswith(f'"""{command}')
        assert f"[{folder}/]({folder}/graph.py)" in listed
