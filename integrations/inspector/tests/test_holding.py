from __future__ import annotations

import re

import pytest
from gated import QUESTION, reading
from inspecting import at, text_of
from servers.redis_server import wait_until

from memagent_graph.errors import MemoryConflictError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_hold_lapses(monkeypatch):
    monkeypatch.setattr("memagent_inspector.pages.holding._SECONDS", 3600.0)


def field(html: str, name: str) -> str:
    return re.search(rf'name="{name}" value="([^"]*)"', html)[1]


def begun(bank, sections: int = 1):
    """The reading that is under way, once it has read so many sections."""
    wait_until(lambda: any(fold.step >= sections for fold in bank.under_way()), "the reading")
    return bank.under_way()[0].memory


def pause(page, bank, reader, memory):
    """Pause a reading by its page; the id of the hold, and the page's answer when it waits."""
    answer = page.post("/hold", data={"of": memory})
    hold = answer.headers["location"].partition("hold=")[2]

    def waits() -> bool:
        reader.open_if_it_waits()  # what is being read ends first
        return all(fold.held for fold in bank.under_way(memory))

    wait_until(waits, "the pause")
    return hold, page.get(answer.headers["location"]).text


def edit(page, html, text):
    path = re.search(r'href="(/edit[^"]*)"', html)[1].replace("&amp;", "&")
    form = page.get(path).text
    data = {name: field(form, name) for name in ("of", "seen", "hold")}
    return page.post("/edit", data={**data, "text": text}), data


def test_a_reading_is_listed_paused_edited_and_reads_on_from_the_edit(page, bank, store):
    with reading(store) as reader:
        reader.open(1)
        memory = begun(bank)
        listed = text_of(page.get("/under-way"))
        assert memory in listed
        assert QUESTION in listed
        assert "section 1 of about" in listed
        hold, html = pause(page, bank, reader, memory)
        assert "Paused. It waits as long as this page is open." in html
        read = len(reader.memories)

        answer, _ = edit(page, html, "Ann said so.")

        assert answer.headers["location"] == at("/reading", of=memory, hold=hold)
        assert "Ann said so." in page.get(answer.headers["location"]).text
        assert page.post("/release", data={"of": memory}).status_code == 303
        wait_until(lambda: len(reader.memories) > read, "the next section")
        assert reader.memories[read] == "Ann said so."
    assert "Nothing is being read now" in page.get("/under-way").text


def test_a_reading_that_has_a_name_is_paused_by_it(page, bank, store):
    with reading(store, memory_name="numbers") as reader:
        reader.open(1)
        begun(bank)
        _, html = pause(page, bank, reader, "numbers")
        edit(page, html, "Ann said so.")
        page.post("/release", data={"of": "numbers"})

    assert "Ann said so." in {version.text for version in bank.history("numbers")}


def test_an_open_page_renews_its_hold_and_no_other_does(page, bank, store):
    with reading(store) as reader:
        reader.open(1)
        memory = begun(bank)
        hold, _ = pause(page, bank, reader, memory)
        beat = bank.held(memory).beat

        other = page.post("/hold/renew", data={"of": memory, "hold": "another"})
        assert bank.held(memory).beat == beat
        assert "Paused by" in other.text
        state = field(page.get(at("/reading", of=memory, hold=hold)).text, "state")
        same = page.post("/hold/renew", data={"of": memory, "hold": hold, "state": state})

        assert bank.held(memory).beat == beat + 1
        assert same.status_code == 204
        assert page.post("/hold", data={"of": memory}).status_code == 409
        bank.release(memory)
        gone = page.post("/hold/renew", data={"of": memory, "hold": hold, "state": state})
        assert "It is no longer paused" in gone.text


def test_the_second_of_two_who_edit_a_paused_reading_is_told(page, bank, store):
    with reading(store) as reader:
        reader.open(1)
        memory = begun(bank)
        _, html = pause(page, bank, reader, memory)
        _, data = edit(page, html, "Ann said so.")

        late = page.post("/edit", data={**data, "text": "Bob said so."})

        assert late.status_code == 409
        assert "Somebody changed this memory" in late.text
        assert "\nBob said so.</textarea>" in late.text
        data |= {"seen": field(late.text, "seen"), "text": "Bob said so."}
        assert page.post("/edit", data=data).status_code == 303
        page.post("/release", data={"of": memory})
        late = page.post("/edit", data=data)
        assert (late.status_code, "no longer paused" in late.text) == (409, True)
        assert "\nBob said so.</textarea>" in late.text


def test_an_older_text_can_be_gone_back_to_in_a_paused_reading(page, bank, store):
    with reading(store) as reader:
        reader.open(2)
        memory = begun(bank, 2)
        _, html = pause(page, bank, reader, memory)
        path = re.search(r'href="(/edit[^"]*)"', html)[1].replace("&amp;", "&")

        form = page.get(path).text

        older = re.findall(r'href="(/edit[^"]*start=[^"]*)"', form)
        assert older
        first = page.get(older[-1].replace("&amp;", "&")).text
        assert field(first, "seen") == field(form, "seen")
        text = bank.get(re.search(r"start=(\w+)", older[-1])[1]).text
        assert f"\n{text}</textarea>" in text_of(page.get(older[-1].replace("&amp;", "&")))


def test_a_finished_reading_that_was_edited_is_answered_from_the_edit(page, bank, store):
    with reading(store) as reader:
        reader.open()
        wait_until(lambda: reader.out, "the answer")
    (key,) = [name for name, _ in bank.list()]
    seen = field(page.get(at("/edit", of=key)).text, "seen")
    page.post("/edit", data={"of": key, "seen": seen, "text": "Ann said so."})

    with reading(store) as again:
        again.open()
        wait_until(lambda: again.out, "the answer")

    assert again.memories == []
    assert again.out["memory"] == "Ann said so."
    with pytest.raises(MemoryConflictError):
        bank.edit(seen, "late", hold=bank.hold(key, "ann"))
