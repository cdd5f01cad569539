"""What a page of another origin can do to our servers, tried in a real browser: nothing."""

import json
import os
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from servers.http_process import http_process
from servers.openai_server import OpenAIServer

from memagent_graph.memory.stores import open_store

pytestmark = pytest.mark.browser

ATTACK = (Path(__file__).parent / "attack.js").read_text()
QUESTION = "When does the vault open?"
SAID = {"role": "user", "content": QUESTION}
ACCEPT = {"accept": "application/json, text/event-stream"}


def call(method: str, **params) -> dict:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


READ = call("tools/call", name="read", arguments={"question": QUESTION, "source": "books"})
CLIENT = {"capabilities": {}, "clientInfo": {"name": "page", "version": "1"}}
BEGIN = call("initialize", protocolVersion="2025-06-18", **CLIENT)
BODIES = {
    "/v1/chat/completions": {"model": "small", "messages": [SAID], "user": "page"},
    "/v1/responses": {"model": "small", "input": QUESTION},
}


@dataclass(frozen=True)
class Served:
    """A server of ours, the model behind it, and the file of its memories."""

    url: str
    model: OpenAIServer
    store: Path

    def untouched(self) -> bool:
        with open_store(str(self.store)) as store:
            return not self.model.requests and not store.search((), limit=10)


@contextmanager
def serving(folder: Path, command: str, *options: object):
    """`memagent serve` or `memagent mcp`, as a user starts it who has no keys."""
    model, store = OpenAIServer(lambda _: "Nothing was found."), folder / "memories.sqlite"
    words = ["-m", "memagent_graph", command, "--model", "openai:small", "--store", store]
    words += ["--base-url", model.base_url, *options]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEMAGENT_")}
    env = {**kept, "OPENAI_API_KEY": "none"}
    with http_process(*words, log=folder / "log", env=env) as (url, _):
        yield Served(url, model, store)
    model.close()


@pytest.fixture(scope="module")
def site():
    """A web site with one empty page; its URL."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>page</title>")

        def log_message(self, *_) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://page.example:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def mcp(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("The vault opens at 6:40.")
    with serving(tmp_path, "mcp", "--root", tmp_path / "books") as served:
        yield served


@pytest.fixture
def attack(browser, site):
    """Let a page of another site try all that it can; how each attempt ended, and the statuses."""

    def attack(url: str, body: dict) -> tuple[dict[str, object], list[int]]:
        with browser.new_context() as context:
            page = context.new_page()
            page.goto(site)
            statuses = []
            page.on(
                "response",
                lambda response: statuses.append(response.status) if url in response.url else None,
            )
            ends = page.evaluate(f"it => ({ATTACK})(it)", {"url": url, "body": json.dumps(body)})
            page.wait_for_load_state("networkidle")  # beacons are sent after the page has gone on
            return ends, statuses

    return attack


def check_refused(ends: dict[str, object], statuses: list[int]) -> None:
    assert len(ends) > 20
    assert len(statuses) > 5  # these did reach the server; of others the browser does not tell
    assert {status // 100 for status in statuses} == {4}
    readable = {name: end for name, end in ends.items() if end not in ("failed", "sent", "true")}
    assert readable == {}
    assert ends["socket"] == ends["image"] == ends["json"] == "failed"


@pytest.mark.parametrize("path", BODIES)
def test_a_page_of_another_site_reaches_nothing_of_the_openai_server(tmp_path, attack, path):
    with serving(tmp_path, "serve") as served:
        ends, statuses = attack(f"{served.url}{path}", BODIES[path])

        check_refused(ends, statuses)
        assert served.untouched()
        # What the page sent would have done what it was to do.
        assert httpx.post(f"{served.url}{path}", json=BODIES[path], timeout=240).is_success
        assert not served.untouched()


def test_a_page_that_is_allowed_reaches_it(tmp_path, attack, site):
    path = "/v1/chat/completions"
    with serving(tmp_path, "serve", "--cors-origin", site) as served:
        ends, _ = attack(f"{served.url}{path}", BODIES[path])

        assert ends["json"] == ends["blobAsJson"] == 200
        assert len(served.model.requests) >= 2
        assert (ends["text"], ends["blob"]) == (415, 415)


@pytest.mark.parametrize("body", [BEGIN, READ], ids=["initialize", "read"])
def test_a_page_of_another_site_reaches_nothing_of_the_mcp_server(mcp, attack, body):
    ends, statuses = attack(f"{mcp.url}/mcp", body)

    check_refused(ends, statuses)
    assert mcp.untouched()
    with httpx.Client(base_url=mcp.url, headers=ACCEPT, timeout=240) as client:
        begun = client.post("/mcp", json=BEGIN)
        client.headers["mcp-session-id"] = begun.headers["mcp-session-id"]
        client.post("/mcp", json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert client.post("/mcp", json=READ).is_success
    assert not mcp.untouched()


@pytest.mark.parametrize("command", ["serve", "mcp"])
def test_a_name_that_leads_to_this_machine_later_reaches_nothing(tmp_path, browser, command):
    """DNS rebinding: for the browser, page and server are of one origin then."""
    options = ["--root", tmp_path] if command == "mcp" else []
    path, body = ("/mcp", BEGIN) if command == "mcp" else next(iter(BODIES.items()))
    with serving(tmp_path, command, *options) as served, browser.new_context() as context:
        page = context.new_page()
        page.goto(served.url.replace("127.0.0.1", "page.example"))
        status = page.evaluate(
            """([path, body]) => fetch(path, {method: "POST", body, headers: {
                "content-type": "application/json",
                accept: "application/json, text/event-stream"}}).then(found => found.status)""",
            [path, json.dumps(body)],
        )

        assert status in (403, 421)
        assert served.untouched()
