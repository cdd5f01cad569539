"""A headless Chromium."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The first is Debian's, without a window's own pages, which take a fifth of the time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
# Playwright itself turns off the sandbox, the first-run pages and background requests.
# Names of sites lead to this machine, so that a test can be one.
_OPTIONS = ("--disable-gpu", "--disable-sync", "--host-resolver-rules=MAP *.example 127.0.0.1")


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
