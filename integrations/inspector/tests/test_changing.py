import re

import pytest
from inspecting import at, store_memory, store_reading, text_of


def seen_in(html: str) -> str:
    return re.search(r'name="seen" value="([^"]+)"', html)[1]


def edit(page, of: str, text: str, seen: str | None = None):
    seen = seen or seen_in(page.get(at("/edit", of=of)).text)
    return page.post("/edit", data={"of": of, "seen": seen, "text": text})


@pytest.fixture(params=["memory", "reading"])
def store_one(bank, request):
    """Stores a memory, or a reading, with these texts, and returns what names it."""

    def store(*texts: str) -> str:
        if request.param == "reading":
            return store_reading(bank, *texts)
        store_memory(bank, "rent", *texts)
        return "rent"

    return store


def test_an_edit_is_a_version_that_follows(page, bank, store_one):
    of = store_one("Ann pays.")

    answer = edit(page, of, "Bob pays.\r\nZoe too.")

    assert (answer.status_code, answer.headers["location"]) == (303, at("/memory", of=of))
    newest, before = bank.history(of)
    assert (newest.text, newest.edited, before.text) == ("Bob pays.\nZoe too.", True, "Ann pays.")


def test_the_second_of_two_editors_is_told_and_keeps_the_text(page, bank, store_one):
    of = store_one("Ann pays.")
    seen = seen_in(page.get(at("/edit", of=of)).text)
    edit(page, of, "Bob pays.", seen)

    answer = edit(page, of, "Zoe pays.", seen)

    assert answer.status_code == 409
    html = text_of(answer)
    assert "Somebody changed this memory" in html
    assert "\nZoe pays.</textarea>" in html
    assert "<ins>Bob</ins>" in html
    assert bank.get(of).text == "Bob pays."
    assert edit(page, of, "Zoe pays.", seen_in(html)).status_code == 303
    assert [version.text for version in bank.history(of)] == ["Zoe pays.", "Bob pays.", "Ann pays."]


def test_a_text_comes_back_as_it_was(page, bank):
    text = "\nfirst is empty\n\n  indented\t<b>&amp;"
    store_memory(bank, "rent", text)

    html = page.get("/edit?of=rent").text

    assert "<textarea" in html
    assert "\n\nfirst is empty\n\n  indented\t&lt;b&gt;&amp;amp;</textarea>" in html


def test_an_older_version_is_gone_back_to(page, bank, store_one):
    of = store_one("one", "two", "three")
    first = bank.history(of)[-1]
    html = page.get(at("/rollback", of=of, to=first.id)).text
    assert "<del>three</del><ins>one</ins>" in html
    form = {"of": of, "seen": seen_in(html), "to": first.id}

    assert page.post("/rollback", data=form).status_code == 303

    assert bank.get(of).text == "one"
    assert (bank.get(of).id == first.id) == (of == "rent")  # a reading gets its text
    late = page.post("/rollback", data=form)
    assert late.status_code == 409
    assert "Somebody changed this memory" in late.text


def test_a_branch_goes_its_own_way(page, bank):
    first, _ = store_memory(bank, "rent", "one", "two")

    answer = page.post("/branch", data={"version": first.id, "name": "rent/older?"})

    assert answer.headers["location"] == at("/memory", of="rent/older?")
    assert page.get(answer.headers["location"]).status_code == 200
    assert bank.get("rent/older?").text == "one"
    taken = page.post("/branch", data={"version": first.id, "name": "rent"})
    assert (taken.status_code, "is taken" in taken.text) == (409, True)


def test_forgetting_shows_first_what_goes(page, bank):
    one, two = store_memory(bank, "rent", "one", "two")
    bank.branch(one.id, "older")
    bank.branch(two.id, "same")
    bank.move_head("same", one.id, expected=two.id)

    html = text_of(page.get("/forget?of=rent"))

    assert "<bdi>rent</bdi> and 0 versions go." in html
    assert "<bdi>same</bdi>: 2 versions" in html
    bank.forget("same")
    html = text_of(page.get("/forget?of=rent"))
    assert "<bdi>rent</bdi> and 1 version go." in html
    assert "<bdi>older</bdi>: 1 version" in html
    assert bank.get("rent").id == two.id
    answer = page.post("/forget", data={"kind": "memory", "what": "rent"})
    assert "1 version deleted" in answer.text
    assert bank.get("older").id == one.id
    assert page.get("/memory?of=rent").status_code == 404


def test_a_document_is_forgotten_in_all_memories(page, bank):
    store_memory(bank, "rent", "one", "two")
    store_memory(bank, "water", "three", question="Water?")
    store_memory(bank, "other", "four", question="Other?", digest="cd" * 32)
    html = text_of(page.get("/forget/document?of=rent"))
    assert "3 versions" in html
    assert {*re.findall(r"<li><bdi>(\w+)</bdi>", html)} == {"rent", "water"}
    what = re.search(r'name="what" value="(\w+)"', html)[1]

    page.post("/forget", data={"kind": "document", "what": what, "name": "lease.txt"})

    assert [name for name, _ in bank.list()] == ["other"]
