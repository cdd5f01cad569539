"""What the command line says of itself, on a terminal of 80 columns."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from memagent_graph.cli.app import app

BARE = """
import importlib.metadata as metadata, sys
found = metadata.entry_points()
metadata.entry_points = lambda **_: metadata.EntryPoints()
from memagent_graph.cli import main
sys.argv = ["memagent", *sys.argv[1:]]
main()
"""


def commands(group, *names):
    """All commands below a group, each with the words that call it."""
    yield names, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *names, name)


ALL = dict(commands(typer.main.get_command(app)))


def told(*words):
    return CliRunner().invoke(app, words, env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output


def test_the_first_page_lists_each_command_with_a_whole_sentence():
    page = told("--help")

    listed = page.partition("Commands:\n")[2].splitlines()
    assert len(listed) >= 9
    assert all(line.endswith(".") and "..." not in line for line in listed)
    assert len(page.splitlines()) < 24


@pytest.mark.slow
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_each_page_fits_80_columns_and_its_help_texts_are_sentences(words):
    page = told(*words, "--help")

    assert max(map(len, page.splitlines())) <= 80
    assert "**" not in page
    for parameter in ALL[words].params:
        text = getattr(parameter, "help", None) or ""
        assert text[:1].isupper() or text.startswith(("-", "`")), (parameter.name, text)
        assert text.rstrip().endswith((".", ")", "]")), (parameter.name, text)


@pytest.mark.slow
def test_a_command_that_is_not_installed_says_what_to_install():
    command = [sys.executable, "-c", BARE, "serve", "--port", "8080"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == (
        "memagent: error: the command 'serve' needs: pip install \"memagent-graph[serve]\"\n"
    )
