"""The page of a memory's facts: what is near a name, when it holds, what is disputed."""

import re

import pytest
from fixed_readers import fact_model
from inspecting import FACTS, at, store_memory, text_of
from langchain_core.messages import HumanMessage
from test_hostile import HOSTILE, check

from memagent_graph import ConversationMemory, Facts
from memagent_graph.evidence.places import Evidence, Unsupported
from memagent_inspector.facts import is_facts


def drawn(html):
    (svg,) = re.findall(r"<svg class=\"graph\".*?</svg>", html, re.DOTALL)
    return re.sub(r"<title>.*?</title>", "", svg)


def names_in(svg):
    return re.findall(r"<tspan class=\"(?:name|past|centre|disputed)\">(.*?)</tspan>", svg)


@pytest.fixture
def facts(bank):
    evidence = (Evidence(FACTS[1], "lease.txt", 3, 0, 5),)
    marks = (Unsupported(FACTS[3], ("Acme",)),)
    store_memory(bank, "lease", "\n".join(FACTS), evidence=evidence, unsupported=marks)


def test_the_neighbourhood_of_a_name_is_drawn_with_two_hops(page, facts):
    html = page.get(at("/facts", of="lease", about="Lease 7")).text

    assert names_in(drawn(html)) == [
        "Lease 7", "900 euros", "950 euros", "Nora Brand", "Acme", "Bo Zorn",
    ]  # fmt: skip
    check(html)


def test_a_date_is_read_as_it_is_written_and_what_is_none_is_said_to_be_none(page, facts):
    named = page.get(at("/facts", of="lease", about="Lease 7", at="15 December 2021")).text
    none = page.get(at("/facts", of="lease", about="Lease 7", at="yesterday")).text

    assert "All facts at 2021-12-15" in named
    assert "950 euros" not in drawn(named)
    assert "This is no date, so all facts are shown." in none
    assert "950 euros" in drawn(none)
    check(none)


@pytest.mark.parametrize(("about", "other"), [("A. Bell", "Anna Bell"), ("Anna Bell", "A. Bell")])
def test_two_names_of_one_thing_are_drawn_with_each_other(page, bank, about, other):
    store_memory(bank, "names", "A. Bell | same as | Anna Bell\nAnna Bell | likes | tea")

    html = page.get(at("/facts", of="names", about=about)).text

    assert names_in(drawn(html)) == [about, other, "tea"]


def test_times_evidence_old_values_marks_and_conflicts_are_listed(page, facts):
    html = text_of(page.get(at("/facts", of="lease")))

    assert re.search(r"since 2020</span>\s*<span class=\"time\">until 2022", html)
    assert re.search(r'href="/passage\?version=\w+&evidence=0#marked">lease.txt:3</a>', html)
    assert "replaces <del>Bo Lund</del>" in html
    assert "not in the document: Acme" in html
    conflicts = html.partition('id="conflicts"')[2].partition("</section>")[0]
    assert "<bdi>here</bdi>, or <bdi>there</bdi>" in conflicts


def test_an_unknown_name_and_a_memory_without_facts_are_said(page, bank, facts):
    store_memory(bank, "notes", "Ann pays the rent.")

    for path in (at("/facts", of="lease", about="Mars"), at("/facts", of="notes")):
        found = page.get(path)
        assert found.status_code == 200
        assert "No fact connects this name" in found.text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_are_shown_and_do_nothing(page, bank, text):
    name = text.replace("|", "").replace("\n", " ")[:290]
    store_memory(bank, "lease", f"{name} | likes | {name} tea\n{name} | likes | coffee")

    html = page.get(at("/facts", of="lease", about=text, at=text)).text

    check(html)
    check(page.get(at("/facts", of="lease")).text)


def test_a_drawing_of_many_facts_has_an_end(page, bank):
    store_memory(bank, "lease", "\n".join(f"A | likes | B{number}" for number in range(500)))

    html = page.get(at("/facts", of="lease", about="A")).text

    assert len(names_in(drawn(html))) == 60
    assert html.count("<tr>") == 501


def test_the_facts_of_a_user_are_shown_with_the_times_of_their_messages(page, store):
    memory = ConversationMemory(fact_model(), store=store, schema=Facts)
    told = {"told_at": "2026-03-05T10:00"}
    said = HumanMessage("I live in Husum.", id="1", additional_kwargs=told)
    memory.save([said], user="ann", thread="monday")

    shown = page.get(at("/user", of="ann")).text
    html = text_of(page.get(at("/user/facts", of="ann")))

    assert "/user/facts?of=ann" in shown
    assert names_in(drawn(html)) == ["user", "Husum"]
    assert "2026-03-05 10:00</time> in <bdi>monday</bdi>" in html
    assert 'href="/user/edit?of=ann"' in html
    check(html)


def test_a_memory_is_one_of_facts_if_each_line_is_one():
    assert is_facts("\n".join(FACTS[2:4]))
    assert not is_facts(f"{FACTS[2]}\nAnna likes tea.")
    assert not is_facts("")
