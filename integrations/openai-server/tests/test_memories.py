"""Memories of users and sessions, when another process edits or forgets them."""

from __future__ import annotations

import httpx
import pytest
from langgraph.store.memory import InMemoryStore

from memagent_graph import MemoryBank

MONDAY = {"x-memagent-session": "monday"}
ASKED = "What does the vault hold?"
TOLD = {"role": "user", "content": f"The vault holds a wren.\n\n{ASKED}"}


@pytest.fixture
def store():
    return InMemoryStore()


@pytest.fixture
def ask(serve, store):
    client = serve(store=store).client(default_headers=MONDAY).chat.completions

    def ask(*messages: dict) -> str:
        said = client.create(model="extractive", messages=messages)
        return said.choices[0].message.content

    return ask


def test_a_session_goes_on_from_an_edit_and_from_nothing_once_it_is_forgotten(store, ask):
    question, bank = {"role": "user", "content": ASKED}, MemoryBank(store)
    ask(TOLD)

    bank.edit("session monday", "The vault holds a robin.")
    assert "robin" in ask(question)
    bank.forget("session monday")

    assert "robin" not in (said := ask(question))
    assert "wren" not in said
    assert not [item for item in store.search((), limit=1000) if "wren" in str(item)]


def test_what_a_forgotten_session_had_read_is_read_again_by_its_successor(store, ask):
    ask(TOLD)
    MemoryBank(store).forget("session monday")
    ask({"role": "user", "content": f"It rained.\n\n{ASKED}"})

    ask(TOLD, {"role": "user", "content": ASKED})

    assert [item for item in store.search((), limit=1000) if "wren" in str(item)]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello."}]}),
        ("/v1/responses", {"input": "Hello."}),
    ],
)
def test_a_users_name_is_of_bounded_length(shared, path, body):
    def ask(user):
        given = {"model": "extractive", **body, "user": user}
        return httpx.post(shared.url + path, timeout=240, json=given)

    assert ask("x" * 512).status_code == 200
    refused = ask("x" * 513)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "user"
