"""What the command line says of itself, on a terminal of 80 columns."""

import subprocess
import sys

import pytest
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


def test_the_first_page_lists_each_command_with_a_whole_sentence():
    env = {"COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    page = CliRunner().invoke(app, ["--help"], env=env).output

    listed = page.partition("Commands:\n")[2].splitlines()
    assert len(listed) >= 9
    assert all(line.endswith(".") and "..." not in line for line in listed)
    assert len(page.splitlines()) < 24


@pytest.mark.slow
def test_a_command_that_is_not_installed_says_what_to_install():
    command = [sys.executable, "-c", BARE, "serve", "--port", "8080"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    needs = "memagent: error: the command 'serve' needs: pip install \"memagent-graph[serve]\"\n"
    assert (done.returncode, done.stderr) == (1, needs)
