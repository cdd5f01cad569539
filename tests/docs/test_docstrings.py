"""The examples in docstrings run as they stand and print what they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import memagent_graph

PACKAGE = Path(memagent_graph.__file__).parent
FILES = sorted(file for file in PACKAGE.rglob("*.py") if ">>> " in file.read_text("utf-8"))
RECORDS = {"MemoryVersion", "Result"}
"""What calls return."""


def examples(file):
    """The docstrings of a module with examples in them."""
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts)
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [found for found in finder.find(import_module(name), globs={}) if found.examples]


@pytest.mark.parametrize("name", sorted({*memagent_graph.__all__, "MemAgentMiddleware"} - RECORDS))
def test_each_name_that_is_called_shows_how(name):
    assert ">>> " in getattr(memagent_graph, name).__doc__


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=[pytest.mark.slow] * (file.parent.name == "rl")) for file in FILES],
    ids=lambda file: file.relative_to(PACKAGE).as_posix(),
)
def test_the_examples_of_a_module_run_from_an_empty_file(file, instead):
    for found in examples(file):
        found.globs = {"__name__": "example"}
        for each in found.examples:
            each.source = instead(each.source)
        told = []
        failed, _ = doctest.DocTestRunner().run(found, out=told.append)
        assert not failed, "".join(told)
