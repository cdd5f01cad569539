"""Guides in docs/ run as they stand and print what they show; what can be configured is listed."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from servers.openai_server import OpenAIServer

from memagent_graph import ReadingConfig
from memagent_graph.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = (
    "citations",
    "costs",
    "edit-memory",
    "handling-errors",
    "how-it-works",
    "how-to-read",
    "many",
    "node",
    "resuming",
)
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", GUIDES)
def test_the_code_of_a_guide_prints_what_the_guide_shows(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEMAGENT_MODEL", raising=False)
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # where LangGraph looks up annotations
    blocks = BLOCK.findall((DOCS / f"{name}.md").read_text("utf-8"))

    printed = []
    for language, text in blocks:
        if language == "python":
            exec(compile(text, name, "exec", dont_inherit=True), vars(module))
            printed.append(capsys.readouterr().out)
    shown = [text for language, text in blocks if language == "text"]

    assert printed
    assert [out for out in printed if out] == shown


def test_a_client_of_ones_own_model_asks_as_the_tutorial_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("novel.txt").write_text("The harbour belongs to Ann.")
    blocks = BLOCK.findall((DOCS / "own-model.md").read_text("utf-8"))
    (code,) = [text for language, text in blocks if language == "python"]
    server = OpenAIServer(lambda body: "Ann." if "belongs to Ann" in str(body["messages"]) else "?")
    for name, value in {"URL": server.base_url, "KEY": "none", "MODEL": "any"}.items():
        monkeypatch.setenv(name, value)

    try:
        exec(compile(code, "own-model", "exec", dont_inherit=True), {})
    finally:
        server.close()

    assert capsys.readouterr().out == "Ann.\n"


CODE = [*ROOT.glob("memagent_graph/**/*.py"), *ROOT.glob("integrations/*/memagent_*/**/*.py")]
READ = re.compile(
    r'(?:environ\.get\(|environ\[|envvar=|_variable\()"([A-Z_]+)"|"(MEMAGENT_[A-Z_]+)"'
)


def rows(section: str) -> list[list[str]]:
    """The cells of a table of configuration.md, without its head."""
    page = (DOCS / "configuration.md").read_text("utf-8")
    lines = page.partition(f"## {section}\n")[2].partition("\n## ")[0].splitlines()
    table = [line for line in lines if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_each_field_of_the_config_is_listed_with_its_default_and_its_option():
    listed = {
        name.strip("`"): (option.strip("`"), ast.literal_eval(default.strip("`")))
        for name, option, default, _ in rows("ReadingConfig")
    }
    ask = typer.main.get_command(app).commands["ask"]
    options = {name for each in ask.params for name in (*each.opts, *each.secondary_opts)}

    assert {name: default for name, (_, default) in listed.items()} == {
        name: field.default for name, field in ReadingConfig.model_fields.items()
    }
    for name, (option, _) in listed.items():
        own = "--" + name.replace("_", "-")
        assert (
            option in {own, own.replace("--", "--no-")} & options if option else own not in options
        )


def test_each_environment_variable_that_the_code_reads_is_listed_and_no_other_of_ours():
    read = {one or other for file in CODE for one, other in READ.findall(file.read_text("utf-8"))}
    names = " ".join(
        f"{name} {about} {default}" for name, about, default in rows("Environment variables")
    )

    listed = set(re.findall(r"`\$?(%?[A-Z][A-Z_]+%?)", names))
    conversion = {name for name in listed if name.startswith("MEMAGENT_CONVERSION_")}

    assert len(conversion) == 3  # these are put together from the limits' names
    assert read - {name.strip("%") for name in listed} == set()
    assert {name for name in listed if name.startswith("MEMAGENT_")} - conversion - read == set()
