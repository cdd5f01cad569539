import asyncio
import re

import pytest
from inspecting import TOKEN, at, store_memory, visitor
from starlette.exceptions import HTTPException
from starlette.requests import Request

from memagent_graph.errors import ConfigurationError
from memagent_inspector import create_app
from memagent_inspector.door import form_of

CHANGES = ("/edit", "/rollback", "/branch", "/forget", "/user/forget", "/login")


def test_a_page_of_another_site_can_change_nothing(page, bank):
    (before,) = store_memory(bank, "lease", "Ann pays.")
    form = {"of": "lease", "seen": before.id, "text": "Bob pays."}

    for origin in ("https://evil.example", "null", "", "http://127.0.0.1:3000", "file://"):
        for path in CHANGES:
            assert page.post(path, data=form, headers={"origin": origin}).status_code == 403
    without = visitor(page.app, headers={})
    assert without.post("/edit", data=form).status_code == 403
    assert bank.get("lease").text == "Ann pays."

    assert page.post("/edit", data=form).status_code == 303
    assert bank.get("lease").text == "Bob pays."


def test_a_page_of_another_site_can_only_link_here(page):
    other = {"sec-fetch-site": "cross-site"}
    near = {"sec-fetch-site": "same-site", "sec-fetch-dest": "iframe"}
    link = {**other, "sec-fetch-dest": "document"}

    assert page.get("/", headers=other).status_code == 403
    assert page.get("/", headers=near).status_code == 403
    assert page.get("/", headers={"origin": "https://evil.example"}).status_code == 403
    assert page.get("/", headers=link).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_rebound_name_is_refused_without_a_token(page, host):
    answer = page.get("/", headers={"host": host, "origin": f"http://{host}"})

    assert answer.status_code == 421


def test_names_of_this_machine_are_served(store):
    with visitor(create_app(store), headers={}) as client:
        for host in ("localhost:8765", "127.0.0.1", "[::1]:8765", "LOCALHOST"):
            assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "GET", "POST"])
@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", "GET, HEAD"),
        ("/edit", "GET, HEAD, POST"),
        ("/branch", "POST"),
        ("/assets/icon.svg", "GET, HEAD"),
    ],
)
def test_a_refused_method_is_answered_with_all_that_the_page_has(page, method, path, allowed):
    answer = page.request(method, path)

    assert (answer.status_code == 405) == (method not in allowed)
    assert answer.headers.get("allow") == (None if method in allowed else allowed)


@pytest.mark.parametrize("path", ["/", "/memory?of=x", "/assets/htmx.min.js", "/nowhere", "/edit"])
def test_every_answer_forbids_scripts_styles_frames_and_hosts_of_others(page, path):
    headers = page.get(path).headers

    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert path.startswith("/assets") or headers["cache-control"] == "no-store"


def test_no_page_has_a_script_or_style_of_its_own(page, bank):
    store_memory(bank, "lease", "Ann pays.", "Ann pays 900 euros.")

    for path in ("/", *(at(f"/{name}", of="lease") for name in ("memory", "edit", "reading"))):
        html = page.get(path).text
        assert not re.search(r"<script(?![^>]* src=\"/)|<style|\sstyle=|\son\w+=|javascript:", html)
        assert not re.search(r"(?:src|href|hx-get)=\"(?:https?:)?//", html)


def test_with_a_token_a_visitor_has_to_give_it(store, bank):
    store_memory(bank, "lease", "Ann pays.")
    with visitor(create_app(store, token=TOKEN), "http://inspector.example") as client:
        asked = client.get("/memory?of=lease")
        assert (asked.status_code, "Ann" in asked.text) == (401, False)
        wrong = client.post("/login", data={"token": "another"})
        assert (wrong.status_code, wrong.headers.get("set-cookie")) == (401, None)

        right = client.post("/login", data={"token": TOKEN, "next": "/memory?of=lease"})

        assert (right.status_code, right.headers["location"]) == (303, "/memory?of=lease")
        cookie = right.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert TOKEN not in cookie
        assert "Ann pays." in client.get("/memory?of=lease").text
    with visitor(create_app(store, token=TOKEN)) as client:  # a program sends it in a header
        assert client.get("/", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
        assert client.get("/", headers={"authorization": "Bearer none"}).status_code == 401


def test_a_cookie_of_another_token_is_none(store):
    with visitor(create_app(store, token=TOKEN)) as client:
        client.post("/login", data={"token": TOKEN})
        cookies = dict(client.cookies)
    with visitor(create_app(store, token=TOKEN[::-1]), cookies=cookies) as client:
        assert client.get("/").status_code == 401


def test_tokens_cannot_be_tried_without_end(store):
    with visitor(create_app(store, token=TOKEN)) as client:
        for _ in range(10):
            assert client.post("/login", data={"token": "guess"}).status_code == 401
        assert client.post("/login", data={"token": TOKEN}).status_code == 429
        assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 401


def test_tokens_cannot_be_tried_in_a_header_either(store):
    with visitor(create_app(store, token=TOKEN)) as client:
        for _ in range(10):
            assert client.get("/", headers={"authorization": "Bearer guess"}).status_code == 401
        assert client.get("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 401
        assert client.post("/login", data={"token": TOKEN}).status_code == 429


@pytest.mark.parametrize("place", ["//evil.example", "http://evil.example", "/\\evil.example", "x"])
def test_nobody_is_led_elsewhere_after_the_token(store, place):
    with visitor(create_app(store, token=TOKEN)) as client:
        answer = client.post("/login", data={"token": TOKEN, "next": place})

    assert answer.headers["location"] == "/"


def test_a_short_token_is_refused(store):
    with pytest.raises(ConfigurationError, match="openssl rand"):
        create_app(store, token="short")


def test_forms_are_of_bounded_size(page, bank):
    (before,) = store_memory(bank, "lease", "Ann pays.")
    form = {"of": "lease", "seen": before.id}

    assert page.post("/edit", data={**form, "text": "x" * (1 << 20)}).status_code == 413
    assert page.post("/edit", json=form).status_code == 415
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert page.post("/edit", content=b"of=%ff", headers=kind).status_code == 400
    assert page.post("/edit", content="of=é", headers=kind).status_code == 400
    assert bank.get("lease").text == "Ann pays."


def test_forms_and_addresses_have_few_fields(page, bank):
    (before,) = store_memory(bank, "lease", "Ann pays.")
    more = {f"f{n}": "x" for n in range(50)}
    form = {"of": "lease", "seen": before.id, "text": "Bob pays."}

    assert page.post("/edit", data={**form, **more}).status_code == 400
    assert page.get(at("/memory", of="lease", **more)).status_code == 400
    assert bank.get("lease").text == "Ann pays."


async def test_a_form_that_comes_too_slowly_is_given_up(monkeypatch):
    loop, waited = asyncio.get_running_loop(), 0.0
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + waited)

    async def receive():
        nonlocal waited
        waited += 5
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x", "more_body": waited < 300}

    headers = [(b"content-type", b"application/x-www-form-urlencoded")]
    scope = {"type": "http", "method": "POST", "headers": headers}
    with pytest.raises(HTTPException) as refused:
        await form_of(Request(scope, receive))

    assert refused.value.status_code == 408
    assert waited < 60


@pytest.mark.parametrize(
    ("status", "paths"),
    [
        (400, "/memory /?start=-1 /?start=x /?start=99999999999"),
        (
            404,
            "/passage?version=none&evidence=x /compare?before=a /memory?of=nothing /nowhere /login",
        ),
    ],
)
def test_what_cannot_be_understood_or_found_is_refused(page, status, paths):
    found = {path: page.get(path).status_code for path in paths.split()}
    assert found == dict.fromkeys(found, status)
