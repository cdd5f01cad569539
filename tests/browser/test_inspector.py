"""The inspector in a real browser: a visitor with a keyboard, a small screen, or a colleague."""

import itertools
import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from servers.http_process import http_process

sys.path.insert(0, str(Path(__file__).parents[2] / "integrations" / "inspector" / "tests"))

from inspecting import FACTS, at, pages, place_in, remember, store_memory, store_reading, user_pages
from memory_versions import change, make_version

from memagent_graph import create_memagent
from memagent_graph.evidence.places import Unsupported
from memagent_graph.memory.bank import MemoryBank
from memagent_graph.memory.stores import open_store
from memagent_graph.memory.version import VersionMerge, edit_version

pytestmark = pytest.mark.browser

LEASE = "The lease.\n\nAnn pays 900 euros.\nBob pays the water.\n"
HOSTILE = (
    "</textarea></title><script>document.title='taken'</script><img src=x onerror=alert(1)>\u202e"
)
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
SECONDS = 120
"""For what takes a moment, on a machine that may be busy."""


@contextmanager
def inspecting(folder: Path, store: str, *words: object, **env: str):
    """`memagent inspect` in a process of its own; its URL."""
    env = {**os.environ, "MEMAGENT_STORE_SECONDS": "60", **env}
    words = ("-m", "memagent_graph", "inspect", "--store", store, *words)
    with http_process(*words, log=folder / "log", env=env) as (url, _):
        yield url


@pytest.fixture
def bank(tmp_path):
    with open_store(str(tmp_path / "memories.sqlite")) as store:
        yield MemoryBank(store)


@pytest.fixture
def url(tmp_path, bank):
    with inspecting(tmp_path, str(tmp_path / "memories.sqlite"), "--root", tmp_path) as url:
        yield url


@pytest.fixture
def visit(browser, url):
    """A window of its own on a page of the inspector; no page may complain of anything."""
    complaints = []
    with ExitStack() as contexts:

        def visit(path: str, base: str = url, **options):
            context = contexts.enter_context(browser.new_context(**options))
            context.set_default_timeout(SECONDS * 1000)
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
            page.goto(base + path)
            return page

        hosts: set[str] = set()
        yield visit
    # Chromium itself says of a page that it is a conflict.
    assert [text for text in complaints if "409 (Conflict)" not in text] == []
    assert hosts <= {url.removeprefix("http://")}


def shows(page, text: str):
    page.get_by_text(text).first.wait_for()


def violations(page) -> list[str]:
    """What axe finds against WCAG 2 A and AA on a page, small and large, light and dark."""
    from axe_playwright_python.sync_playwright import Axe

    options = {"runOnly": WCAG, "resultTypes": ["violations"]}
    found = []
    for width, scheme in itertools.product((375, 1920), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for violation in Axe().run(page, options=options).response["violations"]:
            for node in violation["nodes"]:
                said = f"{violation['id']}: {node['html']} {node['failureSummary']}"
                found.append(f"{page.url} at {width}, {scheme}: {said}")
    return found


def test_a_statement_opens_its_passage_and_hides_it_by_keyboard_alone(visit, bank, tmp_path):
    (tmp_path / "lease.txt").write_text(LEASE)
    place = place_in(tmp_path / "lease.txt", "Ann pays 900 euros.")
    store_memory(bank, "rent", "Ann pays 900 euros.", **place)
    page = visit("/")

    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for _ in range(3):  # the search, its button, the first memory
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "rent"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="What it knows").wait_for()
    while page.evaluate("document.activeElement.className") != "statement":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    page.locator("mark").wait_for()
    assert page.locator("mark").text_content() == "Ann pays 900 euros."
    assert "lease.txt:3" in page.locator("figcaption").text_content()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Hide"
    page.keyboard.press("Enter")
    page.locator("mark").wait_for(state="detached")
    assert page.evaluate("document.activeElement.className") == "statement"


@pytest.mark.parametrize(("width", "height"), [(390, 700), (1440, 900)])
def test_a_citation_opens_with_its_marked_words_in_view(visit, bank, tmp_path, width, height):
    line = "Nothing happened on that day, and nobody wrote anything down about the harbour.\n"
    (tmp_path / "lease.txt").write_text(line * 20 + "Ann pays 900 euros.\n" + line * 20)
    place = place_in(tmp_path / "lease.txt", "Ann pays 900 euros.")
    store_memory(bank, "rent", f"{'Somebody pays.' * 30}\n" * 5 + "Ann pays 900 euros.", **place)
    page = visit("/memory?of=rent", viewport={"width": width, "height": height})

    page.locator("a.statement").scroll_into_view_if_needed()
    page.locator("a.statement").click()

    page.locator("mark").wait_for()
    mark, text = (page.locator(one).bounding_box() for one in ("mark", "blockquote"))
    assert max(text["y"], 0) <= mark["y"]
    assert mark["y"] + mark["height"] <= min(text["y"] + text["height"], height)
    assert page.locator("a.statement").get_attribute("aria-expanded") == "true"
    assert page.evaluate("document.activeElement.tagName") == "FIGURE"


def test_a_long_list_and_a_history_of_700_versions_go_on_as_they_are_scrolled(visit, bank, url):
    for number in range(60):
        store_memory(bank, f"memory-{number:03}", "Ann pays.", question=f"Question {number}?")
    store_memory(bank, "long", *(f"Ann pays {number} euros." for number in range(700)))
    page = visit("/")
    assert page.locator(".row").count() == 50

    page.locator(".more").scroll_into_view_if_needed()
    page.locator(".row").nth(60).wait_for()

    page.goto(f"{url}/memory?of=long")
    page.locator(".step").nth(39).wait_for()
    for reached in (79, 119, 159):
        page.locator(".more").scroll_into_view_if_needed()
        page.locator(".step").nth(reached).wait_for()
    assert page.locator(".step").count() < 700


def test_facts_are_followed_by_keyboard_alone_on_a_small_screen(visit, bank):
    store_memory(bank, "lease", "\n".join(FACTS))
    page = visit(at("/facts", of="lease"), viewport={"width": 390, "height": 800})

    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.textContent.includes('Nora Brand')") is False:
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('svg') !== null")
    page.keyboard.press("Enter")

    page.get_by_role("heading", name="Around Nora Brand").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    size = page.locator("svg.graph text").first.evaluate("x => x.getBoundingClientRect().height")
    assert size > 11


def test_every_page_is_accessible(visit, bank, url, tmp_path):
    (tmp_path / "lease.txt").write_text(LEASE)
    place = place_in(tmp_path / "lease.txt", "Ann pays 900 euros.")
    old, new = store_memory(bank, "rent", "Ann pays.", "Ann pays 900 euros.\nZoe pays.", **place)
    doubtful = change(
        make_version("Ann pays 900 euros.\nZoe pays.", 4, before=new, dropped=1, cut=True, **place),
        unsupported=(Unsupported("Zoe pays.", ("Zoe",)),),
        skipped=((200, 300),),
        warnings=("The memory was cut.",),
    )
    bank.append(doubtful, owner="rent")
    again = change(make_version("Bob pays.", 5, before=doubtful), again=True, skipped=((200, 300),))
    same = make_version("Bob pays.", 6, before=again, unchanged=True)
    merged = make_version("All.", made_by=VersionMerge((new.id, same.id)))
    for one in (again, same, edit_version(same, "By hand."), merged):
        bank.append(one, owner="rent")
    store_memory(bank, "facts", "\n".join(FACTS))
    key = store_reading(bank, "Ann pays.")
    asked = {"question": "Who pays?", "document": "Ann Kestrel pays."}
    create_memagent("extractive", store=bank.store).invoke(asked)
    remember(bank.store, "ann", "I breed quokkas.").edit("ann", "By hand.", by="Zoe")
    bank.store.put(bank.heads, "lost", {"version": "gone"})
    page = visit("/")

    found = violations(page)
    for path in (
        *("/?kind=readings", "/?words=nowhere", "/under-way", "/costs", at("/memory", of=key)),
        *(*pages("rent", old, new), *user_pages("ann"), at("/facts", of="facts")),
        at("/memory", of="rent", version=doubtful.id),
        at("/edit", of="rent", version=new.id),
        at("/passage", version=new.id, evidence=0),
    ):
        page.goto(url + path)
        page.locator("main").wait_for()
        if page.locator(".steps").count():
            page.locator(".step").first.wait_for()
        if page.locator("a.statement").count():
            page.locator("a.statement").first.click()
            page.locator("mark").wait_for()
        if page.locator("details").count():
            page.locator("summary").first.click()
        found += violations(page)

    assert found == []


@pytest.mark.parametrize("width", [375, 1920])
def test_no_page_scrolls_sideways_and_hostile_text_does_nothing(visit, bank, url, width):
    words = f"{HOSTILE} {'long' * 80}"
    told = {"question": words, "name": words, "warnings": (words,)}
    old, new = store_memory(bank, words, words, f"{words}\nmore", **told)
    store_memory(bank, "facts", f"{words[:290]} | likes | {words[:290]}\n{words[:290]} | is | big")
    key = store_reading(bank, words, **told)
    asked = {"question": words, "document": f"Ann pays. {words}"}
    create_memagent("extractive", store=bank.store).invoke(asked)
    remember(bank.store, words, words, thread=words).edit(words, words, by=words)
    page = visit("/", viewport={"width": width, "height": 800})

    for path in (
        *("/", "/?kind=readings", "/costs", at("/memory", of=key)),
        *(*pages(words, old, new), *user_pages(words)),
        at("/facts", of="facts", about=words[:290]),
    ):
        page.goto(url + path)
        page.locator("main").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert page.title() != "taken"
        assert page.locator("main script, main img").count() == 0


def test_a_store_that_goes_away_and_comes_back_needs_no_reload(browser, redis, tmp_path):
    with ExitStack() as stack:
        url = stack.enter_context(inspecting(tmp_path, redis.url, MEMAGENT_STORE_SECONDS="1.5"))
        store = stack.enter_context(open_store(redis.url))
        store_memory(MemoryBank(store), "rent", "Ann pays.")
        context = stack.enter_context(browser.new_context())
        context.set_default_timeout(SECONDS * 1000)
        shown, typed, failed = context.new_page(), context.new_page(), context.new_page()
        shown.goto(f"{url}/memory?of=rent")
        typed.goto(f"{url}/edit?of=rent")
        typed.get_by_label("The memory’s text").fill("Bob pays.")

        redis.kill()

        for page in (shown, typed):
            shows(page, "The store does not answer.")
        failed.goto(f"{url}/memory?of=rent")
        assert failed.get_by_role("heading").text_content() == "The store does not answer"
        assert violations(failed) == []
        typed.get_by_role("button", name="Store").click()
        shows(typed, "Nothing was stored")
        assert violations(typed) == []
        assert typed.get_by_label("The memory’s text").input_value() == "Bob pays."

        redis.start()

        shows(shown, "The store is back.")
        failed.get_by_role("heading", name="What it knows").wait_for()
        shows(typed, "The store is back.")
        typed.get_by_role("button", name="Store").click()
        typed.get_by_role("heading", name="What it knows").wait_for()
        shows(typed, "Bob pays.")


def test_the_inspector_itself_comes_back(browser, tmp_path, bank):
    store_memory(bank, "rent", "Ann pays.")
    store = str(tmp_path / "memories.sqlite")
    with browser.new_context() as context:
        context.set_default_timeout(SECONDS * 1000)
        page = context.new_page()
        with inspecting(tmp_path, store) as url:
            page.goto(f"{url}/memory?of=rent")
            shows(page, "Ann pays.")

        shows(page, "The inspector does not answer")
