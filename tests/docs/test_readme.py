import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from servers.warm_python import COMMAND_LINE, warm_python
from snippets import run, snippets

README = Path(__file__).parents[2] / "README.md"
DOCS = README.with_name("docs")


def blocks_of(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def links_of(page):
    pattern = re.compile(r"\]\(([^)#]+)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
    return [one or other for one, other in pattern.findall(page.read_text("utf-8"))]


def write_the_files_of_the_first_commands():
    _, _, commands = blocks_of(README, "sh")
    *writes, asks = commands.partition("cat > ")[2].strip().splitlines()
    subprocess.run(["bash", "-c", "\n".join(["cat > " + writes[0], *writes[1:]])], check=True)
    return asks


def ask(words):
    environment = {**os.environ, "MEMAGENT_STORE": "none", "MEMAGENT_MODEL": "extractive"}
    command = [sys.executable, "-m", "memagent_graph", *words]
    return warm_python(*COMMAND_LINE).run(command, env=environment, check=True).stdout


@pytest.mark.slow
def test_make_ask_prints_what_the_readme_shows(tmp_path, monkeypatch):
    """The numbers differ, with the version of LangGraph and the machine."""
    monkeypatch.chdir(tmp_path)
    makefile = README.with_name("Makefile").read_text("utf-8")
    (question,) = re.findall(r"^QUESTION \?= (.+)$", makefile, re.MULTILINE)
    site = Path(sysconfig.get_paths()["purelib"])
    for name in ("langgraph", "langchain_core"):  # without bytecode, in which nothing is found
        shutil.copytree(site / name, name, ignore=shutil.ignore_patterns("__pycache__"))

    printed = ask(["ask", question, "langgraph", "langchain_core"])

    shown, _ = blocks_of(README, "text")
    assert "	$(BIN)/memagent ask" in makefile.partition("\nask:")[2].splitlines()[1]
    assert re.sub(r"[\d.,]+", "0", printed) == re.sub(r"[\d.,]+", "0", shown)


@pytest.mark.slow
def test_the_first_commands_of_the_readme_print_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, *words = shlex.split(write_the_files_of_the_first_commands())

    printed = ask(words)

    _, shown = blocks_of(README, "text")
    assert name == "memagent"
    assert printed.startswith(shown)


def test_the_code_of_the_readme_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_the_files_of_the_first_commands()

    shown = run("readme", [code for code, _ in snippets(README)], monkeypatch, capsys)

    first, node, retriever, chatbot = shown
    assert first.startswith("The lease was signed by Ann Kestrel on 3 May 2024.\n")
    assert "'finding': 'The lease was signed by Ann Kestrel" in node
    assert "lives in Rue Morgue" in retriever
    day, *remembered = chatbot.splitlines()
    assert re.fullmatch(r"\d+ \w+ \d{4}", day)
    assert remembered == ["My sister Edda breeds goats in Husum.", "I moved to Berlin in May."]


@pytest.mark.slow
def test_the_chatbot_of_the_tutorial_remembers_another_thread(tmp_path, openai_server):
    def reply(body):
        text = str(body["messages"])
        if "You keep the notes" in text:
            return "2026-03-05: Ann moved to Berlin with her cat Minou."
        return "In Berlin." if "cat Minou." in text and "Where" in text else "How nice."

    ((code, _),) = snippets(DOCS / "chatbot.md")
    (tmp_path / "chatbot.py").write_text(code, "utf-8")
    openai_server.reply = reply

    def talk(thread, said):
        env = os.environ | {"OPENAI_BASE_URL": openai_server.base_url, "OPENAI_API_KEY": "none"}
        command = [sys.executable, "chatbot.py", "ann", thread]
        python = warm_python(*COMMAND_LINE)
        done = python.run(command, input=said, cwd=tmp_path, env=env, check=True)
        return done.stdout.splitlines()

    first = talk("monday", "I moved to Berlin, with my cat Minou.\n")
    second = talk("friday", "Where does my cat live?\n")

    assert len(code.splitlines()) <= 40
    assert first == ["What I know of you: nothing yet", "How nice."]
    assert second[0].endswith("Ann moved to Berlin with her cat Minou.")
    assert second[1] == "In Berlin."


def test_links_of_the_readme_lead_somewhere_on_the_page_of_a_package_index():
    used = set(re.findall(r"\]\[([^\]]+)\]", README.read_text("utf-8")))
    defined = set(re.findall(r"^\[([^\]]+)\]: ", README.read_text("utf-8"), re.MULTILINE))

    assert used == defined
    assert all(link.startswith("https://") for link in links_of(README))
