"""What all distributions have in common; `make test-release` builds and installs them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import yaml

import memagent_graph

ROOT = Path(__file__).parents[1]
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
THEIRS = [
    tomllib.loads(file.read_text("utf-8"))["project"]
    for file in sorted(ROOT.glob("integrations/*/pyproject.toml"))
]


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


def test_make_install_takes_an_extra_that_is_an_integration_from_this_clone():
    extras = OURS["optional-dependencies"]
    ours = {name for name, needs in extras.items() if re.match(r"memagent-(?!graph)", needs[0])}
    named = {name: re.split(r"[^\w-]", extras[name][0])[0] for name in ours}
    folders = {
        project["name"]: file.parent.relative_to(ROOT).as_posix()
        for project, file in zip(
            THEIRS, sorted(ROOT.glob("integrations/*/pyproject.toml")), strict=True
        )
    }

    command = ["make", "--dry-run", "install", f"EXTRAS=documents,{','.join(ours)}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)

    last = done.stdout.partition(" --editable '.[documents,")[2].replace("\\\n", " ")
    core = {folders["memagent-http"]}
    named_folders = {folders[name] for name in named.values()}
    assert set(re.findall(r"--editable (\S+)", last)) == named_folders | core


def test_every_command_of_an_integration_is_known_when_it_is_not_installed():
    from memagent_graph.cli.app import _OPTIONAL

    group = "memagent_graph.commands"
    commands = {name for one in THEIRS for name in one.get("entry-points", {}).get(group, {})}

    assert commands == set(_OPTIONAL) <= OURS["optional-dependencies"].keys()


def test_the_workflows_test_every_python_that_is_promised():
    promised = set(re.findall(r"Python :: (3\.\d+)", "\n".join(OURS["classifiers"])))
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text("utf-8"))["jobs"]

    for name in ("quick", "windows"):
        assert set(jobs[name]["strategy"]["matrix"]["python"]) == promised


def test_forms_and_workflows_are_yaml_that_says_what_it_is():
    files = [*ROOT.glob(".github/**/*.yml")]

    found = {file.name: yaml.safe_load(file.read_text("utf-8")) for file in files}

    assert {"ci.yml", "docs.yml", "publish.yml", "dependabot.yml", "bug.yml"} <= found.keys()
    assert found["publish.yml"]["jobs"]["publish"]["permissions"] == {"id-token": "write"}


def test_every_target_that_a_workflow_makes_is_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    workflows = [file.read_text("utf-8") for file in ROOT.glob(".github/workflows/*.yml")]

    made = {name for text in workflows for name in re.findall(r"\bmake ([a-z-]+)", text)}

    assert {"dist", "docs-version", "quick"} <= made <= targets


def test_the_site_is_published_for_main_and_tags_by_steps_that_are_pinned():
    workflow = yaml.safe_load((ROOT / ".github/workflows/docs.yml").read_text("utf-8"))
    (job,) = workflow["jobs"].values()
    checkout, *others = job["steps"]
    actions = [step["uses"] for step in job["steps"] if "uses" in step]

    assert workflow[True] == {"push": {"branches": ["main"], "tags": ["v*"]}}  # "on", in YAML 1.1
    assert workflow["permissions"] == {}
    assert job["permissions"] == {"contents": "write"}
    assert checkout["with"]["persist-credentials"] is False
    assert [step for step in others if "TOKEN" in step.get("env", {})] == [others[-1]]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", action) for action in actions)
    assert OURS["urls"]["Documentation"].startswith("https://")
