"""What all distributions have in common; `make test-release` builds and installs them."""

import re
import tomllib
from pathlib import Path

import yaml

import memagent_graph

ROOT = Path(__file__).parents[2]
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
FILES = sorted(ROOT.glob("integrations/*/pyproject.toml"))
WORKFLOWS = {
    file.name: yaml.safe_load(file.read_text("utf-8")) for file in ROOT.glob(".github/**/*.yml")
}
THEIRS = [tomllib.loads(file.read_text("utf-8"))["project"] for file in FILES]


def test_all_distributions_have_one_version():
    assert {project["version"] for project in THEIRS} == {memagent_graph.__version__}


def test_each_integration_is_an_extra_that_asks_for_this_minor_version():
    major, minor, *_ = memagent_graph.__version__.split(".")
    extras = OURS["optional-dependencies"]

    asked = [one for needs in extras.values() for one in needs if one.startswith("memagent-")]

    bounds = f">={major}.{minor},<{major}.{int(minor) + 1}"
    named = {f"{project['name']}{bounds}" for project in THEIRS}
    core = {f"memagent-http{bounds}"}  # comes with the servers
    assert named - core == {one for one in asked if not one.startswith("memagent-graph[")}
    commands = {"serve", "mcp", "inspect"}
    assert commands | {"ray", "lm-eval", "agent-lightning", "langchain"} <= extras.keys()


def test_every_command_of_an_integration_is_known_when_it_is_not_installed():
    from memagent_graph.cli.app import _OPTIONAL

    group = "memagent_graph.commands"
    commands = {name for one in THEIRS for name in one.get("entry-points", {}).get(group, {})}

    assert commands == set(_OPTIONAL) <= OURS["optional-dependencies"].keys()


def test_the_workflows_test_every_python_that_is_promised():
    promised = set(re.findall(r"Python :: (3\.\d+)", "\n".join(OURS["classifiers"])))
    jobs = WORKFLOWS["ci.yml"]["jobs"]

    for name in ("quick", "windows"):
        assert set(jobs[name]["strategy"]["matrix"]["python"]) == promised
    assert WORKFLOWS["publish.yml"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert {"dependabot.yml", "bug.yml"} <= WORKFLOWS.keys()
