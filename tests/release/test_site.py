"""The site that `make docs` builds: strictly, with every public name, and without a broken link."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import public_api
import pytest
import typer
from release.packages import ROOT

import memagent_graph
from memagent_graph.cli.app import app

pytestmark = pytest.mark.release

LOADING = {"link": "href", "script": "src", "img": "src", "iframe": "src"}


class Page(HTMLParser):
    """A page's anchors, its links, and the files that a browser loads for it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.text = file.read_text("utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if address := found.get(LOADING.get(tag, "")):
            self.loaded.add(address)


page_of = cache(Page)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return out


def resolves(page: Path, address: str) -> bool:
    """Whether a link of a page leads to a file, and to an anchor if it names one."""
    parts = urlsplit(address)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    target = target / "index.html" if target.is_dir() else target
    anchor = unquote(parts.fragment)
    return target.is_file() and (not anchor or anchor in page_of(target).ids)


def test_every_page_of_the_folder_is_on_the_site(site):
    names = {page.stem for page in (ROOT / "docs").glob("*.md")}

    assert names
    assert names == {name for name in names if (site / name / "index.html").is_file()}


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


def test_every_public_name_is_on_the_page_of_its_module(site):
    for module in public_api.MODULES:
        own = import_module(module)
        names = getattr(own, "__all__", None) or public_api.own(own)
        if names:
            ids = page_of(site / "python" / module / "index.html").ids
            assert {f"{module}.{name}" for name in names} <= ids


def test_every_method_is_there_too_also_the_synchronous_one_beside_a_coroutine(site):
    ids = page_of(site / "python" / "memagent_graph" / "index.html").ids

    for owner in (memagent_graph.ConversationMemory, memagent_graph.MemoryBank):
        own = {name for name, it in vars(owner).items() if inspect.isfunction(it)}
        public = {name for name in own if not name.startswith("_")}
        assert {f"memagent_graph.{owner.__name__}.{name}" for name in public} <= ids


def test_every_command_is_on_the_page_of_the_command_line(site):
    command = typer.main.get_command(app)
    page = page_of(site / "command-line" / "index.html")

    words = {f"memagent-{name}" for name in command.commands}

    assert {"memagent-memory", "memagent-serve"} <= words <= page.ids
    assert "memagent-memory-forget" in page.ids
    assert "--show-memory" in page.text
