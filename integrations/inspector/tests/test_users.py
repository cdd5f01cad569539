"""Users whom a chatbot remembers: found, looked at, exported, and forgotten after a look."""

import json
import re

import pytest
from inspecting import at, remember, text_of, user_pages, walk
from langchain_core.messages import HumanMessage
from test_hostile import HOSTILE, check

from memagent_graph import ConversationMemory


def test_people_are_listed_apart_from_memories(page, store):
    remember(store, "ann", "I breed quokkas in Hobart.")
    remember(store, "ben/ä?", "I breed hens.")

    html = text_of(page.get("/users"))

    assert re.findall(r"<bdi>([^<]+)</bdi></a>", html) == ["ann", "ben/ä?"]
    assert "I breed hens." in html
    assert "<bdi>ann</bdi>" not in page.get("/").text


def test_nobody_is_said_to_be_remembered(page):
    assert "are listed here" in page.get("/users").text
    assert "has all these words" in page.get("/users?words=ann").text
    assert page.get("/user?of=ann").status_code == 404
    assert page.get("/user/forget?of=ann").status_code == 404


@pytest.mark.slow
def test_a_list_of_people_comes_in_pages_that_have_each_of_them_once(page, store):
    for number in range(60):
        remember(store, f"user-{number:03}", "I am here.")

    assert walk(page, "/users") == [f"user-{number:03}" for number in range(60)]


def test_a_person_is_shown_with_the_messages_that_lines_came_from(page, store):
    users = remember(store, "ann", "I breed quokkas in Hobart.")
    users.edit("ann", "I breed quokkas in Hobart.\nLikes tea.", by="olga")

    html = text_of(page.get("/user?of=ann"))

    line = re.search(r"<details><summary>([^<]+)</summary>(.*?)</details>", html, re.DOTALL)
    assert line[1] == "I breed quokkas in Hobart."
    assert "thread monday" in line[2]
    assert "<p>Likes tea.</p>" in html
    assert "Edited by <bdi>olga</bdi>" in html
    assert re.search(r"<ins>\s*Likes tea.</ins>", html)
    assert "1 message in <bdi>thread monday</bdi>" in html


def test_proposals_are_accepted_and_refused(page, store):
    memory = ConversationMemory("extractive", store=store, approve=True)
    for text in ("I breed emus.", "My PIN is yoghurt.", "I sail."):
        memory.save([HumanMessage(text, id=text)], user="ann", thread="t")
    emus, pin, sail = (one.id for one in memory.proposals("ann"))

    html = text_of(page.get("/user?of=ann"))
    accepted = page.post("/user/decide", data={"of": "ann", "accept": emus})
    refused = page.post("/user/decide", data={"of": "ann", "refuse": pin})
    again = page.post("/user/decide", data={"of": "ann", "accept": pin})
    late = page.post("/user/decide", data={"of": "ann", "accept": sail})
    of_sail, evil = {"of": "ann", "accept": sail}, {"origin": "https://evil.example"}
    foreign = page.post("/user/decide", data=of_sail, headers=evil)

    shown = " ".join(re.findall(r"<ins>([^<]+)</ins>", html))
    assert all(text in shown for text in ("I breed emus.", "My PIN is yoghurt.", "I sail."))
    assert f'name="accept" value="{emus}"' in html
    assert accepted.status_code == refused.status_code == 303
    assert "emus" in memory.load("ann")
    assert "yoghurt" not in page.get("/user?of=ann").text
    assert (again.status_code, late.status_code, foreign.status_code) == (404, 409, 403)
    assert "next turn" in late.text
    assert len(memory.proposals("ann")) == 1


def test_what_is_remembered_is_edited_and_the_second_editor_keeps_the_text(page, store):
    users = remember(store, "ann", "I breed quokkas in Hobart.")
    form = text_of(page.get("/user/edit?of=ann"))
    seen = re.search(r'name="seen" value="(\w+)"', form)[1]
    given = {"of": "ann", "seen": seen}

    stored = page.post("/user/edit", data={**given, "text": "Breeds quokkas."})
    late = page.post("/user/edit", data={**given, "text": "Breeds hens."})

    assert "I breed quokkas in Hobart.</textarea>" in form
    assert (stored.status_code, stored.headers["location"]) == (303, "/user?of=ann")
    assert users.get("ann").text == "Breeds quokkas."
    assert late.status_code == 409
    assert "Breeds hens.</textarea>" in late.text
    assert 'action="/user/edit"' in late.text
    again = re.search(r'name="seen" value="(\w+)"', late.text)[1]
    page.post("/user/edit", data={"of": "ann", "seen": again, "text": "Breeds hens."})
    assert users.get("ann").text == "Breeds hens."
    assert page.get("/user/edit?of=ben").status_code == 404


def test_a_person_is_exported_as_the_command_line_does(page, store):
    users = remember(store, "ann", "I breed quokkas in Hobart.")

    answer = page.get("/user/export?of=ann")

    assert answer.headers["content-disposition"] == 'attachment; filename="ann.jsonl"'
    lines = answer.text.splitlines()
    assert lines == users.export(["ann"])
    assert next(map(json.loads, lines)) == {"user": "ann"}


def test_a_person_is_forgotten_after_a_look_at_what_goes(page, store):
    users = remember(store, "ann", "I breed quokkas in Hobart.", "I like tea.")
    remember(store, "ben", "I breed hens.")
    held = users.held("ann")

    html = text_of(page.get("/user/forget?of=ann"))

    assert f"{held.items} items go, among them 2 versions" in html
    assert "<li><bdi>thread monday</bdi></li>" in html
    assert users.held("ann") == held
    answer = page.post("/user/forget", data={"of": "ann"})
    assert f"{held.items} items deleted" in text_of(answer)
    assert "thread monday" in answer.text
    assert users.held("ann").items == 0
    assert users.names() == ["ben"]
    assert "Forgotten by" in page.get("/user?of=ann").text
    assert "quokkas" not in page.get("/user?of=ann").text


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in HOSTILE if text.isprintable()])
def test_hostile_people_and_messages_are_shown_and_do_nothing(page, store, text):
    remember(store, text, text, thread=text).edit(text, f"{text}\nmore", by=text)

    for path in (*user_pages(text), at("/users", words=text), at("/user", of=f"no {text}")):
        answer = page.get(path)
        assert answer.status_code in {200, 404}, path
        check(answer.text)
    forgotten = page.post("/user/forget", data={"of": text})
    assert forgotten.status_code == 200
    check(forgotten.text)
