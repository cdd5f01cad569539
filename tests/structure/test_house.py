"""The package's shape gets no worse: each figure stays below its ceiling, which only falls."""

from __future__ import annotations

import re

import pytest
from langgraph.store.memory import InMemoryStore
from servers.redis_server import RedisServer
from structure.house import (
    CEILINGS,
    PACKAGE,
    ROOT,
    circles,
    class_names,
    files_of_a_chunk,
    files_of_a_message,
    public_names,
    run_figures,
    single_importers,
    static_figures,
)

from memagent_graph import ReadingConfig
from memagent_graph.graph.layers import layers_of
from memagent_graph.graph.reading import Reading
from memagent_graph.readers.extractive import ExtractiveReader
from memagent_graph.text.tokens import EstimatingTokenizer

WAYS = {
    "a chunk": lambda: {*files_of_a_chunk()},
    "a version": lambda: {*files_of_a_chunk(InMemoryStore())} - {*files_of_a_chunk()},
    "a message": lambda: {*files_of_a_message(fold=False)},
    "a fold of messages": lambda: {*files_of_a_message(fold=True)},
}
"""What enters the files that CONTRIBUTING.md lists for each way."""
SHOWN = {
    "modules with one importer, in percent": single_importers,
    "import circles, with those of types": circles,
    "class names with several meanings": class_names,
    "other public names with several meanings": public_names,
}
"""What a failure lists."""


@pytest.fixture(scope="module")
def figures(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield {**dict(run_figures(server.url)), **static_figures()}
    finally:
        server.kill()


@pytest.mark.parametrize("name", CEILINGS)
def test_a_figure_of_the_house_stays_below_its_ceiling(name, figures):
    assert figures[name] <= CEILINGS[name].today, SHOWN.get(name, list)()


def test_every_figure_has_a_ceiling_and_a_goal(figures):
    assert figures.keys() == CEILINGS.keys()
    assert all(ceiling.goal <= ceiling.today for ceiling in CEILINGS.values())


def map_of_the_package():
    """Return the sections of the map: the folders, and the ways by name."""
    contributing = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = contributing.partition("\n## Map\n")[2].partition("\n## ")[0]
    folders, *ways = found.split("\n### The way of ")
    return folders, dict(way.split("\n", 1) for way in ways)


def test_the_map_names_every_folder_of_the_package_once():
    folders, _ = map_of_the_package()

    named = re.findall(r"^\| `(\w+)` \| .+ \|$", folders, re.MULTILINE)

    assert sorted(named) == sorted(file.parent.name for file in PACKAGE.glob("*/__init__.py"))


@pytest.mark.parametrize("way", WAYS)
def test_the_map_lists_the_files_that_are_entered_and_no_other(way):
    _, ways = map_of_the_package()
    listed = {*re.findall(r"`([\w/]+\.py)`", ways[way])}

    entered = WAYS[way]()

    assert ways.keys() == WAYS.keys()
    assert (listed - entered, entered - listed) == (set(), set()), "not entered, not listed"


def test_the_picture_and_the_table_of_the_layers_have_them_in_their_order():
    page = (ROOT / "docs" / "how-it-works.md").read_text("utf-8")
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
