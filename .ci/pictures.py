"""Take the four pictures of the inspector that README.md and docs/inspector.md show.

    python .ci/pictures.py DOCUMENT QUESTION [MORE QUESTIONS]

It reads the document with the built-in reader, needs Chromium, and writes to docs/images/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from memagent_graph import ConversationMemory, ReadingConfig, create_memagent
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.stores import open_store

IMAGES = Path(__file__).parents[1] / "docs" / "images"
PORT = 8799
_COLOURS = 64
SIZE = {"width": 1200, "height": 720}


def read(file: str, questions: tuple[str, ...], where: str) -> str:
    """Read into the memory "pequod", for each question, and in segments and rounds.

    A chatbot remembers Ishmael, too. Return the key of the reading in segments.
    """
    with open_store(where) as store:
        asked = {"question": questions[0], "document": Path(file)}
        agent = create_memagent("extractive", store=store)
        agent.invoke({**asked, "memory_name": "pequod"})
        agent.invoke({"questions": [*questions], "document": Path(file)})
        known = {key for key, _ in MemoryBank(store).list()}
        config = ReadingConfig(segments=4, rounds=2, skim="lexical")
        create_memagent("extractive", config=config, store=store).invoke(asked)
        memory = ConversationMemory(store=store)
        for thread, said in (
            ("manhattan", "Call me Ishmael."),
            ("inn", "I sleep beside Queequeg."),
        ):
            memory.save([("human", said)], user="ishmael", thread=thread)
        users = memory.users()
        users.edit("ishmael", users.get("ishmael").text.replace("sleep", "slept"), by="melville")
        return next(key for key, _ in MemoryBank(store).list() if key not in known)


def take(page: Page, path: str, name: str, *, opened: int | None = None) -> None:
    """One picture, of a page as it is when its passage is open."""
    page.goto(f"http://127.0.0.1:{PORT}{path}")
    page.locator("main").wait_for()
    if opened is not None:
        page.locator(".statement").nth(opened).click()
        page.locator("mark").wait_for()
    file = IMAGES / name
    page.screenshot(path=str(file))
    Image.open(file).convert("RGB").quantize(_COLOURS).save(file, optimize=True)


def main(document: str, *questions: str) -> None:
    """Read, serve, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(document, folder)
        os.chdir(folder)
        where = f"{folder}/memories.sqlite"
        key = read(Path(document).name, questions, where)
        code = "from memagent_inspector.command import app; app()"
        words = ["--store", where, "--root", folder, "--port", str(PORT)]
        served = subprocess.Popen([sys.executable, "-c", code, *words])  # noqa: S603 - our own
        try:
            _wait()
            with sync_playwright() as playwright:
                found = shutil.which("chromium-headless-shell") or shutil.which("chromium")
                browser = playwright.chromium.launch(executable_path=found)
                light = browser.new_page(viewport=SIZE, color_scheme="light")
                take(light, "/memory?of=pequod", "inspector-memory.png", opened=0)
                take(light, "/?kind=readings", "inspector-readings.png")
                take(light, "/user?of=ishmael", "inspector-person.png")
                dark = browser.new_page(viewport=SIZE, color_scheme="dark")
                take(dark, f"/reading?{urlencode({'of': key})}", "inspector-reading.png")
        finally:
            served.terminate()
            served.wait()


def _wait() -> None:
    for _ in range(300):
        try:
            urlopen(f"http://127.0.0.1:{PORT}/").close()
        except OSError:
            time.sleep(0.1)
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
