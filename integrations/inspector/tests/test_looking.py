import json
import re
from html import unescape

import pytest
from fixed_readers import ChainReader, numbered
from inspecting import (
    at,
    follow,
    place_in,
    remember,
    store_memory,
    store_reading,
    text_of,
    visitor,
    walk,
)
from langgraph.store.base import PutOp
from memory_versions import change, make_version

from memagent_graph import ReadingConfig, create_memagent
from memagent_graph.errors import TransientModelError
from memagent_graph.evidence.places import Unsupported
from memagent_graph.memory.version import root_id
from memagent_graph.rl.recorder import TraceRecorder
from memagent_graph.rl.traces import JSONLinesSink
from memagent_graph.testing import ScriptedChatModel
from memagent_inspector import create_app

LEASE = "The lease.\n\nAnn pays 900 euros.\nBob pays the water.\n"


def test_memories_and_readings_are_listed_apart(page, bank):
    store_memory(bank, "rent", "Ann pays.")
    key = store_reading(bank, "Bob pays.", question="Who pays the water?")

    memories, readings = text_of(page.get("/")), text_of(page.get("/?kind=readings"))

    assert "rent" in memories
    assert "10% read" in memories
    assert key not in memories
    assert "Who pays the water?" in readings
    assert at("/memory", of=key).replace("&", "&amp;") in readings


def test_a_list_comes_in_pages_that_have_each_memory_once(page, bank):
    for number in range(60):
        store_memory(bank, f"memory-{number:03}", "Ann pays.", question=f"Question {number}?")

    assert sorted(walk(page, "/")) == [f"memory-{number:03}" for number in range(60)]


def test_a_search_finds_all_words_in_name_question_document_and_text(page, bank):
    store_memory(bank, "rent", "Ann pays 900 euros.", question="Who pays?")
    store_memory(bank, "water", "Bob pays.", question="Who drinks?")

    for words, found in (
        ("ANN who", {"rent"}),
        ("lease.txt pays", {"rent", "water"}),
        ("water", {"water"}),
        ("ann bob", set()),
    ):
        html = page.get(at("/", words=words)).text
        assert {*re.findall(r"<bdi>(rent|water)</bdi></a>", html)} == found
    assert "Nothing has all these words" in page.get("/?words=nobody").text


@pytest.mark.parametrize("place", [0, 44])  # SQLite's order depends on the second of a write
def test_a_search_looks_at_a_bounded_number_and_can_go_on(page, bank, monkeypatch, place):
    monkeypatch.setattr("memagent_inspector.listing._MOST_SEEN", 20)
    monkeypatch.setattr("memagent_inspector.listing._AT_ONCE", 10)
    for number in range(45):
        text = "Zoe pays." if number == place else "Ann pays."
        store_memory(bank, f"memory-{number:03}", text, question=f"Question {number}?")

    pages = [*follow(page, "/?words=zoe")]

    assert len(pages) == 3
    assert sum(f"memory-{place:03}" in html for html in pages) == 1
    assert "20 memories looked at" in pages[0]


def test_one_bad_memory_spoils_no_list(page, bank, store):
    store_memory(bank, "good", "Ann pays.")
    store_memory(bank, "lost", "Bob pays.", question="Lost?")
    gone = bank.get("lost")
    store.batch([PutOp((*bank.namespace, "versions"), gone.id, None)])
    store.batch([PutOp((*bank.namespace, "heads"), "odd", {"version": 7})])

    html = text_of(page.get("/"))

    assert "good" in html
    assert html.count("memagent memory check --repair") == 2
    assert page.get("/memory?of=lost").status_code == 404


def test_a_memory_is_shown_as_statements_with_their_places(page, bank, documents):
    (documents / "lease.txt").write_text(LEASE)
    told = place_in(documents / "lease.txt", "Ann pays 900 euros.")
    text = "Ann pays 900 euros.\nZoe pays nothing.\nplain"
    marks = (Unsupported("Zoe pays nothing.", ("Zoe",)),)
    (made,) = store_memory(bank, "rent", text, **told, unsupported=marks)

    html = text_of(page.get("/memory?of=rent"))

    assert at("/passage", version=made.id, evidence=0).replace("&", "&") in html
    assert "not in the document: Zoe" in html
    assert "<span>plain</span>" in html
    passage = page.get(at("/passage", version=made.id, evidence=0)).text
    assert "lease.txt:3" in passage
    assert "<mark>Ann pays 900 euros.</mark>" in passage


def test_a_statement_leads_to_the_document_that_brought_it_not_the_last_one(page, bank, documents):
    (documents / "lease.txt").write_text(LEASE)
    (documents / "water.txt").write_text("Bob pays.")
    told = place_in(documents / "lease.txt", "Ann pays 900 euros.")
    first = make_version("Ann pays 900 euros.", **told)
    assert bank.advance("rent", first, expected=None)
    other = place_in(documents / "water.txt", "Bob pays.")
    second = make_version("Ann pays 900 euros.\nBob pays.", 2, before=first, **other)
    second = change(second, evidence=first.memory.evidence + second.memory.evidence)
    assert bank.advance("rent", second, expected=first.id)

    for number, found in enumerate(("Ann pays 900 euros.", "Bob pays.")):
        html = page.get(at("/passage", version=second.id, evidence=number)).text
        assert f"<mark>{found}</mark>" in html


def test_a_file_of_a_folder_is_found_by_its_own_digest(page, bank, documents):
    (documents / "lease.txt").write_text(LEASE)
    told = place_in(documents / "lease.txt", "Bob pays the water.", name="contracts/lease.txt")
    parts = ((told["digest"], "contracts/lease.txt"),)
    joined = {**told, "digest": "cd" * 32, "name": "contracts", "parts": parts}
    (made,) = store_memory(bank, "water", "Bob pays the water.", **joined)

    html = page.get(at("/passage", version=made.id, evidence=0)).text

    assert "<mark>Bob pays the water.</mark>" in html


@pytest.mark.parametrize("change", ["other", "gone"])
def test_a_document_that_is_another_or_gone_leaves_the_stored_place(page, bank, documents, change):
    (documents / "lease.txt").write_text(LEASE)
    told = place_in(documents / "lease.txt", "Ann pays 900 euros.")
    (made,) = store_memory(bank, "rent", "Ann pays 900 euros.", **told)
    if change == "other":
        (documents / "lease.txt").write_text(f"Another.\n{'secret ' * 20}")
    else:
        (documents / "lease.txt").unlink()

    html = page.get(at("/passage", version=made.id, evidence=0)).text

    assert "Code points 12 to 31." in html
    assert "lease.txt:3" in html
    assert "secret" not in html


@pytest.mark.parametrize("name", ["../secret.txt", "/{}/secret.txt", "link.txt", ".hidden", "a\0b"])
def test_a_store_cannot_make_the_inspector_open_what_lies_elsewhere(
    page, bank, documents, tmp_path, name
):
    secret = tmp_path / "secret.txt"
    secret.write_text("The secret is 42.")
    (documents / "link.txt").symlink_to(secret)
    (documents / ".hidden").write_text("The secret is 42.")
    told = place_in(secret, "The secret is 42.", name=name.format(tmp_path))
    (made,) = store_memory(bank, "spy", "The secret is 42.", **told)

    html = page.get(at("/passage", version=made.id, evidence=0)).text

    assert "<mark>" not in html


def test_a_history_comes_in_pages_with_what_each_version_changed(page, bank):
    texts = [f"Ann pays {number} euros." for number in range(1, 51)]
    made = store_memory(bank, "rent", *texts)

    pages = [*follow(page, "/history?of=rent")]

    seen = [re.findall(r'name="before" value="(\w+)"', html) for html in pages]
    assert [len(ids) for ids in seen] == [40, 10]
    assert [one for ids in seen for one in ids] == [version.id for version in reversed(made)]
    assert "<del> 49</del><ins> 50</ins>" in pages[0]


def test_what_added_nothing_is_said(page, bank):
    (first,) = store_memory(bank, "rent", "Ann pays.")
    same = change(make_version("Ann pays.", 2, before=first), unchanged=True)
    assert bank.advance("rent", same, expected=first.id)

    assert "Section 2, nothing new" in page.get("/history?of=rent").text
    assert ">Fold: 1 section read, 1 section without news<" in page.get("/reading?of=rent").text


def test_an_export_is_what_import_reads(page, bank, tmp_path):
    store_memory(bank, "rent/2024 <b>", "one", "two")

    answer = page.get(at("/export", of="rent/2024 <b>"))

    assert answer.headers["content-disposition"] == 'attachment; filename="rent-2024--b.jsonl"'
    assert answer.text.splitlines() == bank.export(["rent/2024 <b>"])
    assert json.loads(answer.text.splitlines()[-1])["name"] == "rent/2024 <b>"


def lanes_in(html: str) -> list[str]:
    return re.findall(r'<span class="lane-title">([^<]+)</span>', html)


def test_what_was_skimmed_after_a_folds_last_section_is_in_its_lane(page, store):
    skim = lambda question, memory, section: float(not memory)  # noqa: E731
    config = ReadingConfig(chunk_tokens=40, segments=2, skim=skim)  # each from its second section
    agent = create_memagent(ChainReader(), config=config, store=store)
    agent.invoke({"question": "Where is the dog?", "document": numbered(60)})
    listed = page.get("/?kind=readings").text
    key = unescape(re.search(r'href="/memory\?of=([^"]+)"', listed)[1])

    fold = "1 span skimmed, 1 section read"
    expected = [f"Fold 1: {fold}", f"Fold 2: {fold}", "Merges: 1 merge, 2 spans skimmed"]
    assert lanes_in(page.get(f"/reading?of={key}").text) == expected


def test_many_folds_share_a_lane(page, bank):
    for fold in range(40):
        root = root_id("Who?", f"segment {fold}")
        made = make_version(
            f"memory {fold}", 1, root=root, parent=root, start=25 * fold, end=25 * fold + 25
        )
        bank.append(change(made, id=f"{fold:032}"), owner="wide")

    html = page.get("/reading?of=wide").text

    assert html.count('<div class="lane">') == 1
    assert lanes_in(html) == ["40 folds: 40 sections read"]


def test_news_come_when_there_are_some(page, bank):
    first = make_version("Ann pays.")
    bank.append(first, owner="live")
    html = page.get("/reading?of=live").text
    poll = re.search(r'hx-get="(/reading/news[^"]*)"', html)[1].replace("&amp;", "&")
    assert page.get(poll).status_code == 204

    bank.append(make_version("Ann pays.\nBob too.", 2, before=first), owner="live")

    news = page.get(poll)
    assert news.status_code == 200
    assert "<ins>" in news.text
    assert "Bob too." in news.text
    assert page.get("/reading/news?of=nothing").status_code == 204


def ask(store, **asked):
    agent = create_memagent("extractive", store=store)
    given = {"question": "Who pays the rent?", "document": "Ann Kestrel pays the rent."}
    return agent.invoke({**given, **asked})


def test_the_start_page_is_the_first_list_that_has_something(page, bank, store):
    assert "memagent ask" in page.get("/").text

    remember(store, "ann", "I breed quokkas.")
    assert page.get("/").headers["location"] == "/users"
    ask(store)
    assert page.get("/").headers["location"] == "/?kind=readings"
    store_memory(bank, "rent", "Ann pays.")
    assert "rent" in page.get("/").text


def test_question_and_answer_lead_and_a_search_finds_the_answer(page, bank, store):
    out = ask(store)
    ((key, _),) = bank.list()

    listed = page.get("/?kind=readings").text
    shown = page.get(at("/memory", of=key)).text

    assert out["answer"] == "Ann Kestrel pays the rent."
    assert "<bdi>Who pays the rent?</bdi></a>" in listed
    assert f"Answer:</span> {out['answer']}" in listed
    assert f'<p class="answer" dir="auto">{out["answer"]}</p>' in shown
    assert f'<code class="id">{key}</code>' in shown
    assert out["answer"] in page.get("/?kind=readings&words=kestrel+pays").text
    ask(store, memory_name="rent")
    bank.edit("rent", "Bob pays.")
    assert out["answer"] in page.get("/memory?of=rent").text  # that of before the edit


def test_a_history_shows_the_lines_that_changed_and_sections_without_news_as_one(page, bank):
    stays = [f"Tenant {number} pays." for number in range(20)]
    texts = ["\n".join([*stays, *more]) for more in ([], [], [], [], ["Zoe pays."])]
    made = store_memory(bank, "rent", *texts)

    html = text_of(page.get("/history?of=rent"))

    assert re.findall(r'name="after" value="(\w+)"', html) == [made[n].id for n in (4, 3, 0)]
    assert "Sections 2 to 4, nothing new" in html
    assert re.search(r"<ins>\s*Zoe pays.</ins>", html)
    assert html.count("Tenant 7 pays.") == 1  # by the first section


def test_the_cost_of_readings_is_added_up(page, store):
    assert "Nothing has been answered" in page.get("/costs").text
    first, again = ask(store), ask(store)
    other = ask(store, question="Who is Ann?", memory_name="ann")

    html = page.get("/costs").text

    calls = sum(out["usage"]["calls"] for out in (first, again, other))
    sums = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>", html))
    assert (sums["Answers"], sums["Model calls"]) == ("3", str(calls))
    assert "Who pays the rent?" in html
    assert "Who is Ann?" in html


def test_recorded_calls_are_shown_with_their_prompts_and_what_failed(store, tmp_path):
    file = tmp_path / "calls.jsonl"
    model = ScriptedChatModel(TransientModelError("Slow."), "- Ann <b>signed</b>.", "\\boxed{Ann}")
    agent = create_memagent(model, config=ReadingConfig(retry_interval=0.01))
    recorder = TraceRecorder(JSONLinesSink(str(file)))
    asked = {"question": "Who signed?", "document": LEASE}
    agent.invoke(asked, recorder.config(rollout="request-17"))

    with visitor(create_app(store, recorded=[file])) as page:
        listed = text_of(page.get("/calls"))
        shown = page.get(at("/calls/of", of="request-17")).text

    assert "request-17" in listed
    assert "3 calls" in listed
    assert "1 failed" in listed
    assert "Slow." in shown
    assert "- Ann &lt;b&gt;signed&lt;/b&gt;." in shown
    assert shown.count("Ann pays 900 euros.") >= 2  # in the prompts of both attempts


def test_without_recorded_calls_the_page_says_how_they_are_recorded(page):
    assert "memagent inspect --calls" in page.get("/calls").text
