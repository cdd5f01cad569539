"""The site that `make docs` builds: strictly, with every public name, and without a broken link."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer
from release.packages import ROOT

from memagent_graph.cli.app import app

pytestmark = pytest.mark.release

LOADING = {"link": "href", "script": "src", "img": "src", "iframe": "src"}


class Page(HTMLParser):
    """A page's anchors and names in tables, its links, and what a browser loads for it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.names: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.text = file.read_text("utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        self.names |= {found[name] for name in ("id", "title") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        names = found.get("rel") in {"canonical", "next", "prev"}  # a page that is not loaded
        if (address := found.get(LOADING.get(tag, ""))) and not names:
            self.loaded.add(address)


page_of = cache(Page)


def git(*words: str, folder: Path) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def released(tmp_path_factory) -> Path:
    """A clone in which `make docs-version` has added a release to the branch of the site."""
    folder = tmp_path_factory.mktemp("released")
    ours = git("ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT).splitlines()
    for name in ours:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    git("init", "--quiet", "--initial-branch", "main", folder=folder)
    git("add", "--all", folder=folder)
    git("commit", "--quiet", "--message", "a release", folder=folder)
    venv = Path(sys.executable).parents[1]
    recipe = ["make", "docs-version", "VERSION=0.1", "ALIAS=latest", f"VENV={venv}"]
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_COMMITTER_NAME": "a"}
    mail = {"GIT_AUTHOR_EMAIL": "a@example.com", "GIT_COMMITTER_EMAIL": "a@example.com"}

    command = [*recipe, "--old-file", f"{venv}/.installed-docs"]
    env, options = {**os.environ, **identity, **mail}, {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=folder, env=env, check=False, **options)

    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def site(released, tmp_path_factory) -> Path:
    """The pages of that release: built as by `make docs`, and a warning is an error."""
    place = tmp_path_factory.mktemp("site") / "all"
    git("worktree", "add", "--quiet", str(place), "gh-pages", folder=released)
    return place / "0.1"


def resolves(page: Path, address: str) -> bool:
    """Whether a link of a page leads to a file, and to an anchor if it names one."""
    parts = urlsplit(address)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    anchor = unquote(parts.fragment)
    return target.is_file() and (not anchor or anchor in page_of(target).ids)


def names_of(module: str, lines: str) -> Iterator[str]:
    """The names of a module in public_api.txt: `module.Class`, `module.Class.method`."""
    owner = module
    for indent, name in re.findall(r"^( *)(?:class )?(\w+)", lines, re.MULTILINE):
        if not indent:
            owner = f"{module}.{name}"
            yield owner
        elif name != "__init__":  # its arguments are those of the class
            yield f"{owner}.{name}"


def test_every_internal_link_leads_somewhere(site):
    # The page for addresses that are not there has links from the root of a host.
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    links = [(page, link) for page in pages for link in page_of(page).links | page_of(page).loaded]
    ours = [(page, link) for page, link in links if not re.match(r"[a-z]+:", link)]

    assert len(ours) > 500
    assert not [(str(page), link) for page, link in ours if not resolves(page, link)]


def test_every_link_to_the_repository_leads_to_a_file(site):
    home = "https://github.com/memagent-graph/memagent-graph/blob/main/"
    links = {link for page in site.rglob("*.html") for link in page_of(page).links}
    paths = [urlsplit(link.removeprefix(home)).path for link in links if link.startswith(home)]

    assert "integrations/lm-eval/README.md" in paths
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_a_page_loads_nothing_from_another_host(site):
    loaded = {address for page in site.rglob("*.html") for address in page_of(page).loaded}

    assert not [address for address in loaded if urlsplit(address).netloc]


def test_every_public_name_is_on_the_page_of_its_module_with_its_methods_and_fields(site):
    listed = (ROOT / "tests/public_api.txt").read_text("utf-8").split("# ")[1:]
    modules = [module.split("\n", 1) for module in listed]
    names = {name: list(names_of(name, lines)) for name, lines in modules if lines.strip()}

    pages = {name: page_of(site / "python" / name / "index.html") for name in names}

    assert "memagent_graph.ConversationMemory.load" in names["memagent_graph"]
    assert {name: set(all_of_it) - pages[name].names for name, all_of_it in names.items()} == {
        name: set() for name in names
    }
    assert "memagent_graph.MemAgentMiddleware" in pages["memagent_graph"].names


def test_every_command_is_on_the_page_of_the_command_line(site):
    command = typer.main.get_command(app)
    page = page_of(site / "command-line" / "index.html")

    words = {f"memagent-{name}" for name in command.commands}

    assert {"memagent-memory", "memagent-serve"} <= words <= page.ids
    assert "memagent-memory-forget" in page.ids
    assert "--show-memory" in page.text


def test_a_release_is_one_more_version_of_the_site_and_its_default(site):
    versions = json.loads((site.parent / "versions.json").read_text("utf-8"))
    start = (site / "index.html").read_text("utf-8")

    assert [(one["version"], one["aliases"]) for one in versions] == [("0.1", ["latest"])]
    assert "latest/" in (site.parent / "index.html").read_text("utf-8")
    assert 'rel="canonical" href="https://memagent-graph.github.io/memagent-graph/0.1' in start
    assert '"provider": "mike"' in start
