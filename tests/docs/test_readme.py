from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from servers.openai_server import OpenAIServer
from snippets import run, snippets

README = Path(__file__).parents[2] / "README.md"
DOCS = README.with_name("docs")
RAG = DOCS / "replacing-rag.md"
NAMES = (
    "replacing-rag",
    "chatbot",
    "private-memories",
    "background-folding",
    "coming-from",
)


HOME = "https://github.com/memagent-graph/memagent-graph/blob/main/"


def blocks_of(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def links_of(page):
    pattern = re.compile(r"\]\(([^)#]+)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
    return [one or other for one, other in pattern.findall(page.read_text("utf-8"))]


def write_the_files_of_the_first_commands():
    first, _ = blocks_of(README, "sh")
    *writes, asks = first.partition("cat > ")[2].strip().splitlines()
    subprocess.run(["bash", "-c", "\n".join(["cat > " + writes[0], *writes[1:]])], check=True)
    return asks


@pytest.mark.slow
def test_the_first_commands_of_the_readme_print_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *words = shlex.split(write_the_files_of_the_first_commands())
    environment = {**os.environ, "MEMAGENT_STORE": "none", "MEMAGENT_MODEL": "extractive"}

    done = subprocess.run(
        [sys.executable, "-m", "memagent_graph", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    (shown,) = blocks_of(README, "text")
    assert name == "memagent"
    assert done.stdout.startswith(shown)


def test_the_code_of_the_readme_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_the_files_of_the_first_commands()

    shown = run("readme", [code for code, _ in snippets(README)], monkeypatch, capsys)

    first, node, retriever, tool, chatbot = shown
    assert first.startswith("The lease was signed by Ann Kestrel on 3 May 2024.\n")
    assert "'finding': 'The lease was signed by Ann Kestrel" in node
    assert "lives in Rue Morgue" in retriever
    assert "lease.txt:2" in tool
    assert "My sister Edda breeds goats in Husum." in chatbot


@pytest.mark.slow
def test_the_chatbot_of_the_tutorial_remembers_what_it_was_told_in_another_thread(tmp_path):
    def reply(body):
        text = str(body["messages"])
        if "You keep the notes" in text:
            return "2026-03-05: Ann moved to Berlin with her cat Minou."
        return "In Berlin." if "cat Minou." in text and "Where" in text else "How nice."

    ((code, _),) = snippets(DOCS / "chatbot.md")
    (tmp_path / "chatbot.py").write_text(code, "utf-8")
    server = OpenAIServer(reply)

    def talk(thread, said):
        env = os.environ | {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "none"}
        command = [sys.executable, "chatbot.py", "ann", thread]
        done = subprocess.run(
            command, input=said, cwd=tmp_path, env=env, text=True, capture_output=True, check=True
        )
        return done.stdout.splitlines()

    try:
        first = talk("monday", "I moved to Berlin, with my cat Minou.\n")
        second = talk("friday", "Where does my cat live?\n")
    finally:
        server.close()

    assert len(code.splitlines()) <= 40
    assert first == ["What I know of you: nothing yet", "How nice."]
    assert second[0].endswith("Ann moved to Berlin with her cat Minou.")
    assert second[1] == "In Berlin."


@pytest.mark.parametrize(
    "page", [README, *(DOCS / f"{name}.md" for name in NAMES)], ids=lambda page: page.stem
)
def test_the_files_that_a_page_links_to_are_there(page):
    links = links_of(page)
    ours = [link.removeprefix(HOME) for link in links if link.startswith(HOME)]
    beside = [link for link in links if not link.startswith(("http://", "https://"))]

    assert ours or beside
    assert all((README.parent / link).exists() for link in ours)
    assert all((page.parent / link).exists() for link in beside)


def test_links_of_the_readme_lead_somewhere_on_the_page_of_a_package_index():
    used = set(re.findall(r"\]\[([^\]]+)\]", README.read_text("utf-8")))
    defined = set(re.findall(r"^\[([^\]]+)\]: ", README.read_text("utf-8"), re.MULTILINE))

    assert used == defined
    assert all(link.startswith("https://") for link in links_of(README))
