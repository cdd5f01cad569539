"""Pages run as they stand and print what they show; what can be configured is listed."""

import ast
import re
import shlex
from itertools import groupby
from pathlib import Path

import pytest
import typer
from snippets import run, snippets

from memagent_graph import ReadingConfig
from memagent_graph.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md"), *ROOT.glob("integrations/*/README.md")])
ELSEWHERE = {
    "README.md": "begins with files that a shell makes: tests/docs/test_readme.py",
    "docs/chatbot.md": "is a script that is talked to: tests/docs/test_readme.py",
    "docs/server.md": "needs its server: integrations/openai-server/tests",
    "integrations/openai-server/README.md": "likewise",
    "integrations/ray/README.md": "needs a cluster: integrations/ray/tests",
}
"""Pages whose code other tests run, and why."""
VLLM = "memagent_graph.models.vllm"
"""A snippet that imports it needs an environment of its own: tests/models/test_vllm.py."""
SLOW = {f"docs/{one}.md" for one in ("conversations", "evaluation", "memory", "models", "training")}
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES if snippets(page)]
OWN = [name for name in NAMES if name not in ELSEWHERE]
HERE = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in OWN]


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_the_code_of_a_page_runs_alone_and_prints_what_it_shows(name, instead, monkeypatch, capsys):
    found = [each for each in snippets(ROOT / name) if VLLM not in each[0]]

    printed = run(Path(name).stem, [instead(code) for code, _ in found], monkeypatch, capsys)

    assert printed == [shown for _, shown in found]


SHELL = re.compile(r"^```(?:sh|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ENDS = "();<>|&\n"
"""What ends the words of a command."""


def typed(page):
    """The words of each `memagent` command in the shell snippets of a page."""
    for block in SHELL.findall(page.read_text("utf-8")):
        text = re.sub(r"\\\n|(?:^| +)# .*", "", block, flags=re.MULTILINE)
        words = shlex.shlex(text, posix=True, punctuation_chars=ENDS)
        words.whitespace, words.commenters, words.whitespace_split = " \t", "", True
        for ends, command in groupby(words, key=lambda word: set(word) <= set(ENDS)):
            name, *rest = command
            if not ends and name == "memagent":
                yield rest


COMMANDS = [words for page in PAGES for words in typed(page)]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_command_line_knows_each_command_of_a_page(words):
    command = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    context = command.context_class(command, info_name=command.name)

    _, left, _ = command.make_parser(context).parse_args(words)

    assert not left


CODE = [*ROOT.glob("memagent_graph/**/*.py"), *ROOT.glob("integrations/*/memagent_*/**/*.py")]
READ = re.compile(
    r'(?:environ\.get\(|environ\[|envvar=|_variable\()"([A-Z_]+)"|"(MEMAGENT_[A-Z_]+)"'
)


def rows(section: str) -> list[list[str]]:
    page = (DOCS / "configuration.md").read_text("utf-8")
    lines = page.partition(f"## {section}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_each_field_of_the_config_is_listed_with_its_default():
    fields = rows("ReadingConfig")
    listed = {one[0].strip("`"): ast.literal_eval(one[1].strip("`")) for one in fields}

    assert listed == {name: field.default for name, field in ReadingConfig.model_fields.items()}


def test_each_environment_variable_that_the_code_reads_is_listed_and_no_other_of_ours():
    read = {one or other for file in CODE for one, other in READ.findall(file.read_text("utf-8"))}
    names = " ".join(" ".join(row) for row in rows("Environment variables"))

    listed = set(re.findall(r"`\$?(%?[A-Z][A-Z_]+%?)", names))
    conversion = {name for name in listed if name.startswith("MEMAGENT_CONVERSION_")}

    assert len(conversion) == 3  # these are put together from the limits' names
    assert read - {name.strip("%") for name in listed} == set()
    assert {name for name in listed if name.startswith("MEMAGENT_")} - conversion - read == set()
