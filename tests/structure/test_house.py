"""The package's shape gets no worse: each figure stays below its ceiling, which only falls."""

from __future__ import annotations

import pytest
from servers.redis_server import RedisServer
from structure.house import (
    CEILINGS,
    circles,
    class_names,
    modules_in_ing,
    participles,
    run_figures,
    single_importers,
    static_figures,
)

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
