"""Whatever a store holds, a page shows it as text."""

import re
from html.parser import HTMLParser

import pytest
from inspecting import at, pages, store_memory
from memory_versions import change, make_version

from memagent_graph.evidence.places import Evidence, Unsupported
from memagent_inspector.rendering import show

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "</textarea><script>alert(1)</script>",
    "</title><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
    "\x1b[31mred\x1b]0;title\x07\x9b2J",
    "invoice \u202etxt.exe\u202c",
    "a" * 5_000,
    "مرحبا بالعالم",
    "%2e%2e/%00?#&=;",
]
OURS = {"script": {"/assets/htmx.min.js", "/assets/inspector.js"}}


class Checked(HTMLParser):
    """Fails at anything in a page that could act and is not ours."""

    def handle_data(self, data):
        if self.get_starttag_text() and not self.get_starttag_text().startswith("<textarea"):
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", data)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        assert tag not in {"iframe", "object", "embed", "style", "base"}
        assert not [name for name in found if name.startswith(("on", "hx-on", "style"))]
        for name in ("src", "href", "action", "hx-get", "hx-post"):
            assert (found.get(name) or "/").startswith(("/", "#")), found
            assert not (found.get(name) or "").startswith("//")
        if tag == "script":
            assert found["src"] in OURS["script"]


def check(html: str) -> None:
    Checked().feed(html)


@pytest.mark.slow
@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_every_field_is_shown_and_does_nothing(page, bank, text):
    line = text.replace("\n", " ")
    told = {
        "question": text,
        "name": text,
        "evidence": (Evidence(line, text, 1, 0, 5, heading=text),),
        "unsupported": (Unsupported(f"{line} too", (text,)),),
        "warnings": (text,),
    }
    old, new = store_memory(bank, text, line, f"{line}\n{line} too", **told)

    paths = [
        *("/", at("/", words=text), at("/history", of=text), at("/reading/news", of=text)),
        *pages(text, old, new),
        *(at("/passage", version=new.id, evidence=0), at("/memory", of=f"no {text}")),
    ]
    for path in paths:
        answer = page.get(path)
        assert answer.status_code in {200, 404}, path
        check(answer.text)
    forgotten = page.post("/forget", data={"kind": "document", "what": "no digest"})
    check(forgotten.text)
    assert forgotten.status_code == 400


@pytest.mark.parametrize("text", [one for one in HOSTILE if one.isprintable() or "\x1b" in one])
def test_hostile_text_is_stored_as_it_was_typed(page, bank, text):
    store_memory(bank, text, "before")
    seen = bank.get(text).id

    answer = page.post("/edit", data={"of": text, "seen": seen, "text": text})

    assert answer.status_code == 303
    assert bank.get(text).text == text
    assert page.get(answer.headers["location"]).status_code == 200


def test_records_that_lie_about_their_numbers_break_no_page(page, bank):
    odd = change(make_version("odd"), length=0, start=-5, end=10**12, step=-1, tokens=-1)
    odd = change(odd, evidence=(Evidence("odd", "a", -3, -10, 10**12),), skipped=((9, -9),))
    assert bank.advance("odd", odd, expected=None)

    for path in ("/", "/memory?of=odd", "/reading?of=odd", "/history?of=odd"):
        assert page.get(path).status_code == 200
    assert page.get(at("/passage", version=odd.id, evidence=0)).status_code == 200


def test_what_utf_8_cannot_write_is_shown_with_a_mark_and_refused_in_an_address(page):
    assert show("\ud800 alone") == "? alone"
    assert page.get("/memory?of=%ED%A0%80").status_code == 400
