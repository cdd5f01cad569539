"""A headless Chromium, and pages with all that it noticed while it loaded them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The first is Debian's, without a window's own pages, which take a fifth of the time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Playwright itself turns off the sandbox, the first-run pages and background requests.
# Names of sites lead to this machine, so that a test can be one.
_OPTIONS = ("--disable-gpu", "--disable-sync", "--host-resolver-rules=MAP *.example 127.0.0.1")


@dataclass(frozen=True)
class Visit:
    """A page that was opened, with what the browser noticed.

    Attributes:
        page: the page, loaded.
        requests: the URLs that it asked for, itself first.
        complaints: console messages and uncaught errors.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def open(self, file: Path) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(file.as_uri())


@pytest.fixture(scope="module")  # while Playwright runs, no other test can call asyncio.run
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    executable = _executable()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_OPTIONS)
        yield browser
        browser.close()


def _executable() -> str:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        message = "Browser tests need Chromium: install it, or name its executable in CHROMIUM."
        raise FileNotFoundError(message)
    return found


@pytest.fixture
def visit(browser):
    """Opens a file in a window of its own; options are those of Playwright's `new_context`."""
    with ExitStack() as contexts:

        def visit(file: Path, **options) -> Visit:
            context = contexts.enter_context(browser.new_context(**options))
            visit = Visit(context.new_page())
            visit.open(file)
            return visit

        yield visit
