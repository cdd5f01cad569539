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
    modules_in_ing,
    participles,
    run_figures,
    single_importers,
    static_figures,
)

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
    "modules in -ing": modules_in_ing,
    "functions named by participles": participles,
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
