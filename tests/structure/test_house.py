"""The package's shape gets no worse: each figure stays below its ceiling, which only falls."""

import ast
import re
import subprocess

import pytest
from langgraph.store.memory import InMemoryStore
from servers.redis_server import RedisServer
from structure import house

from memagent_graph import ReadingConfig
from memagent_graph.graph.layers import layers_of
from memagent_graph.graph.reading import Reading
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.text.tokens import EstimatingTokenizer

WAYS = {
    "a chunk": lambda: {*house.files_of_a_chunk()},
    "a version": lambda: {*house.files_of_a_chunk(InMemoryStore())} - {*house.files_of_a_chunk()},
    "a message": lambda: {*house.files_of_a_message(fold=False)},
    "a fold of messages": lambda: {*house.files_of_a_message(fold=True)},
}
"""What enters the files that CONTRIBUTING.md lists for each way."""


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield {**dict(house.run_figures(server.url)), **house.static_figures()}
    finally:
        server.kill()


@pytest.mark.parametrize("name", house.CEILINGS)
def test_a_figure_of_the_house_stays_below_its_ceiling(name, figures):
    assert figures[name] <= house.CEILINGS[name].today, house.SHOWN.get(name, list)()


def test_every_figure_has_a_ceiling_and_a_goal(figures):
    assert figures.keys() == house.CEILINGS.keys()
    assert all(ceiling.goal <= ceiling.today for ceiling in house.CEILINGS.values())


def run_git(*words):
    command = ["git", "-C", house.ROOT, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def ceilings_of(commit):
    tree = ast.parse(run_git("show", f"{commit}:{HOUSE}"))
    (found,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "CEILINGS"
    )
    names = map(ast.literal_eval, found.keys)
    return dict(zip(names, (ast.literal_eval(each.args[0]) for each in found.values), strict=True))


HOUSE = "tests/structure/house.py"


def test_lines_never_rise_and_another_ceiling_only_by_a_commit_that_says_what_it_deleted():
    """From the commit that brought this test on; what is not committed is held by the figures."""
    if run_git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("This is no clone with its whole history: ceilings are not compared.")
    first = run_git("log", "--format=%H", "-S", "def ceilings_of", "--", "tests/structure").split()
    since = [f"{first[-1]}.."] if first else ["--max-count=0"]
    # What was merged was written beside other commits, and is compared where it was merged.
    line = ("log", "--first-parent", "--reverse", "--format=%H")
    commits = run_git(*line, *since, "--", HOUSE).split()
    history = [ceilings_of(commit) for commit in [*first[-1:], *commits]]

    rises = [
        (commit, name, before[name], now[name])
        for commit, before, now in zip(commits, history, history[1:], strict=False)
        for name in now.keys() & before.keys()
        if now[name] > before[name]
    ]

    said = "Raised: "
    assert [rise for rise in rises if rise[1] == "lines"] == []
    assert [
        rise for rise in rises if said not in run_git("log", "-1", "--format=%B", rise[0])
    ] == []


def map_of_the_package():
    contributing = (house.ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = contributing.partition("\n## Map\n")[2].partition("\n## ")[0]
    folders, *ways = found.split("\n### The way of ")
    return folders, dict(way.split("\n", 1) for way in ways)


def test_the_map_names_every_folder_of_the_package_once():
    folders, _ = map_of_the_package()

    named = re.findall(r"^\| `(\w+)` \| .+ \|$", folders, re.MULTILINE)

    assert sorted(named) == sorted(file.parent.name for file in house.PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("way", WAYS)
def test_the_map_lists_the_files_that_are_entered_and_no_other(way):
    _, ways = map_of_the_package()
    listed = {*re.findall(r"`([\w/]+\.py)`", ways[way])}

    entered = WAYS[way]()

    assert ways.keys() == WAYS.keys()
    assert (listed - entered, entered - listed) == (set(), set()), "not entered, not listed"


def test_the_picture_and_the_table_of_the_layers_have_them_in_their_order():
    page = (house.ROOT / "docs" / "how-it-works.md").read_text("utf-8")
    (down,) = re.findall(r"fold, chunk ─▶ (.+) ─▶ model", page)
    (up,) = re.findall(r"update ◀─ (.+) ◀───", page)
    rows = re.findall(r"^\| `?(\w+)`? \|", page.partition("| layer |")[2], re.MULTILINE)
    table = rows[: rows.index("ask") + 1]

    def names(**fields):
        config = ReadingConfig(deadline=1, update_gate=True, **fields)
        reading = Reading("all on", ExtractiveReader(), config, EstimatingTokenizer())
        return [*(layer.name for layer in layers_of(reading)), "ask"]

    assert down.split(" ─▶ ") == up.split(" ◀─ ") == names(skim="lexical")
    assert table == names(skim="lexical")
