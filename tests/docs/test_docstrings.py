"""The examples in docstrings run as they stand and print what they show."""

import ast
import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "memagent_graph", *sorted(ROOT.glob("integrations/*/memagent_*"))]
FILES = [
    (package, file)
    for package in PACKAGES
    for file in sorted(package.rglob("*.py"))
    if ">>> " in file.read_text("utf-8")
]
RECORDS = {"MemoryVersion", "Result"}
"""What calls return."""


def public(package):
    """The names that a package offers, without importing it: some take seconds."""
    tree = ast.parse((package / "__init__.py").read_text("utf-8"))
    (names,) = (one.value for one in tree.body if ast.unparse(one).startswith("__all__ = "))
    return ast.literal_eval(names)


def shown(package, file):
    kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found = [one for one in ast.parse(file.read_text("utf-8")).body if isinstance(one, kinds)]
    return {(package.name, one.name) for one in found if ">>> " in (ast.get_docstring(one) or "")}


SHOWN = {found for one in FILES for found in shown(*one)}
OFFERED = {(package.name, name) for package in PACKAGES for name in public(package)}
OFFERED |= {("memagent_graph", f"{name}Middleware") for name in ("Approval", "MemAgent")}
CALLED = sorted((package, name) for package, name in OFFERED if name not in RECORDS)


def examples(package, file):
    name = ".".join(file.relative_to(package.parent).with_suffix("").parts)
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [found for found in finder.find(import_module(name), globs={}) if found.examples]


@pytest.mark.parametrize(("package", "name"), CALLED)
def test_each_name_that_is_called_shows_how(package, name):
    assert (package, name) in SHOWN


def here(package, file):
    """A module whose examples run in this process; those of `rl` train."""
    slow = file.parent.name == "rl"
    name = file.relative_to(package.parent).as_posix().removeprefix("memagent_graph/")
    return pytest.param(package, file, id=name, marks=[pytest.mark.slow] * slow)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "file"), [here(*one) for one in FILES if one[0].name != "memagent_ray"]
)
def test_the_examples_of_a_module_run_from_an_empty_file(package, file, instead):
    for found in examples(package, file):
        found.globs = {"__name__": "example"}
        for each in found.examples:
            each.source = instead(each.source)
        told = []
        failed, _ = doctest.DocTestRunner().run(found, out=told.append)
        assert not failed, "".join(told)
